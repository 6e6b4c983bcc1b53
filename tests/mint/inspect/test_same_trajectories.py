"""Inspect and this project's own runs play the same episodes; a model behind real HTTP answers both."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="the extra `inspect` is not installed")

from inspect_ai import eval as inspect_eval
from inspect_ai.log import EvalLog, EvalSample, read_eval_log
from inspect_ai.model import Model, ModelUsage, get_model

from builders import published_prompts
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.mint.agents.completion import Usage
from histobench.mint.inspect.inspect_entry import mint
from histobench.mint.inspect.solver import EPISODE, _usage

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_sandbox")]
EPISODES = 12


def model(server: Any, name: str = "scripted") -> Model:
    return get_model(f"openai-api/test/{name}", base_url=server.url, api_key="none", memoize=False)


def evaluate(server: Any, logs: Path, data: Path, **arguments: Any) -> EvalLog:
    roles = arguments.pop("model_roles", None)
    options = {name: arguments.pop(name) for name in ("epochs",) if name in arguments}
    # In a thread of its own: this one may hold the event loop of a browser that other tests use.
    with ThreadPoolExecutor(1) as thread:
        logs_of_run = thread.submit(
            inspect_eval,
            mint(tasks="gsm8k", data=str(data), **arguments),
            model=model(server),
            model_roles=roles,
            log_dir=str(logs),
            display="none",
            **options,
        ).result()
    # From the file, as its viewer reads it.
    return read_eval_log(logs_of_run[0].location)


def run(server: Any, output: Path, data: Path, *more: str) -> None:
    agent = f"openai:scripted@{server.url}"
    where = ["--tasks", "gsm8k", "--data", str(data), "-o", str(output)]
    assert main(["mint", "run", "--agent", agent, *where, *more]) == 0


def samples(log: EvalLog) -> list[EvalSample]:
    assert log.status == "success", log.error
    return log.samples or []


def episodes_of_log(log: EvalLog) -> dict[str, Any]:
    episodes = {}
    for sample in samples(log):
        episode = dict(sample.store[EPISODE])
        episode.pop("details")
        episodes[str(episode["task"]["task_id"])] = episode
    return episodes


def episodes_of_run(script: Any, output: Path) -> dict[str, Any]:
    return {str(line["task"]["task_id"]): line for line in script.lines(output)}


def test_tokens_of_inspects_cache_are_tokens_that_were_read() -> None:
    apart = {"input_tokens_cache_read": 30, "input_tokens_cache_write": 400}
    assert _usage(ModelUsage(input_tokens=5, output_tokens=7, **apart)) == Usage(435, 7)


def test_the_log_shows_the_conversation_the_verdict_and_the_rate(lab: Any) -> None:
    lab.server.answer = lambda body, number: lab.replies.chat(lab.script.answer(body))
    log = evaluate(lab.server, lab.tmp_path / "logs", lab.make_data(EPISODES))
    assert log.results is not None
    metrics = {name: metric.value for name, metric in log.results.scores[0].metrics.items()}
    played = samples(log)
    verdicts = [(sample.scores or {})["task_success"] for sample in played]
    solved = [verdict.value == "C" for verdict in verdicts]
    assert metrics["accuracy"] == pytest.approx(sum(solved) / EPISODES)
    assert 0 < sum(solved) < EPISODES
    computed = next(sample for sample in played if sample.metadata["task_id"] == "9")
    said = [message.text for message in computed.messages]
    assert said[1] == "Assistant:\n<execute>print(9 + 1)</execute>\n"
    assert said[2].startswith("Observation:\n10\n")
    verdict = (computed.scores or {})["task_success"]
    assert (verdict.answer, verdict.explanation) == ("10", "task_success")


@pytest.mark.sample(1)
@pytest.mark.parametrize("form", ["textual", "binary"])
def test_an_expert_is_asked_the_same_by_both_engines(lab: Any, form: str) -> None:
    data, clone = lab.make_data(6), published_prompts(lab.tmp_path / "clone")

    def answer(body: dict[str, Any], number: int) -> Any:
        if body["model"] == "teacher":
            return lab.replies.chat("This is BAD. Count again.")
        return lab.replies.chat(lab.script.answer(body))

    lab.server.answer = answer
    expert = f"openai:teacher@{lab.server.url}"
    options = ("--feedback-form", form, "--gt", "--k", "3", "--rule", "published")
    options += ("--prompts", "official", "--prompts-dir", str(clone))
    run(lab.server, lab.tmp_path / "own", data, "--feedback", expert, *options)

    def asked() -> list[str]:
        names = ("model", "messages", "max_tokens", "temperature", "stop")
        found = sorted(str([body[name] for name in names]) for body in lab.server.requests)
        lab.server.requests.clear()
        return found

    first = asked()
    log = evaluate(
        lab.server,
        lab.tmp_path / "logs",
        data,
        feedback=form,
        gt=True,
        k=3,
        rule="published",
        prompts="official",
        prompts_dir=str(clone),
        model_roles={"expert": model(lab.server, "teacher")},
    )
    assert episodes_of_log(log) == episodes_of_run(lab.script, lab.tmp_path / "own")
    assert asked() == first
    assert sum("teacher" in each for each in first) > 2


def test_the_placebo_needs_no_expert_and_an_expert_needs_a_model(lab: Any) -> None:
    data = lab.make_data(4)
    lab.server.answer = lambda body, number: lab.replies.chat(lab.script.answer(body))
    run(lab.server, lab.tmp_path / "own", data, "--feedback", "placebo")
    log = evaluate(lab.server, lab.tmp_path / "logs", data, feedback="placebo")
    assert episodes_of_log(log) == episodes_of_run(lab.script, lab.tmp_path / "own")
    failed = evaluate(lab.server, lab.tmp_path / "logs", data, feedback="textual")
    assert failed.status == "error"
    assert "role 'expert' is required" in str(failed.error)
    with pytest.raises(HistobenchError, match="did you mean textual"):
        mint(data=str(data), feedback="textul")


def test_a_conversation_that_is_too_long_ends_the_episode_in_both(lab: Any) -> None:
    data = lab.make_data(2)

    def answer(body: dict[str, Any], number: int) -> Any:
        if len(body["messages"]) > 1:
            message = "This model's maximum context length is 8192 tokens."
            error = {"message": message, "code": "context_length_exceeded"}
            return lab.replies.Reply({"error": error}, status=400)
        return lab.replies.chat("Hm.")

    lab.server.answer = answer
    run(lab.server, lab.tmp_path / "own", data)
    ends = []
    for episodes in (
        episodes_of_run(lab.script, lab.tmp_path / "own"),
        episodes_of_log(evaluate(lab.server, lab.tmp_path / "logs", data)),
    ):
        states = [episode["state"] for episode in episodes.values()]
        ends.append([(s["terminate_reason"], s["success"], s["agent_action_count"]) for s in states])
    assert ends[0] == ends[1]
    assert ends[0][0][0] == "error"


@pytest.mark.nightly
def test_a_provider_that_fails_is_no_failure_of_the_model(lab: Any) -> None:
    lab.server.answer = lambda body, number: lab.replies.Reply({"error": {"message": "no"}}, status=401)
    log = evaluate(lab.server, lab.tmp_path / "logs", lab.make_data(2))
    assert log.status == "error"
    assert not any(sample.scores for sample in log.samples or [])


@pytest.mark.nightly
def test_inspects_command_finds_the_tasks_and_the_table_reads_its_log(lab: Any) -> None:
    data = lab.make_data(4)
    lab.server.answer = lambda body, number: lab.replies.chat(lab.script.answer(body))
    command = [sys.executable, "-m", "inspect_ai", "eval", "histobench/mint"]
    command += ["--model", "openai-api/test/scripted", "--model-base-url", lab.server.url, "--epochs", "2"]
    command += ["-T", "tasks=gsm8k", "-T", f"data={data}", "-T", "k=3", "--limit", "3", "--display", "plain"]
    environment = {**os.environ, "TEST_API_KEY": "none", "INSPECT_LOG_DIR": str(lab.tmp_path / "logs")}
    done = subprocess.run(command, env=environment, cwd=lab.tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (log,) = (lab.tmp_path / "logs").glob("*.eval")
    assert main(["mint", "table", str(log), "--intervals"]) == 0
    lines = lab.capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["model", "SR3"]
    assert lines[1].split()[0] == "scripted"
    assert lines[1].split()[-1] == "6"  # three tasks, twice
