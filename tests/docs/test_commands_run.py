"""Every example of a help text runs, and every command that a message or a page names."""

from __future__ import annotations

import argparse
import glob
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from histobench.cli.main import COMMANDS, main
from page_data import draw_data

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

TOP = Path(__file__).resolve().parents[2]
#: Commands that cannot run in a test, by a part of them -> why.
NOT_HERE = {
    "data get": "downloads",
    "--online": "asks the hub",
    "histobench demo": "tests/test_wheel.py runs it",
    "histobench serve": "ends when it is stopped",
    "histobench mcp": "ends when it is stopped",
    "histobench worker": "is started by the run",
    "--engine slurm": "needs Slurm",
    "mint run  ": "minutes: a local model",
    "mint run --constrain": "the tutorial on agents runs it",
    "mint run --config": "asks hosted models for all datasets",
    "mint import": "needs logs of another program",
    "mint export mint-results --to inspect": "the tests of that export need another package",
    "mint grade": "asks two hosted models",
    "--feedback": "asks a hosted model",
    "--stress": "minutes",
    "--arms sequence": "hundreds of cases",
    "consult compare study/ gpt-4o-mini policy-reader --arm sequence": "hundreds of cases",
}
#: Names of the examples -> what the folder of the test has.
HERE = {
    r"\bmy_folder\b|(?<![-\w])tiles/": "my_data",
    r"--out study/": "--out fresh",
    r"patient_\(": "patient(",
    r"CRC-100K\.csv": "crc.csv",
    r"CRC=crc\.csv --images BRACS=bracs/": "crc=crc.csv",
    r"bench\.yaml": "plan.yaml",
    r"9way_16shot": "3way_2shot",
    r"(?<!TRIDENT/features_)\b(uni_v1|conch_v1)\b(?!=)": "tiny-vl",
    r"\b(uni_v2|virchow2|resnet50)\b": "random-vit",
    r"gpt-4o-mini\+placebo --second gpt-4o-mini": "other --second gpt-4o-mini",
    r"SmolLM2-135M-Instruct": "other",
    r"--agent openai:(gpt-4o-mini|M\b|MODEL)\S*": "--agent openai:gpt-4o-mini@CHAT",
    r"--max-cost 5": "--max-cost 5 --prices prices.yaml",
    r"gsm8k,math --k 1\.\.5": "gsm8k --k 1..2",
    r"\bSTUDY\b|\bstudy/": "study",
    r"\bRESULTS\b|other-results": "results",
    r"YOUR_FOLDER": "my_data",
    r"\bNAME\b": "tiny-vl",
}


def examples() -> Iterator[str]:
    """The examples of the help texts of all commands."""
    for name, command in COMMANDS.items():
        parser = argparse.ArgumentParser(prog=f"histobench {name}")
        command.add_flags(parser)
        parsers = [parser]
        for each in parsers:
            about = f"{each.description}\n{each.epilog or ''}"
            yield from re.findall(r"^ +(histobench [^\n]*?)(?: {3,}.*)?$", about, re.MULTILINE)


EXAMPLES = sorted({each for each in examples() if not any(part in f"{each}  " for part in NOT_HERE)})
#: Commands that end in an error or a hint, with their exit codes.
OTHERS = {
    "histobench run --data crc.csv": 2,
    "histobench run --data crc.csv --encoders zzz": 2,
    "histobench run --data crc.csv --encoders tiny-vl --tasks KNN --results 'one encoder'": 0,
    "histobench run --data my_data --encoders tiny-vl": 2,
    "histobench run --data nowhere --encoders tiny-vl": 2,
    "histobench compare nowhere": 2,
    "histobench compare results --task Fine-tune": 2,
    "histobench report my_data": 2,
    "histobench status my_data": 2,
    "histobench consult table results": 2,
    "histobench consult prepare crc.csv --encoders tiny-vl,random-vit --cases 9 --out 'my study'": 0,
    "histobench evaluate --tasks KNN --train train.pt --test test.pt --results 'my results'": 0,
    "histobench models show uni_v1": 0,
    "histobench data check nowhere": 2,
    "histobench verify results": 3,
}
#: Commands that messages name without what they need: only whether they exist is tested.
NEED_MORE = {"run", "evaluate", "extract", "data check", "consult prepare", "mint run", "robustness"}


