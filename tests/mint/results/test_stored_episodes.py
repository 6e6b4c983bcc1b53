"""Stored runs are read back, counted and scored again."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean

import pytest

import histobench as hb
from builders import PLAYED, write_episodes
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.mint.envs.episode import play
from histobench.mint.envs.general_env import open_environment
from histobench.mint.envs.turn_loop import Budget
from histobench.mint.outcomes import read_outcomes
from histobench.mint.results.episode_outcome import read_outcome_table
from histobench.mint.results.rescoring import Rescored, rescore
from histobench.mint.results.stored_episode import read_episodes
from histobench.mint.results.uncertainty import pass_hat_interval, rate_interval, slope_interval
from histobench.mint.tasks import MultipleChoiceTask, ReasoningTask, Task

CELL = "m/F=None/max5_p2+tool+cd/reasoning/mmlu"
QUESTION = "Which? Options: [ 'A ) a cat' , 'B ) a dog' , 'C ) a bird' ]"


def _task() -> MultipleChoiceTask:
    return MultipleChoiceTask(id=7, prompt=QUESTION, reference="a")


def _line(*messages: str, rule: str = "published") -> str:
    task: Task = _task()
    task.rule = rule  # type: ignore[assignment]
    answers = iter(messages)
    with open_environment(task) as env:
        state = play(env, lambda history: next(answers), prompt="?", budget=Budget())
    return json.dumps({"state": state.as_published(), "task": task.to_dict()})


def _write(folder: Path, text: str, cell: str = CELL) -> Path:
    path = folder / cell / "results.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_stored_episode_keeps_what_the_model_wrote(tmp_path: Path) -> None:
    messages = ["Assistant:\nno tag", "<solution>Bird\n</solution>\n", "<solution>B ) a dog</solution>"]
    (episode,) = read_episodes(_write(tmp_path, _line(*messages) + "\n"))
    assert episode.messages == ["no tag", *messages[1:]]
    outcome = episode.outcome
    assert (outcome.model, outcome.task, outcome.task_id, outcome.k) == ("m", "mmlu", "7", 5)
    assert (outcome.proposals, outcome.invalid, outcome.terminate_reason) == (2, 1, "task_success")


def test_messages_without_text_keep_their_turn(tmp_path: Path) -> None:
    solved = ["", "Hm.", "", "<solution>B ) a dog</solution>"]
    gave_up = ["Hm.", "", "", "", ""]
    lines = "".join(_line(*messages) + "\n" for messages in (solved, gave_up))
    first, second = read_episodes(_write(tmp_path, lines))
    assert (first.messages, second.messages) == (solved, gave_up)
    assert first.exchanges[0][1] is not None
    assert first.exchanges[0][1].startswith("Observation:\nI don't understand")
    assert second.exchanges[-1] == ("", None)
    broken_off = json.loads(_line(*gave_up))  # after the answer to its first message
    broken_off["state"]["history"] = broken_off["state"]["history"][:3]
    broken_off["state"]["agent_action_count"] |= {"invalid_action": 1}
    (episode,) = read_episodes(_write(tmp_path / "other", json.dumps(broken_off) + "\n"))
    assert episode.messages == ["Hm."]


def test_a_torn_last_line_is_no_episode_but_a_torn_line_before_is_an_error(tmp_path: Path) -> None:
    whole = _line("<solution>a</solution>")
    assert len(list(read_episodes(_write(tmp_path / "a", whole + "\n" + whole[:50])))) == 1
    with pytest.raises(HistobenchError, match=r"results\.jsonl:1"):
        list(read_episodes(_write(tmp_path / "b", whole[:50] + "\n" + whole + "\n")))


@pytest.mark.parametrize(
    "damage",
    [
        {"state": None},
        {"state": {"success": True}},
        {"state": {"agent_action_count": {}, "success": True, "terminate_reason": ""}},
        {"state": {"history": ["a", "b"], "agent_action_count": {}, "success": True}},
        {"task": {}},
    ],
)
def test_a_line_that_is_no_whole_episode_is_named_by_every_reader(
    damage: dict[str, object], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = _line("<solution>a</solution>")
    path = _write(tmp_path / "runs", json.dumps(json.loads(whole) | damage) + "\n" + whole + "\n")
    for verb in (["mint", "table"], ["mint", "rescore"], ["report", "-o", str(tmp_path / "site")]):
        assert main([*verb, str(tmp_path / "runs")]) == 2
        assert f"{path.name}:1: not a finished episode" in capsys.readouterr().err


def _rescored(messages: list[str], *, success: bool, task: Task | None = None) -> Rescored:
    return rescore(messages, task or _task(), "strict", stored_success=success, budget=Budget(5, 2))


def test_an_answer_that_was_credited_for_a_letter_inside_it_is_lost_and_the_episode_open() -> None:
    assert _rescored(["<solution>B ) a dog</solution>"], success=True) == Rescored(False, open=True)


def test_a_last_proposal_leaves_nothing_open() -> None:
    messages = ["<solution>C</solution>", "<solution>B ) a dog</solution>"]
    assert _rescored(messages, success=True) == Rescored(False, open=False)


def test_an_earlier_answer_can_turn_out_right() -> None:
    task = ReasoningTask(id=0, prompt="", reference="-108.0")
    messages = ["<solution>-108 points</solution>", "<solution>5</solution>"]
    assert _rescored(messages, success=False, task=task) == Rescored(True)


def test_the_verb_prints_both_rules_and_writes_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data" / "mmlu"
    data.mkdir(parents=True)
    (data / "test_prompts.json").write_text(
        json.dumps({"id": 7, "prompt": QUESTION, "reference": "a"}) + "\n", encoding="utf-8"
    )
    lines = [_line("<solution>a</solution>"), _line("<solution>B ) a dog</solution>")]
    _write(tmp_path / "runs", "\n".join(lines) + "\n")
    table = tmp_path / "strict.csv"
    arguments = [str(tmp_path / "runs"), "--data", str(tmp_path / "data"), "-o", str(table)]
    assert main(["mint", "rescore", *arguments]) == 0
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[0] == ["dataset", "episodes", "stored", "strict", "gained", "lost", "open"]
    assert shown[1] == ["mmlu", "2", "100.00", "%", "50.00", "%", "0", "1", "1"]
    assert shown[3][-9:] == ["k=5", *shown[1][1:]]
    assert [outcome.success for outcome in read_outcome_table(table)] == [True, False]
    assert main(["mint", "table", str(table), str(tmp_path / "runs")]) == 0
    assert "75.00" in capsys.readouterr().out


@pytest.mark.slow
def test_both_rules_stand_side_by_side_for_recordings(
    shared_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(shared_dir / "mint" / "replay"), "--rule", "published,strict"]
    assert main(["mint", "rescore", *arguments, "--tasks", "mmlu,alfworld"]) == 0
    shown = [line.replace(" %", "%").split() for line in capsys.readouterr().out.splitlines()]
    rows = {line[0]: line[1:] for line in shown}
    # What the published rule credits for a letter inside a word, and for running into the limit of actions.
    assert rows["mmlu"] == ["456", "48.03%", "48.03%", "0", "0", "0", "35.53%", "11", "68", "27"]
    assert rows["alfworld"] == ["804", "42.04%", "42.04%", "0", "0", "0", "40.05%", "0", "16", "14"]


def test_every_number_of_the_tables_is_that_of_a_slow_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    folder = write_episodes(tmp_path)
    runs, outcomes = hb.mint.open_runs(folder), read_outcomes(folder)
    frame = runs.to_frame().set_index(["model", "k", "dataset"])
    assert main(["mint", "table", str(folder), "--by", "dataset", "--intervals"]) == 0
    printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    for agent, dataset in ((name, each) for name, played in PLAYED.items() for each in played):
        solved = PLAYED[agent][dataset]
        tries = {2: [each > 0 for each in solved], 5: [each > n for n in (0, 1) for each in solved]}
        tasks = range(len(solved))
        rates = {k: mean(won) for k, won in tries.items()}
        invalid, tokens = mean(task % 2 for task in tasks), mean(10 + 7 * task for task in tasks)
        own = [each for each in outcomes if (each.model, each.task) == (agent, dataset)]
        full = [each for each in own if each.k == 5]
        for k, won in tries.items():
            row = frame.loc[agent, k, dataset]
            bounds = rate_interval([each for each in own if each.k == k])
            expected = [len(won), rates[k], bounds.low, bounds.high, invalid, tokens]
            assert row.iloc[-6:].tolist() == pytest.approx(expected)
        actions = mean(1 + task % 3 + task % 2 for task in tasks)
        spans = [rate_interval(full), slope_interval(own), pass_hat_interval(full, 2)]
        rate, slope, every = (
            f"{scale * each.low:.1f} to {scale * each.high:.1f}"  # type: ignore[operator, union-attr]
            for each, scale in zip(spans, (100, 1, 100), strict=True)
        )
        shown = f"{agent} {dataset} {100 * rates[2]:.2f} {100 * rates[5]:.2f} {rate} {slope} {actions:.1f}"
        shown += f" {100 * invalid / actions:.1f} % {tokens:.0f} {2 * len(solved)}"
        assert f"{shown} {100 * mean(each == 2 for each in solved):.1f} % (of 2) {every}" in printed


@pytest.mark.slow
@pytest.mark.parametrize("writers", [1, 3])
def test_no_number_depends_on_which_episode_ended_first(
    writers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(order: int) -> list[object]:
        folder = write_episodes(tmp_path / str(order), shuffled=order, writers=writers)
        runs = hb.mint.open_runs(folder)
        tables = [runs.episodes(), runs.to_frame(), runs.leaderboard(), runs.compare("one", "two")]
        assert main(["mint", "table", str(folder), "--by", "dataset"]) == 0
        return [*(table.to_json(double_precision=15) for table in tables), capsys.readouterr().out]

    first = shown(0)
    assert all(shown(order) == first for order in (1, 2))
