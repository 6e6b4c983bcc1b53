"""Every command and Python block of the README and the documentation runs, and prints what the page shows."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from page_data import draw_data

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

TOP = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
#: Lines that cannot run in a test, by a part of them -> why.
NOT_HERE = {
    "make ": "installs, or needs minutes",
    "pip install": "installs",
    "uv venv": "installs",
    "source .venv": "installs",
    "scripts/setup.sh": "downloads",
    "histobench data get": "downloads",
    "bach@eva": "downloads",
    "hf:facebook": "downloads",
    "timm:vit": "downloads",
    "histobench demo": "tests/test_wheel.py runs it",
    "--constrain --limit 4": "the tutorial on agents runs a smaller one",
    "histobench serve": "ends when it is stopped",
    "--http 8000": "ends when it is stopped",
    "docs/real-data.yaml": "downloads",
    "report lab ": "needs the images of the line before",
    "report_screenshots.py": "needs a browser",
    "ray start": "needs several machines",
    "FIRST:6399": "needs several machines",
    "# also while they run": "needs a run of several machines",
    "# parts done, running, failed": "needs a run of several machines",
    "--engine slurm": "needs Slurm",
    "--engine ray ": "the tutorial on clusters runs it",
    "Fine-tune": "takes an hour without a GPU",
    "encoder.py:adapted": "needs an adapter of an hour's training",
    "mint grade": "asks two hosted models",
    "mint import": "needs logs of another program",
    "inspect eval": "asks a hosted model",
    ":8124/v1": "a measurement of hours",
    ":8125/v1": "a measurement of hours",
    "HISTOBENCH_ZOO": "needs your own weights",
    "my-vit": "needs your own weights",
    "my_network.pt": "needs your own weights",
    "MyImageTextEncoder": "needs your own weights",
    "my_agent": "a sketch: the agent is yours",
    '"class": "ReasoningTask"': "a piece of a configuration",
    "WikipediaQueryRun": "a piece of a configuration",
    "OpenAILMAgent": "a piece of a configuration",
}
#: Encoders whose weights need permission -> those that stand in for them.
STAND_INS = {"uni_v1": "tiny-vl", "virchow2": "efficientnet-lite0"}
#: Options of a page -> those of the test, which draws less, asks for less, trains less, and names its price.
SMALLER = {
    "--test-per-class 40": "--test-per-class 6",
    "--per-class 60": "--per-class 6",
    "448": "56",
    r"--limit \d+ --k \d": "--limit 1 --k 1",
    r"--max-tokens \d+": "--max-tokens 8",
    "--max-cost 5": "--max-cost 5 --prices prices.yaml",
    "--tasks Segmentation": "--tasks Segmentation --size 64 --head-steps 5",
    'tasks="Segmentation"': 'tasks="Segmentation", head_steps=5',
    "data = hb.demo_dataset": (
        "import histobench.roi.evaluation.segmentation_task as task\ntask.EPOCHS = 1\ndata = hb.demo_dataset"
    ),
    r"--stress ": "--stress --stress-images 3 ",
    r"--n_bootstrap \d+": "--n_bootstrap 50",
}
#: What the Python blocks of how-to pages take for granted.
GIVEN = """
import numpy as np
import histobench as hb
draw = np.random.default_rng(0)
y = y_test = np.repeat([0, 1], 30)
patients = test_patients = np.array([f"P{k // 2}" for k in range(60)])
X, X_test = (draw.normal(size=(60, 8)) + y[:, None] for _ in range(2))
age, age_test = (50 + 10 * part[:, 0] for part in (X, X_test))
"""
#: Pages by what has to be installed for them.
NEEDS = {
    "agents": "xllamacpp",
    "benchmark-folders": "h5py",
    "cluster": "ray",
    "consult": "skimage",
    "trident": "h5py",
}
#: Pages that begin where the first tutorial ends.
AFTER_TUTORIAL = ("any-model", "choose", "combine-encoders", "python", "report", "similarity")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """That of a new user: an empty cache, and the commands of this interpreter."""
    return {
        **os.environ,
        "HISTOBENCH_CACHE": str(tmp_path_factory.mktemp("cache")),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MPLBACKEND": "agg",
        "COLUMNS": "80",
        "OPENAI_API_KEY": "none",
    }


def runnable(text: str, chat: str) -> str:
    """The lines of a block that can run here, with encoders and agents that are at hand."""
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    kept = "\n".join(line for line in lines if not any(part in line for part in NOT_HERE))
    for name, other in STAND_INS.items() if "h5py" not in kept else ():  # features that it draws itself
        kept = re.sub(rf"(?<!features_){name}", other, kept)
    for size, small in SMALLER.items():
        kept = re.sub(size, small, kept)
    return re.sub(r"openai:([\w.-]+)(@[\w:/.]+)?", rf"openai:\1@{chat}", kept)


def can_run(language: str, block: str) -> bool:
    if language == "python":
        return not any(part in block for part in NOT_HERE)
    return language == "bash" and bool(runnable(block, "").strip())


#: Those with something to run.
PAGES = [
    page.relative_to(TOP).as_posix()
    for page in (TOP / "README.md", *sorted((TOP / "docs").rglob("*.md")))
    if page.stem != "worked-answer"
    and any(can_run(found[1], found[3]) for found in BLOCK.finditer(page.read_text(encoding="utf-8")))
]


def programs(found: list[re.Match[str]], chat: str, folder: Path) -> Iterator[tuple[str, str]]:
    """What a page runs: its shell blocks one by one, the Python blocks between two of them at once.

    Files that the page shows are written when their turn comes.
    """
    session, waiting = GIVEN, False
    for language, title, block in (each.groups() for each in found):
        if title:
            (folder / title).write_text(block, encoding="utf-8")
        elif not can_run(language, block):
            continue
        elif language == "python":
            session, waiting = session + runnable(block, chat) + "\n", True
        else:
            if waiting:
                yield "python", session
            session, waiting = GIVEN, False
            yield "bash", runnable(block, chat)
    if waiting:
        yield "python", session


def run_block(language: str, text: str, folder: Path, environment: dict[str, str]) -> str:
    command = ["bash", "-euo", "pipefail", "-c"] if language == "bash" else [sys.executable, "-c"]
    done = subprocess.run(
        [*command, text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def without_numbers(text: str) -> str:
    """What does not vary between machines: the words, on one line, with # for every number."""
    return re.sub(r"-?[0-9]*\.?[0-9]+", "#", " ".join(text.split()))


