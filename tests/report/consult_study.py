"""A small Consult study with episodes, written by hand: pages need no encoder and no language model."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from histobench.consult import study
from histobench.consult.arms import SEQUENCE_ARMS, Step, draw_sequences, steps_of
from histobench.consult.consultation import Answer
from histobench.consult.study import RUNS, BlindingCheck, Case, Recorded, StudyEncoder, ToolView, canonical
from histobench.consult.tool_text import Neighbour, neighbours_text, prediction_text

ARMS = ("none", "strong", "random", "sequence", "sequence-same", "sure", "unsure", "wrong-25")
CASE_COUNT = 40
#: The picture that agents see in every episode.
SHOWN = "shown.png"


@dataclass(frozen=True)
class Written:
    """What a study is made of; every text can be an attack."""

    classes: tuple[str, ...] = ("ADI", "STR", "TUM")
    agents: tuple[str, ...] = ("small-model", "policy-reader")
    said: str = "I think that"
    group: str = "patient"
    encoder: str = "uni_v1"
    dataset: str = "tissue"
    caution: str = ""


def write_study(folder: Path, words: Written | None = None, *, seed: int = 3) -> Path:
    """Write the study and the episodes of every agent in every arm; the folder of the study."""
    words = words or Written()
    generator = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    pictures = {
        hashlib.sha256(bytes([k])).hexdigest(): _picture(folder.parent / "pictures" / f"{k}.png", generator)
        for k in range(60)
    }
    ids, near = list(pictures)[:CASE_COUNT], list(pictures)[CASE_COUNT:]
    cases, recorded = [], []
    for place, id in enumerate(ids):
        reference = words.classes[place % len(words.classes)]
        arms = {}
        for arm in ARMS[1:]:
            if arm in SEQUENCE_ARMS:
                continue
            right = generator.random() < {"wrong-25": 0.5, "random": 0.3}.get(arm, 0.7)
            others = [name for name in words.classes if name != reference]
            label = reference if right else others[int(generator.integers(len(others)))]
            confidence = float(generator.uniform(0.4, 1.0))
            arms[arm] = ToolView("f" * 16, label, confidence, manipulated=arm == "wrong-25" and not right)
            recorded += _answers(id, arm, words, label, confidence, near, generator)
        probability = 1.0 if place % 2 else 0.25
        group = f"{words.group} {place // 2}"
        cases.append(Case(id, words.dataset, group, words.classes, reference, probability, arms))
    facts = StudyEncoder("strong", words.encoder, "f" * 16, 1.0, 0.9, 0.8, 0.85)
    weak = StudyEncoder("weak", f"{words.encoder} weak", "e" * 16, 1.0, 0.6, 0.5, 0.55)
    cautions = (words.caution,) if words.caution else ()
    sequences = tuple(
        tuple(cases[place].id for place in order)
        for order in draw_sequences(len(cases), count=8, length=20, seed=seed)
    )
    checks = (BlindingCheck("strong", "random", 0.5, 0.4, 0.6, "ids", 0.5),)
    study.write_study(
        folder,
        study.StudyFacts(
            words.dataset,
            words.classes,
            (facts, weak),
            ARMS,
            0,
            cautions=cautions,
            sequences=sequences,
            blinding=checks,
        ),
        cases,
        recorded=recorded,
        pictures=pictures,
        lessons={},
        contrasts=study.DEFAULT_CONTRASTS,
    )
    for trust, agent in enumerate(words.agents):
        for arm in ARMS:
            steps: list[Step | None] = [None] * len(cases)
            if arm in SEQUENCE_ARMS:
                steps = list(steps_of(arm, sequences, "random"))
            by_id = {case.id: case for case in cases}
            lines = [
                _episode(by_id[step.case] if step else case, arm, words, generator, 0.5 + 0.4 * trust, step)
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
    id: str,
    arm: str,
    words: Written,
    label: str,
    confidence: float,
    near: list[str],
    generator: np.random.Generator,
) -> list[Recorded]:
    code = words.classes.index(label)
    shares = np.full(len(words.classes), (1 - confidence) / (len(words.classes) - 1))
    shares[code] = confidence
    order = [code, *(other for other in range(len(words.classes)) if other != code)]
    shown = [
        Neighbour(str(generator.choice(words.classes)), str(image))
        for image in generator.choice(near, 5, replace=False)
    ]
    return [
        Recorded(id, "f" * 16, arm, tool, canonical(arguments), answer)
        for tool, arguments, answer in (
            ("predict", {"n": 3}, prediction_text(order, shares, words.classes)),
            ("neighbours", {"k": 5}, neighbours_text(shown, 61.0)),
        )
    ]


def _episode(
    case: Case,
    arm: str,
    words: Written,
    generator: np.random.Generator,
    trust: float,
    step: Step | None = None,
) -> dict[str, Any]:
    view = case.arms.get(step.role if step else arm)
    first = str(generator.choice(case.options))
    final = view.label if view is not None and generator.random() < trust else first
    answers = [Answer(first, 0.5), Answer(final, round(float(generator.uniform(0.3, 1.0)), 2))]
    if generator.random() < 0.1:
        answers[1] = Answer(defer=True)
    elif generator.random() < 0.05:
        answers[1] = Answer(problem="it names none of the options, or several")
    history: list[dict[str, Any]] = [
        {"role": "user", "content": f"Which diagnosis is right? {words.said}"},
        {"role": "assistant", "content": f"Assistant:\n{words.said} <solution>{first}</solution>\n"},
        {"role": "user", "content": f"Observation:\nYour first answer is noted. {words.said}"},
        {
            "role": "assistant",
            "content": f"Assistant:\nIn the end <solution>{final} {words.said}</solution>\n",
        },
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
            "notes": words.said,
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
