"""All gates of a folder of recordings, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json
from histobench.mint.replay.bookkeeping import book_differences
from histobench.mint.replay.execution import OpenEnv, Replayed, replay
from histobench.mint.replay.gate import Gate
from histobench.mint.replay.journal import Journal
from histobench.mint.replay.recording import Recording
from histobench.mint.replay.scoring import ScoredCase
from histobench.mint.results.outcome import read_outcome_table
from histobench.mint.results.result_tables import leaderboard

REASONING_VERDICTS = 1.0
CODE_VERDICTS = 0.999
SUCCESS = 0.995
OBSERVATIONS = 0.91
#: Datasets whose observations hardly depend on the outside world.
OBSERVATIONS_OF = {"humaneval": 0.99, "mbpp": 0.99, "gsm8k": 0.99, "alfworld": 1.0}
HOUSEHOLD = "alfworld"


def books_gate(recordings: Sequence[Recording]) -> Gate:
    """Kinds of action, counters, countdown and ending of every episode."""
    wrong = [recording.name for recording in recordings if book_differences(recording)]
    total = len(recordings)
    return Gate("books: kinds, counters, countdown, ending", total - len(wrong), total, 1.0, _some(wrong))


def scoring_gate(subject: str, cases: Sequence[ScoredCase], required: float) -> Gate:
    """Verdicts of the checkers."""
    wrong = [f"{case.task} {case.task_id}" for case in cases if case.recorded != case.now]
    return Gate(subject, len(cases) - len(wrong), len(cases), required, _some(wrong))


def execute(
    recordings: Sequence[Recording],
    open_env: OpenEnv,
    *,
    workers: int,
    journal: Journal,
    done: Callable[[Replayed], None] = lambda _: None,
) -> list[Replayed]:
    """Play episodes again, some at a time; those in the journal are not played twice."""

    def one(recording: Recording) -> Replayed:
        known = journal.find(recording)
        replayed = known or replay(recording, open_env)
        if known is None:
            journal.add(replayed)
        done(replayed)
        return replayed

    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(one, _in_good_order(recordings)))


def _in_good_order(recordings: Sequence[Recording]) -> list[Recording]:
    """Household games last, plays of one game after another: it is loaded once then."""
    household = [recording for recording in recordings if recording.task == HOUSEHOLD]
    others = [recording for recording in recordings if recording.task != HOUSEHOLD]
    return others + sorted(household, key=lambda recording: str(recording.task_id))


def execution_gates(replayed: Sequence[Replayed], datasets: Iterable[str]) -> list[Gate]:
    """Success and observations: over all, then for each dataset."""
    wrong = [episode.recording.name for episode in replayed if not episode.agrees]
    gates = [Gate("execution: success", len(replayed) - len(wrong), len(replayed), SUCCESS, _some(wrong))]
    elsewhere = [episode for episode in replayed if episode.recording.task != HOUSEHOLD]
    gates.append(_observations("execution: observations without alfworld", elsewhere, OBSERVATIONS))
    for name in datasets:
        here = [episode for episode in replayed if episode.recording.task == name]
        if here:
            agreeing = sum(episode.agrees for episode in here)
            required = 1.0 if name == HOUSEHOLD else None
            gates.append(Gate(f"  {name}: success", agreeing, len(here), required))
            gates.append(_observations(f"  {name}: observations", here, OBSERVATIONS_OF.get(name)))
    return gates


def metrics_gate(folder: Path) -> Gate:
    """The published leaderboard from the recorded outcomes, every number of a model."""
    path = folder / "expected_metrics.json"
    try:
        expected = parse_json(read_plain_text(path))
    except (OSError, ValueError) as error:
        raise HistobenchError(f"cannot read the published metrics {path}: {error}") from error
    outcomes = read_outcome_table(folder / "episode_outcomes.csv.gz")
    standings = {standing.model: standing.as_published() for standing in leaderboard(outcomes)}
    wrong = [model for model, values in expected.items() if standings.get(model) != values]
    return Gate("metrics of the leaderboard", len(expected) - len(wrong), len(expected), 1.0, _some(wrong))


def sample(recordings: Sequence[Recording], limit: int | None) -> list[Recording]:
    """At most `limit` episodes of each dataset of each run, evenly spread."""
    if limit is None:
        return list(recordings)
    groups: dict[tuple[str, str], list[Recording]] = {}
    for recording in recordings:
        groups.setdefault((recording.run, recording.task), []).append(recording)
    return [
        group[index * len(group) // size]
        for group in groups.values()
        for size in [min(limit, len(group))]
        for index in range(size)
    ]


def _observations(subject: str, episodes: Sequence[Replayed], required: float | None) -> Gate:
    total = sum(episode.observations for episode in episodes)
    exact = sum(episode.exact for episode in episodes)
    alike = sum(episode.alike for episode in episodes)
    note = f"{100 * exact / total:.1f} % to the letter, " if total else ""
    note += f"{100 * alike / total:.1f} % but for Python's version and speed" if total else ""
    return Gate(subject, sum(episode.same for episode in episodes), total, required, note)


def _some(names: Sequence[str]) -> str:
    if not names:
        return ""
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def failed(gates: Iterable[Gate]) -> bool:
    """Whether a required rate was missed."""
    return any(gate.verdict == "FAIL" for gate in gates)