@pytest.fixture(scope="module")
def after_tutorial(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """Where the first tutorial ends: drawn tiles, and results of two encoders."""
    folder = tmp_path_factory.mktemp("tutorial")
    encoders = "efficientnet-lite0,tiny-vl"
    for command in (
        "data demo tiles --per-class 10 --test-per-class 30 --size 96",
        f"run --data tiles/synthetic-crc.csv --encoders {encoders} --tasks KNN,Linear-Probe",
    ):
        run_block("bash", f"histobench {command}", folder, environment)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_as_it_is_printed(
    page: str, tmp_path: Path, environment: dict[str, str], chat_address: str, request: pytest.FixtureRequest
) -> None:
    if needed := NEEDS.get(Path(page).stem):
        pytest.importorskip(needed)
    draw_data(tmp_path, masks="segmentation" in page)
    shutil.copytree(TOP / "example_dataset", tmp_path / "example_dataset")
    if page == "README.md":  # as `make demo` does it
        draw = "histobench data demo example_dataset --name CRC-100K --layout wide"
        run_block("bash", f"{draw} --per-class 4 --test-per-class 6 --size 64", tmp_path, environment)
    for script in TOP.glob("0*.py"):
        (tmp_path / script.name).symlink_to(script)
    if "tutorials" in page:  # a first run shows the speed of encoders
        environment = {**environment, "HISTOBENCH_CACHE": str(tmp_path / "cache")}
    if Path(page).stem in AFTER_TUTORIAL and "tutorials" not in page:
        shutil.copytree(request.getfixturevalue("after_tutorial"), tmp_path, dirs_exist_ok=True)
    content = (TOP / page).read_text(encoding="utf-8")
    found = list(BLOCK.finditer(content))
    printed = "".join(
        run_block(language, text, tmp_path, environment)
        for language, text in programs(found, chat_address, tmp_path)
    )
    shown = [
        block[3]
        for before, block in pairwise(found)
        if block[1] == "text" and before[1] in ("bash", "python")
        if not content[before.end() : block.start()].strip()
        if not any(part in before[3] for part in NOT_HERE)
    ]
    for line in "".join(shown).splitlines():
        if line != "...":
            assert without_numbers(line) in without_numbers(printed), f"{line}\n{printed}"


def test_the_numbers_of_the_worked_answer_are_measured(tmp_path: Path, environment: dict[str, str]) -> None:
    images = TOP.parent / "shared" / "data" / "lunghist700"
    if not images.is_dir():
        pytest.skip("the images of LungHist700 are not on this machine")
    (tmp_path / "lung").symlink_to(images)
    page = (TOP / "docs" / "tutorials" / "worked-answer.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    check, one = (text.split("$ ")[1].split("\nencoder ")[0].split("\nmeta: ")[0] for text in shown[:2])
    for command, text in zip((check, one, f"{one} --splits 5x5"), shown, strict=True):
        output = run_block("bash", command, tmp_path, {**environment, "COLUMNS": "120"})
        for line in re.findall(r"^(?:\S+ +\d.*|meta.*|PASS .*|tiny-vl is .*)$", text, re.MULTILINE):
            assert " ".join(line.split()) in " ".join(output.split())
