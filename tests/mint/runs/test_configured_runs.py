"""Runs from configuration files, budgets and repeats, as a researcher gives them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from histobench.cli.main import main
from histobench.mint.configs import datasets

pytestmark = pytest.mark.usefixtures("one_sandbox")


@pytest.fixture
def scripted(server: Any, replies: Any, script: Any) -> str:
    """The agent that answers by the script."""
    server.answer = lambda body, number: replies.chat(script.answer(body))
    return f"openai:scripted@{server.url}"


def folders(output: Path) -> list[str]:
    return sorted(path.parent.relative_to(output).as_posix() for path in output.rglob("results.jsonl"))


@pytest.mark.slow
def test_a_folder_of_configurations_is_played_cell_by_cell(lab: Any, scripted: str) -> None:
    data = lab.make_data(4)
    configs = lab.tmp_path / "configs"
    assert main(["mint", "configs", str(configs), "--tasks", "gsm8k", "--model", "my-model"]) == 0
    plain = configs / "my-model" / "F=None"
    assert len(list(plain.rglob("*.json"))) == 5
    output = lab.tmp_path / "out"
    arguments = ["--agent", scripted, "--name", "my-model", "--data", str(data), "-o", str(output)]
    assert main(["mint", "run", "--config", str(plain), *arguments]) == 0
    budgets = ("max1_p1", "max2_p2", "max3_p2", "max4_p2", "max5_p2")
    assert folders(output) == [f"my-model/F=None/{k}+tool+cd/reasoning/gsm8k" for k in budgets]
    assert len(lab.script.lines(output)) == 5 * 4
    first = lab.script.lines(output / "my-model/F=None/max1_p1+tool+cd")
    assert all(len(line["state"]["history"]) == 2 for line in first)


def test_one_file_names_agent_address_and_sampling_itself(lab: Any, scripted: str) -> None:
    data = lab.make_data(2)
    assert main(["mint", "configs", str(lab.tmp_path / "configs"), "--tasks", "gsm8k"]) == 0
    (file,) = (lab.tmp_path / "configs").rglob("F=None/max3*/reasoning/gsm8k.json")
    config = json.loads(file.read_text())
    settings = {"model_name": "org/own-model", "max_tokens": 99, "temperature": 0.5}
    config["agent"]["config"] |= {**settings, "openai.api_base": lab.server.url}
    config["task"]["filepath"] = str(data / "gsm8k" / "test_prompts.json")
    config["output_dir"] = str(lab.tmp_path / "there" / "own-model/F=None/max3_p2+tool+cd/reasoning/gsm8k")
    file.write_text(json.dumps(config))
    assert main(["mint", "run", "--config", str(file), "--rule", "published"]) == 0
    (kept,) = (lab.tmp_path / "there").rglob("settings.json")
    assert json.loads(kept.read_text())["rule"] == "published"
    assert folders(lab.tmp_path / "there") == ["own-model/F=None/max3_p2+tool+cd/reasoning/gsm8k"]
    asked = {(body["model"], body["max_tokens"], body["temperature"]) for body in lab.server.requests}
    assert asked == {("org/own-model", 99, 0.5)}


TOOL = """
from histobench.mint.tools import Tool

class Doubler(Tool):
    name = "double"
    signature = "double(x: int) -> str"
    description = "Doubles a number."

    def __call__(self, x: int) -> str:
        return str(2 * x)

class Needy(Doubler):
    def __init__(self, key: str) -> None:
        self.key = key
