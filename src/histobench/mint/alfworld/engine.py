"""Opens a game in the TextWorld engine. Imported only in the side process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from copy import deepcopy
from typing import Any


def open_game(path: str) -> tuple[Any, Any]:
    """The environment with ALFWorld's names for things, and its first state."""
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    infos = textworld.EnvInfos(won=True, admissible_commands=True)
    env = textworld.start(path, infos, wrappers=[AlfredDemangler(shuffle=False)])
    return env, env.reset()


def remember_parsed_texts() -> None:
    """Make the engine parse and translate each text once; it does so again at every step otherwise.

    A game's problem is translated four times while it loads (twice for a planner that is not used here), and
    every possible command of every step is parsed anew. The answers stay the same; loading and steps take
    about a third of the time.
    """
    import fast_downward
    from textworld.envs.pddl import textgen
    from textworld.logic import Rule

    translate = fast_downward.pddl2sas

    @functools.cache
    def translate_once(domain: str, problem: str) -> Any:
        return translate(domain, problem, verbose=False)

    fast_downward.pddl2sas = lambda domain, problem, verbose=False, optimize=False: translate_once(
        domain, problem
    )
    Rule.parse_conjunctive_query = functools.cache(Rule.parse_conjunctive_query)
    if (parse := getattr(textgen, "_parse_and_convert", None)) is not None:  # not part of its interface
        textgen._parse_and_convert = _copied(functools.cache(parse))


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """The engine writes into what it parsed, so everyone gets a copy."""

    def copied(*args: Any, **kwargs: Any) -> Any:
        return deepcopy(function(*args, **kwargs))

    return copied
