"""Answers that lie among the interpreter's own files stay unread, and everything else there works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import histobench
from histobench.mint.sandbox import SandboxPool, backend_works, open_sandbox
from histobench.mint.sandbox.bubblewrap import scratch_folder
from histobench.mint.sandbox.guest.landlock import landlock_version
from histobench.mint.sandbox.visible_files import readable_rest, withheld_paths, withheld_within

READ = "print(open({path!r}).read())"


@pytest.fixture(scope="module")
def project() -> Iterator[Path]:
    """A folder inside the interpreter's prefix, as in an environment that is a project's own folder."""
    folder = Path(sys.prefix) / f"project-{os.getpid()}"
    try:
        folder.mkdir(mode=0o755)
    except OSError as error:
        pytest.skip(f"the interpreter's folder cannot be written: {error}")
    for name in ("data/tasks.json", "single.json", "library/notes.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(f"content of {name}")
    (folder / "alias").symlink_to("data")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module", params=["bubblewrap", "landlock"])
def pool(request: pytest.FixtureRequest, project: Path) -> Iterator[SandboxPool]:
    if refusal := backend_works(request.param):
        pytest.skip(refusal)
    withhold = [project / "data", project / "single.json"]
    with open_sandbox(request.param, preload=(), shell="plain", withhold=withhold) as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data/tasks.json", "alias/tasks.json", "single.json"])
def test_what_is_withheld_cannot_be_read(name: str, pool: SandboxPool, project: Path) -> None:
    with pool.episode() as episode:
        assert "content of" not in episode.run_cell(READ.format(path=str(project / name))).text


def test_what_lies_beside_it_can(pool: SandboxPool, project: Path) -> None:
    with pool.episode() as episode:
        notes = episode.run_cell(READ.format(path=str(project / "library/notes.txt")))
        assert notes.text == "content of library/notes.txt\n"
        assert episode.run_cell("import numpy; print(numpy.ones(3).sum())").text == "3.0\n"


def test_the_package_the_working_folder_and_plug_ins_are_always_withheld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = tmp_path / "site" / "microns"
    plugin.mkdir(parents=True)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    spec = ModuleSpec("microns", None)
    spec.submodule_search_locations = [str(plugin)]
    entry = EntryPoint("microns", "microns.tasks:MicronsTask", "histobench.tasks")
    monkeypatch.setattr("histobench.mint.sandbox.visible_files.installed_entry_points", lambda group: [entry])
    monkeypatch.setattr("histobench.mint.sandbox.visible_files.find_spec", {"microns": spec}.get)
    package = Path(histobench.__file__).parent
    assert set(withheld_paths()) == {str(path.resolve()) for path in (package, work, plugin)}


def test_a_working_folder_that_holds_the_interpreter_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sys.prefix)
    assert os.path.realpath(sys.prefix) not in withheld_paths()


def test_a_folder_seen_under_another_name_is_withheld_there(tmp_path: Path) -> None:
    (tmp_path / "real/tasks/inner").mkdir(parents=True)
    (tmp_path / "real/other").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real/alias").symlink_to("tasks")
    hidden = [str(tmp_path / "real/tasks/inner"), str(tmp_path / "real/tasks")]
    assert withheld_within(str(tmp_path / "link"), hidden) == [str(tmp_path / "link/tasks")]
    read, listed = readable_rest(str(tmp_path / "link"), hidden)
    assert (read, listed) == ([str(tmp_path / "real/other")], [str(tmp_path / "real")])


@pytest.mark.isolation("bubblewrap")
def test_episodes_share_no_writable_folder_where_the_interpreter_lies_under_tmp(pool: SandboxPool) -> None:
    if scratch_folder() == "/tmp":
        pytest.skip("only bubblewrap with an interpreter under /tmp has a second folder")
    code = "import os; print([f for f in ('/tmp', '/var/tmp', '/dev', '/', '/run') if os.access(f, os.W_OK)])"
    with pool.episode() as episode:
        assert episode.run_cell(code).text == "[]\n"
        assert episode.run_cell("open('mine', 'w').close(); print(os.listdir())").text == "['mine']\n"
    with pool.episode() as episode:
        assert episode.run_cell("import os; print(os.listdir())").text == "[]\n"


CONFINED = """
import os, sys
from histobench.mint.sandbox.guest.landlock import restrict_files
readable, listable, writable, elsewhere = sys.argv[1:]

def attempt(what):
    try:
        what()
        return "done"
    except PermissionError:
        return "refused"

def write(folder):
    with open(f"{folder}/new.txt", "w") as handle:
        handle.write("x")

restrict_files([readable], [writable], [listable])
for folder in (readable, listable, writable, elsewhere):
    print(
        attempt(lambda: os.listdir(folder)),
        attempt(lambda: open(f"{folder}/there.txt").read()),
        attempt(lambda: write(folder)),
    )
"""


@pytest.mark.slow
def test_the_kernels_rules_tell_reading_listing_and_writing_apart(tmp_path: Path) -> None:
    if landlock_version() == 0:
        pytest.skip("this kernel has no Landlock")
    folders = [tmp_path / name for name in ("readable", "listable", "writable", "elsewhere")]
    for folder in folders:
        folder.mkdir()
        (folder / "there.txt").write_text("x")
    command = [sys.executable, "-c", CONFINED, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "done done refused",
        "done refused refused",
        "done done done",
        "refused refused refused",
    ]