"""


@pytest.fixture
def own_config(
    tmp_path: Path, make_data: Callable[[int], Path], server: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """Writes a configuration of gsm8k with some of its `task` replaced, beside a module with a tool."""
    data = make_data(4)
    (tmp_path / "lab_tools.py").write_text(TOOL)
    (tmp_path / "lab_broken.py").write_text("def (")
    monkeypatch.syspath_prepend(tmp_path)

    def make(**task: Any) -> Path:
        assert main(["mint", "configs", str(tmp_path / "configs"), "--tasks", "gsm8k"]) == 0
        (file,) = (tmp_path / "configs").rglob("F=None/max2*/reasoning/gsm8k.json")
        config = json.loads(file.read_text())
        config["agent"]["config"]["openai.api_base"] = server.url
        config["task"] |= {"filepath": str(data / "gsm8k" / "test_prompts.json"), **task}
        config["output_dir"] = str(tmp_path / "out" / "m/F=None/max2_p2+tool+cd/reasoning/gsm8k")
        file.write_text(json.dumps(config))
        return file

    return make


@pytest.mark.slow
def test_the_file_that_a_configuration_names_is_played_not_its_neighbour(
    lab: Any, own_config: Callable[..., Path], scripted: str
) -> None:
    subset = lab.tmp_path / "data" / "gsm8k" / "subset.json"
    subset.write_text(json.dumps({"id": 77, "prompt": "What is 77 + 1?", "reference": "78"}) + "\n")
    assert main(["mint", "run", "--config", str(own_config(filepath=str(subset)))]) == 0
    assert [line["task"]["task_id"] for line in lab.script.lines(lab.tmp_path / "out")] == [77]


def test_the_tools_that_a_configuration_names_are_in_the_session(
    lab: Any, own_config: Callable[..., Path]
) -> None:
    lab.server.answer = lambda body, number: lab.replies.chat("<execute>print(double(21))</execute>")
    file = own_config(tool_imports=[["lab_tools", "Doubler"]])
    assert main(["mint", "run", "--config", str(file), "--limit", "1"]) == 0
    (line,) = lab.script.lines(lab.tmp_path / "out")
    assert "[1] double(x: int) -> str" in line["state"]["history"][0]["content"]
    assert "wikipedia_search(" not in line["state"]["history"][0]["content"].partition("---")[0]
    assert line["state"]["history"][2]["content"].startswith("Observation:\n42\n")


def test_two_tasks_with_one_id_are_refused_before_anything_is_asked(lab: Any, scripted: str) -> None:
    data = lab.make_data(2)
    with (data / "gsm8k" / "test_prompts.json").open("a") as file:
        file.write(json.dumps({"id": "1", "prompt": "What is 5 + 1?", "reference": "6"}) + "\n")
    options = ["--agent", scripted, "--tasks", "gsm8k", "--data", str(data), "-o", str(lab.tmp_path / "out")]
    assert main(["mint", "run", *options]) == 2
    assert "more than one task has the id '1'" in lab.capsys.readouterr().err
    assert not lab.server.requests


def test_a_file_without_tasks_is_named_and_one_with_a_byte_order_mark_is_read(
    lab: Any, scripted: str
) -> None:
    file = lab.make_data(1) / "gsm8k" / "test_prompts.json"
    lines = file.read_text()
    options = ["--agent", scripted, "--tasks", "gsm8k", "--data", str(lab.tmp_path / "data")]
    file.write_text("\n")
    assert main(["mint", "run", *options, "-o", str(lab.tmp_path / "out")]) == 2
    assert "holds no tasks" in lab.capsys.readouterr().err
    file.write_text(lines, encoding="utf-8-sig")
    assert main(["mint", "run", *options, "-o", str(lab.tmp_path / "out")]) == 0
    assert len(lab.script.lines(lab.tmp_path / "out")) == 1


LAB_TASK = """
from histobench.mint.tasks import Task

class LabTask(Task):
    task_name = "reasoning"

    def __init__(self, id, prompt, reference, **kwargs):
        super().__init__(**kwargs)
        self._id, self._prompt, self._reference = id, prompt, reference

    def success(self, solution: str) -> bool:
        return solution.strip() == f"lab {self.reference}"
