"""Games on disk are found, listed and read."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.mint.alfworld.games import ARCHIVE, GameFile, find_games, read_games
from reproduction.gates import Call, expert_calls, expert_observations

GAME = "look_at_obj_in_light-Mug-None-DeskLamp-1/trial_1"


def _archive(folder: Path, *, listed: str = GAME, damaged: bool = False) -> Path:
    path = folder / ARCHIVE
    with tarfile.open(path, "w:xz") as archive:
        for name, text in (
            ("gamefile_id.txt", listed),
            (f"json_2.1.1/valid_unseen/{GAME}/game.tw-pddl", "{}"),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    if damaged:
        path.write_bytes(path.read_bytes()[:150])
    return path


def test_an_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    _archive(tmp_path)
    folder = find_games(tmp_path / "nothing", tmp_path)
    assert [game.id for game in read_games(folder)] == [GAME]
    (folder / "mark").touch()
    assert (find_games(tmp_path) / "mark").exists()
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.name]


def test_a_damaged_archive_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    _archive(tmp_path, damaged=True)
    with pytest.raises(HistobenchError, match="cannot unpack"):
        find_games(tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


def test_an_archive_cannot_write_beside_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    with tarfile.open(tmp_path / ARCHIVE, "w:xz") as archive:
        archive.addfile(tarfile.TarInfo("../out"))
    with pytest.raises(HistobenchError, match=r"'\.\./out' leaves the folder"):
        find_games(tmp_path)
    assert list((tmp_path / "cache").iterdir()) == []


def test_every_published_game_has_a_goal_and_an_expert(games: list[GameFile]) -> None:
    assert len(games) == len({game.id for game in games}) == 134
    assert {game.goal_type for game in games} == {"put", "clean", "heat", "cool", "examine", "puttwo"}
    for game in games:
        trajectory = game.expert_trajectory()
        assert len(expert_calls(trajectory)) == len(expert_observations(trajectory)) > 0


def test_the_experts_words_are_mapped_to_tools() -> None:
    text = (
        'Assistant:\n<execute>\nopen("safe 1")\n</execute>\n\nObservation:\nYou open it.\n'
        'Assistant:\n<execute>\ngoto("bed 1")\n</execute>\n\nObservation:\nOn the bed 1, you see nothing.'
    )
    assert expert_calls(text) == [Call("open_receptacle", ("safe 1",)), Call("goto", ("bed 1",))]
    assert expert_observations(text) == ["You open it.", "On the bed 1, you see nothing."]
