"""The games on disk: 134 houses with a goal each."""

from __future__ import annotations

import hashlib
import lzma
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from histobench.core.errors import HistobenchError
from histobench.core.files import read_plain_text, unpack_tar
from histobench.core.folders import cache_dir

LIST = "gamefile_id.txt"
SPLIT = Path("json_2.1.1") / "valid_unseen"
ARCHIVE = "alfworld-games.tar.xz"
#: How the id of a game begins -> its kind of goal.
GOAL_TYPES = {
    "pick_and_place": "put",
    "pick_clean_then_place": "clean",
    "pick_heat_then_place": "heat",
    "pick_cool_then_place": "cool",
    "look_at_obj": "examine",
    "pick_two_obj": "puttwo",
}


@dataclass(frozen=True)
class GameFile:
    """One game: `id` is its two folder names."""

    id: str
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "game.tw-pddl"

    @property
    def goal_type(self) -> str:
        if kinds := [name for beginning, name in GOAL_TYPES.items() if self.id.startswith(beginning)]:
            return kinds[0]
        raise HistobenchError(f"{self.id!r} is not an ALFWorld game: its name begins like no type of goal")

    def expert_trajectory(self) -> str:
        """How an expert played it; empty where no record exists."""
        try:
            return read_plain_text(self.folder / "gt_traj.txt")
        except FileNotFoundError:
            return ""


def read_games(folder: str | Path) -> list[GameFile]:
    folder = Path(folder)
    ids = read_plain_text(folder / LIST).split()
    games = [GameFile(game_id, folder / SPLIT / game_id) for game_id in ids]
    absent = [game.id for game in games if not game.path.is_file()]
    if absent:
        raise HistobenchError(f"{folder}: {len(absent)} of {len(games)} games are missing, first {absent[0]}")
    return games


def find_games(*places: str | Path) -> Path:
    """The folder of games in the first of `places` that holds one, unpacking an archive into the cache."""
    for place in map(Path, places):
        for folder in (place, place / "alfworld"):
            if (folder / LIST).is_file():
                return folder
        for archive in (place, place / ARCHIVE):
            if archive.name == ARCHIVE and archive.is_file():
                return _unpacked(archive)
    searched = ", ".join(map(str, places))
    raise HistobenchError(
        f"no ALFWorld games ({LIST} or {ARCHIVE}) in {searched}; give `data`, or in a clone run "
        "scripts/setup.sh"
    )


def _unpacked(archive: Path) -> Path:
    with open(archive, "rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()[:16]
    target = cache_dir() / f"alfworld-{digest}"
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".alfworld-", dir=target.parent) as temporary:
        folder = Path(temporary) / "games"
        folder.mkdir()
        try:
            with tarfile.open(archive) as tar:
                unpack_tar(tar, folder, archive.name)
        except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
            raise HistobenchError(f"cannot unpack {archive}: {error}") from error
        found = next(folder.rglob(LIST), None)
        if found is None:
            raise HistobenchError(f"{archive} holds no {LIST}")
        try:
            found.parent.rename(target)
        except OSError:
            if not target.is_dir():  # else another process was faster
                raise
    return target
