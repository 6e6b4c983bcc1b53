"""What a container shows of the host: the system and this interpreter, read-only, on an empty root."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from histobench.mint.sandbox.bubblewrap import GUEST_PARENT, scratch_folder
from histobench.mint.sandbox.interpreter import (
    SYSTEM_FILES,
    SYSTEM_FOLDERS,
    guest_folder,
    interpreter_folders,
)
from histobench.mint.sandbox.withheld import withheld_within


@dataclass(frozen=True)
class ContainerView:
    """Bind mounts (host path, path inside), folders and files that appear empty, and symbolic links."""

    binds: tuple[tuple[str, str], ...]
    empty_folders: tuple[str, ...]
    empty_files: tuple[str, ...]
    links: tuple[tuple[str, str], ...]  # where it points, where it lies
    scratch: str

    def make_root(self, folder: str) -> None:
        """Fill the empty `folder` with the links and with a place for every mount."""
        root = Path(folder)
        for target, link in self.links:
            (root / link.lstrip("/")).symlink_to(target)
        places = [inside for outside, inside in self.binds if os.path.isdir(outside)]
        for inside in (*places, self.scratch, "/proc", "/dev", "/tmp"):
            (root / inside.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for _, inside in self.binds:
            place = root / inside.lstrip("/")
            if not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                place.touch()
        for path in (root, *root.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        (root / self.scratch.lstrip("/")).chmod(0o1777)  # engines copy this to what they mount there


def container_view(withheld: Sequence[str]) -> ContainerView:
    """The view for this interpreter, without what is `withheld`."""
    links, binds = [], []
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            links.append((os.readlink(folder), folder))
        elif os.path.isdir(folder):
            binds.append((folder, folder))
    binds += [(path, path) for path in SYSTEM_FILES if os.path.exists(path)]
    binds += [(folder, folder) for folder in interpreter_folders()]
    binds.append((guest_folder(), f"{GUEST_PARENT}/guest"))
    hidden = [
        path for folder, _ in binds if os.path.isdir(folder) for path in withheld_within(folder, withheld)
    ]
    return ContainerView(
        binds=tuple(binds),
        empty_folders=tuple(path for path in hidden if os.path.isdir(path)),
        empty_files=tuple(path for path in hidden if not os.path.isdir(path)),
        links=tuple(links),
        scratch=scratch_folder(),
    )
