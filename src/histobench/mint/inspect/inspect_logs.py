"""Logs of Inspect: results of this project written as such, and other benchmarks' read for the tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalResults,
    EvalSample,
    EvalSpec,
    read_eval_log,
    read_eval_log_samples,
    write_eval_log,
)
from inspect_ai.model import ModelOutput
from inspect_ai.scorer import CORRECT, INCORRECT, Score

from histobench.core.errors import HistobenchError
from histobench.mint.configs.cell import NONE, Cell
from histobench.mint.feedback.kind import FeedbackKind
from histobench.mint.inspect.solver import EPISODE, EXPERT, as_inspect_messages
from histobench.mint.messages.parts import Message
from histobench.mint.results.episode_outcome import EpisodeOutcome
from histobench.mint.results.stored_episode import StoredEpisode
from histobench.mint.runs.planned_cell import PLACEBO

TASK = "histobench/mint"
#: How scores of other benchmarks say that a sample was solved, or not; numbers are solved at 1.
_VERDICTS = {CORRECT: True, INCORRECT: False, "yes": True, "no": False, "pass": True, "fail": False}


def write_inspect_logs(episodes: Sequence[StoredEpisode], folder: str | Path) -> list[Path]:
    cells: dict[tuple[str, str, str, int], list[StoredEpisode]] = defaultdict(list)
    for episode in episodes:
        cell = episode.cell
        cells[cell.agent, cell.feedback_model, cell.feedback_type, cell.max_steps].append(episode)
    paths = []
    for number, (_, played) in enumerate(sorted(cells.items()), start=1):
        cell = played[0].cell
        path = Path(folder) / f"{number:03d}-{cell.agent}-k{cell.max_steps}.eval"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_eval_log(_log(cell, played), str(path))
        paths.append(path)
    return paths


def log_outcomes(path: str | Path) -> Iterator[EpisodeOutcome]:
    """The finished episodes of a log.

    Of any other benchmark the samples, as far as its fields allow: one action, solved or not. The task is the
    log's, the model its model; a sample counts as solved by its first score (C/I, true/false, 1/0). Samples
    that ended with an error, or whose score says neither, are left out.
    """
    try:
        header = read_eval_log(str(path), header_only=True).eval
        samples: Iterable[EvalSample] = read_eval_log_samples(str(path), all_samples_required=False)
        if header.dataset.sample_ids is None:  # without them it can only be read as a whole
            samples = read_eval_log(str(path)).samples or ()
        if header.task == TASK:
            yield from _own_outcomes(header, samples)
            return
        outcomes = [outcome for sample in samples if (outcome := _outcome(sample, header)) is not None]
        budget = max((outcome.k for outcome in outcomes), default=1)  # one for the log: it tells of none
        yield from (replace(outcome, k=budget) for outcome in outcomes)
    except (OSError, ValueError, KeyError) as error:
        raise HistobenchError(f"{path} is not a readable Inspect log ({error!r})") from error


def _own_outcomes(header: EvalSpec, samples: Iterable[EvalSample]) -> Iterator[EpisodeOutcome]:
    expert, kind = _feedback(header)
    for sample in samples:
        if (episode := sample.store.get(EPISODE)) is None:
            continue
        about = sample.metadata
        cell = Cell(
            _short(header.model),
            about["family"],
            about["dataset"],
            feedback_model=expert,
            feedback_type=kind,
            max_steps=about["k"],
        )
        yield StoredEpisode(cell, episode["state"], {"task_id": about["task_id"]}, episode["details"]).outcome


def _feedback(header: EvalSpec) -> tuple[str, str]:
    form = header.task_args.get("feedback", "none")
    if form == "none":
        return NONE, NONE
    kind = FeedbackKind(bool(header.task_args.get("gt", False)), form).name
    if form == PLACEBO:
        return PLACEBO, kind
    role = (header.model_roles or {}).get(EXPERT)
    return _short(role.model) if role is not None and not isinstance(role, list) else EXPERT, kind


def _short(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _outcome(sample: EvalSample, header: EvalSpec) -> EpisodeOutcome | None:
    if sample.error is not None or (success := _success(sample)) is None:
        return None
    return EpisodeOutcome(
        model=_short(header.model),
        feedback_model=NONE,
        feedback_type=NONE,
        k=max(1, sum(message.role == "assistant" for message in sample.messages)),
        task=_short(header.task),
        task_id=str(sample.id),
        success=success,
        proposals=1,
        tool_calls=sum(len(getattr(message, "tool_calls", None) or ()) for message in sample.messages),
        terminate_reason="task_success" if success else "max_steps",
        tokens=sum(usage.total_tokens for usage in sample.model_usage.values()) or None,
    )


def _success(sample: EvalSample) -> bool | None:
    value = next((score.value for score in (sample.scores or {}).values()), None)
    if isinstance(value, str):
        return _VERDICTS.get(value, _VERDICTS.get(value.lower()))
    return bool(value) if isinstance(value, int | float) and value in (0, 1) else None


def _log(cell: Cell, episodes: Sequence[StoredEpisode]) -> EvalLog:
    arguments = {"k": cell.max_steps, "calls": cell.calls}
    if cell.feedback_model != NONE:
        knows, _, form = cell.feedback_type.partition("-")
        arguments |= {"feedback": form, "gt": knows == "GT"}
    samples = [_sample(episode) for episode in episodes]
    spec = EvalSpec(
        created=datetime.now(UTC).isoformat(),
        task=TASK,
        task_args=arguments,
        dataset=EvalDataset(
            name="mint", samples=len(samples), sample_ids=list(dict.fromkeys(sample.id for sample in samples))
        ),
        model=cell.agent,
        config=EvalConfig(epochs=max(sample.epoch for sample in samples)),
    )
    results = EvalResults(total_samples=len(samples), completed_samples=len(samples))
    return EvalLog(status="success", eval=spec, results=results, samples=samples)


def _sample(episode: StoredEpisode) -> EvalSample:
    outcome, state = episode.outcome, episode.state
    # As text: the parts stand in the store, with the whole episode.
    messages = [Message(entry["role"], entry["content"]) for entry in state["history"]]
    details = {"task_id": outcome.task_id, **episode.details}
    return EvalSample(
        id=f"{outcome.task}/{outcome.task_id}",
        epoch=int(episode.details.get("repeat", 1)),
        input=str(episode.task.get("prompt", "")),
        target=str(episode.task.get("reference", "")),
        messages=as_inspect_messages(messages),
        output=ModelOutput.from_content(episode.cell.model, episode.messages[-1] if episode.messages else ""),
        scores={
            "task_success": Score(
                value=CORRECT if outcome.success else INCORRECT, explanation=outcome.terminate_reason
            )
        },
        metadata={
            "dataset": outcome.task,
            "family": outcome.family,
            "task_id": outcome.task_id,
            "k": outcome.k,
        },
        store={EPISODE: {"state": state, "task": episode.task, "details": details}},
    )
