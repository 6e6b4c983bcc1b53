"""How episodes end and what is kept of each turn: outcomes, broken checkers, limits, provenance."""

from __future__ import annotations

import hashlib
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import histobench as hb
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.mint.configs import datasets
from histobench.mint.results.stored_episode import read_episodes
from histobench.mint.tasks.reasoning import ReasoningTask

pytestmark = pytest.mark.usefixtures("one_sandbox")
FIXTURES = Path(__file__).parents[1] / "agents" / "fixtures"


class BrokenTask(ReasoningTask):
    """Its checker raises, and says the reference."""

    def success(self, solution: str) -> bool:
        raise ValueError(f"the reference is {self.reference}")  # the line that must be named


def run(server: Any, data: Path, output: Path, *more: str, agent: str = "openai") -> int:
    arguments = ["--agent", f"{agent}:some-model@{server.url}", "--tasks", "gsm8k", "--data", str(data)]
    return main(["mint", "run", *arguments, "-o", str(output), "--attempts", "2", *more])


def details(output: Path) -> list[dict[str, Any]]:
    files = sorted(output.rglob("details.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


@pytest.mark.slow
def test_every_ending_is_an_outcome_of_its_own(lab: Any) -> None:
    refusal = {"content": None, "refusal": "I will not."}
    withheld = lab.replies.Reply({"error": {"code": "content_filter", "message": "filtered"}}, status=400)
    endings: list[tuple[str, Any]] = [
        ("solved", lab.replies.chat("<solution>1</solution>")),
        ("wrong", lab.replies.chat("<solution>-7</solution>")),
        ("out_of_turns", lab.replies.chat("<execute>1</execute>")),
        ("refused_in_words", lab.replies.chat("I'm sorry, but I can't assist with that request.")),
        ("truncated", lab.replies.chat("<execute>so mu", finish="length")),
        ("refused", lab.replies.Reply({"choices": [{"message": refusal, "finish_reason": "stop"}]})),
        ("filtered", lab.replies.chat(None, finish="content_filter")),
        ("filtered", withheld),
        ("too_long", lab.replies.Reply({"error": {"code": "context_length_exceeded"}}, status=400)),
        ("provider_failure", lab.replies.Reply({"error": "bad"}, status=418)),
    ]

    def answer(body: dict[str, Any], number: int) -> Any:
        asked = next(i for i in range(10) if f"What is {i} + 1?" in body["messages"][0]["content"])
        return endings[asked][1]

    lab.server.answer = answer
    out = lab.tmp_path / "out"
    assert run(lab.server, lab.make_data(10), out, "--k", "1") == 1
    assert {record["task_id"]: record["outcome"] for record in details(out)} == {
        number: name for number, (name, _) in enumerate(endings) if name != "provider_failure"
    }
    filtered = next(record for record in details(out) if record["task_id"] == 6)
    assert (filtered["tokens"], filtered["turns"][0]["finish"]) == (15, "content_filter")
    assert sum("What is 6 + 1?" in body.decode() for body in lab.server.bodies) == 1  # it was not asked again
    lab.capsys.readouterr()
    assert main(["mint", "table", str(out)]) == 0
    said = lab.capsys.readouterr().out
    assert "11.11" in said  # one of nine: what the provider failed is played again
    title, row = (line.split() for line in said.splitlines() if "outcomes" in line or "some-model:" in line)
    assert title[-2:] == ["provider", "failure"]
    assert row == ["some-model:", "1", "1", "1", "1", "1", "1", "2", "1", "(1)"]
    assert main(["mint", "table", str(out), "--failures", "wrong,out_of_turns"]) == 0
    assert "33.33" in lab.capsys.readouterr().out
    assert main(["mint", "table", str(out), "--failures", "all"]) == 0
    assert "10.00" in lab.capsys.readouterr().out
    assert main(["mint", "table", str(out), "--failures", "unlucky"]) == 2
    assert list(hb.mint.open_runs(out).episodes()["outcome"]).count("filtered") == 2


@pytest.mark.slow
def test_a_checker_that_raises_stops_the_run_and_never_reaches_the_agent(lab: Any) -> None:
    info = {"class": f"{__name__}:BrokenTask", "type": "reasoning"}
    lab.monkeypatch.setitem(datasets.TASK_INFO_MAP, "broken", info)
    lab.server.answer = lambda body, number: lab.replies.chat("<solution>5</solution>")
    data, out = lab.make_data(20, "broken"), lab.tmp_path / "out"
    options = ("--tasks", "broken", "--concurrency", "1")
    assert run(lab.server, data, out, *options) == 1
    said = " ".join(lab.capsys.readouterr().out.split())
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), start=1)
        if "the line that must be named" in text
    )
    assert "stopped: 3 times the checker of task" in said
    assert f"{Path(__file__).name}:{line}" in said
    assert len(lab.server.requests) == 3
    assert not any("the reference is" in body.decode() for body in lab.server.bodies)
    notes = next(out.rglob("provider_failures.jsonl")).read_text().splitlines()
    assert [json.loads(note)["outcome"] for note in notes] == ["checker_error"] * 3
    with pytest.raises(HistobenchError, match="checker of task"):
        hb.mint.run(
            f"openai:some-model@{lab.server.url}",
            "broken",
            data=data,
            output=lab.tmp_path / "python",
            concurrency=1,
        )


