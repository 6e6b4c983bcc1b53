"""The first message of an episode: the same in every arm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from histobench.consult.case import Case
from histobench.consult.desk import MOST_CALLS, EncoderTool
from histobench.consult.study import StudyFacts
from histobench.mint.envs.state import Budget
from histobench.mint.tools.base import Tool

TEMPLATES = Path(__file__).parent / "templates"
AVAILABLE = "An image encoder is now available"


def consult_prompt(
    case: Case, facts: StudyFacts, tools: Sequence[Tool], budget: Budget, *, native: bool, sees: bool = False
) -> str:
    """Instructions, functions, budget, case. Nothing in it depends on the arm."""
    about = [f"Organ: {facts.organ}."] if facts.organ else []
    about.append(f"The region is {facts.region}.")
    if facts.microns_per_pixel:
        about.append(f"One pixel is {facts.microns_per_pixel:g} microns wide.")
    about.append("It is shown below." if sees else "You do not see it; the functions tell you about it.")
    return _template("prompt").format(
        region=facts.region,
        how_to_act=_template("act_native" if native else "act_text"),
        open_tools=_listed(tools, encoder=False),
        encoder_tools=_listed(tools, encoder=True),
        turns=budget.max_steps,
        answers=budget.max_propose_solution,
        calls=MOST_CALLS,
        case=" ".join(about),
        options="\n".join(f"- {option}" for option in case.options),
    )


def first_noted(open_tools: Sequence[Tool], problem: str) -> str:
    """What the agent is told after its first answer."""
    noted = f"Your first answer cannot be read: {problem}." if problem else "Your first answer is noted."
    if not open_tools:
        return f"{noted} No image encoder is available for this region. Give your final answer."
    names = ", ".join(tool.signature.partition(" ->")[0] for tool in open_tools)
    return f"{noted} {AVAILABLE}: {names}. You may ask it, then give your final answer."


def _template(name: str) -> str:
    return (TEMPLATES / f"{name}.txt").read_text(encoding="utf-8").removesuffix("\n")


def _listed(tools: Sequence[Tool], *, encoder: bool) -> str:
    return "\n".join(
        f"- {tool.signature}: {tool.description}"
        for tool in tools
        if isinstance(tool, EncoderTool) is encoder
    )
