"""Control groups: found where the user may make them, set up before any code is read, removed at the end."""

from __future__ import annotations

from pathlib import Path

import pytest

from histobench.mint.sandbox import Limits, open_sandbox
from histobench.mint.sandbox.control_groups import ControlGroups, group_for_episodes


def tree(
    folder: Path, own: str, handed_down: dict[str, str], *, kind: str = "cgroup2"
) -> tuple[Path, Path, Path]:
    """A stand-in for the kernel's tree: its mount table, its membership file and its root."""
    root = folder / "tree"
    for group, controllers in handed_down.items():
        place = root / group
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.subtree_control").write_text(f"{controllers}\n")
        (place / "cgroup.procs").write_text("")
    mounts, membership = folder / "mounts", folder / "membership"
    mounts.write_text(f"proc /proc proc rw 0 0\n{kind} {root} {kind} rw 0 0\n")
    membership.write_text(f"4:memory:/elsewhere\n0::/{own}\n")
    return mounts, membership, root


def test_the_nearest_group_that_hands_memory_and_pids_down_is_taken(tmp_path: Path) -> None:
    handed_down = {
        "": "cpu memory pids",
        "user": "cpu memory pids",
        "user/app": "memory pids",
        "user/app/scope": "",
    }
    mounts, membership, root = tree(tmp_path, "user/app/scope", handed_down)
    assert group_for_episodes(mounts, membership) == (root / "user/app", "")


def test_without_the_controllers_or_the_tree_the_reason_is_said(tmp_path: Path) -> None:
    mounts, membership, _ = tree(tmp_path / "a", "", {"": "hugetlb"})
    assert group_for_episodes(mounts, membership)[1].startswith("no control group with the memory and pids")
    mounts, membership, _ = tree(tmp_path / "b", "", {"": "memory pids"}, kind="cgroup")
    assert group_for_episodes(mounts, membership) == (None, "control groups of version 2 are not mounted")


def test_a_group_gets_its_limits_before_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, str]] = []
    plain_open = Path.open

    def noted(self: Path, *args: str) -> object:
        written.append((self.parent.name, self.name))
        return plain_open(self, *args)

    groups = ControlGroups(tmp_path, Limits(memory_mb=100, processes=7), name="test")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", noted)
        groups.enclose(3, 4321)
    group = tmp_path / "test-3"
    assert written[-1] == ("test-3", "cgroup.procs")
    assert (group / "cgroup.procs").read_text() == "4321"
    assert (group / "memory.max").read_text() == str(164 << 20)
    assert (group / "pids.max").read_text() == "7"
    assert not groups.ran_out_of_memory(3)
    (group / "memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    assert groups.ran_out_of_memory(3)


def test_a_group_that_is_still_in_use_is_removed_later(tmp_path: Path) -> None:
    groups = ControlGroups(tmp_path, Limits(), name="test")
    (tmp_path / "test-1" / "busy").mkdir(parents=True)
    groups.remove(1)
    (tmp_path / "test-1" / "cgroup.kill").unlink()
    assert (tmp_path / "test-1").is_dir()
    (tmp_path / "test-1" / "busy").rmdir()
    groups.remove(2)
    assert not (tmp_path / "test-1").exists()


def test_the_kernel_itself_holds_an_episode_to_its_memory() -> None:
    parent, why_not = group_for_episodes()
    if parent is None:
        pytest.skip(why_not)
    limits = Limits(memory_mb=200)
    with open_sandbox(preload=(), shell="plain", limits=limits, warm=0) as pool, pool.episode() as episode:
        assert episode.run_cell("print(1)").text == "1\n"
        (group,) = parent.glob("histobench-*-1")
        assert int((group / "memory.max").read_text()) == 264 << 20
        assert int((group / "memory.current").read_text()) > 0
    assert not list(parent.glob("histobench-*"))
