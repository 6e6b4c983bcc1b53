"""The package as a user gets it: a wheel in its own environment, used by someone who may not write there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOBODY = 65534


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder that anyone can reach, with a space and letters beyond ASCII in its name."""
    folder = Path(tempfile.mkdtemp(prefix="histo bench größe "))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def installed(place: Path) -> Path:
    """The `bin` folder of an environment with the wheel and no more than it asks for."""
    uv = _uv()
    _prepare([uv, "build", "--quiet", "--wheel", "--out-dir", str(place), str(ROOT)])
    (wheel,) = place.glob("*.whl")
    environment = place / "env"
    _prepare([uv, "venv", "--quiet", "--python", sys.executable, str(environment)])
    python = environment / "bin" / "python"
    # The locked versions, and only of what the wheel itself depends on.
    wanted = f"histobench[mint,consult,local] @ {wheel.as_uri()}"
    locked = ["-c", str(ROOT / "requirements.lock")]
    _prepare([uv, "pip", "install", "--quiet", "--python", str(python), *locked, wanted])
    return environment / "bin"


def _uv() -> str:
    uv = shutil.which("uv", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    return uv or pytest.skip("uv is not installed")


def _prepare(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    said = done.stderr.lower()
    if done.returncode and any(
        word in said for word in ("network", "connect", "dns", "timed out", "offline")
    ):
        pytest.skip(f"no package registry: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr


def _as_ordinary_user() -> list[str]:
    """What runs a command as nobody; read access is kept, since Python itself may be in root's home."""
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    base = Path(sys.base_prefix).resolve()
    open_to_all = all(folder.stat().st_mode & 0o001 for folder in (base, *base.parents))
    read = "+dac_read_search"
    return [*user, *([] if open_to_all else [f"--inh-caps={read}", f"--ambient-caps={read}"])]


@pytest.mark.nightly
def test_the_source_archive_builds_the_same_package(tmp_path: Path) -> None:
    uv = _uv()
    _prepare([uv, "build", "--quiet", "--sdist", "--out-dir", str(tmp_path), str(ROOT)])
    (archive,) = tmp_path.glob("*.tar.gz")
    content = []
    for source in (archive, ROOT):
        folder = tmp_path / f"from {source.name}"
        _prepare([uv, "build", "--quiet", "--wheel", "--out-dir", str(folder), str(source)])
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as box:
            content.append({entry.filename: entry.CRC for entry in box.infolist()})
    assert content[0] == content[1]


@pytest.mark.nightly
@pytest.mark.timeout(3600)  # a few minutes on a machine that does nothing else
def test_an_ordinary_user_can_do_everything_with_the_wheel(place: Path, installed: Path) -> None:
    home = place / "heim Ä"
    home.mkdir()
    if os.geteuid() == 0:
        os.chown(home, NOBODY, NOBODY)
    environment = {"PATH": f"{installed}{os.pathsep}{os.defpath}", "HOME": str(home), "LANG": "C"}
    environment |= {"TMPDIR": str(home), "COLUMNS": "80", "HF_HUB_OFFLINE": "1"}

    def run(*arguments: str, program: str = "histobench") -> str:
        command = [*_as_ordinary_user(), str(installed / program), *arguments]
        done = subprocess.run(command, cwd=home, env=environment, capture_output=True, timeout=1800)
        said = done.stdout.decode("utf-8", "replace")
        assert done.returncode == 0, f"{arguments}: {said}\n{done.stderr.decode('utf-8', 'replace')}"
        return said

    package = run(
        "-c", "import histobench, pathlib; print(pathlib.Path(histobench.__file__).parent)", program="python"
    )
    inside = Path(os.fsdecode(package.strip().encode("utf-8", "surrogateescape")))
    assert str(ROOT) not in package
    assert "site-packages" in package
    refused = "import os, histobench; print(os.access(os.path.dirname(histobench.__file__), os.W_OK))"
    assert run("-c", refused, program="python").strip() == "False"
    assert "FAIL" not in run("doctor")
    demo = run("demo", "--per-class", "8", "--test-per-class", "12")
    assert "in a browser" in demo, demo
    assert "Answer" in demo, demo
    assert "failed" not in demo.lower(), demo
    assert (home / "demo-results" / "site" / "index.html").is_file()
    run("data", "demo", "bilder ß", "--per-class", "6", "--test-per-class", "6")
    (table,) = (home / "bilder ß").glob("*.csv")
    tiles = home / "bilder ß" / "tiles"
    encoders = "efficientnet-lite0,random-vit"
    images = ["--data", str(tiles), "--split", "0.6/0.1/0.3"]
    run("run", *images, "--models", encoders, "--tasks", "KNN", "--results", "ergebnisse")
    run("report", "ergebnisse", "-o", "seiten")
    assert (home / "seiten" / "index.html").is_file()
    recording = home / "demo_recording"
    shutil.copytree(next(installed.parent.rglob("demo_recording")), recording)
    agent = f"replay:{next(recording.glob('*.jsonl.gz'))}"
    # Bubblewrap refuses a process with the capability above.
    sandbox = "landlock" if "--inh-caps" in " ".join(_as_ordinary_user()) else "auto"
    common = ["--tasks", "gsm8k", "--data", str(recording), "--sandbox", sandbox]
    run("mint", "run", "--agent", agent, *common, "-o", "agenten")
    assert list((home / "agenten").rglob("results.jsonl"))
    run("consult", "prepare", str(table), "--encoders", encoders, "--out", "studie")
    run("consult", "run", "studie", "--agent", "policy:reader", "--arms", "all")
    assert "reader" in run("consult", "table", "studie")
    assert inside.name == "histobench"
