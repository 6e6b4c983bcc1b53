"""Every option of a study and of its runs reaches what it is for, and nothing else."""

from __future__ import annotations

import json
from ast import literal_eval
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from tests.consult.conftest import make_images

import histobench as hb
from builders import another
from histobench.consult import consult_runs, playing
from histobench.consult.consultation import ConsultTask
from histobench.consult.playing import plan_run
from histobench.consult.study import LESSONS, Study
from histobench.consult.study_plan import RUN_OPTIONS, ConsultRun, StudyPlan, study_options
from histobench.core.records import Declared, options_of
from histobench.mint.agents.agent_spec import parse_agent
from histobench.mint.agents.completion import Sampling
from histobench.mint.envs.turn_loop import Budget
from histobench.mint.runs.run_options import RunOptions

pytestmark = pytest.mark.slow
MODEL = "openai:some@http://127.0.0.1:9/v1"
TOOLS = {"measure", "typical", "predict", "neighbours"}
#: Another value of each option of a study; the parts of the study that change by it, and parts that do not.
PREPARED: dict[str, tuple[Any, set[str], set[str]]] = {
    "cases": (14, {"cases", "sequences"}, {"classes", "typical", "lessons"}),
    "seed": (1, {"seed", "cases", "order", "wrong", "typical", "lessons of val"}, {"classes", "organ"}),
    "blind": (True, {"classes", "true_classes", "prompt", "predict"}, {"cases", "measure", "organ"}),
    "organ": ("colon", {"organ", "prompt"}, {"cases", "sequences", "lessons", *TOOLS}),
    "region": ("a smear", {"region", "prompt"}, {"cases", "sequences", "lessons", *TOOLS}),
    "microns_per_pixel": (0.5, {"microns_per_pixel", "prompt"}, {"cases", "lessons", *TOOLS}),
    "measured": (3, {"typical", "lessons"}, {"cases", "measure", "predict", "neighbours", "prompt"}),
    "similarity": ("none", {"neighbours"}, {"cases", "predict", "measure", "typical", "lessons"}),
    "sequences": (3, {"sequences"}, {"cases", "lessons", "prompt", *TOOLS}),
    "sequence_length": (5, {"sequences"}, {"cases", "lessons", "prompt", *TOOLS}),
    "contrasts": ("mine.json", {"contrasts"}, {"cases", "lessons", "prompt", *TOOLS}),
    "size": (24, {"predict", "neighbours"}, {"measure", "typical"}),
}
#: Those that need weights or a text tower: that they reach the plan is tested here.
NOT_PREPARED = {"prompts", "weights"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """Prepares a study of 20 cases with other options, and returns its parts."""
    folder = make_images(tmp_path_factory.mktemp("wiring"))
    contrast = {"name": "mine", "measure": "u_wrong", "arm": "weak", "against": "strong"}
    (folder / "mine.json").write_text(json.dumps([contrast]))
    data = hb.load_dataset(folder / "tiles.csv", classes=folder / "tiles.txt")
    encoders = [f"{folder / 'three.py'}:{name}" for name in ("Colours", "Noise")]
    known: dict[str, dict[str, str]] = {}

    def prepare(**options: Any) -> dict[str, str]:
        key = repr(options)
        if key not in known:
            usual = {"cases": 20, "measured": 6, "sequences": 2, "sequence_length": 4, "device": "cpu"}
            if "contrasts" in options:
                options["contrasts"] = folder / options["contrasts"]
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("HISTOBENCH_CACHE", str(folder / "cache"))
                study = hb.consult.prepare(
                    data,
                    encoders,
                    folder=folder / f"study{len(known)}",
                    arms="none,strong,weak,sequence,wrong-25",
                    num_workers=0,
                    **{**usual, **options},
                )
            known[key] = parts_of(study)
        return known[key]

    return prepare


def parts_of(study: Study) -> dict[str, str]:
    parts: dict[str, Any] = asdict(study.facts)
    parts["cases"] = [case.id for case in study.cases]
    for tool in TOOLS:
        parts[tool] = sorted(
            (row.image, row.arm, row.arguments, row.answer) for row in study.cassette.rows if row.tool == tool
        )
    parts["order"] = [[parts["cases"].index(case) for case in each] for each in study.facts.sequences]
    parts["wrong"] = [place for place, case in enumerate(study.cases) if case.arms["wrong-25"].manipulated]
    lessons = pd.read_parquet(study.folder / LESSONS)
    parts["lessons"] = lessons.to_csv()
    parts["lessons of val"] = lessons[lessons["part"] == "val"].to_csv()
    parts["contrasts"] = [replace(each, registered="") for each in study.contrasts]
    first = min(study.cases, key=lambda case: case.id)
    world = ConsultTask(study, first, "none").open_environment(())
    parts["prompt"] = world.own_prompt(Budget(), native=True)
    return {name: repr(value) for name, value in parts.items()}


def test_every_option_of_a_study_has_a_case() -> None:
    assert {each.name for each in options_of(StudyPlan)} == PREPARED.keys() | NOT_PREPARED


def test_the_options_of_a_study_work_together(prepared: Callable[..., Any]) -> None:
    names = PREPARED.keys() - {"cases", "seed", "blind"}
    one, other = prepared(), prepared(**{name: PREPARED[name][0] for name in names})
    assert set().union(*(PREPARED[name][1] for name in names)) <= {
        part for part in one if one[part] != other[part]
    }
    assert all(said in other["prompt"] for said in ("Organ: colon.", "is a smear.", "is 0.5 microns wide"))
    assert [len(each) for each in literal_eval(other["order"])] == [5, 5, 5]
    assert "percentile" not in other["neighbours"]
    assert one["replaced_by"] == repr("weak")  # there is no random encoder


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", PREPARED)
def test_an_option_of_a_study_changes_what_it_is_for(name: str, prepared: Callable[..., Any]) -> None:
    value, changes, stays = PREPARED[name]
    one, other = prepared(), prepared(**{name: value})
    found = {part for part in one if one[part] != other[part]}
    assert changes <= found
    assert not stays & found


#: Another value of each option of a run, and the parts of the planned cells that change by it.
PLAYED: dict[str, tuple[Any, set[str]]] = {
    "arms": ("strong,random", {"datasets"}),
    "calls": ("native", {"calls"}),
    "pictures": (True, {"models", "pictures"}),
    "expert": (MODEL, {"experts"}),
    "outcomes": (True, {"outcomes"}),
}


def test_every_option_of_a_consult_run_has_a_case() -> None:
    assert {each.name for each in options_of(ConsultRun)} == PLAYED.keys()


@pytest.mark.parametrize("name", PLAYED)
def test_an_option_of_a_consult_run_reaches_its_cells(name: str, study: Study) -> None:
    value, changes = PLAYED[name]

    def planned(**options: Any) -> dict[str, str]:
        common = {
            "arms": {"expert": "expert", "outcomes": "sequence"}.get(name, "none,strong"),
            "expert": "openai:expert@http://127.0.0.1:9/v1" if name == "expert" else None,
        }
        run = ConsultRun(str(study.folder), RunOptions(agent=MODEL, limit=5), **{**common, **options})
        cells = plan_run(run)[1]
        assert {cell.settings()["study"] for cell, _ in cells} == {study.fingerprint}
        assert {cell.cell.feedback_type for cell, _ in cells} <= {"None", "no_GT-textual"}
        parts = {
            "datasets": [cell.cell.dataset for cell, _ in cells],
            "models": [cell.cell.model for cell, _ in cells],
            "calls": [cell.cell.calls for cell, _ in cells],
            "experts": [cell.cell.feedback_model for cell, _ in cells],
            "sampling": [cell.sampling for cell, _ in cells],
            "outcomes": [cell.settings().get("outcomes") for cell, _ in cells],
            "pictures": [task.picture for _, tasks in cells for task in tasks],  # type: ignore[attr-defined]
            "cases": [len(tasks) for _, tasks in cells],
        }
        return {part: repr(found) for part, found in parts.items()}

    one, other = planned(), planned(**{name: value})
    assert {part for part in one if one[part] != other[part]} == changes


def test_no_code_of_an_agent_reads_the_study_and_an_expert_writes_as_one(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(playing, "play_cells", lambda *_, **given: seen.update(given))
    monkeypatch.setattr(playing, "open_player", lambda *_, **given: given)
    options = RunOptions(agent=MODEL, limit=1, cache="none", output=str(tmp_path))
    playing.play(ConsultRun(str(study.folder), options, "strong"))
    assert set(seen["withhold"]) == {tmp_path, study.folder}
    given = seen["open_player"](parse_agent(MODEL), Sampling(seed=3), True)
    assert given == {"sampling": Sampling(seed=3), "as_expert": True}


OF_RUNS = [each for each in options_of(RunOptions) if each.name in RUN_OPTIONS]


@pytest.mark.parametrize(
    ("function", "inner", "options"),
    [("prepare", "prepare_study", study_options()), ("run", "play", [*options_of(ConsultRun), *OF_RUNS])],
)
def test_every_parameter_of_python_reaches_the_records(
    function: str, inner: str, options: list[Declared], study: Study, tmp_path: Path, monkeypatch: Any
) -> None:
    """Each parameter, given another value than its default, is found in what the inner function gets."""
    given: list[str] = []
    monkeypatch.setattr(consult_runs, inner, lambda *values, **_: given.append(repr(values)) or exit())
    data = hb.load_dataset(make_images(tmp_path) / "tiles.csv") if function == "prepare" else study
    first = (data, ["one", "two"]) if function == "prepare" else (data, MODEL)
    values = {each.name: another(each) for each in options if each.name not in ("agent", "output")}
    for name, value in ({"arms": "strong"} | values).items():
        for changed in ({}, {name: value}):
            with pytest.raises(SystemExit):
                getattr(hb.consult, function)(*first, **changed)
        assert given[-1] != given[-2], name
        assert str(value) in given[-1], name


def test_the_seconds_of_an_encoder_are_those_of_one_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from histobench.roi.features import feature_extraction

    made: list[Any] = []

    def remembered(*args: Any, **options: Any) -> Any:
        made.extend(extract(*args, **options))
        return made

    extract = feature_extraction.extract
    monkeypatch.setattr(feature_extraction, "extract", remembered)
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    folder = make_images(tmp_path / "images")
    study = hb.consult.prepare(
        hb.load_dataset(folder / "tiles.csv", classes=folder / "tiles.txt"),
        [f"{folder / 'three.py'}:{name}" for name in ("Colours", "Noise")],
        folder=tmp_path / "study",
        cases=20,
        measured=6,
        device="cpu",
        num_workers=0,
    )
    for facts in study.facts.encoders:
        parts = [each for each in made if each.asked.endswith(facts.name)]
        assert len(parts) > 1
        assert facts.seconds_per_image is not None
        computed = sum(each.computed for each in parts)
        assert facts.seconds_per_image * computed == pytest.approx(parts[0].forward_seconds)
