"""A plan file is checked before anything runs."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.encoders.own_name import label_of
from histobench.roi.options import DatasetEntry, Plan
from histobench.roi.plan.plan_file import json_schema, plan_from, read_plan_values
from histobench.roi.plan.planner import plan_values

ALL = """{
combine: [a+b],
tasks: [Regression], target: regression, target_columns: [age],
presets: [eva], seed: 3, size: 96, weights: w.json, allow_revision: true, device: cpu,
batch_size: "64", num_workers: 2, precision: fp32, compile: "off", on_bad_image: skip, recheck: 1,
no_cache: true, n_shot: [1, 4], n_way: [2, 3], n_iter: 5, n_neighbors: 7, choose_by: image, n_bootstrap: 50,
lora_rank: 4, lora_alpha: 8.0, tune_epochs: 2, tune_rates: [0.01], tune_batch_size: 8, tune_seeds: 5,
save_adapters: true, cost: adaptive, class_weight: none, cox_alpha: 0.01, l1_ratio: 0.9,
token_store: 5.0, head_steps: 7, mask_classes: "0:background,1:tumor",
splits: 5x2, folds: 3, repeats: 2, slurm: "partition=gpu,gres=gpu:1", slurm_cpu: "mem=8G"}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tiles").mkdir()
    return tmp_path


def _plan(folder: Path, **changes: object) -> dict[str, object]:
    return {"datasets": [{"name": "t", "source": "tiles"}], "encoders": ["a", "b"], **changes}


def test_paths_are_relative_to_the_plan_and_defaults_are_filled_in(folder: Path) -> None:
    (folder / "bench.yaml").write_text("datasets: [tiles]\nencoders: a, b\nresults: out\nn_shot: [1, 4]\n")
    plan = plan_from(read_plan_values(folder / "bench.yaml"), where="", base=folder)
    assert plan.datasets[0].source == folder / "tiles"
    assert plan.datasets[0].name == "tiles"
    assert plan.encoders == ("a", "b")
    assert plan.results == folder / "out"
    assert plan.options.n_shot == (1, 4)
    assert plan.presets == ("uni",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": ["a"]}, "unknown key 'encoder'; did you mean encoders"),
        ({"encoders": []}, "'encoders' must be a list"),
        ({"datasets": [{"name": "t"}]}, r"datasets\[0\]: 'source' is missing"),
        ({"datasets": [{"source": "nowhere"}]}, "nowhere does not exist"),
        ({"datasets": [{"source": "pathorob-cammelyon"}]}, "did you mean pathorob-camelyon"),
        ({"datasets": ["tiles", "tiles"]}, "two datasets are called 'tiles'"),
        (
            {"datasets": [{"source": "tiles", "prompts": "no.txt"}]},
            r"bench.yaml: datasets\[0\]: `prompts` .*no\.txt does not exist",
        ),
        ({"seed": "many"}, "seed: expected a whole number"),
        ({"n_shot": [1, True]}, "n_shot: expected a whole number"),
        ({"seed": -1}, "seed: expected a whole number of at least 0, found -1"),
        ({"n_iter": 0}, "n_iter: expected a whole number of at least 1"),
        ({"n_way": [1]}, "n_way: expected a whole number of at least 2"),
        ({"n_neighbors": 0}, "n_neighbors: expected a whole number of at least 1"),
        ({"tasks": ["KNN", "Protto"]}, r"bench\.yaml: unknown task 'Protto'; did you mean Proto"),
        ({"presets": "uni, evva"}, "unknown preset 'evva'; did you mean eva"),
        ({"batch_size": "many"}, "batch_size: expected auto or a whole number of at least 1, found 'many'"),
        ({"precision": "int8"}, "`precision` 'int8' is unknown"),
        ({"slurm": {"time": 14400}}, 'slurm: time: expected a text such as "4:00:00" in quotes, found 14400'),
        ({"slurm": {"gres": "gpu:1,shard:2"}}, "slurm: gres: expected a text"),
        ({"slurm_cpu": {"array": "0-3"}}, "slurm_cpu: array is set by histobench itself"),
        ({"slurm_cpu": "mem"}, "slurm_cpu: expected key=value"),
    ],
)
def test_a_mistake_names_the_place(folder: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(HistobenchError, match=message):
        plan_from(_plan(folder, **changes), where="bench.yaml", base=folder)


@pytest.mark.parametrize("text", ["[1, 2]", "just words", "a: [1"])
def test_a_file_that_is_no_plan_is_refused(folder: Path, text: str) -> None:
    (folder / "bench.yaml").write_text(text)
    with pytest.raises(HistobenchError, match=r"bench\.yaml"):
        read_plan_values(folder / "bench.yaml")


def test_the_schema_for_editors_knows_the_same_keys_and_defaults() -> None:
    schema = json.loads(json_schema())
    entry = next(form for form in schema["properties"]["datasets"]["items"]["anyOf"] if "properties" in form)
    assert set(entry["properties"]) == {field.name for field in fields(DatasetEntry)}
    defaults = Plan((), (), Path()).values()
    assert set(schema["properties"]) == set(defaults)
    for name, value in defaults.items():
        said = schema["properties"][name].get("default")
        if name in ("datasets", "encoders", "results"):
            continue
        default = list(value) if isinstance(value, tuple) else value
        assert said == (default or None if default in ([], None) else default), name


def test_every_key_reaches_the_plan_that_holds_settings_and_options(folder: Path) -> None:
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in yaml.safe_load(ALL).items()
    }
    defaults = Plan((), (), Path()).values()
    assert set(given) == set(defaults) - {"datasets", "encoders", "results", "features"}
    assert all(given[name] != defaults[name] for name in given)
    alone = {name: given[name] for name in given if name not in ("folds", "repeats")}
    for chosen in (alone, {name: given[name] for name in given if name != "splits"}):
        plan = plan_from(_plan(folder, **chosen), where="bench.yaml", base=folder)
        assert {name: plan.values()[name] for name in chosen} == chosen