def test_a_wrong_key_raises_in_python(lab: Any) -> None:
    lab.server.answer = lambda body, number: lab.replies.Reply({"error": "invalid api key"}, status=401)
    with pytest.raises(HistobenchError, match=r"4 of 4 episodes are missing: .*HTTP 401.*invalid api key"):
        hb.mint.run(f"openai:m@{lab.server.url}", "gsm8k", data=lab.make_data(4), output=lab.tmp_path / "out")


def test_a_person_plays_one_episode_after_the_other(lab: Any) -> None:
    typed = "".join(f"<solution>{number + 1}</solution>\n.\n" for number in range(8))
    lab.monkeypatch.setattr(sys, "stdin", io.StringIO(typed + ".\n" * 80))
    runs = hb.mint.run("human", "gsm8k", data=lab.make_data(8), results=lab.tmp_path / "out")
    assert runs.episodes()["success"].sum() == 8


def test_a_run_that_ended_early_says_why(lab: Any) -> None:
    lab.server.answer = lambda body, number: lab.replies.chat("<solution>1</solution>")
    (lab.tmp_path / "prices.yaml").write_text("m: [0, 1000]\n")
    limits = {"prices": lab.tmp_path / "prices.yaml", "max_tokens": 5, "max_cost": 0.011, "concurrency": 1}
    runs = hb.mint.run(
        f"openai:m@{lab.server.url}", "gsm8k", data=lab.make_data(4), output=lab.tmp_path / "out", **limits
    )
    assert not runs.complete
    assert "incomplete" in repr(runs)
    assert "of at most $0.0110 spent" in repr(runs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "turns"), [(("--episode-tokens", "20000"), 1), (("--episode-cost", "0.00001"), 0)]
)
def test_an_episode_has_limits_of_its_own(lab: Any, limit: tuple[str, str], turns: int) -> None:
    lab.server.answer = lambda body, number: lab.replies.chat("<execute>1</execute>", read=15000)
    (lab.tmp_path / "prices.yaml").write_text("some-model: [1, 1]\n")
    out = lab.tmp_path / "out"
    assert run(lab.server, lab.make_data(2), out, *limit, "--prices", str(lab.tmp_path / "prices.yaml")) == 0
    assert {record["outcome"] for record in details(out)} == {"over_limit"}
    assert len(lab.server.requests) == 2 * turns
    assert all("limit of the episode" in line.state["error"] for line in stored(out))


@pytest.mark.slow
def test_an_episode_whose_time_is_over_ends(lab: Any) -> None:
    lab.server.answer = lambda body, number: lab.replies.Reply(lab.replies.chat("Hm.").raw, delay=30)
    assert run(lab.server, lab.make_data(1), lab.tmp_path / "out", "--episode-seconds", "0.3") == 0
    (record,) = details(lab.tmp_path / "out")
    assert record["outcome"] == "over_limit"
    assert 0.3 <= record["seconds"] < 10


def stored(output: Path) -> list[Any]:
    return [episode for file in sorted(output.rglob("results.jsonl")) for episode in read_episodes(file)]


