"""Attention over bags: the forward pass is the formula of the paper; training finds the tiles that count."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import nn

from histobench.roi.protocols import attention_mil as mil
from histobench.roi.protocols.attention_mil import Bags, GatedAttention, Scaling, attention_mil


def bags_with_a_key_tile(
    n: int, size: int, seed: int, d: int = 16, shift: float = 3.0
) -> tuple[Bags, np.ndarray]:
    """Of the tiles of a positive bag one in ten is shifted; which ones are [n * size]."""
    draw = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    bag_of = np.repeat(np.arange(n), size)
    key = (np.tile(np.arange(size), n) % 10 == 0) & (labels[bag_of] == 1)
    tiles = draw.normal(size=(n * size, d)) + shift * key[:, None] * (np.arange(d) < 4)
    shuffled = draw.permutation(n * size)  # tiles of a bag need not follow one another
    tensor = torch.tensor(tiles[shuffled], dtype=torch.float32)
    return Bags(tensor, bag_of[shuffled], labels), key[shuffled]


def mislabelled(bags: Bags, seed: int) -> Bags:
    """The bags with the labels of one in eight exchanged, so that no ranking is perfect."""
    wrong = np.random.default_rng(seed).permutation(len(bags)) < len(bags) // 8
    return Bags(bags.tiles, bags.bag_of, np.where(wrong, 1 - bags.labels, bags.labels))


def formula(network: GatedAttention, run: int, tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Attention and class scores of one bag by equations 7 and 9 of Ilse et al. 2018, in double precision."""
    names = ("tanh_weight", "tanh_bias", "gate_weight", "gate_bias", "score_weight")
    v, v0, u, u0, w = (getattr(network, name)[run].detach().double().numpy() for name in names)
    c, c0 = (getattr(network, name)[run].detach().double().numpy() for name in ("class_weight", "class_bias"))
    raw = []
    for h in tiles:
        inner = np.tanh(v.T @ h + v0[0]) / (1 + np.exp(-(u.T @ h + u0[0])))
        raw.append(float(w[:, 0] @ inner))
    weights = np.exp(np.array(raw) - max(raw))
    weights /= weights.sum()
    return weights, c.T @ (weights @ tiles) + c0[0]


@pytest.mark.parametrize("block", [3, 2048])
def test_the_forward_pass_is_the_formula_of_the_paper(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mil, "BLOCK", block)  # bags go over the ends of blocks
    bags, _ = bags_with_a_key_tile(5, 7, seed=0)
    network = GatedAttention(16, 3, runs=2, seed=4)
    with torch.no_grad():
        network.score_weight.mul_(20)  # attention that is far from even
    scaling = Scaling.of(bags.tiles, "cpu")
    logits, attention = network.predict(bags, scaling, "cpu")
    rows = bags.tiles.double().numpy()
    rows = (rows - rows.mean(0)) / rows.std(0)
    for run in range(2):
        for bag in range(5):
            here = np.flatnonzero(bags.bag_of == bag)
            weights, scores = formula(network, run, rows[here])
            assert weights.max() > 2 / len(here)
            np.testing.assert_allclose(attention[run, here].numpy(), weights, rtol=2e-5, atol=1e-7)
            np.testing.assert_allclose(logits[run, bag].numpy(), scores, rtol=2e-5, atol=1e-5)


def test_a_padded_bag_of_training_is_pooled_as_the_same_bag_alone() -> None:
    bags, _ = bags_with_a_key_tile(4, 6, seed=1)
    network = GatedAttention(16, 2, runs=2, seed=0)
    scaling = Scaling.of(bags.tiles, "cpu")
    rows = bags.rows()
    tiles, is_tile = mil._padded(bags.tiles, [rows[0], rows[3][:2]], scaling, "cpu")
    said = network(tiles, is_tile, torch.ones(2, 1, 16)).detach()
    whole = scaling.apply(bags.tiles).double().numpy()
    for run, used in enumerate((rows[0], rows[3][:2])):
        np.testing.assert_allclose(
            said[run].numpy(), formula(network, run, whole[used])[1], rtol=2e-5, atol=1e-5
        )


@pytest.mark.slow
def test_training_finds_the_tiles_that_make_a_bag_positive() -> None:
    train, _ = bags_with_a_key_tile(60, 20, seed=2)
    test, key = bags_with_a_key_tile(60, 20, seed=3)
    found = attention_mil(train, test, n_classes=3, runs=2)
    mean = np.mean([run.probabilities for run in found.runs], axis=0)
    assert (mean.argmax(1) == test.labels).mean() > 0.9
    assert (mean[:, 2] == 0).all()  # no bag of this class in training
    np.testing.assert_allclose(np.bincount(test.bag_of, found.attention), 1, rtol=1e-5)
    positive = test.labels[test.bag_of] == 1
    assert found.attention[key].mean() > 3 * found.attention[positive & ~key].mean()
    assert all(1 <= run.info["epoch"] <= mil.EPOCHS and run.info["bags"] == 48 for run in found.runs)


