"""The dialect of native calls: what the calls of an answer mean, and how they read as text.

An answer is one action however many calls it holds: a proposal, else a use of tools, else invalid.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from histobench.mint.envs.action import Action, CheckedCall, Fault, Kind, classify, is_reasoning_only
from histobench.mint.messages.parts import Message, Part, Text, ToolCall, ToolSpec, spoken
from histobench.mint.tools.tool_schema import complaint

PYTHON = "python"
PROPOSE = "propose_solution"
PROPOSAL = ToolSpec(
    PROPOSE,
    "Gives your answer to the task: the solution and nothing else. You are told if it is wrong.",
    {
        "type": "object",
        "properties": {"solution": {"type": "string"}},
        "required": ["solution"],
        "additionalProperties": False,
    },
)
_TAG = re.compile(r"<(/?)(execute|solution)>")


def read_calls(message: Message, functions: Sequence[ToolSpec]) -> Action:
    """The action of a message whose calls are native; text beside calls is the model's to write."""
    known = {spec.name: spec for spec in functions}
    calls = tuple(CheckedCall(call, _problem(call, known)) for call in message.calls)
    kind, content = _meaning(calls, known)
    fault: Fault = (
        "malformed_call" if calls else "reasoning_only" if is_reasoning_only(message) else "no_call"
    )
    return Action(
        kind,
        transcript(message),
        content,
        fault=fault if kind == "invalid" else "",
        message=message,
        calls=calls,
        native=True,
        ending=message.ending,
    )


def transcript(message: Message) -> str:
    """A native turn in the words of the text dialect: what an expert reads, and what can be replayed as text.

    >>> call = ToolCall("1", "goto", {"receptacle": "desk 1"})
    >>> transcript(Message.of("assistant", [Text("Look there."), call]))
    "Look there.\\n<execute>\\nprint(goto(receptacle='desk 1'))\\n</execute>"
    """
    lines = [_without_tags(spoken(message.as_parts))]
    for call in message.calls:
        lines.append(_as_text(call))
    return "\n".join(line for line in lines if line.strip())


def as_native(text: str) -> Message:
    """A message of the text dialect as native calls, so that recordings can be played in both.

    >>> as_native("<thought>easy</thought><solution>4</solution>").calls[0].arguments
    {'solution': '4'}
    """
    action = classify(text)
    parts: list[Part] = [Text(text)] if action.kind == "invalid" else []
    if action.kind == "execute":
        parts.append(ToolCall("call_1", PYTHON, {"code": action.content}))
    elif action.is_proposal:
        arguments = {"solution": action.content} if action.kind == "proposal" else {}
        parts.append(ToolCall("call_1", PROPOSE, arguments))
    return Message("assistant", text, tuple(parts))


def _problem(call: ToolCall, known: Mapping[str, ToolSpec]) -> str | None:
    spec = known.get(call.name)
    if spec is None:
        return f"there is no function {call.name}; known: {', '.join(known)}"
    return complaint(spec, call.arguments)


def _meaning(calls: Sequence[CheckedCall], known: Mapping[str, ToolSpec]) -> tuple[Kind, str]:
    proposals = [checked for checked in calls if checked.call.name == PROPOSE and PROPOSE in known]
    if proposals:
        answers = [_answer(checked.call.arguments or {}) for checked in proposals if checked.problem is None]
        return ("proposal", "\n".join(answers)) if answers else ("proposal_unparsable", "")
    return ("execute" if any(checked.problem is None for checked in calls) else "invalid"), ""


def _answer(arguments: Mapping[str, Any]) -> str:
    """The solution; where an environment asks for more than one (a confidence, say), all of it as JSON."""
    if set(arguments) == {"solution"}:
        return str(arguments["solution"]).strip()
    return json.dumps(arguments, ensure_ascii=False)


def _as_text(call: ToolCall) -> str:
    if call.arguments is None:
        return f"[{call.name}({_without_tags(call.written)})]"
    if call.name == PROPOSE:
        return (
            f"<solution>{_without_tags(_answer(call.arguments))}</solution>"
            if call.arguments
            else "<solution>"
        )
    if call.name == PYTHON and isinstance(code := call.arguments.get("code"), str):
        return f"<execute>\n{_without_tags(code)}\n</execute>"
    arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
    return f"<execute>\nprint({_without_tags(f'{call.name}({arguments})')})\n</execute>"


def _without_tags(text: str) -> str:
    """The dialect's own tags inside text: a space keeps them from being read as such."""
    return _TAG.sub(r"<\1\2 >", text)
