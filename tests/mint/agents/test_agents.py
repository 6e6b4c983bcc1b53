"""Recordings, people and a local model as agents."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.mint.agents import local_model
from histobench.mint.agents.agent import EpisodeKey, HumanPlayer
from histobench.mint.agents.completion import ProviderError
from histobench.mint.agents.replay import ReplayPlayer
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.messages.parts import Message

ASK = (Message("user", "Q"),)


def recording(model: str = "m", error: str | None = None) -> dict:
    return {
        "family": "reasoning",
        "task": "gsm8k",
        "task_id": 7,
        "model": model,
        "settings": {"max_steps": 5, "max_propose": 2},
        "turns": [
            {"assistant": "one", "kind": "invalid"},
            {"assistant": "", "kind": "invalid", "inferred": True},
        ],
        "success": False,
        "terminate_reason": "error",
        "counts": {"propose_solution": 0, "use_tool": 0, "invalid_action": 2},
        "error": error,
    }


def write(path: Path, *records: dict) -> Path:
    with gzip.open(path, "wt") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
    return path


def test_a_recording_says_its_messages_in_order_and_ends_as_it_ended(tmp_path: Path) -> None:
    player = ReplayPlayer(write(tmp_path / "m.k5.jsonl.gz", recording(error="context too long")))
    assert player.name == "m"
    agent = player.open(EpisodeKey("gsm8k", 7))
    assert [agent(ASK), agent(ASK)] == ["one", ""]
    with pytest.raises(RequestRefusedError, match="context too long"):
        agent(ASK)
    assert player.open(EpisodeKey("gsm8k", "7"))(ASK) == "one"  # every episode starts from the beginning


def test_an_episode_that_was_not_recorded_is_no_failure_of_the_model(tmp_path: Path) -> None:
    player = ReplayPlayer(write(tmp_path / "m.k5.jsonl.gz", recording()))
    with pytest.raises(ProviderError, match="gsm8k 8"):
        player.open(EpisodeKey("gsm8k", 8))


def test_recordings_of_two_models_cannot_be_one_agent(tmp_path: Path) -> None:
    path = write(tmp_path / "m.k5.jsonl.gz", recording("a"), recording("b"))
    with pytest.raises(HistobenchError, match="2 runs"):
        ReplayPlayer(path)
    with pytest.raises(HistobenchError, match="no recordings"):
        ReplayPlayer(tmp_path / "absent")


def write_run(folder: Path, said: str) -> None:
    folder.mkdir(parents=True)
    history = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": f"Assistant:\n{said}\n"}]
    counts = {"propose_solution": 0, "use_tool": 0, "invalid_action": 1}
    state = {
        "history": history,
        "success": False,
        "agent_action_count": counts,
        "terminate_reason": "max_steps",
    }
    line = {"state": {**state, "error": None}, "task": {"task_id": 3}}
    (folder / "results.jsonl").write_text(json.dumps(line) + "\n")


def test_a_finished_run_can_be_replayed(tmp_path: Path) -> None:
    write_run(tmp_path / "gpt/F=None/max5_p2+tool+cd/reasoning/gsm8k", "four")
    player = ReplayPlayer(tmp_path)
    assert player.name == "gpt"
    assert player.open(EpisodeKey("gsm8k", 3))(ASK) == "four"


def test_a_person_sees_what_is_new_and_ends_a_message_with_a_dot() -> None:
    screen = io.StringIO()
    agent = HumanPlayer(
        io.StringIO("<execute>\n1 + 1\n</execute>\n.\n<solution>2</solution>\n.\n"), screen
    ).open(EpisodeKey("gsm8k", 1))
    assert agent(ASK) == "<execute>\n1 + 1\n</execute>"
    shown = len(screen.getvalue())
    later = (*ASK, Message("assistant", "Assistant:\n..."), Message("user", "Observation:\n2"))
    assert agent(later) == "<solution>2</solution>"
    assert "Observation" in screen.getvalue()[shown:]
    assert "Assistant" not in screen.getvalue()
    assert screen.getvalue().count("\nQ\n") == 1
    with pytest.raises(KeyboardInterrupt):
        agent(later)


def test_the_threads_of_the_local_model_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(local_model, "usable_cores", lambda: 16)
    assert local_model.default_threads() == local_model.MAX_THREADS
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert local_model.default_threads() == 3
