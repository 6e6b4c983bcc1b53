"""The presets beside `uni`, each against a plain formulation, and pinned on real features."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, f1_score
from torch import Tensor, nn

from histobench.core.errors import HistobenchError
from histobench.roi.presets import get_preset
from histobench.roi.protocols import eva, thunder
from histobench.roi.protocols.few_shot import EpisodeSampler
from histobench.roi.protocols.knn import retrieval
from histobench.roi.protocols.linear_probe import COSTS, folds, held_out, nested_parts, sklearn_probe

Split = tuple[Tensor, Tensor]


@pytest.fixture(scope="module")
def blobs() -> tuple[Split, Split, Split]:
    """Three overlapping classes in 12 dimensions: train, val, test."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(3, 12))

    def draw(count: int) -> Split:
        labels = rng.integers(3, size=count)
        return (
            torch.from_numpy((centres[labels] + rng.normal(size=(count, 12))).astype(np.float32)),
            torch.from_numpy(labels),
        )

    return draw(150), draw(60), draw(80)


def test_an_unknown_preset_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(HistobenchError, match="did you mean thunder"):
        get_preset("thundr")


@pytest.mark.slow
def test_nine_heads_are_nine_separate_adam_trainings(blobs: tuple[Split, Split, Split]) -> None:
    (x, y), (v, vy), (t, _) = blobs
    ours = thunder.nine_heads(x, y, v, vy, t, n_classes=3, epochs=4, batch_size=32, seed=5)
    weight, bias = thunder._initial_heads(12, 3, 5, "cpu")
    best: tuple[float, np.ndarray] = (-1.0, np.empty(0))
    heads = []
    for k, (lr, decay) in enumerate(thunder.HEADS):
        head = nn.Linear(12, 3)
        head.load_state_dict({"weight": weight[k], "bias": bias[k]})
        heads.append((head, torch.optim.Adam(head.parameters(), lr=lr, weight_decay=decay)))
    shuffle = torch.Generator().manual_seed(5)
    for _ in range(4):
        for rows in torch.randperm(len(x), generator=shuffle).split(32):
            for head, optimiser in heads:
                optimiser.zero_grad()
                nn.functional.cross_entropy(head(x[rows]), y[rows]).backward()
                optimiser.step()
        for head, _ in heads:
            score = f1_score(vy, head(v).argmax(1), average="macro")
            if score > best[0] + 1e-12:
                best = (score, head(t).softmax(1).detach().numpy().copy())
    assert ours.info["val_macro_f1"] == pytest.approx(best[0])
    np.testing.assert_allclose(ours.probabilities, best[1], atol=1e-5)


def test_thunder_knn_is_an_uncentred_cosine_vote_with_k_of_the_best_f1(
    blobs: tuple[Split, Split, Split],
) -> None:
    (x, y), (v, vy), (t, _) = blobs
    unit = [nn.functional.normalize(each.double(), dim=1).numpy() for each in (x, v, t)]

    def votes(queries: np.ndarray, k: int) -> np.ndarray:
        near = np.argsort(-(queries @ unit[0].T), axis=1, kind="stable")[:, :k]
        return np.array([np.bincount(y.numpy()[row], minlength=3) for row in near])

    scores = [f1_score(vy, votes(unit[1], k).argmax(1), average="macro") for k in thunder.NEIGHBOURS]
    k = thunder.NEIGHBOURS[int(np.argmax(scores))]
    ours = thunder.knn_chosen_on_val(x, y, v, vy, t, n_classes=3)
    assert ours.info["n_neighbors"] == k
    np.testing.assert_allclose(ours.probabilities, votes(unit[2], k) / k)


def test_simple_shot_is_voted_over_support_sets(blobs: tuple[Split, Split, Split]) -> None:
    (x, y), _, (t, _) = blobs
    ours = thunder.voted_simple_shot(x, y, t, n_classes=3, shot=4, support_sets=25, seed=3)
    votes = np.zeros((len(t), 3))
    for supports in EpisodeSampler(y.numpy(), seed=3).draw(way=3, shot=4, n_iter=25).supports:
        chosen = x.numpy()[supports].astype(np.float64)
        mean = chosen.mean((0, 1))
        prototypes = (chosen - mean).mean(1)
        queries = t.numpy() - mean
        cosine = (
            (queries @ prototypes.T)
            / np.linalg.norm(queries, axis=1)[:, None]
            / np.linalg.norm(prototypes, axis=1)
        )
        votes[np.arange(len(t)), cosine.argmax(1)] += 1
    np.testing.assert_allclose(ours.probabilities, votes / 25)
    np.testing.assert_array_equal(ours.predicted, votes.argmax(1))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [(0, 1, 2), (0, 1), (0, 2)])
