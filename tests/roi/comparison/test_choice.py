"""The shortlist: conditions, evidence, and no winner that the data do not name."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import histobench as hb
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.comparison.choice import (
    Candidate,
    Choice,
    Conditions,
    _finding,
    commercial_use,
    read_params,
)
from histobench.roi.encoders.registry import list_encoders


def _results(root: Path, shifts: dict[str, float], datasets: int = 1) -> Path:
    """Results of encoders whose features separate two classes by a shift."""
    tables = []
    for number in range(datasets):
        names = [f"d{number}_{i}.png" for i in range(120)]
        rows = [f"{n},{'ab'[i % 2]},{'train' if i < 60 else 'test'},p{i // 2}" for i, n in enumerate(names)]
        table = root / f"set{number}.csv"
        table.write_text("image_path,label,split,group\n" + "\n".join(rows))
        tables.append((table, names))
    features = []
    for position, (encoder, shift) in enumerate(shifts.items()):
        draw = np.random.default_rng(position)
        images = [name for _, names in tables for name in names]
        labels = np.arange(len(images)) % 2
        values = draw.normal(size=(len(images), 6)) + shift * labels[:, None]
        np.savez(root / f"{encoder}.npz", features=values.astype(np.float32), img_names=np.asarray(images))
        features.append(f"{encoder}={root / encoder}.npz")
    hb.run(
        [str(table) for table, _ in tables],
        features=features,
        tasks=["KNN"],
        results=root / "results",
        device="cpu",
    )
    return root / "results"


@pytest.fixture(scope="module")
def close(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two that are alike, one that is far behind, one whose license does not allow commercial use."""
    shifts = {"keep": 0.9, "biomedclip": 0.9, "random-vit": 0.0, "uni_v1": 3.0}
    return _results(tmp_path_factory.mktemp("close"), shifts, datasets=2)


@pytest.mark.slow
def test_no_winner_is_named_where_the_data_do_not_name_one(close: Path) -> None:
    choice = hb.choose(close, license="commercial")
    assert choice.best == ("keep@elsewhere", "biomedclip@elsewhere") or choice.best == (
        "biomedclip@elsewhere",
        "keep@elsewhere",
    )
    assert "the data do not tell" in choice.paragraph
    assert [each.name for each in choice.excluded] == ["uni_v1@elsewhere"]
    assert "does not allow commercial use" in choice.paragraph
    last = choice.candidates[-1]
    assert (last.name, last.tied_best) == ("random-vit@elsewhere", ())


@pytest.mark.slow
def test_a_winner_is_named_where_it_is_shown_on_every_dataset(close: Path, tmp_path: Path) -> None:
    clear = hb.choose(_results(tmp_path, {"uni_v1": 3.0, "random-vit": 0.0}, datasets=2))
    assert clear.best == ("uni_v1@elsewhere",)
    assert "is shown to be better than every other one" in clear.paragraph
    # Another one comes close on a dataset: the same encoder leads, and the words are weaker.
    choice = hb.choose(close)
    assert choice.best == ("uni_v1@elsewhere",)
    assert "but it is not shown to be" in choice.paragraph


@pytest.mark.slow
def test_parameters_and_robustness_are_conditions(close: Path) -> None:
    small = hb.choose(close, max_params=100_000_000)
    assert all((each.params or 0) <= 100_000_000 for each in small.candidates)
    assert any("M parameters" in each.why_not[0] for each in small.excluded)
    nobody = hb.choose(close, min_robustness=0.8)
    assert nobody.candidates == ()
    assert "No encoder is left" in nobody.paragraph
    assert "was not measured" in nobody.excluded[0].why_not[0]


@pytest.mark.slow
def test_the_command_prints_the_shortlist_and_the_paragraph(
    close: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["choose", str(close), "--license", "commercial", "--max-params", "1B"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 of 2" in shown
    assert "a license that allows commercial use, at most 1000M parameters" in shown
    assert main(["choose", str(close), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] == ["uni_v1@elsewhere"]
    assert main(["choose", str(close), "--max-params", "many"]) == 2
    assert "such as 400M" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("tied", "words"),
    [
        ({"a": ("x", "y"), "b": ()}, "a is shown to be better than every other one"),
        ({"a": ("x", "y"), "b": ("y",)}, "but it is not shown to be: b cannot be told apart from it on some"),
        ({"a": ("x",), "b": ("y",)}, "No encoder is among the best on all of 2 datasets"),
        ({"a": ("x", "y"), "b": ("x", "y")}, "the data do not tell a and b apart"),
    ],
)
def test_words_do_not_say_more_than_the_ties(tied: dict[str, tuple[str, ...]], words: str) -> None:
    several = tuple(Candidate(name, "MIT", 1, None, tied_best=found) for name, found in tied.items())
    most = max(map(len, tied.values()))
    best = tuple(name for name, found in tied.items() if len(found) == most)
    said = _finding(Choice("none", "KNN", "accuracy", ("x", "y"), several, (), best, ""))
    assert words in said


def test_every_license_of_the_zoo_is_judged_with_a_reason() -> None:
    for spec in list_encoders():
        allowed, said = commercial_use(spec.licence)
        assert allowed or said
        if "NC" in spec.licence or "non-commercial" in spec.licence:
            assert not allowed
    assert read_params("1.1B") == 1_100_000_000
    with pytest.raises(HistobenchError, match="not one of"):
        Conditions(license="free")
