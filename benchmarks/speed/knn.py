"""KNN, k = 20, against the plain product with top-k, a vote loop over cdist, scikit-learn and faiss.

python benchmarks/speed/knn.py hard 20000  # where the time goes: a profile of ours and of the plain product
"""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import torch
from measure import Row, Seconds, Setup, clock, part, race
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from workload import Workload, easy, workload

from histobench.core.threads import one_thread
from histobench.roi.protocols.centering import Centring
from histobench.roi.protocols.knn import knn

K = 20
#: Ours may take this much more processor time than the plain product.
ALLOWED = 1.05


def plain(w: Workload, device: str = "cpu") -> np.ndarray:
    """The same in float32: centre, scale, multiply 512 queries at a time, top-k, votes."""
    train, test, labels = w.train.to(device), w.test.to(device), w.train_labels.to(device)
    mean = train.mean(0)
    keys = torch.nn.functional.normalize(train - mean, dim=1)
    queries = torch.nn.functional.normalize(test - mean, dim=1)
    nearest = torch.cat([(part @ keys.T).topk(K, dim=1).indices for part in queries.split(512)])
    votes = torch.zeros(len(test), w.n_classes, dtype=torch.float64, device=device)
    votes.scatter_add_(1, labels[nearest], torch.ones_like(nearest, dtype=torch.float64))
    return (votes / K).cpu().numpy()


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
    """The product of ours does the centring too; the other alternatives get centred unit features."""
    w = setup.workload
    job = lambda: knn(  # noqa: E731
        w.train, w.train_labels, w.test, n_classes=w.n_classes, n_neighbors=K, device=setup.device
    )
    ours, theirs, outcome, votes = race(job, lambda: plain(w, setup.device), device=setup.device)
    name = f"KNN, k = {K}"
    goal = f">= {1 / ALLOWED:.2f}x by CPU time"
    note = _differences(votes, outcome.probabilities)
    met = ours.cpu <= ALLOWED * theirs.cpu
    rows = [Row(name, "float32 product and top-k", ours, theirs, goal, met, note)]
    centring = Centring.of(w.train)
    train = torch.cat([centring.apply(rows, dtype=torch.float32) for rows in w.train.split(10_000)])
    test = centring.apply(w.test, dtype=torch.float32)

    def on_one_thread() -> np.ndarray:
        with one_thread():
            return vote_loop(train, w.train_labels, test, w.n_classes)

    theirs, votes = clock(on_one_thread)
    label = "cdist and a vote loop, 1 thread as the ancestor sets it"
    rows.append(Row(name, label, ours, theirs, "", None, _differences(votes, outcome.probabilities)))
    if not setup.busy:
        rows += libraries(setup, train, test, ours, outcome.probabilities)
    return rows


def libraries(setup: Setup, train: Tensor, test: Tensor, ours: Seconds, expected: np.ndarray) -> list[Row]:
    """scikit-learn, and faiss where it is installed."""
    w = setup.workload

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

    alternatives = [("scikit-learn KNeighborsClassifier", with_sklearn)]
    if importlib.util.find_spec("faiss") is not None:
        alternatives.append(("faiss IndexFlatL2", with_faiss))
    rows = []
    for label, job in alternatives:
        theirs, votes = clock(job)
        note = _differences(votes, expected)
        rows.append(Row.against(f"KNN, k = {K}", label, ours, theirs, at_least=1, note=note))
    return rows


def _differences(votes: np.ndarray, expected: np.ndarray) -> str:
    different = int((np.abs(votes - expected).max(1) > 1e-9).sum())
    return f"{different} of {len(votes)} images with other votes (near-ties; ours are the float64 ones)"


def growth(setup: Setup) -> list[Row]:
    """Four times the training images in less than five times the time."""
    times = []
    for n in (10_000, 40_000):
        w = easy(dim=256, n_train=n, n_test=2000)
        job = lambda w=w: knn(w.train, w.train_labels, w.test, n_classes=9, device=setup.device)  # noqa: E731
        times.append(clock(job, repeat=3, device=setup.device)[0])
    return [Row.growth("KNN, growth in training images", times)]


def profile() -> None:
    """Print which operations take the time."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiler

    torch.set_num_threads(1)
    kind, n = sys.argv[1], int(sys.argv[2])
    w = workload(kind, n_train=n)
    jobs = {
        "ours": lambda: knn(w.train, w.train_labels, w.test, n_classes=w.n_classes),
        "plain": lambda: plain(w),
    }
    for name, job in jobs.items():
        seconds, _ = clock(job, repeat=2)
        with profiler(activities=[ProfilerActivity.CPU]) as seen:
            job()
        print(f"{name}: {seconds.wall:.2f} s")
        print(seen.key_averages().table(sort_by="self_cpu_time_total", row_limit=12))


if __name__ == "__main__":
    profile()