def test_the_chosen_c_gives_scikit_learns_probabilities(
    blobs: tuple[Split, Split, Split], classes: tuple[int, ...]
) -> None:
    kept = [torch.isin(labels, torch.tensor(classes)) for _, labels in blobs]
    (x, y), (v, vy), (t, _) = [(x[rows], y[rows]) for (x, y), rows in zip(blobs, kept, strict=True)]
    ours = sklearn_probe(x, y, t, n_classes=3, val=(v, vy))
    models = [
        LogisticRegression(C=cost, max_iter=5000, tol=1e-8).fit(x.numpy().astype(float), y) for cost in COSTS
    ]
    scores = [balanced_accuracy_score(vy, model.predict(v.numpy().astype(float))) for model in models]
    best = int(np.argmax(scores))
    assert ours.info["C"] == COSTS[best]
    expected = models[best].predict_proba(t.numpy().astype(float))
    np.testing.assert_allclose(ours.probabilities[:, list(classes)], expected, atol=2e-4)


@pytest.mark.slow
def test_without_a_validation_set_c_is_chosen_by_seeded_folds(blobs: tuple[Split, Split, Split]) -> None:
    (x, y), _, (t, _) = blobs
    x, y = x[:60], y[:60]
    chosen = [sklearn_probe(x + 2 * torch.sin(9 * x), y, t, n_classes=3, seed=seed) for seed in (1, 1, 2, 3)]
    assert "cross-validation" in chosen[0].info["C_chosen_on"]
    np.testing.assert_array_equal(chosen[0].probabilities, chosen[1].probabilities)
    assert len({outcome.info["C"] for outcome in chosen}) > 1


@pytest.mark.parametrize(("images", "patience"), [(268, 1250), (6270, 100), (262_144, 3)])
def test_patience_is_the_published_one_of_every_dataset(images: int, patience: int) -> None:
    epochs = eva.STEPS / math.ceil(images / eva.BATCH)
    assert math.ceil(eva.PATIENCE_SHARE * epochs) == patience


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("n_classes", [2, 3])
def test_eva_runs_are_seeded_and_learn(blobs: tuple[Split, Split, Split], n_classes: int) -> None:
    splits = [(x[y < n_classes], y[y < n_classes]) for x, y in blobs]
    (x, y), (v, vy), (t, ty) = splits
    runs = eva.eva_runs(x, y, v, vy, t, n_classes=n_classes, steps=400, runs=2)
    again = eva.eva_runs(x, y, v, vy, t, n_classes=n_classes, steps=400, runs=1)
    np.testing.assert_array_equal(runs[0].probabilities, again[0].probabilities)
    assert not np.array_equal(runs[0].probabilities, runs[1].probabilities)
    assert balanced_accuracy_score(ty, eva.mean_outcome(runs).predicted) > 1.2 / n_classes


def test_an_eva_run_is_adamw_at_a_third_of_its_rate_for_five_epochs(
    blobs: tuple[Split, Split, Split],
) -> None:
    (x, y), (v, vy), (t, _) = blobs  # 150 images: one batch an epoch
    (ours,) = eva.eva_runs(x, y, v, vy, t, n_classes=3, steps=40, runs=1)
    generator = torch.Generator().manual_seed(42)
    head = nn.Linear(12, 3)
    for parameter in head.parameters():
        nn.init.uniform_(parameter, -(12**-0.5), 12**-0.5, generator=generator)
    optimiser = torch.optim.AdamW(head.parameters(), weight_decay=0.01)
    best, best_epoch, expected = -1.0, 0, np.empty(0)
    for epoch in range(1, 41):
        optimiser.param_groups[0]["lr"] = 1e-4 if epoch <= 5 else 3e-4
        rows = torch.randperm(150, generator=generator)
        optimiser.zero_grad()
        nn.functional.cross_entropy(head(x[rows]), y[rows]).backward()
        optimiser.step()
        score = balanced_accuracy_score(vy, head(v).argmax(1))
        if score > best + 1e-9:
            best, best_epoch, expected = score, epoch, head(t).softmax(1).detach().numpy().copy()
        if epoch - best_epoch == 8:  # a fifth of 40 epochs
            break
    assert (ours.info["epoch"], ours.info["steps"]) == (best_epoch, epoch)
    np.testing.assert_allclose(ours.probabilities, expected, atol=1e-5)


def test_eva_counts_whole_epochs_only(blobs: tuple[Split, Split, Split]) -> None:
    (x, y), (v, vy), (t, _) = blobs
    x, y = torch.cat([x, x, x]), torch.cat([y, y, y])  # 450 images: two batches an epoch
    whole, cut = (
        eva.eva_runs(x, y, v, vy, t, n_classes=3, steps=steps, runs=1)[0] for steps in (2 * 9, 2 * 9 + 1)
    )
    np.testing.assert_array_equal(whole.probabilities, cut.probabilities)
    assert cut.info["steps"] <= 2 * 9
    assert eva.eva_runs(x, y, v, vy, t, n_classes=3, steps=1, runs=1)[0].info["steps"] == 1