@pytest.mark.slow
def test_runs_side_by_side_are_the_runs_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mil, "EPOCHS", 4)
    train, _ = bags_with_a_key_tile(20, 5, seed=4)
    test, _ = bags_with_a_key_tile(10, 5, seed=5)
    val, _ = bags_with_a_key_tile(10, 5, seed=6)
    together = attention_mil(train, test, n_classes=2, val=val, runs=2, seed=7)
    alone = attention_mil(train, test, n_classes=2, val=val, runs=1, seed=7)
    np.testing.assert_allclose(together.runs[0].probabilities, alone.runs[0].probabilities, atol=1e-5)
    again = attention_mil(train, test, n_classes=2, val=val, runs=2, seed=7)
    np.testing.assert_array_equal(together.runs[1].probabilities, again.runs[1].probabilities)


def test_bags_larger_than_an_update_are_drawn_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mil, "TILES", 8)
    monkeypatch.setattr(mil, "EPOCHS", 2)
    sizes = []
    padded = mil._padded

    def watched(tiles: torch.Tensor, drawn: list[np.ndarray], *rest: object) -> object:
        sizes.extend(len(rows) for rows in drawn)
        assert all(len(set(rows.tolist())) == len(rows) for rows in drawn)
        return padded(tiles, drawn, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(mil, "_padded", watched)
    train, _ = bags_with_a_key_tile(10, 30, seed=8)
    attention_mil(train, train, n_classes=2, runs=2)
    assert set(sizes) == {8}


def test_one_class_in_training_is_certain_of_it() -> None:
    bags, _ = bags_with_a_key_tile(4, 3, seed=0)
    only = Bags(bags.tiles, bags.bag_of, np.ones(4, dtype=np.int64))
    found = attention_mil(only, bags, n_classes=2, runs=2)
    np.testing.assert_array_equal(found.runs[1].probabilities, [[0.0, 1.0]] * 4)
    np.testing.assert_allclose(found.attention, 1 / 3)


class _Plain(nn.Module):
    """Gated attention by the published description (Ilse et al. 2018, equations 7 and 9), bag by bag."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self.v, self.u = nn.Linear(dimension, 128), nn.Linear(dimension, 128)
        self.w, self.c = nn.Linear(128, 1), nn.Linear(dimension, 2)

    def forward(self, bag: torch.Tensor) -> torch.Tensor:
        attention = torch.softmax(self.w(torch.tanh(self.v(bag)) * torch.sigmoid(self.u(bag))), dim=0)
        return self.c(nn.functional.dropout((attention * bag).sum(0), 0.25, self.training))


def _plain_training(train: Bags, val: Bags, test: Bags, seed: int) -> list[float]:
    """A plain loop with the settings of Patho-Bench; the epoch with the least loss on `val` counts."""
    torch.manual_seed(seed)
    network, first = _Plain(train.tiles.shape[1]), GatedAttention(train.tiles.shape[1], 2, runs=1, seed=seed)
    with torch.no_grad():
        for layer, name in ((network.v, "tanh"), (network.u, "gate"), (network.c, "class")):
            layer.weight.copy_(getattr(first, f"{name}_weight")[0].T)
            layer.bias.copy_(getattr(first, f"{name}_bias")[0, 0])
        network.w.weight.copy_(first.score_weight[0].T)
    mean, spread = train.tiles.mean(0), train.tiles.std(0)

    def bags_of(bags: Bags) -> list[torch.Tensor]:
        return [(bags.tiles[rows] - mean) / spread for rows in bags.rows()]

    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-4, weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20 * len(train), eta_min=1e-8)
    labels = torch.from_numpy(train.labels)
    tiles, held, asked = bags_of(train), bags_of(val), bags_of(test)
    best, said = np.inf, [0.5] * len(test)
    for _ in range(20):
        network.train()
        for bag in torch.randperm(len(train)).tolist():
            loss = nn.functional.cross_entropy(network(tiles[bag])[None], labels[bag : bag + 1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        network.eval()
        with torch.no_grad():
            logits = torch.stack([network(bag) for bag in held])
            loss = float(nn.functional.cross_entropy(logits, torch.from_numpy(val.labels)))
            if loss < best:
                best, said = loss, [float(network(bag).softmax(0)[1]) for bag in asked]
    return said


@pytest.mark.nightly
@pytest.mark.slow
def test_training_is_as_good_as_a_plain_loop_over_an_independent_network() -> None:
    """The same bags and first weights; the order of the bags and dropout differ. Some labels are wrong."""
    train, val, test = (
        mislabelled(bags_with_a_key_tile(n, 40, seed=seed, shift=2.6)[0], seed)
        for seed, n in ((2, 80), (4, 40), (3, 200))
    )
    seeds = 3
    ours = attention_mil(train, test, n_classes=2, val=val, runs=seeds, seed=0)
    mine = [roc_auc_score(test.labels, run.probabilities[:, 1]) for run in ours.runs]
    theirs = [roc_auc_score(test.labels, _plain_training(train, val, test, seed)) for seed in range(seeds)]
    assert 0.7 < min(theirs) <= max(theirs) < 0.95
    noise = np.hypot(np.std(mine, ddof=1), np.std(theirs, ddof=1)) / seeds**0.5
    assert abs(np.mean(mine) - np.mean(theirs)) < 3 * noise + 0.01
