"""scripts/setup.sh fetches, verifies, goes on after an interruption, and says what to do offline."""

from __future__ import annotations

import functools
import hashlib
import http.server
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup.sh"
FILES = {"gsm8k/test_prompts.json": b"{}\n", "alfworld/gamefile_id.txt": b"a/b\n"}


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The script with a list of two files."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    shutil.copy(SCRIPT, folder / "setup.sh")
    lines = [f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in FILES.items()]
    (folder / "mint-data.sha256").write_text("".join(lines), encoding="ascii")
    return folder / "setup.sh"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with the two files."""
    for name, content in FILES.items():
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "source"


@pytest.fixture
def server(source: Path) -> Iterator[str]:
    """The same over HTTP."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            """Say nothing."""

    handler = functools.partial(Quiet, directory=str(source))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()


def _run(script: Path, *arguments: str, url: str = "http://127.0.0.1:9") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HISTOBENCH_MINT_URL": url, "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    return subprocess.run(
        ["sh", str(script), *arguments],
        cwd=script.parents[1],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_files_are_downloaded_once(script: Path, server: str) -> None:
    first = _run(script, url=server)
    assert first.returncode == 0, first.stderr
    assert "2 files are there and have the right checksums (2 fetched now)" in first.stdout
    for name, content in FILES.items():
        assert (script.parents[1] / "data/processed" / name).read_bytes() == content
    assert "(0 fetched now)" in _run(script, url=server).stdout


def test_a_file_with_another_checksum_is_not_kept(script: Path, source: Path, server: str) -> None:
    (source / "gsm8k/test_prompts.json").write_bytes(b"other")
    done = _run(script, url=server)
    assert done.returncode == 1
    assert "gsm8k/test_prompts.json has the wrong checksum" in done.stderr
    assert not list((script.parents[1] / "data").rglob("*.*"))


def test_offline_the_way_out_is_shown_and_works(script: Path, source: Path) -> None:
    done = _run(script)
    assert done.returncode == 1
    assert "scripts/setup.sh --from PATH" in done.stderr
    done = _run(script, "--from", str(source), "--no-games", "--to", "elsewhere")
    assert done.returncode == 0
    assert "elsewhere: 1 files" in done.stdout


def test_the_installation_of_the_simulator_ends_with_a_start_of_it() -> None:
    script = SCRIPT.with_name("alfworld") / "install.sh"
    (program,) = re.findall(r"-c '(.*)'", script.read_text(encoding="utf-8"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "ALFWorld is ready.\n" or "the ALFWorld engine is not installed" in done.stderr
