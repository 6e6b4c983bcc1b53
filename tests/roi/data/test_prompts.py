"""Prompt files: plain lines, names x templates, and the numbered sets of the CONCH repository."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builders import examples
from histobench.core.errors import HistobenchError
from histobench.roi.data.class_map import read_class_map
from histobench.roi.data.prompts import Prompts, read_prompts

EXAMPLES = Path(__file__).resolve().parents[3] / "example_dataset"
CLASSES = ("ADI", "TUM")
quick = settings(
    max_examples=examples(100),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_example_of_the_documentation_has_one_prompt_per_class() -> None:
    classes = read_class_map(EXAMPLES / "CRC-100K.txt")
    prompts = read_prompts(EXAMPLES / "CRC-100K-Zero_Shot_Prompts.txt", classes)
    assert prompts.of(2) == ("This is a pathology image showing tumor tissue characteristics",)
    assert prompts.templates == ("{}",)
    assert not prompts.is_ensemble
    assert len(prompts.first) == 9


def test_blank_lines_and_comments_are_ignored(tmp_path: Path) -> None:
    text = "\ufeff# prompts\r\n\r\n  fat cells \r\n   # second\r\ntumour, #1 of all\r\n\r\n"
    prompts = read_prompts(write(tmp_path, "p.txt", text), CLASSES)
    assert prompts.first == ("fat cells", "tumour, #1 of all")


@pytest.mark.parametrize("form", ["json", "yaml", "yml"])
@pytest.mark.parametrize("place", ["CLASSNAME", "{}"])
def test_every_name_is_put_into_every_template(tmp_path: Path, form: str, place: str) -> None:
    value = {
        "templates": [f"an image of {place}.", f"{place}, H&E {{stain}}."],
        "classes": {"TUM": ["tumour", "carcinoma"], "ADI": "fat"},
    }
    text = json.dumps(value) if form == "json" else yaml.safe_dump(value)
    prompts = read_prompts(write(tmp_path, f"p.{form}", text), CLASSES)
    assert prompts.texts == (
        (("an image of fat.",), ("fat, H&E {stain}.",)),
        (
            ("an image of tumour.", "an image of carcinoma."),
            ("tumour, H&E {stain}.", "carcinoma, H&E {stain}."),
        ),
    )
    assert prompts.is_ensemble
    assert prompts.first == ("an image of fat.", "an image of tumour.")
    second = prompts.with_template(1)
    assert second.templates == (value["templates"][1],)
    assert second.of(1) == ("tumour, H&E {stain}.", "carcinoma, H&E {stain}.")


def test_numbered_sets_are_read_one_after_the_other(tmp_path: Path) -> None:
    value = {
        "0": {"classnames": {"ADI": ["fat", "adipose"], "TUM": ["tumor"]}, "templates": ["CLASSNAME."]},
        "1": {"classnames": {"ADI": "fat cells", "TUM": "cancer"}, "templates": ["this is CLASSNAME."]},
    }
    prompts = read_prompts(write(tmp_path, "p.json", json.dumps(value)), CLASSES)
    assert prompts.templates == ("CLASSNAME.", "this is CLASSNAME.")
    assert prompts.of(0) == ("fat.", "adipose.", "this is fat cells.")
    assert prompts.of(1) == ("tumor.", "this is cancer.")


def test_templates_alone_use_the_class_names_and_names_alone_are_prompts(tmp_path: Path) -> None:
    only_templates = write(tmp_path, "t.yaml", "templates: [a photo of CLASSNAME]")
    assert read_prompts(only_templates, CLASSES).first == ("a photo of ADI", "a photo of TUM")
    only_names = write(tmp_path, "n.yaml", "TUM: [tumour cells, cancer]\nADI: fat cells")
    assert read_prompts(only_names, CLASSES).of(1) == ("tumour cells", "cancer")


def test_yaml_does_not_turn_class_names_into_truth_values_or_numbers(tmp_path: Path) -> None:
    prompts = read_prompts(write(tmp_path, "p.yaml", "classes: {NO: [none], 1: [one]}"), ("NO", "1"))
    assert prompts.first == ("none", "one")


@pytest.mark.slow
@quick
@given(text=st.text(max_size=80), suffix=st.sampled_from(["txt", "json", "yaml"]))
def test_any_text_is_prompts_or_a_clear_error(tmp_path: Path, text: str, suffix: str) -> None:
    path = tmp_path / f"p.{suffix}"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        prompts = read_prompts(path, CLASSES)
    except HistobenchError as error:
        assert str(path) in str(error)  # noqa: PT017  (an error is one of two right outcomes)
    else:
        assert isinstance(prompts, Prompts)
        assert all(prompts.of(label) for label in range(2))


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("p.txt", "fat\n", "1 prompts for 2 classes"),
        ("p.txt", "fat\n# c\ntumour\nstroma\n", "3 prompts for 2 classes"),
        ("p.json", '{"templates": ["x"', "p.json:1: not valid JSON"),
        (
            "p.json",
            '{"templates": ["an image"], "classes": {"ADI": "a", "TUM": "t"}}',
            "no place for the class",
        ),
        ("p.json", '{"classes": {"ADI": "a", "TUMM": "t"}}', "'TUMM' is not a class; did you mean TUM?"),
        ("p.json", '{"classes": {"ADI": "a"}}', "no prompts for class 'TUM'"),
        ("p.json", '{"classes": {"ADI": "a", "TUM": []}}', "classes.TUM must be a text"),
        ("p.json", '{"classes": {"ADI": "a", "TUM": [3]}}', "classes.TUM must be a text"),
        ("p.json", "[1, 2]", "expected a mapping"),
        ("p.yaml", "classes: [a\n", "p.yaml:2: not valid YAML"),
        ("p.yaml", "classes: just text", "must map each class name"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, name: str, text: str, words: str) -> None:
    with pytest.raises(HistobenchError) as caught:
        read_prompts(write(tmp_path, name, text), CLASSES)
    assert words in str(caught.value)
