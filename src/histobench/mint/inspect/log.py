"""Outcomes from a log of Inspect, for the tables of this project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from inspect_ai.log import EvalSpec, read_eval_log, read_eval_log_samples

from histobench.core.errors import HistobenchError
from histobench.mint.configs.cell import NONE
from histobench.mint.feedback.kind import FeedbackKind
from histobench.mint.inspect.solver import EPISODE, EXPERT
from histobench.mint.results.outcome import EpisodeOutcome
from histobench.mint.results.stored_episode import gave_answer_away
from histobench.mint.runs.planned_cell import PLACEBO

TASK = "histobench/mint"


def log_outcomes(path: str | Path) -> Iterator[EpisodeOutcome]:
    """The finished episodes of a log of `histobench/mint`; samples that ended with an error are none."""
    try:
        header = read_eval_log(str(path), header_only=True).eval
        samples = read_eval_log_samples(str(path), all_samples_required=False)
        if header.task != TASK:
            raise HistobenchError(f"{path} is a log of {header.task}, not of {TASK}")
        expert, kind = _feedback(header)
        for sample in samples:
            episode = sample.store.get(EPISODE)
            if episode is None:
                continue
            state = episode["state"]
            counts = state["agent_action_count"]
            yield EpisodeOutcome(
                model=_short(header.model),
                feedback_model=expert,
                feedback_type=kind,
                k=sample.metadata["k"],
                task=sample.metadata["dataset"],
                task_id=sample.metadata["task_id"],
                success=state["success"],
                proposals=counts["propose_solution"],
                tool_calls=counts["use_tool"],
                invalid=counts["invalid_action"],
                terminate_reason=state["terminate_reason"],
                tokens=state["token_counter"]["total_tokens"] or None,
                leaked=gave_answer_away(episode["details"]),
                family=sample.metadata["family"],
            )
    except (OSError, ValueError, KeyError) as error:
        raise HistobenchError(f"{path} is not a readable log of {TASK} ({error!r})") from error


def _feedback(header: EvalSpec) -> tuple[str, str]:
    """Who gave feedback, and of which kind."""
    form = header.task_args.get("feedback", "none")
    if form == "none":
        return NONE, NONE
    kind = FeedbackKind(bool(header.task_args.get("gt", False)), form).name
    if form == PLACEBO:
        return PLACEBO, kind
    role = (header.model_roles or {}).get(EXPERT)
    return _short(role.model) if role is not None and not isinstance(role, list) else EXPERT, kind


def _short(model: str) -> str:
    return model.rsplit("/", 1)[-1]
