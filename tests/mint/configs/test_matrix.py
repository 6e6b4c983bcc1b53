"""The experiment matrix is written in the published folders and shape."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from histobench.mint.configs.cell import Cell, parse_cell
from histobench.mint.configs.matrix import write_configs

NAME = st.text("abcXYZ019-._+", min_size=1).filter(lambda name: name.strip(".") and not name.startswith("F="))


@given(
    model=NAME,
    family=NAME,
    dataset=NAME,
    feedback=st.none()
    | st.tuples(NAME.filter(lambda n: n != "None"), st.sampled_from(["GT-binary", "no_GT-textual"])),
    k=st.integers(1, 99),
    p=st.integers(1, 9),
    flags=st.tuples(st.booleans(), st.booleans()),
    before=st.sampled_from(["", "/data/outputs/", "F=old/"]),
)
def test_a_cell_is_read_back_from_its_folder(
    model: str,
    family: str,
    dataset: str,
    feedback: tuple[str, str] | None,
    k: int,
    p: int,
    flags: tuple[bool, bool],
    before: str,
) -> None:
    cell = Cell(model, family, dataset, *(feedback or ("None", "None")), k, p, *flags)
    assert parse_cell(before + cell.path) == cell


def test_the_published_matrix_is_written(tmp_path: Path) -> None:
    files = write_configs(tmp_path)
    cells = [parse_cell(path.relative_to(tmp_path).with_suffix("").as_posix()) for path in files]
    assert len(set(cells)) == len(files)
    kinds = ("no_GT-textual", "no_GT-binary", "GT-textual", "GT-binary")
    assert Counter(cell.feedback_type for cell in cells) == {"None": 5 * 8, **dict.fromkeys(kinds, 8)}
    budgets = {(c.max_steps, c.max_propose_solution) for c in cells if c.feedback_model == "None"}
    assert budgets == {(1, 1), (2, 2), (3, 2), (4, 2), (5, 2)}


def test_a_file_has_the_published_keys(tmp_path: Path) -> None:
    write_configs(tmp_path)
    name = "gpt-3.5-turbo-0613/F=gpt-4-0613/PHF=GT-binary/max5_p2+tool+cd/decision_making/alfworld"
    config = json.loads((tmp_path / f"{name}.json").read_text(encoding="utf-8"))
    assert config["output_dir"] == f"data/outputs/{name}"
    assert config["task"] == {
        "task_class": "AlfWorldTask",
        "task_type": "decision_making",
        "tool_imports": [],
        "filepath": "data/processed/alfworld/",
    }
    env = {"max_steps": 5, "use_tools": True, "max_propose_solution": 2, "count_down": True}
    assert config["env_config"] == env
    assert config["feedback_config"] == {
        "pseudo_human_feedback": "GT",
        "feedback_form": "binary",
        "feedback_agent_config": {
            "chat_mode": True,
            "max_tokens": 1024,
            "temperature": 0.0,
            "agent_class": "OpenAIFeedbackAgent",
            "model_name": "gpt-4-0613",
        },
    }
    plain = json.loads(
        (tmp_path / "gpt-3.5-turbo-0613/F=None/max1_p1+tool+cd/reasoning/gsm8k.json").read_text("utf-8")
    )
    assert plain["task"]["filepath"] == "data/processed/gsm8k/test_prompts.json"
    assert plain["feedback_config"]["pseudo_human_feedback"] == "None"
    assert plain["feedback_config"]["feedback_form"] == "None"
    assert plain["feedback_config"]["feedback_agent_config"]["model_name"] == "None"
