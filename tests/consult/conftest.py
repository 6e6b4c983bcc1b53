"""A small study: five classes of coloured noise, three encoders of different worth, a few patients each."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from histobench.cli.main import main
from histobench.consult.measures import Plays
from histobench.consult.reference_agents import POLICIES
from histobench.consult.study import Study, open_study
from histobench.mint import sandbox

CLASSES = ("ADI", "LYM", "MUC loose", "STR", "TUM")
COLOURS = ((235, 220, 230), (110, 70, 150), (190, 180, 220), (220, 130, 170), (150, 70, 140))
ENCODERS = '''
import numpy as np
import torch
from torch import nn
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec


class Colours(BasePatchEncoder):
    """Mean and spread of each channel."""

    def __init__(self):
        super().__init__()
        self.embed_dim = 24
        self.eval_transforms = TransformSpec(resize=32, crop=32, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
        generator = torch.Generator().manual_seed(1)
        self.register_buffer("mix", torch.randn(6, 24, generator=generator))

    def forward(self, x):
        return torch.cat([x.mean((2, 3)), x.std((2, 3))], 1) @ self.mix


class Green(Colours):
    """The green channel alone."""

    def forward(self, x):
        green = x[:, 1:2].expand(-1, 3, -1, -1)
        return super().forward(green)


class Noise(Colours):
    """Numbers that depend on a corner of the picture."""

    def forward(self, x):
        return torch.sin(1000 * x[:, :, :2, :1].flatten(1)) @ self.mix
'''


def make_images(folder: Path) -> Path:
    """A CSV of 5 classes x (6 train, 4 val, 8 test patients; one is in all) x 3 tiles; classes overlap."""
    generator = np.random.default_rng(7)
    lines = ["image_path,label,split,group"]
    for label, colour in enumerate(COLOURS):
        for split, patients, tiles in (("train", 6, 3), ("val", 4, 3), ("test", 8, 3)):
            for patient in range(patients):
                tint = generator.normal(0, 26, 3)
                for tile in range(tiles):
                    noise = generator.normal(0, 18, (32, 32, 1)) + generator.normal(0, 10, 3)
                    pixels = np.clip(np.array(colour) + tint + noise, 0, 255).astype(np.uint8)
                    path = folder / "tiles" / f"{split}-{label}-{patient}-{tile}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    Image.fromarray(pixels).save(path)
                    lines.append(
                        f"{path},{label},{split},{split if patient else 'one'}-patient-{label}-{patient}"
                    )
    (folder / "tiles.csv").write_text("\n".join(lines) + "\n")
    (folder / "tiles.txt").write_text("".join(f"{name},{number}\n" for number, name in enumerate(CLASSES)))
    (folder / "three.py").write_text(ENCODERS)
    return folder


def plays_of(final: np.ndarray, tool: np.ndarray, **given: Any) -> Plays:
    """One repeat of an agent in the arm strong; the reference is class 0 unless another one is given."""
    n = len(final)
    nothing = np.zeros((1, n))
    usual = {
        "agent": "simulated",
        "arm": "strong",
        "rows": np.arange(n),
        "reference": np.zeros(n, dtype=np.int64),
        "tool_confidence": np.full(n, 0.5),
        "sequence": np.full(n, -1),
        "position": np.zeros(n, dtype=np.int64),
        "first": np.ones((1, n), dtype=np.int64),
        "confidence": nothing + 0.5,
        "deferred": nothing > 0,
        "asked": nothing > 0,
    }
    usual |= {"final": final[None], "tool": tool, "calls": nothing, "tokens": nothing, "cost": nothing}
    return Plays(**{**usual, **given})


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Fills a folder once for all processes that run the tests: those that come later wait for it."""
    parallel = "PYTEST_XDIST_WORKER" in os.environ
    root = tmp_path_factory.getbasetemp().parent if parallel else tmp_path_factory.mktemp("once")

    def fill(name: str, write: Callable[[Path], object]) -> Path:
        folder = root / name
        with (root / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / "whole").exists():
                folder.mkdir(exist_ok=True)
                write(folder)
                (folder / "whole").touch()
        return folder

    return fill


@pytest.fixture(scope="session")
def study_folder(once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The folder that `consult prepare` writes for 40 cases."""
    return once("consult", prepare_study) / "study"


def prepare_study(folder: Path) -> None:
    make_images(folder)
    patch = pytest.MonkeyPatch()
    patch.setenv("HISTOBENCH_CACHE", str(folder / "cache"))
    source = folder / "three.py"
    arguments = ["consult", "prepare", str(folder / "tiles.csv"), "--classes", str(folder / "tiles.txt")]
    arguments += ["--encoders", ",".join(f"{source}:{name}" for name in ("Colours", "Green", "Noise"))]
    arguments += ["--cases", "40", "--measured", "8", "--num_workers", "0", "--out", str(folder / "study")]
    arguments += ["--organ", "colon", "--device", "cpu", "--arms", "all"]
    arguments += ["--sequences", "4", "--sequence-length", "20"]
    try:
        assert main(arguments) == 0
    finally:
        patch.undo()


@pytest.fixture(scope="session")
def played(study: Study, once: Callable[[str, Callable[[Path], object]], Path]) -> Path:
    """The runs of all policies in some arms, and of one policy in those of the contrasts."""
    once("consult-played", lambda _: play_policies(study))
    return study.folder / "runs"


def play_policies(study: Study) -> None:
    jobs = dict.fromkeys(POLICIES, "none,strong,shuffled")
    jobs["reader"] += ",weak,random,sure,unsure,wrong-25,placebo"
    for policy in ("always-trust", "never-trust", "reader", "learner", "oracle"):
        jobs[policy] += ",sequence,sequence-same"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sandbox, "open_sandbox", None)  # policies run no code: a sandbox would take seconds
        for policy, arms in jobs.items():
            arguments = ["--agent", f"policy:{policy}", "--arms", arms, "--cache", "none", "--outcomes"]
            assert main(["consult", "run", str(study.folder), *arguments]) == 0


@pytest.fixture(scope="session")
def study(study_folder: Path) -> Study:
    """The same, opened."""
    return open_study(study_folder)