def perform(line: str) -> int:
    """Run a command in this process, as a shell reads it."""
    words: list[str] = []
    for word in shlex.split(line)[1:]:
        found = sorted(glob.glob(word)) if "*" in word else []
        words += found or [word]
    try:
        return main(words)
    except SystemExit as end:
        return int(end.code or 0)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, chat_address: str) -> Iterator[Path]:
    """A folder with what the examples name: data, results, features, a study, runs of agents."""
    folder = tmp_path_factory.mktemp("prepared")
    draw_data(folder, masks=False)
    (folder / "classes.txt").write_text("normal,0\nstroma,1\ntumor,2\n")
    contrast = {"name": "mine", "measure": "u_wrong", "arm": "random", "against": "strong"}
    (folder / "contrasts.json").write_text(json.dumps([contrast]))
    rows = (folder / "crc.csv").read_text().splitlines()
    for place in range(1, len(rows), 4):  # labels that no encoder can learn
        rows[place] = rows[place].replace(",tumor,", ",stroma,").replace(",normal,", ",tumor,")
    (folder / "crc.csv").write_text("\n".join([*rows, ""]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HISTOBENCH_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("OPENAI_API_KEY", "none")
        patch.setenv("COLUMNS", "120")
        patch.chdir(folder)
        model = f"openai:gpt-4o-mini@{chat_address}"
        for line in (
            "run --data crc.csv --encoders tiny-vl,random-vit --tasks KNN,Linear-Probe,Few-shot --n-shot 1,2 "
            "--n-iter 5 --results results",
            "consult prepare crc.csv --encoders tiny-vl,random-vit --cases 12 --measured 4 --out study",
            "consult run study --agent policy:reader --arms none,strong",
            f"consult run study --agent {model} --arms none,strong",
            f"mint run --agent {model} --tasks gsm8k --k 2 --results mint-results",
            f"mint run --agent {model} --name other --tasks gsm8k --k 2 --results mint-results",
        ):
            assert perform(f"histobench {line}") == 0, line
        shutil.copytree("results/features", "features")
        for split in ("train", "test"):
            (source,) = Path("features").glob(f"*tiny-vl*_{split}.pt")
            shutil.copy(source, f"{split}.pt")
        shutil.copytree("study", "pilot")
        for copy in ("outputs", "recordings"):
            shutil.copytree("mint-results", copy)
        yield folder


@pytest.fixture
def here(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that a test may change, as the current folder."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True, symlinks=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def at_hand(line: str, chat: str) -> str:
    for name, other in HERE.items():
        line = re.sub(name, other, line)
    return line.replace("CHAT", chat)


def named_commands(text: str) -> list[str]:
    """The whole commands in what a program says; words in capitals stand for something else."""
    found = re.findall(r"(?:Next: |next: |more: |fix: |with: |by: |`|\()(histobench [^`\n)]*)", text)
    return [line.split("   ")[0].rstrip(" ;,.") for line in found]


@pytest.mark.parametrize(
    ("example", "expected"), [*((each, 0) for each in EXAMPLES if "verify" not in each), *OTHERS.items()]
)
def test_a_command_runs_and_so_do_those_that_it_names(
    example: str, expected: int, here: Path, chat_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    line = at_hand(example, chat_address)
    code = perform(line)
    said = capsys.readouterr()
    assert code == expected, f"{line}\n{said.out}\n{said.err}"
    for named in dict.fromkeys(named_commands(said.out + said.err)):
        if not any(part in f"{named}  " for part in NOT_HERE):
            line = at_hand(named, chat_address)
            line += " --help" * (named.removeprefix("histobench ") in NEED_MORE)
            code = perform(line)
            after = capsys.readouterr()
            assert code == 0, f"{example}\n{line}\n{after.out}\n{after.err}"


def test_the_commands_in_a_message_are_found() -> None:
    said = "Next: histobench report 'my results'   (web pages)\nzzz (`histobench models` lists all); 2 more"
    assert named_commands(said) == ["histobench report 'my results'", "histobench models"]
