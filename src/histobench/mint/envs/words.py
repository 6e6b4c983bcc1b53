"""What the agent is told when something went wrong: its own mistake, a tool's failure, or a service's.

A failure of the model's own provider has no words here: the agent is never told, the episode is played again.
"""

from __future__ import annotations

from histobench.mint.envs.action import Action, Fault

# --- the agent's own mistake: what to do instead -----------------------------------------------------------
#: The published protocol's answer to a message without a tag; recordings hold it, to the last space.
HELP = """I don't understand your input. 
To run Python code, put it between <execute> and </execute>: <execute>print(1 + 1)</execute>
To answer, put your solution between <solution> and </solution>: The answer is <solution>2</solution>
"""
REASONING_ONLY = f"Your message held reasoning and nothing else. Keep it short, and act.\n{HELP}"
NO_CALL = "You called no function. Call one of those you are given; to answer, call {proposal}."
REASONING_ONLY_NO_CALL = "Your message held reasoning and nothing else. Keep it short. " + NO_CALL
BAD_CALL = "Your call of {name} was not made: {problem}. Mend it and call again."
NOT_MADE = "Your call of {name} was not made: a turn that proposes a solution makes no other calls."
CLOSED = "{name} is not open yet"
# --- a tool's failure: the call was right ------------------------------------------------------------------
TOOL_FAILED = "The tool {name} failed: {error}. Your call was right; the fault lies in the tool."
# --- a service's failure: neither the agent's nor the tool's -----------------------------------------------
SERVICE_FAILED = (
    "The service behind {name} did not answer: {error}. Your call was right; go on without it, or try again."
)


def correction(action: Action, *, proposal: str | None = None) -> str:
    """The answer to an invalid message; `proposal` names the answering function where calls are native."""
    if proposal is None:
        return REASONING_ONLY if action.fault == "reasoning_only" else HELP
    return _NATIVE.get(action.fault, NO_CALL).format(proposal=proposal)


_NATIVE: dict[Fault, str] = {"reasoning_only": REASONING_ONLY_NO_CALL}
