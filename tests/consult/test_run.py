"""Episodes through MINT's loop: policies, both dialects, the same prompt, pictures, kill and resume."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import histobench as hb
from histobench.cli.main import main
from histobench.consult.arms import case_of, steps_of
from histobench.consult.consultation import (
    MOST_CALLS,
    SPENT,
    ConsultTask,
    Desk,
    Kept,
    SequenceMemory,
    desk_tools,
    read_answer,
)
from histobench.consult.measures import read_played
from histobench.consult.playing import plan_run
from histobench.consult.reference_agents import POLICIES, PolicyAgent, PolicyModels
from histobench.consult.study import Study
from histobench.consult.study_plan import ConsultRun
from histobench.core.errors import HistobenchError
from histobench.core.progress import Silent
from histobench.mint.agents.agent import EpisodeKey
from histobench.mint.envs.episode import play
from histobench.mint.envs.turn_loop import Budget
from histobench.mint.messages.parts import Message, ToolCall, ToolResult
from histobench.mint.runs.episode_run import EpisodeStoppedError
from histobench.mint.runs.parted_run import PartWorker
from histobench.mint.runs.run_options import RunOptions
from histobench.mint.sandbox import open_sandbox
from histobench.mint.tools.base import ToolArgumentError
from histobench.work.engines import Display, RayEngine
from histobench.work.loop import work_through
from histobench.work.run_folder import RunFolder

pytestmark = pytest.mark.slow


def records(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """(arm, case) -> what happened."""
    found = {}
    for file in sorted(folder.rglob("results.jsonl")):
        for line in file.read_text().splitlines():
            task = json.loads(line)["task"]
            record = task["metadata"]["consult"]
            key = record["arm"], task["task_id"]
            assert key not in found
            found[key] = record | {"reference": task["reference"], "case": case_of(task["task_id"])}
    return found


def test_workers_together_play_what_one_process_plays(
    study: Study, played: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play_here(engine: RayEngine, run: RunFolder, display: Display) -> bool:
        worker = run.open_worker(Silent(), display.say)
        work_through(run, worker)
        assert isinstance(worker, PartWorker)
        assert not worker.incomplete
        return True

    monkeypatch.setattr(RayEngine, "check", lambda engine: None)
    monkeypatch.setattr(RayEngine, "run", play_here)
    arguments = ["--agent", "policy:never-trust", "--arms", "none,strong,shuffled", "--cache", "none"]
    command = ["consult", "run", str(study.folder), *arguments, "-o", str(tmp_path / "runs")]
    assert main([*command, "--engine", "ray", "--workers", "3"]) == 0
    folders = {path.name[:4] for path in (tmp_path / "runs" / "writers").glob("*of3-*")}
    assert folders == {"1of3", "2of3", "3of3"}
    alone = {
        key: record for key, record in records(played / "policy-never-trust").items() if key[0][:3] != "seq"
    }
    assert records(tmp_path / "runs" / "writers") == alone
    assert len(alone) == 3 * len(study.cases)
    ours, theirs = (read_played(folder) for folder in (tmp_path / "runs", played))
    for arm in ("none", "strong", "shuffled"):
        assert set(ours["policy-never-trust", arm][1]) == set(theirs["policy-never-trust", arm][1])
    assert main(command) == 0  # one process finds nothing left to do
    assert records(tmp_path / "runs") == alone
    assert main([*command, "--workers", "3"]) == 2


def test_policies_act_through_the_loop_as_their_names_say(study: Study, played: Path) -> None:
    found = {policy: records(played / f"policy-{policy}") for policy in POLICIES}
    steps = sum(map(len, study.facts.sequences))
    assert len(found["always-trust"]) == 3 * len(study.cases) + 2 * steps
    for (arm, _), record in found["always-trust"].items():
        wanted = record["first"] if arm == "none" else record["tool"]
        assert record["final"]["label"] == wanted["label"]
        assert record["asked"] == (arm != "none")
    for record in found["never-trust"].values():
        assert record["final"]["label"] == record["first"]["label"]
    for record in found["oracle"].values():
        known = {record["first"]["label"], (record["tool"] or {}).get("label")}
        assert (record["final"]["label"] == record["reference"]) == (record["reference"] in known)
    assert not any(record["asked"] for record in found["never-trust"].values())
    models = PolicyModels(study)
    for (arm, _), record in found["rational"].items():
        if arm != "none":
            own, tool = (record[name]["confidence"] for name in ("first", "tool"))
            chances = models.own_is_right(own), models.tool_is_right("strong", round(tool, 2))
            better = record["first" if chances[0] >= chances[1] else "tool"]["label"]
            assert record["final"]["label"] == better
            assert record["final"]["confidence"] == pytest.approx(max(chances), abs=1e-3)
    cases = [(case, EpisodeKey("d@strong", case.id, repeat)) for case in study.cases for repeat in (1, 2)]
    guesses = [PolicyAgent(study, key, "random", models).first_choice()[0] for _, key in cases]
    assert guesses[::2] != guesses[1::2]  # another try, another guess


def test_the_prompt_is_the_same_in_every_arm_and_so_is_the_first_answer(study: Study, played: Path) -> None:
    found = records(played / "policy-reader")
    arms = {arm for arm, _ in found} - {"sequence", "sequence-same"}
    assert len(arms) == 9
    for case in study.cases:
        assert len({found[arm, case.id]["prompt"] for arm in arms}) == 1
        assert len({found[arm, case.id]["first"]["label"] for arm in arms}) == 1


def environment(study: Study, arm: str, *, pool: Any = None, **kwargs: Any) -> Any:
    task = ConsultTask(study, study.cases[0], arm, **kwargs)
    return task, task.open_environment((), pool=pool)


def test_both_dialects_give_the_same_results_of_tools(study: Study, needs_sandbox: None) -> None:
    task, world = environment(study, "strong")
    agent = PolicyAgent(study, EpisodeKey("d@strong", study.cases[0].id), "reader", PolicyModels(study))
    with world:
        prompt = world.own_prompt(Budget(), native=True)
        state = play(world, agent, prompt=prompt, functions=world.functions)
    native = task.record
    results = [
        part.text for message in state.history for part in message.parts if isinstance(part, ToolResult)
    ]
    replies = iter(
        [
            "<execute>print(measure())</execute>",
            f"<solution>{json.dumps(native['first'])}</solution>",
            "<execute>print(predict(n=5))\nprint(neighbours(k=5))</execute>",
            f"<solution>{json.dumps(native['final'])}</solution>",
        ]
    )
    with open_sandbox(preload=()) as pool:  # the packages for calculations take seconds to load
        task, world = environment(study, "strong", pool=pool)
        with world:
            prompt = world.own_prompt(Budget(), native=False)
            state = play(world, lambda _: next(replies), prompt=prompt)
    plain = task.record
    assert {**plain, "prompt": ""} == {**native, "prompt": ""}
    printed = [message.content for message in state.history[1:] if message.role == "user"]
    assert all(any(text in seen for seen in printed) for text in results[:1] + results[2:4])


def test_encoder_tools_open_with_the_first_answer_and_never_in_the_arm_none(study: Study) -> None:
    for arm, opened in (
        ("none", set()),
        ("strong", {"predict", "neighbours"}),
        ("disclosed", {"predict", "neighbours", "track_record"}),
    ):
        _, world = environment(study, arm)
        always = {"python", "measure", "typical", "propose_solution"}
        with world:
            assert {spec.name for spec in world.functions()} == always
            said = world.check('{"label": "STR", "confidence": 0.7}').observation
            assert {spec.name for spec in world.functions()} == always | opened
        assert ("An image encoder is now available" in said) == (arm != "none")


def test_an_unreadable_first_answer_has_its_place_and_the_agent_is_told(study: Study) -> None:
    task, world = environment(study, "strong")
    replies = iter(["<solution>", "<solution>nonsense</solution>"])
    with world:
        state = play(world, lambda history: next(replies), prompt="?", budget=Budget())
    assert state.terminate_reason == "max_propose_steps"
    assert "cannot be read" in state.history[2].content
    assert "An image encoder is now available" in state.history[2].content
    assert task.record["first"]["label"] is None
    assert task.record["final"]["problem"]


def test_a_seventh_call_and_arguments_that_cannot_be_used_are_not_counted(study: Study) -> None:
    desk = Desk(study.cases[0], "strong", study.facts, study.cassette, opened=True)
    tools = {tool.name: tool for tool in desk_tools(desk)}
    for name, argument in (("predict", 0), ("predict", "3"), ("neighbours", True), ("typical", "XYZ")):
        with pytest.raises(ToolArgumentError):
            tools[name](argument)
    assert desk.calls == []
    assert tools["predict"](99) == tools["predict"](5)  # no more than there are classes
    answers = [tools["predict"](n) for n in range(1, MOST_CALLS - 1)]
    assert SPENT not in answers
    assert tools["measure"]() == SPENT
    assert len(desk.calls) == MOST_CALLS
    assert tools["predict"](99) == SPENT


@pytest.mark.parametrize(
    ("text", "label", "confidence", "defer"),
    [
        ('{"label": "MUC, loose", "confidence": 0.5}', "MUC, loose", 0.5, False),
        ('```json\n{"label": "str", "confidence": "85%"}\n```', "STR", 0.85, False),
        ("The answer is TUM.", "TUM", None, False),
        ('{"label": "defer", "confidence": 0.2}', None, 0.2, True),
        ('{"label": "TUM", "confidence": 1}', "TUM", 1.0, False),
        ('{"label": "TUM", "confidence": NaN}', "TUM", None, False),
        ('{"label": "TUM", "confidence": -3}', "TUM", None, False),
        ('{"label": 3}', None, None, False),
        ("'ADI'", "ADI", None, False),
        ("TUM or STR", None, None, False),
        ("", None, None, False),
        ("{" * 5000, None, None, False),
    ],
)
def test_answers_are_read(text: str, label: str | None, confidence: float | None, defer: bool) -> None:
    answer = read_answer(text, ["ADI", "LYM", "MUC, loose", "STR", "TUM"])
    assert (answer.label, answer.confidence, answer.defer) == (label, confidence, defer)


def test_agents_that_see_get_the_picture_and_crops_of_it(study: Study, tmp_path: Path) -> None:
    path = tmp_path / "wide.png"
    pixels = np.random.default_rng(0).integers(0, 256, (20, 32, 3), dtype=np.uint8)
    Pillow.fromarray(pixels).save(path)
    task, world = environment(study, "strong", picture=path)
    replies = iter(
        [
            Message.of("assistant", [ToolCall("a", "look", {"box": [0.0, 0.25, 0.5, 1.0]})]),
            Message.of("assistant", [ToolCall("b", "propose_solution", {"label": "STR"})]),
            Message.of("assistant", [ToolCall("c", "propose_solution", {"label": "STR"})]),
        ]
    )
    with world:
        first = world.own_prompt(Budget(), native=True)
        state = play(world, lambda *_: next(replies), prompt=first, functions=world.functions)
    assert np.array_equal(np.asarray(Pillow.open(io.BytesIO(first.images[0].data)).convert("RGB")), pixels)
    result = next(part for part in state.history[2].parts if isinstance(part, ToolResult))
    crop = np.asarray(Pillow.open(io.BytesIO(result.images[0].data)))
    assert np.array_equal(crop, pixels[5:, :16])
    assert task.record["calls"] == ["look"]


@pytest.mark.nightly
def test_a_killed_run_goes_on_where_it_was(study: Study, tmp_path: Path) -> None:
    program = "import sys; from histobench.cli.main import main; sys.exit(main())"
    arguments = ["consult", "run", str(study.folder), "--agent", "policy:reader", "--cache", "none"]
    command = [sys.executable, "-c", program, *arguments, "--arms", "strong,sequence", "--outcomes", "-o"]
    subprocess.run([*command, str(tmp_path / "whole")], check=True, capture_output=True)
    killed = tmp_path / "killed"
    process = subprocess.Popen([*command, str(killed)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 600
    while process.poll() is None and (
        sum(path.read_bytes().count(b"\n") for path in killed.rglob("results.jsonl")) < 20
    ):
        assert time.monotonic() < deadline
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run([*command, str(killed)], check=True, capture_output=True)
    assert records(killed) == records(tmp_path / "whole")


def test_both_sequence_arms_have_the_same_prompts_until_the_notes_differ(study: Study, played: Path) -> None:
    found = records(played / "policy-learner")
    first = [key for key in found if key[0] == "sequence" and ".000." in key[1]]
    assert len(first) == 4
    for _, step in first:
        assert found["sequence", step]["prompt"] == found["sequence-same", step]["prompt"]
    for (arm, _), record in found.items():
        if arm.startswith("sequence"):
            like = "random" if arm == "sequence" and record["position"] >= 10 else "strong"
            assert record["role"] == like
            assert record["tool"]["encoder"] == study.by_id[record["case"]].arms[like].encoder


def test_the_learner_believes_what_a_slow_loop_computes(study: Study, played: Path) -> None:
    found = records(played / "policy-learner")
    own_accuracy = PolicyModels(study).own_accuracy
    for arm in ("sequence", "sequence-same"):
        for number, cases in enumerate(study.facts.sequences):
            right, wrong = 3.0, 1.0
            for position, case in enumerate(cases):
                record = found[arm, f"{number:02d}.{position:03d}.{case}"]
                tool, own, final = (record[name]["label"] for name in ("tool", "first", "final"))
                assert final == (tool if right / (right + wrong) > own_accuracy else own)
                known = final == tool or final == record["reference"]
                if known:
                    hit = tool == record["reference"]
                    right, wrong = 3 + 0.9 * (right - 3) + hit, 1 + 0.9 * (wrong - 1) + (not hit)
                said = json.loads(record["notes"])
                assert (said["right"], said["wrong"]) == pytest.approx((right, wrong))


def test_notes_are_handed_on_in_order_and_cut_to_their_length(study: Study) -> None:
    memory = SequenceMemory([20], outcomes=True)
    steps = steps_of("sequence", study.facts.sequences[:1], "random")
    for number, step in enumerate(steps[:3]):
        task = ConsultTask(study, study.by_id[step.case], "sequence", step=step, memory=memory)
        long = "x" * 5000 if number == 1 else f"note {number}"
        label = task.reference if number else "defer"
        replies = iter(
            [
                "<solution>STR</solution>",
                f'<solution>{{"label": "{label}"}}</solution>',
                f'<solution>{{"notes": "{long}"}}</solution>',
            ]
        )
        with task.open_environment(()) as world:
            prompt = world.own_prompt(Budget(6, 3), native=False)
            state = play(world, lambda _: next(replies), prompt=prompt, budget=Budget(6, 3))  # noqa: B023
        assert state.success == bool(number)
        assert f"It is {'right' if number else 'wrong'}." in state.history[4].content
        assert f"This is case {number + 1} of 20" in prompt
        assert "6 turns in all, 2 of them for answers and 1 for your notes" in prompt
        if number == 1:
            assert "Your notes so far:\nnote 0\n" in prompt
            assert "Of your 1 final answers so far 0 were right, and the last one was wrong." in prompt
        if number == 2:
            assert "x" * 1200 in prompt
            assert "x" * 1201 not in prompt


def test_a_case_that_was_not_finished_stops_its_sequence_and_no_other(study: Study) -> None:
    memory = SequenceMemory([20, 20])
    steps = {(s.sequence, s.position): s for s in steps_of("sequence", study.facts.sequences[:2], "random")}
    assert memory.recall(steps[0, 0]).notes == ""
    stopped = []

    def wait() -> None:
        with pytest.raises(EpisodeStoppedError):
            memory.recall(steps[0, 1])
        stopped.append(True)

    waiting = threading.Thread(target=wait)
    waiting.start()
    memory.end(steps[0, 0], None)
    waiting.join(30)
    assert stopped
    memory.end(steps[1, 0], Kept("mine", True))
    assert memory.recall(steps[1, 1]).notes == "mine"
    with pytest.raises(EpisodeStoppedError):
        memory.recall(steps[0, 2])


def test_an_unknown_sandbox_is_told_before_anything_is_written(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["consult", "run", str(study.folder), "--agent", "policy:reader", "--arms", "none"]
    assert main([*command, "-o", str(tmp_path / "runs"), "--sandbox", "landlok"]) == 2
    assert "unknown sandbox 'landlok'; did you mean landlock?" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_sequences_are_not_shared_out_or_repeated(study: Study, capsys: pytest.CaptureFixture[str]) -> None:
    run = ConsultRun(str(study.folder), RunOptions(agent="policy:reader"), "sequence")
    with pytest.raises(HistobenchError, match="played in one process"):
        plan_run(run, elsewhere=True)
    with pytest.raises(HistobenchError, match="played once"):
        plan_run(replace(run, options=RunOptions(agent="policy:reader", repeat=2)))
    _, planned, _ = plan_run(replace(run, arms="all"), elsewhere=True)
    assert not {cell.dataset.name.rpartition("@")[2] for cell, _ in planned} & {"sequence", "sequence-same"}


@pytest.mark.nightly
def test_runs_are_opened_as_tables_and_mistakes_are_named(study: Study, played: Path) -> None:
    runs = hb.consult.open_runs(study, results=played)
    assert "policy-reader, strong: final accuracy" in repr(runs)
    assert "<table" in runs._repr_html_()
    assert set(runs.contrasts()["agent"]) == set(runs.agents)
    with pytest.raises(HistobenchError, match="no runs of 'policy-read'; did you mean policy-reader"):
        runs.compare("policy-read", "policy-oracle")
    with pytest.raises(HistobenchError, match=r"^data: expected what hb\.load_dataset returned, or a path"):
        hb.consult.prepare(3, ["e"])  # type: ignore[arg-type]
    with pytest.raises(HistobenchError, match="unknown policy 'raeder'"):
        hb.consult.run(study, "policy:raeder")
    with pytest.raises(HistobenchError, match="unknown agent 'reader'; did you mean policy:reader"):
        hb.consult.run(study, "reader")
