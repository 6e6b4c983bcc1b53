"""Simulated test sets with a known truth: classes, patients and scores, for checking what intervals promise.

An image's scores are its class's signal, a shift that all images of its patient share, and noise of its own;
probabilities are their softmax. Patients have unequal numbers of images. The truth is the metric's value on
a population so large that its own error does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from histobench.roi.metrics.batched import evaluate_resamples
from histobench.roi.predictions import Predictions


@dataclass(frozen=True)
class Situation:
    """How test sets come about. Without `patients` there are `images` independent images."""

    name: str
    shares: tuple[float, ...]  # of the classes
    images: int = 0
    patients: int = 0
    images_per_patient: float = 20.0
    skill: float = 1.5
    patient_effect: float = 0.8
    one_class_each: bool = False  # every patient has one class
    fixed_sizes: bool = (
        False  # the numbers of images (patients) of the classes are the same in every test set
    )
    equal_patients: bool = False
    sharpness: float = 1.0  # > 1: probabilities are surer than they are right
    class_mix: float = 0.0  # > 0: patients differ in their mix of classes (concentration of a Dirichlet)

    @property
    def n_classes(self) -> int:
        return len(self.shares)

    def draw(
        self, generator: np.random.Generator, *, models: int = 1, times: int = 1
    ) -> tuple[list[NDArray[np.float64]], NDArray[np.int64], NDArray[np.int64] | None]:
        """Probabilities of each model [n, c], labels [n] and patients [n]; `times` makes it as much larger.

        Models are equally good; they share half of an image's and a patient's difficulty.
        """
        share = np.array(self.shares) / sum(self.shares)
        while True:
            labels, patient = self._labels(generator, share, times)
            if len(np.unique(labels)) == self.n_classes:
                break
        eye = np.eye(self.n_classes)[labels] * self.skill
        common = self._noise(generator, labels, patient)
        found = []
        for _ in range(models):
            own = common if models == 1 else 0.5**0.5 * (common + self._noise(generator, labels, patient))
            z = np.exp(self.sharpness * (eye + own))
            found.append(z / z.sum(axis=1, keepdims=True))
        return found, labels, patient

    def _noise(
        self, generator: np.random.Generator, labels: NDArray[np.int64], patient: NDArray[np.int64] | None
    ) -> NDArray[np.float64]:
        noise = generator.normal(size=(len(labels), self.n_classes))
        if patient is not None:
            noise += self.patient_effect * generator.normal(size=(patient.max() + 1, self.n_classes))[patient]
        return noise

    def _labels(
        self, generator: np.random.Generator, share: NDArray[np.float64], times: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        c = self.n_classes
        if not self.patients:
            n = self.images * times
            if self.fixed_sizes:
                return np.repeat(np.arange(c), _whole(share * n)), None
            return generator.choice(c, size=n, p=share), None
        count = self.patients * times
        spread = np.zeros(count) if self.equal_patients else generator.normal(-0.32, 0.8, count)
        sizes = np.maximum(1, np.round(self.images_per_patient * np.exp(spread))).astype(np.int64)
        patient = np.repeat(np.arange(count), sizes)
        if self.one_class_each:
            fixed = np.repeat(np.arange(c), _whole(share * count)) if self.fixed_sizes else None
            of_patient = generator.choice(c, size=count, p=share) if fixed is None else fixed
            return of_patient[patient], patient
        mix = np.tile(share, (count, 1))
        if self.class_mix:
            mix = generator.dirichlet(share * self.class_mix, count)
        drawn = (mix.cumsum(axis=1)[patient] < generator.random(len(patient))[:, None]).sum(axis=1)
        return np.minimum(drawn, c - 1), patient

    def truth(self, *, seed: int = 1, images: int = 240_000) -> dict[str, float]:
        """Every metric on a large population, that of every class as `recall@0` and the like."""
        generator = np.random.default_rng(seed)
        per_set = self.images or self.patients * self.images_per_patient
        parts = []
        for _ in range(4):
            (p,), labels, _ = self.draw(generator, times=max(1, int(images / 4 / per_set)))
            whole = np.ones((1, len(labels)), dtype=np.int32)
            parts.append(evaluate_resamples(p, labels, whole, by_class=True, threads=1))
        return {name: float(np.mean([part[name][0] for part in parts])) for name in parts[0]}


def as_predictions(
    p: NDArray[np.float64], labels: NDArray[np.int64], patient: NDArray[np.int64] | None
) -> Predictions:
    """A simulated test set as a protocol would give it."""
    n, c = p.shape
    return Predictions(
        probabilities=p,
        labels=labels,
        predicted=p.argmax(axis=1),
        classes=tuple(f"class {k}" for k in range(c)),
        img_names=tuple(map(str, range(n))),
        groups=None if patient is None else tuple(map(str, patient)),
    )


def _whole(shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers near the shares that add up to their sum, at least one each."""
    sizes = np.maximum(1, np.round(shares)).astype(np.int64)
    sizes[sizes.argmax()] += round(float(shares.sum())) - sizes.sum()
    return sizes


SITUATIONS = {
    s.name: s
    for s in (
        Situation("5 patients, 3 classes 10:3:1", (10, 3, 1), patients=5, images_per_patient=30),
        Situation("5 patients, 2 classes", (1, 1), patients=5, patient_effect=1.2),
        Situation("12 patients, 3 classes 10:3:1", (10, 3, 1), patients=12),
        Situation("12 patients, 2 classes 10:1", (10, 1), patients=12, patient_effect=0.5),
        Situation("12 patients, mixes differ", (10, 3, 1), patients=12, class_mix=4),
        Situation("12 patients, nine classes", (1,) * 9, patients=12, images_per_patient=40, skill=2),
        Situation("12 patients, accuracy .97", (1, 1), patients=12, skill=3.5),
        Situation(
            "12 patients, accuracy .997, overconfident", (1, 1), patients=12, skill=5, sharpness=6
        ),
        Situation(
            "12 patients, one class each, correlation .5", (1, 1), patients=12, one_class_each=True,
            fixed_sizes=True, skill=3, patient_effect=2,
        ),
        Situation("30 patients, 3 classes 10:3:1", (10, 3, 1), patients=30, images_per_patient=10),
        Situation(
            "90:10 patients, one class each", (9, 1), patients=100, images_per_patient=10,
            one_class_each=True, fixed_sizes=True,
        ),
        Situation("50 images, 2 classes 10:1", (10, 1), images=50),
        Situation("50 images, 3 classes 10:3:1", (10, 3, 1), images=50),
        Situation("50 images, near chance", (1, 1), images=50, skill=0.1),
        Situation("50 images, accuracy .99", (1, 1), images=50, skill=3.5),
        Situation("200 images, 2 classes 10:1", (10, 1), images=200),
        Situation("200 images, 3 classes 10:3:1", (10, 3, 1), images=200),
        Situation("200 images, nine classes", (1,) * 9, images=200, skill=2),
        Situation("2000 images, 3 classes 10:3:1", (10, 3, 1), images=2000),
    )
}  # fmt: skip
