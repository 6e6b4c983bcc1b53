"""Encoders by the names that people write, and what is said of unknown ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.encoders.registry import EncoderRecipe, get_spec, zoo_name
from histobench.roi.encoders.zoo import load_zoo
from histobench.roi.plan.plan_file import plan_from


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("UNI", "uni_v1"),
        ("UNI2-h", "uni_v2"),
        ("UNI 2-h", "uni_v2"),
        ("Virchow2", "virchow2"),
        ("Virchow 2@cls", "virchow2@cls"),
        ("H-optimus-0", "hoptimus0"),
        ("CONCH v1.5", "conch_v15"),
        ("Prov-GigaPath", "gigapath"),
        ("hf-hub:MahmoodLab/UNI2-h", "uni_v2"),
        ("hf-hub:timm/resnet18.a1_in1k", "timm:resnet18.a1_in1k"),
        ("hf-hub:owner/name", "hf:owner/name"),
        ("uni", "uni"),  # a name of the zoo is kept as it is written, in file names too
        ("own=timm:ResNet", "own=timm:ResNet"),
        ("my_file.py:UNI", "my_file.py:UNI"),
    ],
)
def test_case_and_separators_of_names_do_not_matter(written: str, name: str) -> None:
    assert zoo_name(written) == name
    assert EncoderRecipe(written).name == name


def test_every_encoder_is_found_by_its_own_name_and_most_by_their_titles() -> None:
    zoo = load_zoo()
    assert [zoo_name(name.upper()) for name in zoo] == list(zoo)
    assert sum(zoo_name(spec.title) == name for name, spec in zoo.items()) > 0.9 * len(zoo)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("Virchow3", "did you mean virchow"),
        ("optimus", "hoptimus0"),
        ("zzz", "'zzz'; `histobench models` lists all"),
    ],
)
def test_an_unknown_name_gets_the_nearest_ones_and_never_the_alphabet(name: str, hint: str) -> None:
    with pytest.raises(HistobenchError) as failure:
        get_spec(name)
    assert hint in str(failure.value)
    assert "biomedclip" not in str(failure.value)


def test_a_plan_calls_encoders_as_the_zoo_does(tmp_path: Path) -> None:
    values = {"datasets": [{"source": str(tmp_path)}], "encoders": "UNI 2-h, Virchow2+UNI"}
    assert plan_from(values, where="", base=tmp_path).encoders == (
        "uni_v2",
        "virchow2",
        "uni_v1",
        "virchow2+uni_v1",
    )


def test_a_combination_with_given_features_says_which_are_missing(tmp_path: Path) -> None:
    values = {
        "datasets": [{"source": str(tmp_path)}],
        "features": f"uni_v1={tmp_path}",
        "combine": "uni_v1+conch_v15",
    }
    with pytest.raises(HistobenchError, match="no features of conch_v15; add `features` conch_v15=PATH"):
        plan_from(values, where="", base=tmp_path)
    plan = plan_from(values | {"encoders": "conch_v15"}, where="", base=tmp_path)
    assert plan.encoders[-1] == "uni_v1@elsewhere+conch_v15"


def test_missing_weights_come_with_the_steps_to_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def said() -> list[str]:  # without what is shown while a busy machine takes its time
        return [line for line in capsys.readouterr().err.splitlines() if not line.endswith("...")]

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    table = tmp_path / "t.csv"
    table.write_text("image_path,label,split\n")
    assert main(["run", "--data", str(table), "--models", "UNI", "--results", str(tmp_path / "r")]) == 2
    lines = said()
    assert len(lines) == 3
    assert lines[0].endswith("uni_v1: no weights on this machine, and HF_HUB_OFFLINE=1 forbids the download")
    assert "request access at https://huggingface.co/MahmoodLab/uni and run: hf auth login" in lines[1]
    assert "give --weights FILE; details: histobench models show uni_v1" in lines[2]
    flags = ["--models", "UNI,zzz", "--results", str(tmp_path / "r")]
    assert main(["run", "--data", str(table), *flags]) == 2
    lines = said()
    assert [line.split(":")[0] for line in lines[1:]] == [
        "  uni_v1", "    with internet", "    without", "  zzz"
    ]  # fmt: skip
    assert lines[1].startswith("  uni_v1: no weights on this machine")
    assert main(["run", str(tmp_path), *flags]) == 2
    assert (
        f"{tmp_path} is a folder, not a plan file; did you mean --data {tmp_path}?" in capsys.readouterr().err
    )
