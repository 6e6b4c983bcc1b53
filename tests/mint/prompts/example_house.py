"""A house of our own for the worked examples: no game of the benchmark, played by the same engine.

Rules and wording (domain, grammar) come from any real game file; furniture, things and goals are these.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

FURNITURE = {
    "Bed_bar_1": "BedType",
    "Cabinet_bar_1": "CabinetType",
    "Cabinet_bar_2": "CabinetType",
    "CounterTop_bar_1": "CounterTopType",
    "Desk_bar_1": "DeskType",
    "Drawer_bar_1": "DrawerType",
    "Drawer_bar_2": "DrawerType",
    "Fridge_bar_1": "FridgeType",
    "Microwave_bar_1": "MicrowaveType",
    "Shelf_bar_1": "ShelfType",
    "Sink_bar_1_bar_SinkBasin": "SinkBasinType",
}
OPENABLE = (
    "Cabinet_bar_1",
    "Cabinet_bar_2",
    "Drawer_bar_1",
    "Drawer_bar_2",
    "Fridge_bar_1",
    "Microwave_bar_1",
)
THINGS = {
    "Book_bar_1": "Bed_bar_1",
    "Candle_bar_1": "Cabinet_bar_2",
    "DeskLamp_bar_1": "Desk_bar_1",
    "Mug_bar_1": "Cabinet_bar_1",
    "Pencil_bar_1": "Desk_bar_1",
    "Pencil_bar_2": "Drawer_bar_2",
    "Plate_bar_1": "CounterTop_bar_1",
    "Potato_bar_1": "Fridge_bar_1",
    "Tomato_bar_1": "Sink_bar_1_bar_SinkBasin",
}
NOT_MOVABLE = ("DeskLamp",)
#: kind of goal -> (the task in words, thing, furniture, state that the thing must have)
GOALS = {
    "put": ("put some candle on shelf.", "Candle", "Shelf", None),
    "clean": ("put a clean plate in cabinet.", "Plate", "Cabinet", ("cleanable", "isClean")),
    "heat": ("put a hot potato in countertop.", "Potato", "CounterTop", ("heatable", "isHot")),
    "cool": ("cool some tomato and put it in microwave.", "Tomato", "Microwave", ("coolable", "isCool")),
    "examine": ("look at book under the desklamp.", "Book", None, None),
    "puttwo": ("put two pencil in shelf.", "Pencil", "Shelf", None),
}


def write_house(rules_from: Path, goal: str, target: Path) -> Path:
    """Write the game of one goal, with the rules of an existing game."""
    rules = json.loads(rules_from.read_text(encoding="utf-8"))
    words = GOALS[goal][0]
    grammar = re.sub(r"Your task is to: [^\"]*", f"Your task is to: {words}", rules["grammar"])
    game = {
        "pddl_domain": rules["pddl_domain"],
        "grammar": grammar,
        "pddl_problem": _problem(goal),
        "solvable": True,
    }
    target.write_text(json.dumps(game), encoding="utf-8")
    return target


def _problem(goal: str) -> str:
    kinds = sorted({_kind(thing) for thing in THINGS})
    places = {name: f"loc_bar_{number}" for number, name in enumerate(FURNITURE, start=1)}
    objects = [
        "agent1 - agent",
        "loc_bar_0 - location",
        *(f"{place} - location" for place in places.values()),
        *(f"{name} - receptacle" for name in FURNITURE),
        *(f"{name} - object" for name in THINGS),
        *(f"{name} - rtype" for name in sorted(set(FURNITURE.values()))),
        *(f"{kind}Type - otype" for kind in kinds),
    ]
    facts = ["atLocation agent1 loc_bar_0"]
    facts += [f"receptacleType {name} {kind}" for name, kind in FURNITURE.items()]
    facts += [f"receptacleAtLocation {name} {place}" for name, place in places.items()]
    facts += [f"openable {name}" for name in OPENABLE]
    facts += [f"canContain {kind} {thing}Type" for kind in sorted(set(FURNITURE.values())) for thing in kinds]
    for thing, home in THINGS.items():
        kind = _kind(thing)
        facts += [f"objectType {thing} {kind}Type", f"inReceptacle {thing} {home}"]
        facts.append(f"objectAtLocation {thing} {places[home]}")
        if kind in NOT_MOVABLE:
            facts.append(f"toggleable {thing}")
        else:
            facts += [f"{can} {thing}" for can in ("pickupable", "cleanable", "heatable", "coolable")]
    return (
        "(define (problem own_house)\n(:domain alfred)\n(:objects\n"
        + "\n".join(objects)
        + ")\n(:init\n"
        + "\n".join(f"({fact})" for fact in facts)
        + f")\n(:goal {_goal(goal)}))\n"
    )


def _goal(goal: str) -> str:
    _, thing, furniture, state = GOALS[goal]
    if goal == "examine":
        return (
            "(and (exists (?l - object ?r - receptacle ?a - agent ?p - location) (and "
            "(objectType ?l DeskLampType) (toggleable ?l) (isToggled ?l) (receptacleAtLocation ?r ?p) "
            "(atLocation ?a ?p) (inReceptacle ?l ?r))) "
            f"(exists (?o - object ?a - agent) (and (objectType ?o {thing}Type) (holds ?a ?o))))"
        )
    there = f"(receptacleType ?r {furniture}Type)"
    one = f"(objectType ?o {thing}Type) (inReceptacle ?o ?r)"
    if goal == "puttwo":
        other = f"(not (= ?o ?p)) (objectType ?p {thing}Type) (inReceptacle ?p ?r)"
        return f"(exists (?r - receptacle ?o - object ?p - object) (and {there} {one} {other}))"
    condition = "".join(f"({name} ?o) " for name in state or ())
    return f"(exists (?r - receptacle ?o - object) (and {condition}{there} {one}))"


def _kind(thing: str) -> str:
    return thing.partition("_bar_")[0]
