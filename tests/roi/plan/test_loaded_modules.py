"""Each command loads only the libraries that it needs in the state that it finds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

HEAVY = ("torch", "timm", "torchvision", "torch._dynamo", "sklearn", "transformers", "pandas")
HEAVY += ("scipy.special", "scipy.stats")
CODE = f"""
import sys
from histobench.cli.main import main
commands = " ".join(sys.argv[1:]).split(" then ")
code = max(main(command.split()) for command in commands)
print("LOADED", code, *[name for name in {HEAVY!r} if name in sys.modules])
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("modules")
    for split, count in (("train", 12), ("test", 6)):
        for label in (0, 1):
            folder = place / "data" / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                color = (90 * label + number, 5 * number, count)
                Image.new("RGB", (32, 32), color).save(folder / f"{split}{label}{number}.png")
    return place


def loaded(place: Path, *arguments: str) -> set[str]:
    """Return the heavy modules that commands, with "then" between them, have loaded; they must succeed."""
    environment = {**os.environ, "HISTOBENCH_CACHE": str(place / "cache"), "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        cwd=place,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    last = next((line for line in done.stdout.splitlines() if line.startswith("LOADED")), "")
    assert last.startswith("LOADED 0"), done.stdout + done.stderr
    return set(last.split()[2:])


@pytest.mark.nightly
def test_commands_load_what_they_need(place: Path) -> None:
    run = ["run", "--data", "data", "--models", "random-vit,tiny-vl", "--size", "32", "--tasks", "KNN"]
    assert "timm" in loaded(place, *run, "--results", "first")
    # The features are cached: the task needs torch, but no network is built.
    assert loaded(place, *run, "--results", "second") <= {"torch", "scipy.special"}
    assert loaded(place, *run, "--results", "second") == set()
    views = "compare second then choose second then status second then report second -o site"
    assert loaded(place, *f"{views} then models then cache ls".split()) <= {"scipy.special"}
    # Rows of other versions of the libraries are compared with the network first.
    for note in (place / "cache" / "features").glob("*/versions.json"):
        note.write_text(note.read_text().replace('"timm"', '"timm of another time"'))
    assert "timm" in loaded(place, *run, "--results", "third")


@pytest.mark.nightly
def test_cached_features_of_a_model_of_timm_need_no_timm(place: Path) -> None:
    import timm
    import torch

    torch.save(timm.create_model("test_resnet", pretrained=False).state_dict(), place / "weights.pth")
    run = ["run", "--data", "data", "--models", "timm:test_resnet", "--weights", "weights.pth"]
    run += ["--tasks", "KNN", "--results"]
    assert "timm" in loaded(place, *run, "timm")
    assert loaded(place, *run, "again") == {"torch", "scipy.special"}
    assert loaded(place, *run, "again") == set()


def test_threads_of_a_command_do_not_wait_by_spinning() -> None:
    code = (
        "import os, sys; from histobench.cli.main import main; sys.argv = ['histobench', '--version']\n"
        "main(); print(os.environ['OMP_WAIT_POLICY'])"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    for given, expected in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment | given, capture_output=True, text=True, check=True
        )
        assert done.stdout.split()[-1] == expected
