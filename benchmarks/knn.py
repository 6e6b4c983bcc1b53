"""KNN, k = 20, against a vote loop over cdist, scikit-learn and faiss.

python benchmarks/knn.py     # where the time goes: a profile of ours and of the loop, 2 threads
"""

from __future__ import annotations

import importlib.util

import numpy as np
import torch
from measure import Row, Setup, clock, part
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from workload import reference_workload

from histobench.roi.protocols.centring import Centring
from histobench.roi.protocols.knn import knn

K = 20


def vote_loop(train: Tensor, labels: Tensor, test: Tensor, n_classes: int) -> np.ndarray:
    """As the ancestor does it: 10,000 queries at a time, then the votes of one image at a time."""
    probabilities = np.zeros((len(test), n_classes))
    for start in range(0, len(test), 10_000):
        distances = torch.cdist(test[start : start + 10_000], train)
        nearest = distances.topk(K, dim=1, largest=False).indices
        for row, index in enumerate(nearest):
            votes = labels[index]
            for k in range(n_classes):
                probabilities[start + row, k] = (votes == k).sum().item() / K
    return probabilities


@part("knn")
def run(setup: Setup) -> list[Row]:
    """All alternatives get features that are centred and normalised already; ours does that itself."""
    w = setup.workload
    ours, outcome = clock(
        lambda: knn(
            w.train, w.train_labels, w.test, n_classes=w.n_classes, n_neighbors=K, device=setup.device
        ),
        repeat=2,
        device=setup.device,
    )
    centring = Centring.of(w.train)
    train = torch.empty_like(w.train)
    for start in range(0, len(train), 10_000):
        train[start : start + 10_000] = centring.apply(w.train[start : start + 10_000], dtype=torch.float32)
    test = centring.apply(w.test, dtype=torch.float32)

    def with_faiss() -> np.ndarray:
        import faiss

        faiss.omp_set_num_threads(setup.threads)
        index = faiss.IndexFlatL2(train.shape[1])
        index.add(train.numpy())
        votes = w.train_labels.numpy()[index.search(test.numpy(), K)[1]]
        return np.stack([(votes == k).mean(1) for k in range(w.n_classes)], axis=1)

    def with_sklearn() -> np.ndarray:
        model = KNeighborsClassifier(K).fit(train.numpy(), w.train_labels.numpy())
        return model.predict_proba(test.numpy())

    def on_one_thread() -> np.ndarray:
        torch.set_num_threads(1)
        try:
            return vote_loop(train, w.train_labels, test, w.n_classes)
        finally:
            torch.set_num_threads(setup.threads)

    name = f"KNN, k = {K}, D = {w.train.shape[1]}"
    rows = []
    for label, job, at_least in (
        ("faiss IndexFlatL2", with_faiss, 1),
        ("scikit-learn KNeighborsClassifier", with_sklearn, 3),
        ("cdist and a vote loop, 1 thread as the ancestor sets it", on_one_thread, 10),
    ):
        if "faiss" in label and importlib.util.find_spec("faiss") is None:
            continue
        theirs, probabilities = clock(job)
        different = int((np.abs(probabilities - outcome.probabilities).max(1) > 1e-9).sum())
        note = f"{different} of {len(test)} images with other votes (near-ties; ours are the float64 ones)"
        rows.append(Row.against(name, label, ours, theirs, at_least=at_least, note=note))
    theirs, _ = clock(lambda: vote_loop(train, w.train_labels, test, w.n_classes))
    label = f"the same loop with {setup.threads} threads"
    rows.append(Row(name, label, ours, theirs, "", None, "for comparison; cdist is a matrix product here"))
    return [*rows, structureless(setup), growth(setup)]


def structureless(setup: Setup) -> Row:
    """The worst case: random directions, where thousands of training images are nearly equally near."""
    g = torch.Generator().manual_seed(0)
    dim = setup.workload.train.shape[1]
    n_train, n_test = (5_000, 500) if setup.quick else (100_000, 2_000)
    train, test = (torch.randn(n, dim, generator=g) for n in (n_train, n_test))
    labels = torch.randint(9, (n_train,), generator=g)
    ours, _ = clock(lambda: knn(train, labels, test, n_classes=9, device=setup.device), device=setup.device)
    centring = Centring.of(train)
    unit, queries = (centring.apply(rows, dtype=torch.float32) for rows in (train, test))
    theirs, _ = clock(lambda: vote_loop(unit, labels, queries, 9))
    name = f"KNN, random features, {n_test:,} queries, D = {dim}"
    label = f"the same loop with {setup.threads} threads"
    return Row(name, label, ours, theirs, "", None, "the worst case of ours; centring is timed in ours only")


def growth(setup: Setup) -> Row:
    """Four times the training images in less than five times the time."""
    times = []
    for n in (10_000, 40_000):
        w = reference_workload(dim=256, n_train=n, n_test=2000)
        job = lambda w=w: knn(w.train, w.train_labels, w.test, n_classes=9, device=setup.device)  # noqa: E731
        times.append(clock(job, repeat=3, device=setup.device)[0])
    return Row.growth("KNN, growth in training images", times)


def profile() -> None:
    """Print which operations take the time, on the reference workload."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    torch.set_num_threads(2)
    w = reference_workload()
    centring = Centring.of(w.train)
    train = torch.cat([centring.apply(rows, dtype=torch.float32) for rows in w.train.split(10_000)])
    test = centring.apply(w.test[:1000], dtype=torch.float32)
    jobs = {
        "ours, all queries": lambda: knn(w.train, w.train_labels, w.test, n_classes=9),
        "the loop, 1,000 queries": lambda: vote_loop(train, w.train_labels, test, 9),
    }
    for name, job in jobs.items():
        seconds, _ = clock(job, repeat=2)
        with profiler(activities=[ProfilerActivity.CPU]) as seen:
            job()
        print(f"{name}: {seconds.wall:.2f} s")
        print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=12))


if __name__ == "__main__":
    profile()