def test_combinations_and_features_from_elsewhere_are_encoders(folder: Path) -> None:
    made = plan_from(_plan(folder, combine=[["a", "c"], "a+b"]), where="x", base=folder)
    assert made.encoders == ("a", "b", "c", "a+c", "a+b")
    pairs = plan_from(
        _plan(folder, encoders=["a", "b", "n=timm:c"], combine="all pairs"), where="x", base=folder
    )
    assert pairs.encoders[3:] == ("a+b", "a+n", "b+n")
    (folder / "features_uni").mkdir()
    foreign = plan_from(
        {"datasets": ["tiles"], "features": ["features_uni", "x=features_uni"]}, where="x", base=folder
    )
    assert [label_of(name) for name in foreign.encoders] == ["uni@elsewhere", "x@elsewhere"]
    for wrong, message in (
        ({"combine": ["a"]}, "does not name two encoders"),
        ({"combine": ["a+a"]}, "names an encoder twice"),
        ({"combine": 3}, "'combine' must be a list"),
        ({"features": ["nowhere"]}, "nowhere does not exist"),
    ):
        with pytest.raises(HistobenchError, match=message):
            plan_from(_plan(folder, **wrong), where="x", base=folder)


def test_options_of_jobs_are_a_block_or_as_the_flag_has_them(folder: Path) -> None:
    block = {"partition": "gpu", "gres": "gpu:1", "time": "4:00:00", "nodes": 1}
    said = "partition=gpu,gres=gpu:1,time=4:00:00,nodes=1"
    for given in (block, said):
        assert plan_from(_plan(folder, slurm=given), where="bench.yaml", base=folder).slurm == said


def test_where_jobs_are_queued_does_not_make_it_another_plan(folder: Path) -> None:
    plans = [
        plan_from(_plan(folder, slurm=f"time={hours}:00:00"), where="bench.yaml", base=folder)
        for hours in (4, 8)
    ]
    assert plan_values(plans[0], "slurm") == plan_values(plans[1], "slurm")


@pytest.mark.slow
def test_editors_accept_a_good_plan_and_mark_a_bad_one() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads(json_schema())
    root = Path(__file__).parents[3]
    good = yaml.safe_load((root / "docs" / "real-data.yaml").read_text())
    jsonschema.validate(good, schema)
    for bad in ({**good, "sed": 1}, {**good, "n_iter": 0}, {"datasets": []}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema)


def test_the_schema_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "histobench plan"
