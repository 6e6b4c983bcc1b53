"""Where a model has to stop writing: before it invents the next part of the conversation itself."""

from __future__ import annotations

_AGENT = ("Observation:", "Expert feedback:", "Task:", "---")
_EXPERT = ("Observation:", "Task:", "Assistant:")


def agent_stop_words(kind: str) -> tuple[str, ...]:
    """For the model under test, as the published agents for each kind of provider have them.

    >>> agent_stop_words("openai")[0]
    '\\nObservation:'
    """
    if kind == "anthropic":
        return (*_AGENT, "\n\nHuman:")
    words = tuple(f"\n{word}" for word in _AGENT)
    return (*words, "\nHuman:") if kind == "vllm" else words


def expert_stop_words() -> tuple[str, ...]:
    """For the model that gives feedback."""
    return tuple(f"\n{word}" for word in _EXPERT)
