"""Every option, split, group and seed of an evaluation reaches the number that it is for, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from builders import feature_set, uneven_features
from histobench.roi.comparison.comparison import dataset_table
from histobench.roi.comparison.table_statistics import table_of_target
from histobench.roi.data.targets import Target, TargetColumns
from histobench.roi.evaluation.context import Context, merged
from histobench.roi.evaluation.evaluation_request import EvaluationRequest
from histobench.roi.evaluation.evaluation_run import EvaluationOutcome, evaluate
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.metrics.target_metrics import uno_weights
from histobench.roi.options import Options, feature_options
from histobench.roi.protocols import attention_mil, eva, thunder
from histobench.roi.protocols.knn import knn, prototype
from histobench.roi.protocols.linear_probe import sklearn_probe
from histobench.roi.result_options import CompareSettings
from histobench.roi.results.reader import load_runs
from histobench.roi.results.stored_run import StoredRun
from histobench.roi.task_catalogue import CLASS

pytestmark = pytest.mark.slow
QUICK: dict[str, Any] = {"n_iter": 3, "n_way": (2,), "n_shot": (1, 2), "n_neighbors": 4}
Numbers = dict[str, bytes]  # task and setting -> the probabilities of the test images
Evaluated = Callable[..., tuple[Numbers, EvaluationOutcome]]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    """Evaluates uneven features; options of tasks and fields of the request are given by name."""
    names = {each.name for each in fields(EvaluationRequest)}
    known: dict[str, tuple[Numbers, EvaluationOutcome]] = {}

    def run(*tasks: str, parts: dict[str, FeatureSet] | None = None, **changes: Any) -> Any:
        key = "" if parts else repr((tasks, changes))
        if key in known:
            return known[key]
        folder = tmp_path_factory.mktemp("evaluated")
        parts = parts or uneven_features()
        request = {name: changes.pop(name) for name in list(changes) if name in names}
        done = evaluate(
            EvaluationRequest(
                tasks,
                parts["train"],
                parts["test"],
                folder,
                val=parts.get("val"),
                device="cpu",
                options=Options(**{**QUICK, **changes}),
                **request,
            )
        )
        assert not done.failed
        assert not done.skipped
        numbers = {f"{run.task} {run.setting}".strip(): _numbers(run).tobytes() for run in load_runs(folder)}
        if key:
            known[key] = numbers, done
        return numbers, done

    return run


def _numbers(run: StoredRun) -> np.ndarray:
    return run.predictions.probabilities if run.target == CLASS else run.target_predictions.predicted


def changed(one: Numbers, other: Numbers) -> set[str]:
    """The tasks and settings of either whose numbers differ."""
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


class Case(NamedTuple):
    """An option with another value than in the first run, and what changes by it."""

    value: Any
    changes: set[str]
    tasks: tuple[str, ...] = ("Linear-Probe", "KNN", "Proto", "Few-shot")
    preset: str = "uni"
    val: bool = True


def shots(*settings: str) -> set[str]:
    return {f"Few-shot {way}way_{shot}shot" for way, shot in settings}


SHOTS = shots("21", "22", "41", "42")
LAB, SKLEARN = ("Linear-Probe",), ("Linear-Probe", "KNN", "Proto")
CASES = {
    "max_iteration": Case(1, {"Linear-Probe"}),
    "use_sklearn": Case(True, {"Linear-Probe"}),
    "n_neighbors": Case(7, {"KNN"}),
    "n_iter": Case(4, SHOTS),
    "use_all_way": Case(False, shots("41", "42")),
    "n_way": Case(
        (3,), {"Few-shot 2way_1shot", "Few-shot 2way_2shot", "Few-shot 3way_1shot", "Few-shot 3way_2shot"}
    ),
    "n_shot": Case(
        (1, 3), {"Few-shot 2way_2shot", "Few-shot 2way_3shot", "Few-shot 4way_2shot", "Few-shot 4way_3shot"}
    ),
    "cost": Case("adaptive", {"Linear-Probe"}, LAB, "patho-bench"),
    "class_weight": Case("none", {"Linear-Probe"}, LAB, "patho-bench"),
    "choose_by": Case("image", {"Linear-Probe"}, SKLEARN, "sklearn", val=False),
}
#: Options whose two values are compared elsewhere.
ELSEWHERE = {
    "keep_probabilities": "test_the_probabilities_of_episodes_are_kept_on_request",
    "cox_alpha": "test_the_penalty_of_the_cox_model_reaches_it",
    "l1_ratio": "test_the_penalty_of_the_cox_model_reaches_it",
    **dict.fromkeys(
        ("zeroshot_model_name", "zeroshot_prompt_file", "zeroshot_batch_size"),
        "test_zero_shot_follows_its_encoder_and_prompts_and_not_the_size_of_a_batch",
    ),
}


def test_every_option_of_a_task_has_a_case() -> None:
    assert {each.name for each in feature_options()} == CASES.keys() | ELSEWHERE.keys()
    assert all(name in globals() for name in ELSEWHERE.values())


@pytest.mark.parametrize(
    ("name", "case"), [*CASES.items(), ("max_iteration", Case(1, {"Linear-Probe"}, SKLEARN, "sklearn"))]
)
def test_an_option_changes_what_it_is_for_and_nothing_else(
    name: str, case: Case, evaluated: Evaluated
) -> None:
    given = uneven_features()
    parts = None if case.val else {"train": given["train"], "test": given["test"]}
    one, _ = evaluated(*case.tasks, preset=case.preset, parts=parts)
    other, _ = evaluated(*case.tasks, preset=case.preset, parts=parts, **{name: case.value})
    assert changed(one, other) == case.changes


def test_the_probabilities_of_episodes_are_kept_on_request(evaluated: Evaluated) -> None:
    kept = []
    for keep in (False, True):
        done = evaluated("Few-shot", keep_probabilities=keep)[1]
        run = next(run for run in load_runs(done.results_dir) if run.setting == "2way_1shot")
        kept.append(run.episodes)
    assert [one is not None and one.log_odds is not None for one in kept] == [False, True]


#: Task -> kind and columns of its target.
TARGETS = {
    "Regression": ("regression", ("size",)),
    "Survival": ("survival", ("time", "event")),
    "Multi-label": ("multilabel", ("x", "y")),
    "Ordinal": ("ordinal", ("grade",)),
}


def with_target(task: str, parts: dict[str, FeatureSet], *, noise: str = "") -> dict[str, FeatureSet]:
    """The features with a target that follows them, in the split `noise` one that does not; no groups."""
    found = {}
    for place, (split, part) in enumerate(parts.items()):
        draw = np.random.default_rng(place)
        number = draw.normal(size=len(part)) * 3
        number += 0 if split == noise else part.embeddings[:, :2].mean(dim=1).numpy()
        values = {
            "Regression": number[:, None],
            "Survival": np.stack([np.exp(-number / 4), draw.random(len(part)) < 0.7], axis=1),
            "Multi-label": (np.stack([number, -number - 1], axis=1) > 0).astype(float),
            "Ordinal": np.digitize(number, [-1, 2])[:, None].astype(float),
        }[task]
        if task == "Ordinal":
            values[:3, 0] = (0, 1, 2)  # each level in every split
        target = Target(TargetColumns(*TARGETS[task]), values)
        few = 2 if task == "Ordinal" else 5  # its fits take long
        found[split] = replace(part, embeddings=part.embeddings[:, :few] / 3, groups=None, target=target)
    return found


@pytest.mark.parametrize("option", [{"cox_alpha": 0.5}, {"l1_ratio": 0.0}])
def test_the_penalty_of_the_cox_model_reaches_it(option: dict[str, float], evaluated: Evaluated) -> None:
    given = uneven_features()
    small = {name: replace(given[name], embeddings=given[name].embeddings / 10) for name in ("train", "test")}
    parts = with_target("Survival", small)
    runs = [evaluated("Survival", preset="patho-bench", parts=parts, **more) for more in ({}, option)]
    assert changed(runs[0][0], runs[1][0]) == {"Survival patients"}
    stored = load_runs(runs[0][1].results_dir)
    assert table_of_target({"e": stored[0]}).metrics.keys() >= {"harrell_c", "uno_c"}


@pytest.mark.parametrize(
    ("task", "preset"), [*((task, "uni") for task in TARGETS), ("Multi-label", "sklearn")]
)
def test_a_target_is_learned_from_train_chosen_on_val_and_never_read_from_test(
    task: str, preset: str, evaluated: Evaluated
) -> None:
    parts = with_target(task, uneven_features())
    before = evaluated(task, parts=parts, preset=preset)[0]
    (name,) = before
    for noise in parts:
        other = with_target(task, uneven_features(), noise=noise)
        after, done = evaluated(task, parts=other, preset=preset)
        assert changed(before, after) == (set() if noise == "test" else {name}), noise
        (run,) = load_runs(done.results_dir)
        np.testing.assert_array_equal(run.target_predictions.truth, other["test"].target.values)
        (entry,) = dataset_table("d", [run], CompareSettings(alpha=0.2)).entries
        assert (entry.interval.level, entry.interval.low is None) == (0.8, False)
        if task == "Survival":
            np.testing.assert_array_equal(
                run.target_predictions.weights,
                uno_weights(other["train"].target.values, other["test"].target.values),
            )
    if task == "Multi-label":  # each label is chosen on its own
        column = parts["val"].target.values[:, 1]
        column[:] = 1 - column
        after = np.frombuffer(evaluated(task, parts=parts, preset=preset)[0][name]).reshape(-1, 2)
        same = after == np.frombuffer(before[name]).reshape(-1, 2)
        assert (same[:, 0].all(), same[:, 1].all()) == (True, False)


@pytest.mark.parametrize("task", ["Regression", "Ordinal"])
def test_seed_and_groups_decide_what_the_penalty_of_a_target_is_chosen_on(
    task: str, evaluated: Evaluated
) -> None:
    parts = {
        name: replace(part, groups=tuple(f"{name} {place % 5}" for place in range(len(part))))
        for name, part in with_target(task, uneven_features()).items()
        if name != "val"
    }
    losses, held_out = [], []
    for options in ({}, {"seed": 1}, {"choose_by": "image"}):
        done = evaluated(task, parts=parts, **options)[1]
        run = next(run for run in load_runs(done.results_dir) if run.setting == "tiles")
        assert run.target_predictions.groups == parts["test"].groups
        losses.append(next(repr(value) for name, value in run.info.items() if name.endswith("_by_alpha")))
        held_out.append(run.info["alpha_chosen_on"].rpartition("by ")[2])
    assert len(set(losses)) == 3
    assert held_out == ["whole groups", "whole groups", "single rows"]


def test_patients_are_learned_from_train_chosen_on_val_and_follow_the_seed(
    evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_mil, "EPOCHS", 2)
    given = {
        name: replace(
            part,
            groups=tuple(f"{name}{label}-{place % 3}" for place, label in enumerate(part.labels.tolist())),
        )
        for name, part in uneven_features().items()
    }
    before = evaluated("Patient", parts=given)[0]
    assert before.keys() == {f"Patient {name}" for name in ("votes", "mean", "abmil")}
    for split in ("val", "test"):
        part = given[split]
        swapped = torch.where(part.labels < 2, 1 - part.labels, part.labels)
        other = {**given, split: replace(part, labels=swapped)}
        after = evaluated("Patient", parts=other)[0]
        assert changed(before, after) == (set() if split == "test" else before.keys()), split
    assert changed(before, evaluated("Patient", parts=given, seed=1)[0]) == {"Patient abmil"}


def test_robustness_is_of_all_splits_and_follows_the_options_of_its_classifiers(evaluated: Evaluated) -> None:
    given = uneven_features()

    def measured(**more: Any) -> tuple[dict[str, float | None], int]:
        row = next(
            row for row in evaluated("Proto", "Robustness", **more)[1].rows if row.task == "Robustness"
        )
        return row.metrics, row.n

    usual, n = measured()
    assert n == sum(map(len, given.values()))
    assert measured(parts={"train": given["train"], "test": given["test"]})[1] == n - len(given["val"])
    other = measured(n_neighbors=1, max_iteration=1)[0]
    moved = {name.rpartition("_")[0] for name in usual if usual[name] != other[name]}
    assert moved == {"new_site_knn", "new_site_linear_probe"}


def test_zero_shot_follows_its_encoder_and_prompts_and_not_the_size_of_a_batch(
    evaluated: Evaluated, tmp_path: Path
) -> None:
    draw = torch.Generator().manual_seed(0)
    rows, labels = torch.randn(43, 256, generator=draw), torch.arange(43) % 3 > 0
    test = feature_set(rows, labels, dataset="d", encoder="tiny-vl", classes=["a", "b"])
    files = [tmp_path / "one.txt", tmp_path / "two.txt"]
    for file, words in zip(files, ("tumour tissue\nstroma\n", "stroma\nfat\n"), strict=True):
        file.write_text(words)
    runs = [
        evaluated("Zero-shot", parts={"train": test, "test": test}, **options)[0]
        for options in (
            {"zeroshot_prompt_file": files[0]},
            {"zeroshot_prompt_file": files[0], "zeroshot_batch_size": 3, "zeroshot_model_name": "tiny-vl"},
            {"zeroshot_prompt_file": files[1]},
        )
    ]
    first, batches, words = (np.frombuffer(run["Zero-shot"]) for run in runs)
    np.testing.assert_allclose(batches, first, atol=1e-5)
    assert np.abs(words - first).max() > 0.01
    areas, words = [], ["CLASSNAME", "a smear of CLASSNAME"]
    for number, templates in enumerate(([words[0]], [words[1]], words)):
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps({"templates": templates, "classes": {"a": "tumour", "b": "fat"}}))
        done = evaluated("Zero-shot", parts={"train": test, "test": test}, zeroshot_prompt_file=file)[1]
        (run,) = load_runs(done.results_dir)
        areas.append(run.metrics["auroc"])
    assert areas[0] != areas[1]
    assert run.info["prompt_spread"]["metrics"]["auroc"]["mean"] == pytest.approx(np.mean(areas[:2]))
    other = replace(test, metadata={**test.metadata, "encoder": "other"})
    with pytest.raises(AssertionError, match="tiny-vl needs the features of tiny-vl"):
        evaluated("Zero-shot", parts={"train": other, "test": other}, zeroshot_model_name="tiny-vl",
                  zeroshot_prompt_file=files[0])  # fmt: skip


def test_a_seed_moves_all_that_is_drawn_and_nothing_else(evaluated: Evaluated) -> None:
    tasks = ("Linear-Probe", "KNN", "Proto", "Few-shot", "Label-efficiency")
    zero, one, again = (evaluated(*tasks, seed=seed)[0] for seed in (0, 1, 1))
    assert not changed(one, again)
    parts = {name for name in one if name.startswith("Label-efficiency") and not name.endswith("100pct")}
    assert parts
    assert changed(zero, one) == SHOTS | parts
    voted = [evaluated("Few-shot", seed=seed, preset="thunder")[0] for seed in (0, 1)]
    assert changed(*voted) == voted[0].keys()


def test_no_more_shots_are_played_than_the_smallest_class_has(evaluated: Evaluated) -> None:
    labels = merged(uneven_features()["train"], uneven_features()["val"]).labels
    smallest = int(labels.bincount().min())
    numbers, _ = evaluated("Few-shot", n_way=(2,), n_shot=(1, smallest, smallest + 1), use_all_way=False)
    assert numbers.keys() == {"Few-shot 2way_1shot", f"Few-shot 2way_{smallest}shot"}


def test_labels_of_test_images_change_no_prediction(evaluated: Evaluated) -> None:
    given = uneven_features()
    wrong = {**given, "test": replace(given["test"], labels=(given["test"].labels + 1) % 4)}
    tasks = ("Linear-Probe", "KNN", "Proto", "Retrieval", "Few-shot")
    assert not changed(*(evaluated(*tasks, parts=parts, preset="thunder")[0] for parts in (given, wrong)))


def test_validation_images_are_training_images_where_the_file_says_joined(evaluated: Evaluated) -> None:
    tasks = ("Linear-Probe", "KNN", "Proto", "Few-shot")
    given = uneven_features()
    joined = {"train": merged(given["train"], given["val"]), "test": given["test"]}
    two_files, _ = evaluated(*tasks, parts=given)
    one_file, _ = evaluated(*tasks, parts=joined)
    without, _ = evaluated(*tasks, parts={"train": given["train"], "test": given["test"]})
    assert not changed(two_files, one_file)
    assert changed(two_files, without) == two_files.keys()


@pytest.mark.parametrize("preset", ["sklearn", "thunder"])
def test_validation_images_choose_and_do_not_train_where_the_file_says_so(
    preset: str, evaluated: Evaluated
) -> None:
    given = uneven_features()
    wrong = {**given, "val": replace(given["val"], labels=(given["val"].labels + 1) % 4)}
    tasks = ("KNN", "Proto", "Linear-Probe") if preset == "sklearn" else ("KNN", "Proto")
    one, _ = evaluated(*tasks, parts=given, preset=preset)
    other, _ = evaluated(*tasks, parts=wrong, preset=preset)
    assert changed(one, other) == ({"Linear-Probe"} if preset == "sklearn" else {"KNN"})


def test_each_preset_trains_chooses_and_predicts_on_the_images_of_its_own_split(
    evaluated: Evaluated, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(thunder.nine_heads.__kwdefaults__, "epochs", 10)
    monkeypatch.setitem(eva.eva_runs.__kwdefaults__, "steps", 20)
    given = uneven_features()
    (x, y), (v, vy), (t, _) = ((part.embeddings, part.labels) for part in given.values())
    both, c = (torch.cat([x, v]), torch.cat([y, vy]), t), {"n_classes": 4}
    expected = {
        "uni KNN": knn(*both, n_neighbors=4, **c),
        "uni Proto": prototype(*both, **c),
        "sklearn Linear-Probe": sklearn_probe(x, y, t, val=(v, vy), seed=3, **c),
        "thunder KNN": thunder.knn_chosen_on_val(x, y, v, vy, t, **c),
        "thunder Linear-Probe": thunder.nine_heads(x, y, v, vy, t, seed=3, **c),
        "eva Linear-Probe": eva.mean_outcome(eva.eva_runs(x, y, v, vy, t, **c)),
    }
    for name, outcome in expected.items():
        preset, task = name.split()
        found, _ = evaluated(task, preset=preset, parts=given, seed=3)
        assert found == {task: outcome.probabilities.tobytes()}


USED: dict[tuple[str, bool], str | None] = {
    ("uni", True): "joined to the training data",
    ("uni", False): None,
    ("thunder", True): "used to choose hyper-parameters",
    ("thunder", False): "a fifth of the training set, whole groups, was held out",
    ("sklearn", False): "the training set, whole groups, was cross-validated",
}


@pytest.mark.parametrize(("preset", "val"), USED)
def test_a_result_says_what_it_is_of(preset: str, val: bool, evaluated: Evaluated) -> None:
    parts = {name: part for name, part in uneven_features().items() if val or name != "val"}
    for name, part in parts.items():
        part.metadata.update(source=f"/f/{name}.pt", size=224, provenance="by hand")
        parts[name] = replace(part, groups=("", *(part.groups or ())[1:]))
    request: dict[str, Any] = {"dataset": "gut", "encoder": "mine", "description": "words", "seed": 3}
    options = {"n-shot": "1,2", "n-way": "2", "n-iter": "3", "n-neighbors": "4", "cost": "2.0"}
    done = evaluated("Proto", parts=parts, preset=preset, classes=tuple("abcd"), cost=2.0, **request)[1]
    (run,) = load_runs(done.results_dir)
    trained, said = [parts["train"], *([parts["val"]] if val and preset == "uni" else [])], USED[preset, val]
    expected = {
        **request, "preset": preset, "setting": "", "size": "224", "classes": list("abcd"), "device": "cpu",
        "num_train": sum(map(len, trained)),
        "num_train_groups": len({group for part in trained for group in part.groups or () if group}),
        "num_val": len(parts["val"]) if val else None,
        **{f"{name}_features": f"/f/{name}.pt" for name in parts},
        "val_use": f"{said} as there is no validation set" if said and not val else said,
        "chosen_by": "group" if said and not val else None, "provenance": "by hand", "split": None,
        "options": {f"--{name}": text for name, text in options.items()},
    }  # fmt: skip
    assert {name: run.info.get(name) for name in expected} == expected


def test_patients_stay_whole_while_the_penalty_is_chosen(evaluated: Evaluated) -> None:
    given = uneven_features()
    train, test = given["train"], given["test"].embeddings
    parts = {"train": train, "test": given["test"]}
    chosen = {}
    for groups, choose_by in ((train.groups, "group"), (None, "image")):
        _, done = evaluated("Linear-Probe", parts=parts, preset="sklearn", choose_by=choose_by)
        (run,) = load_runs(done.results_dir)
        asked = sklearn_probe(train.embeddings, train.labels, test, n_classes=4, groups=groups, seed=0)
        np.testing.assert_array_equal(run.predictions.probabilities, asked.probabilities)
        assert run.info["chosen_by"] == choose_by
        chosen[choose_by] = asked.info["C"]
    assert chosen["group"] != chosen["image"]


@pytest.mark.parametrize("choose_by", ["group", "image"])
def test_what_is_held_out_follows_the_seed_and_keeps_whole_groups_on_request(choose_by: str) -> None:
    given, drawn = uneven_features(), set()
    pairs = tuple(str(row // 2) for row in range(len(given["train"])))  # a seed decides between equals
    train, options = replace(given["train"], groups=pairs), Options(choose_by=choose_by)
    for seed in range(3):
        request = EvaluationRequest(
            ("KNN",), train, given["test"], Path(), preset="thunder", seed=seed, options=options
        )
        fit, rest = Context(request, tuple("abcd"), "cpu").train_and_val
        assert sorted(fit.img_names + rest.img_names) == sorted(train.img_names)
        assert set(fit.groups or ()).isdisjoint(rest.groups or ()) == (choose_by == "group")
        drawn.add(rest.img_names)
    assert len(drawn) > 1


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_leak_from_either_split_is_a_caveat_of_every_task(split: str, evaluated: Evaluated) -> None:
    given, word = uneven_features(), {"train": "training", "val": "validation"}[split]
    part, test = given[split], given["test"]
    usual = {text for row in evaluated("KNN", "Proto")[1].rows for text in row.caveats}
    rows = part.embeddings.clone()
    rows[2] = test.embeddings[5]
    same_group = replace(part, groups=(test.groups[0], *part.groups[1:]))  # type: ignore[index, misc]
    for changed_part, said in (
        (replace(part, embeddings=rows), "1 test image has "),
        (same_group, f"1 of {len(set(test.groups or ()))} test groups "),
    ):
        done = evaluated("KNN", "Proto", parts={**given, split: changed_part})[1]
        assert len(done.rows) == 2
        for row in done.rows:
            (told,) = set(row.caveats) - usual
            assert told.startswith(said)
            assert word in told
