"""A package of one's own adds a tool, a dataset and a task without a change here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

PACKAGE = Path(__file__).parents[1] / "example_package"
EPISODE = """
import json
from histobench.mint.configs.datasets import get_dataset, known_datasets
from histobench.mint.envs.episode import play
from histobench.mint.envs.general_env import open_environment
from histobench.mint.envs.turn_loop import Budget
from histobench.mint.prompts.first_message import first_message

dataset = get_dataset("microns")
tasks = dataset.load("no/such/folder")
tools = dataset.tools()
answers = iter(["<execute>print(microns_to_pixels(300, 0.5))</execute>", "<solution>600</solution>"])
with open_environment(tasks[1], tools) as env:
    prompt = first_message(tasks[1], tools, Budget())
    state = play(env, lambda history: next(answers), prompt=prompt)
print(json.dumps([known_datasets()[-1], dataset.type, len(tasks), prompt, state.as_published()]))
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment variables of a Python that has the package installed."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    shutil.copytree(PACKAGE, source, dirs_exist_ok=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    options = ["--no-build-isolation", "--disable-pip-version-check", "--target", str(target), str(source)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return {**os.environ, "PYTHONPATH": str(target)}


def _python(code: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.usefixtures("needs_sandbox")
def test_an_installed_package_brings_a_dataset_with_its_tool(environment: dict[str, str]) -> None:
    name, family, count, prompt, state = json.loads(_python(EPISODE, environment).splitlines()[-1])
    assert (name, family, count) == ("microns", "microns", 2)
    assert "[1] microns_to_pixels(microns: float, microns_per_pixel: float) -> str" in prompt
    assert prompt.endswith("Task:\nHow many pixels wide is a gland of 300 microns at 0.5 microns per pixel?")
    assert state["history"][2]["content"].startswith("Observation:\n600\n")
    assert state["success"]


def test_the_experiment_matrix_contains_it(environment: dict[str, str], tmp_path: Path) -> None:
    code = (
        "from histobench.cli.main import main; import sys; "
        f"sys.exit(main(['mint', 'configs', {str(tmp_path)!r}, '--tasks', 'microns', '--model', 'm']))"
    )
    _python(code, environment)
    written = json.loads((tmp_path / "m/F=None/max5_p2+tool+cd/microns/microns.json").read_text("utf-8"))
    assert written["task"]["task_class"] == "microns:MicronsTask"
