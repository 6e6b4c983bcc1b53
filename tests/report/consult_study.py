"""A small Consult study with episodes, written by hand: pages need no encoder and no language model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from histobench.consult import study
from histobench.consult.arms import SEQUENCE_ARMS, Step, draw_sequences, steps_of
from histobench.consult.consultation import CaseAnswer
from histobench.consult.study import RUNS, BlindingCheck, Case, Recorded, StudyEncoder, ToolView, canonical
from histobench.consult.tool_text import Neighbour, neighbours_text, prediction_text

ARMS = ("none", "strong", "random", "sequence", "sequence-same", "sure", "unsure", "wrong-25")
CASE_COUNT = 40
#: The picture that agents see in every episode.
SHOWN = "shown.png"


CLASSES = ("ADI", "STR", "TUM")


def write_study(
    folder: Path, agents: tuple[str, ...] = ("small-model", "policy-reader"), *, seed: int = 3
) -> Path:
    """Write the study and the episodes of every agent in every arm; the folder of the study."""
    generator = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    pictures = {
        hashlib.sha256(bytes([k])).hexdigest(): _picture(folder.parent / "pictures" / f"{k}.png", generator)
        for k in range(60)
    }
    ids, near = list(pictures)[:CASE_COUNT], list(pictures)[CASE_COUNT:]
    cases, recorded = [], []
    for place, id in enumerate(ids):
        reference = CLASSES[place % len(CLASSES)]
        arms = {}
        for arm in ARMS[1:]:
            if arm in SEQUENCE_ARMS:
                continue
            right = generator.random() < {"wrong-25": 0.5, "random": 0.3}.get(arm, 0.7)
            others = [name for name in CLASSES if name != reference]
            label = reference if right else others[int(generator.integers(len(others)))]
            confidence = float(generator.uniform(0.4, 1.0))
            arms[arm] = ToolView("f" * 16, label, confidence, manipulated=arm == "wrong-25" and not right)
            recorded += _answers(id, arm, label, confidence, near, generator)
        probability = 1.0 if place % 2 else 0.5
        group = f"patient {place // 2}"
        cases.append(Case(id, "tissue", group, CLASSES, reference, probability, arms))
    facts = StudyEncoder("strong", "uni_v1", "f" * 16, 1.0, 0.9, 0.8, 0.85)
    weak = StudyEncoder("weak", "uni_v1 weak", "e" * 16, 1.0, 0.6, 0.5, 0.55)
    sequences = tuple(
        tuple(cases[place].id for place in order)
        for order in draw_sequences(len(cases), count=8, length=20, seed=seed)
    )
    checks = (BlindingCheck("strong", "random", 0.5, 0.4, 0.6, "ids", 0.5),)
    study.write_study(
        folder,
        study.StudyFacts("tissue", CLASSES, (facts, weak), ARMS, 0, sequences=sequences, blinding=checks),
        cases,
        recorded=recorded,
        pictures=pictures,
        lessons={},
        contrasts=study.DEFAULT_CONTRASTS,
    )
    for trust, agent in enumerate(agents):
        for arm in ARMS:
            steps: list[Step | None] = [None] * len(cases)
            if arm in SEQUENCE_ARMS:
                steps = list(steps_of(arm, sequences, "random"))
            by_id = {case.id: case for case in cases}
            lines = [
                _episode(by_id[step.case] if step else case, arm, generator, 0.5 + 0.4 * trust, step)
                for step, case in zip(steps, [*cases, *[cases[0]] * len(steps)], strict=False)
            ]
            turns = "max6_p3" if arm in SEQUENCE_ARMS else "max5_p2"
            place = folder / RUNS / agent / "F=None" / f"{turns}+tool+cd" / "consult" / f"tissue@{arm}"
            (place / "images").mkdir(parents=True)
            _picture(place / "images" / SHOWN, generator)
            (place / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def _picture(path: Path, generator: np.random.Generator) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(generator.integers(90, 250, (24, 24, 3), dtype=np.uint8)).save(path)
    return str(path)


def _answers(
    id: str, arm: str, label: str, confidence: float, near: list[str], generator: np.random.Generator
) -> list[Recorded]:
    code = CLASSES.index(label)
    shares = np.full(len(CLASSES), (1 - confidence) / (len(CLASSES) - 1))
    shares[code] = confidence
    order = [code, *(other for other in range(len(CLASSES)) if other != code)]
    shown = [
        Neighbour(str(generator.choice(CLASSES)), str(image))
        for image in generator.choice(near, 5, replace=False)
    ]
    return [
        Recorded(id, "f" * 16, arm, tool, canonical(arguments), answer)
        for tool, arguments, answer in (
            ("predict", {"n": 3}, prediction_text(order, shares, CLASSES)),
            ("neighbours", {"k": 5}, neighbours_text(shown, 61.0)),
        )
    ]


def _episode(
    case: Case, arm: str, generator: np.random.Generator, trust: float, step: Step | None = None
) -> dict[str, Any]:
    view = case.arms.get(step.role if step else arm)
    first = str(generator.choice(case.options))
    final = view.label if view is not None and generator.random() < trust else first
    answers = [CaseAnswer(first, 0.5), CaseAnswer(final, round(float(generator.uniform(0.3, 1.0)), 2))]
    if generator.random() < 0.1:
        answers[1] = CaseAnswer(defer=True)
    elif generator.random() < 0.05:
        answers[1] = CaseAnswer(problem="it names none of the options, or several")
    history: list[dict[str, Any]] = [
        {"role": "user", "content": "Which diagnosis is right?"},
        {"role": "assistant", "content": f"Assistant:\n<solution>{first}</solution>\n"},
        {"role": "user", "content": "Observation:\nYour first answer is noted."},
        {"role": "assistant", "content": f"Assistant:\nIn the end <solution>{final}</solution>\n"},
    ]
    history[0]["parts"] = [
        {"type": "text", "text": history[0]["content"]},
        {"type": "image", "media_type": "image/png", "file": SHOWN},
    ]
    record = {
        "arm": arm,
        "group": case.group,
        "probability": case.probability,
        "options": list(case.options),
        "tool": None if view is None else asdict(view),
        "first": asdict(answers[0]),
        "final": asdict(answers[1]),
        "asked": True,
        "calls": ["measure", "predict"],
        "prompt": "",
    }
    if step is not None:
        record |= {
            "sequence": step.sequence,
            "position": step.position,
            "role": step.role,
            "outcomes": False,
            "notes": "",
        }
    won = answers[1].label == case.reference
    return {
        "state": {
            "history": history,
            "finished": True,
            "success": won,
            "latest_output": {},
            "agent_action_count": {"propose_solution": 2, "use_tool": 0, "invalid_action": 0},
            "token_counter": {"total_tokens": 100},
            "terminate_reason": "task_success" if won else "max_propose_steps",
            "error": None,
        },
        "task": {
            "task_name": "consult",
            "task_id": step.id if step else case.id,
            "prompt": "",
            "reference": case.reference,
            "metadata": {"consult": record},
        },
    }