@pytest.mark.slow
@pytest.mark.parametrize("calls", ["native", "text"])
@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic", "gemini", "vllm"])
def test_the_record_of_every_turn_tells_what_was_sent(lab: Any, kind: str, calls: str) -> None:
    """Also where the server refused a parameter and it was asked again without."""
    file = FIXTURES / f"{ {'openai': 'chat', 'vllm': 'chat'}.get(kind, kind) }.json"
    model = {"model": "some-model-0613", "modelVersion": "some-model-0613"}
    first, then = (
        {**json.loads(file.read_text())[case]["answer"], **model, "id": case, "responseId": case}
        for case in ("tool", "text")
    )
    accepted: list[bytes] = []

    def answer(body: dict[str, Any], number: int) -> Any:
        if "temperature" in {**body, **body.get("generationConfig", {})}:
            return lab.replies.Reply(
                {"error": "Unsupported parameter: 'temperature' is not supported."}, status=400
            )
        accepted.append(lab.server.bodies[number])
        return lab.replies.Reply(first if len(accepted) == 1 else then)

    lab.server.answer = answer
    out = lab.tmp_path / "out"
    options = ("--k", "3", "--calls", calls, "--top-p", "0.9", "--concurrency", "1")
    assert run(lab.server, lab.make_data(1), out, *options, agent=kind) == 0
    (episode,) = stored(out)
    turns = episode.details["turns"]
    assert [turn["sha256"] for turn in turns] == [hashlib.sha256(body).hexdigest() for body in accepted]
    assert len(accepted) == 3
    for turn in turns:
        assert turn["model"] == "some-model-0613"
        assert turn["usage"]["prompt_tokens"] > 0
        assert turn["usage"]["completion_tokens"] > 0
        assert "temperature" not in json.dumps(turn["sent"])  # it was refused, so the record must not say 0.0
        assert turn["without"] == ["temperature"]
        assert turn["seconds"] >= 0
        assert turn["finish"]
    assert turns[0].get("retries") == 1
    assert len({turn["id"] for turn in turns}) == 2
    stops = turns[0]["sampling"].get("stop", [])
    assert bool(stops) == (calls == "text")
    (note,) = [json.loads(line) for line in next(out.rglob("runs.jsonl")).read_text().splitlines()]
    assert note["run"] == episode.details["run"]
    assert {"histobench", "sandbox", "prices", "python", "task", "data"} <= note.keys()
    assert len(note["data"]["sha256"]) == 64


@pytest.mark.slow
def test_the_prices_and_the_data_of_a_run_are_kept(lab: Any) -> None:
    lab.server.answer = lambda body, number: lab.replies.chat("<solution>1</solution>")
    (lab.tmp_path / "prices.yaml").write_text("some-model: [1000, 2000]\n")
    out = lab.tmp_path / "out"
    assert run(lab.server, lab.make_data(2), out, "--prices", str(lab.tmp_path / "prices.yaml")) == 0
    (note,) = [json.loads(line) for line in next(out.rglob("runs.jsonl")).read_text().splitlines()]
    assert note["prices"]["some-model"]["written"] == 2000
    (turn,) = next(record for record in details(out) if record["task_id"] == 0)["turns"]
    assert turn["cost"] == pytest.approx((10 * 1000 + 5 * 2000) / 1e6)
    lab.capsys.readouterr()
    data = lab.make_data(3)
    assert run(lab.server, data, out) == 2  # the file of the tasks has changed
    assert "data was" in lab.capsys.readouterr().err


def test_records_of_earlier_versions_still_open(tmp_path: Path) -> None:
    folder = tmp_path / "m/F=None/max2_p2+tool+cd/reasoning/gsm8k"
    folder.mkdir(parents=True)
    lines = []
    for number, (said, reason) in enumerate(
        [("<solution>3</solution>", "max_propose_steps"), ("Hm.", "max_steps"), ("", "error")]
    ):
        history = [
            {"role": "user", "content": "Task:"},
            {"role": "assistant", "content": f"Assistant:\n{said}\n"},
        ]
        counts = {"propose_solution": 0, "use_tool": 0, "invalid_action": 0}
        state = {"history": history, "finished": True, "success": False, "latest_output": {}, "error": None}
        state |= {"agent_action_count": counts, "token_counter": {}, "terminate_reason": reason}
        task = {"task_name": "reasoning", "task_id": number, "prompt": "", "reference": "", "metadata": {}}
        lines.append(json.dumps({"state": state, "task": task}))
    (folder / "results.jsonl").write_text("\n".join(lines) + "\n")
    outcomes = [episode.outcome.outcome for episode in stored(tmp_path)]
    assert outcomes == ["wrong", "invalid_action", "too_long"]
