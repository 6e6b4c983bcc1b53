"""A name becomes one part of a path, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.core.text import check_plain_name
from histobench.roi.data.demo import write_demo_dataset

BAD = ["..", ".", "", " ", "a/b", "a\\b", "/etc", "a\0b", "a\nb", "name.", "name ", "...", "x" * 300]


@pytest.mark.parametrize("name", BAD)
def test_names_that_lead_elsewhere_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(HistobenchError, match="cannot be the name of a folder") as error:
        check_plain_name(name, what="dataset")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["CRC-100K", "..hidden", "a..b", "Ärzte", "a b", "virchow2@cls", "x.csv"])
def test_names_that_people_give_are_kept(name: str) -> None:
    assert check_plain_name(name, what="dataset") == name


@pytest.mark.parametrize("name", ["..", "\x07"])
def test_a_dataset_with_such_a_name_writes_nothing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    table = write_demo_dataset(tmp_path / "data", train_per_class=1, test_per_class=1, size=32)
    (tmp_path / "plan.yaml").write_text(
        f'datasets: [{{source: {table}, name: "{name.encode("unicode_escape").decode()}"}}]\n'
        "encoders: [tiny-vl]\nresults: out/results\n"
    )
    before = set(tmp_path.rglob("*"))
    assert main(["run", str(tmp_path / "plan.yaml")]) == 2
    extract = f"extract --data {table} --name {name} --encoders tiny-vl --out {tmp_path}/features"
    assert main(extract.split(" ")) == 2
    assert capsys.readouterr().err.count("cannot be the name of a folder") == 2
    assert {path for path in tmp_path.rglob("*") if "cache" not in path.parts} == before