def test_eva_validates_with_torchmetrics_macro_accuracy() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    assert eva._macro_recall(torch.tensor([0, 1, 1, 1]), labels, 4) == pytest.approx(0.75)
    # Class 2 is absent but was predicted once: it counts as 0, class 3 does not count.
    assert eva._macro_recall(torch.tensor([0, 2, 1, 1]), labels, 4) == pytest.approx(0.5)


def test_retrieval_counts_what_a_loop_counts(blobs: tuple[Split, Split, Split]) -> None:
    (x, y), _, (t, ty) = blobs
    outcome, scores = retrieval(x, y, t, ty, n_classes=3)
    mean = x.double().mean(0).numpy()
    unit = [
        (each.numpy() - mean) / np.linalg.norm(each.numpy() - mean, axis=1, keepdims=True) for each in (x, t)
    ]
    order = np.argsort(-(unit[1] @ unit[0].T), axis=1, kind="stable")[:, :10]
    for k in (1, 3, 5, 10):
        hits, majority, average = [], [], []
        for row, label in zip(order, ty.tolist(), strict=True):
            found = y.numpy()[row[:k]]
            right = found == label
            hits.append(right.any())
            majority.append(np.bincount(found, minlength=3).argmax() == label)
            precisions = [right[: rank + 1].mean() for rank in range(k) if right[rank]]
            average.append(np.mean(precisions) if precisions else 0.0)
        assert scores[f"acc_at_{k}"] == pytest.approx(np.mean(hits))
        assert scores[f"mv_at_{k}"] == pytest.approx(np.mean(majority))
        assert scores[f"map_at_{k}"] == pytest.approx(np.mean(average))
    np.testing.assert_array_equal(outcome.predicted, y.numpy()[order[:, 0]])


def test_held_out_parts_are_stratified_disjoint_and_seeded() -> None:
    labels = np.repeat([0, 1, 2], [50, 10, 2])
    fit, rest = held_out(labels, seed=4)
    assert sorted([*fit, *rest]) == list(range(62))
    assert np.bincount(labels[rest]).tolist() == [10, 2, 1]
    np.testing.assert_array_equal(held_out(labels, seed=4)[1], rest)
    assert held_out(labels, seed=5)[1].tolist() != rest.tolist()
    parts = folds(labels, seed=4)
    assert [part.tolist() for _, part in folds(labels, seed=4)] == [part.tolist() for _, part in parts]
    assert [part.tolist() for _, part in folds(labels, seed=5)] != [part.tolist() for _, part in parts]
    assert sorted(np.concatenate([part for _, part in parts])) == list(range(62))
    assert all(np.bincount(labels[part], minlength=3)[0] == 10 for _, part in parts)


def test_label_shares_are_nested_and_keep_every_class() -> None:
    labels = np.repeat([0, 1, 2], [200, 40, 3])
    parts = dict(nested_parts(labels, seeds=2))
    assert [len(rows) for rows in parts.values()] == [2, 2, 2, 2, 2, 1]
    for run in range(2):
        for smaller, larger in zip((0.01, 0.05, 0.10, 0.25), (0.05, 0.10, 0.25, 0.50), strict=True):
            assert set(parts[smaller][run].tolist()) <= set(parts[larger][run].tolist())
        assert set(labels[parts[0.01][run].numpy()]) == {0, 1, 2}


#: balanced accuracy on the golden LungHist700 features, measured when the preset was written
PINNED = {"sklearn": 0.421, "thunder": 0.369, "thunder-knn": 0.311, "thunder-shot": 0.303, "eva": 0.395}


@pytest.mark.slow
def test_every_preset_gives_its_pinned_outcome_on_real_features() -> None:
    folder = Path(__file__).parents[2] / "data" / "reference" / "golden" / "roi"
    golden = np.load(folder / "lunghist700_efficientnet-lite0.npz")
    x, t = (torch.from_numpy(golden[f"{split}_embeddings"]) for split in ("train", "test"))
    y, ty = (torch.from_numpy(golden[f"{split}_labels"].astype(np.int64)) for split in ("train", "test"))
    fit, rest = held_out(y.numpy())
    data = (x[fit], y[fit], x[rest], y[rest], t)
    outcomes = {
        "sklearn": sklearn_probe(x[fit], y[fit], t, n_classes=7, val=(x[rest], y[rest])),
        "thunder": thunder.nine_heads(*data, n_classes=7, epochs=10),
        "thunder-knn": thunder.knn_chosen_on_val(*data, n_classes=7),
        "thunder-shot": thunder.voted_simple_shot(x, y, t, n_classes=7, shot=8, support_sets=100),
        "eva": eva.mean_outcome(eva.eva_runs(*data, n_classes=7, steps=200, runs=2)),
    }
    measured = {name: balanced_accuracy_score(ty, outcome.predicted) for name, outcome in outcomes.items()}
    assert measured == pytest.approx(PINNED, abs=0.02)
