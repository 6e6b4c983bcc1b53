"""Linear probe, to the same or a lower objective, against torch's L-BFGS and scikit-learn."""

from __future__ import annotations

import torch
from measure import Row, Setup, clock, part
from sklearn.linear_model import LogisticRegression
from torch import Tensor
from workload import Workload, easy

from histobench.roi.protocols.softmax_regression import Penalty, SoftmaxLoss, fit_softmax

SKLEARN_C = 1.0


def objective(w: Workload, penalty: Penalty, weight: Tensor, bias: Tensor) -> float:
    """The objective in float64 (the features shift nothing here)."""
    theta = torch.cat([weight.double(), bias.double()[:, None]], 1)
    total = 0.0
    for start in range(0, len(w.train), 10_000):
        part_of = slice(start, start + 10_000)
        x, y = w.train[part_of].double(), w.train_labels[part_of]
        zero = torch.zeros(x.shape[1], dtype=torch.float64)
        loss = SoftmaxLoss(x, y, mean=zero, penalty=Penalty("squared", 0.0))
        total += loss(theta)[0] * len(x)
    return total / len(w.train) + penalty.value(weight.double())


def torch_lbfgs(w: Workload, strength: float, device: str) -> tuple[Tensor, Tensor, int]:
    """The published recipe: zero start, full batch, strong Wolfe, up to 1,000 iterations."""
    x, y = w.train.to(device), w.train_labels.to(device)
    weight = torch.zeros(w.n_classes, x.shape[1], device=device, requires_grad=True)
    bias = torch.zeros(w.n_classes, device=device, requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], line_search_fn="strong_wolfe", max_iter=1000)
    passes = 0

    def closure() -> Tensor:
        nonlocal passes
        passes += 1
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ weight.T + bias, y) + strength * weight.norm()
        loss.backward()
        return loss

    optimiser.step(closure)
    return weight.detach().cpu(), bias.detach().cpu(), passes


@part("linear probe")
def run(setup: Setup) -> list[Row]:
    """The `uni` objective and the squared one."""
    w = setup.workload
    d = w.train.shape[1]
    x, y = w.train.to(setup.device), w.train_labels.to(setup.device)
    penalty = Penalty("norm", 0.5 / (d * w.n_classes / 100))
    # The first use of an optimiser of torch imports its compiler, which takes seconds: not on its clock.
    few = slice(0, 100)
    small = Workload(w.train[few], w.train_labels[few], w.test[few], w.test_labels[few], w.n_classes)
    torch_lbfgs(small, penalty.strength, setup.device)
    ours, solution = clock(
        lambda: fit_softmax(x, y, n_classes=w.n_classes, penalty=penalty), device=setup.device
    )
    theirs, (weight, bias, passes) = clock(
        lambda: torch_lbfgs(w, penalty.strength, setup.device), device=setup.device
    )
    mine = objective(w, penalty, solution.weight.cpu(), solution.bias.cpu())
    other = objective(w, penalty, weight, bias)
    note = f"objective {mine:.7f} against {other:.7f}; {solution.evaluations} against {passes} passes"
    at_least = 8 if w.name == "easy" else 3
    rows = [Row.against("Linear probe", "torch L-BFGS", ours, theirs, at_least=at_least, note=note)]
    rows[0] = _only_if_lower(rows[0], mine, other)
    if setup.device == "cpu" and w.name == "easy" and not setup.busy:
        squared = Penalty("squared", 1 / (SKLEARN_C * len(w.train)))
        ours, solution = clock(
            lambda: fit_softmax(x, y, n_classes=w.n_classes, penalty=squared, tolerance=1e-5),
            device=setup.device,
        )
        theirs, model = clock(
            lambda: LogisticRegression(C=SKLEARN_C, max_iter=1000).fit(
                w.train.numpy(), w.train_labels.numpy()
            )
        )
        mine = objective(w, squared, solution.weight, solution.bias)
        other = objective(w, squared, torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_))
        note = f"C = {SKLEARN_C:g}; objective {mine:.7f} against {other:.7f}"
        row = Row.against(
            "Linear probe, squared penalty",
            "scikit-learn LogisticRegression",
            ours,
            theirs,
            at_least=4,
            note=note,
        )
        rows.append(_only_if_lower(row, mine, other))
    return rows


def _only_if_lower(row: Row, mine: float, other: float) -> Row:
    from dataclasses import replace

    return replace(row, met=bool(row.met) and mine <= other * (1 + 1e-6))


def growth(setup: Setup) -> list[Row]:
    """Four times the training images in less than five times the time."""
    times = []
    for n in (10_000, 40_000):
        w = easy(dim=256, n_train=n, n_test=100)
        x, y = w.train.to(setup.device), w.train_labels.to(setup.device)
        job = lambda x=x, y=y: fit_softmax(x, y, n_classes=9, penalty=Penalty("norm", 0.02))  # noqa: E731
        times.append(clock(job, repeat=3, device=setup.device)[0])
    return [Row.growth("Linear probe, growth in training images", times)]