"""


@pytest.mark.slow
@pytest.mark.parametrize("dataset", ["slides", "gsm8k"])
@pytest.mark.parametrize("named", ["lab_task:LabTask", "LabTask"])
def test_a_configuration_names_a_class_of_your_own_for_any_dataset(
    lab: Any, dataset: str, named: str, own_config: Callable[..., Path]
) -> None:
    # The current folder, in which a command does not look by itself.
    here = lab.tmp_path / f"{dataset} {named}"
    here.mkdir()
    module = f"lab_{dataset}"
    (here / f"{module}.py").write_text(LAB_TASK)
    lab.monkeypatch.chdir(here)
    lab.monkeypatch.setattr(sys, "path", list(sys.path))
    if ":" not in named:  # as the guide of the published benchmark has it
        datasets.import_class(module, "LabTask")
    lab.server.answer = lambda body, number: lab.replies.chat("<solution> lab 1 </solution>")
    file = own_config(task_class=named.replace("lab_task", module), task_type="lab")
    config = json.loads(file.read_text())
    config["output_dir"] = f"out/m/F=None/max2_p2+tool+cd/lab/{dataset}"
    file.write_text(json.dumps(config))
    tasks = Path(config["task"]["filepath"])
    tasks.write_text(
        '{"id": 1, "prompt": "?", "reference": "1"}\n{"id": 2, "prompt": "?", "reference": "2"}\n'
    )
    assert main(["mint", "run", "--config", str(file)]) == 0
    solved = {line["task"]["task_id"]: line["state"]["success"] for line in lab.script.lines(here / "out")}
    assert solved == {1: True, 2: False}


def test_the_key_that_is_wrong_in_a_configuration_is_named(
    own_config: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = own_config()
    config = json.loads(file.read_text())
    file.write_text(json.dumps({**config, "output_dir": "out/a"}))
    capsys.readouterr()
    assert main(["mint", "run", "--config", str(file)]) == 2
    expected = "gsm8k.json: out/a is not the folder of a run; expected <model>/F=<expert>"
    assert expected in capsys.readouterr().err
    del config["task"]["task_type"]
    file.write_text(json.dumps(config))
    assert main(["mint", "run", "--config", str(file)]) == 2
    assert "gsm8k.json: the key 'task_type' is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("folder", "agent_class"),
    [
        ("F=None", "OpenAIFeedbackAgent"),
        ("F=gpt-4/PHF=GT-binary", "OpenAIFeedbackAgent"),
        ("F=gpt-4/PHF=no_GT-textual", "None"),
    ],
)
def test_a_folder_that_belies_the_feedback_is_refused(
    lab: Any, folder: str, agent_class: str, own_config: Callable[..., Path]
) -> None:
    file = own_config()
    config = json.loads(file.read_text())
    config["output_dir"] = str(lab.tmp_path / "out" / f"m/{folder}/max2_p2+tool+cd/reasoning/gsm8k")
    config["feedback_config"] = {
        "pseudo_human_feedback": "no_GT",
        "feedback_form": "textual",
        "feedback_agent_config": {"agent_class": agent_class, "model_name": "gpt-4"},
    }
    file.write_text(json.dumps(config))
    assert main(["mint", "run", "--config", str(file)]) == 2
    assert "let them agree" in lab.capsys.readouterr().err


@pytest.mark.slow
def test_a_server_that_comes_back_elsewhere_is_the_same_model(lab: Any, scripted: str) -> None:
    where = ["--tasks", "gsm8k", "--data", str(lab.make_data(4)), "-o", str(lab.tmp_path / "out")]
    other = scripted.replace("127.0.0.1", "localhost")
    assert main(["mint", "run", "--agent", scripted, *where, "--limit", "2"]) == 0
    assert main(["mint", "run", "--agent", other, *where]) == 0
    assert len(lab.script.lines(lab.tmp_path / "out")) == 4


@pytest.mark.slow
def test_other_settings_do_not_grow_into_the_same_folder(lab: Any, scripted: str) -> None:
    arguments = ["--agent", scripted, "--tasks", "gsm8k", "-o", str(lab.tmp_path / "out")]
    arguments += ["--data", str(lab.make_data(2))]
    assert main(["mint", "run", *arguments]) == 0
    lab.capsys.readouterr()
    assert main(["mint", "run", *arguments, "--rule", "published"]) == 2
    assert "rule was 'strict', now 'published'" in lab.capsys.readouterr().err


@pytest.mark.slow
def test_a_run_goes_on_with_the_encyclopedia_it_began_with(lab: Any, scripted: str) -> None:
    articles = lab.tmp_path / "articles"
    articles.mkdir()
    (articles / "Liver.txt").write_text("The liver is an organ.")
    arguments = ["mint", "run", "--agent", scripted, "--tasks", "gsm8k", "--k", "2"]
    arguments += ["--data", str(lab.make_data(2)), "-o", str(lab.tmp_path / "out"), "--wikipedia"]
    assert main([*arguments, f"folder:{articles}"]) == 0
    (kept,) = (lab.tmp_path / "out").rglob("settings.json")
    assert json.loads(kept.read_text())["wikipedia"] == "folder:articles"
    assert main([*arguments, "live"]) == 2
    assert "wikipedia was 'folder:articles', now 'live'" in lab.capsys.readouterr().err
    moved = articles.rename(lab.tmp_path / "elsewhere")
    (lab.tmp_path / "there").mkdir()
    moved.rename(lab.tmp_path / "there" / "articles")
    assert main([*arguments, f"folder:{lab.tmp_path / 'there' / 'articles'}"]) == 0
