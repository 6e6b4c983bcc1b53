"""Episodes as a folder that the Hugging Face Hub takes for a dataset: a Parquet file and a card."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from histobench.core.files import atomic_path, write_text
from histobench.core.version import __version__
from histobench.mint.results.stored_episode import StoredEpisode

DATA = Path("data") / "train-00000-of-00001.parquet"
CARD = "README.md"


def write_dataset_folder(episodes: Sequence[StoredEpisode], folder: str | Path) -> None:
    """One row for each episode; the conversation is a list of role, content and parts (as JSON)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = Path(folder)
    table = pa.Table.from_pylist([_row(episode) for episode in episodes], schema=_schema(pa))
    with atomic_path(folder / DATA) as temporary:
        pq.write_table(table, temporary)
    write_text(folder / CARD, _card(episodes))


def _row(episode: StoredEpisode) -> dict[str, Any]:
    outcome, state = episode.outcome, episode.state
    return {
        "model": outcome.model,
        "feedback_model": outcome.feedback_model,
        "feedback_type": outcome.feedback_type,
        "k": outcome.k,
        "family": outcome.family,
        "dataset": outcome.task,
        "task_id": outcome.task_id,
        "repeat": int(episode.details.get("repeat", 1)),
        "prompt": str(episode.task.get("prompt", "")),
        "reference": json.dumps(episode.task.get("reference"), ensure_ascii=False),
        "success": outcome.success,
        "terminate_reason": outcome.terminate_reason,
        "proposals": outcome.proposals,
        "tool_calls": outcome.tool_calls,
        "invalid_actions": outcome.invalid,
        "tokens": outcome.tokens,
        "cost": episode.details.get("cost"),
        "seconds": episode.details.get("seconds"),
        "error": state.get("error"),
        "messages": [
            {
                "role": entry["role"],
                "content": entry["content"],
                "parts": json.dumps(entry["parts"], ensure_ascii=False) if entry.get("parts") else None,
            }
            for entry in state["history"]
        ],
    }


def _schema(pa: Any) -> Any:
    text, number = pa.string(), pa.int64()
    message = pa.struct([("role", text), ("content", text), ("parts", text)])
    return pa.schema(
        [
            ("model", text),
            ("feedback_model", text),
            ("feedback_type", text),
            ("k", number),
            ("family", text),
            ("dataset", text),
            ("task_id", text),
            ("repeat", number),
            ("prompt", text),
            ("reference", text),
            ("success", pa.bool_()),
            ("terminate_reason", text),
            ("proposals", number),
            ("tool_calls", number),
            ("invalid_actions", number),
            ("tokens", number),
            ("cost", pa.float64()),
            ("seconds", pa.float64()),
            ("error", text),
            ("messages", pa.list_(message)),
        ]
    )


def _card(episodes: Sequence[StoredEpisode]) -> str:
    played: Counter[tuple[str, str, int]] = Counter()
    solved: Counter[tuple[str, str, int]] = Counter()
    for episode in episodes:
        outcome = episode.outcome
        key = (outcome.model, outcome.task, outcome.k)
        played[key] += 1
        solved[key] += outcome.success
    rows = "\n".join(
        f"| {model} | {task} | {k} | {played[model, task, k]} | {solved[model, task, k]} |"
        for model, task, k in sorted(played)
    )
    return f"""---
pretty_name: Episodes of language-model agents
license: other
license_name: see-the-datasets
configs:
- config_name: default
  data_files:
  - split: train
    path: {DATA.as_posix()}
size_categories:
- {_size(len(episodes))}
---

# Episodes of language-model agents

{len(episodes)} episodes played with histobench {__version__}: a model solves a task in at most k actions with
code, tools and, in some settings, an expert's feedback. One row is one episode, with the whole conversation.

| model | dataset | k | episodes | solved |
|---|---|---|---|---|
{rows}

The texts of the tasks keep the licenses of their datasets (gsm8k, math, mmlu, theoremqa, humaneval: MIT;
mbpp: CC-BY-4.0; hotpotqa: CC-BY-SA-4.0); what a model wrote is subject to the terms of its provider. Choose
the license of this folder accordingly before you publish it. It holds solutions: training on it spoils the
benchmark.
"""


def _size(episodes: int) -> str:
    limits = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"))
    return next((name for limit, name in limits if episodes < limit), "100K<n<1M")
