"""The search tool: live against a real HTTP server on this machine, from a tape, from a folder."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from builders import in_a_thread
from histobench.core.errors import HistobenchError
from histobench.mint.tools import check_unique_names, get_toolset_description
from histobench.mint.tools.wikipedia_search import (
    NOTHING_FOUND,
    FolderIndex,
    LiveWikipedia,
    Tape,
    TapeMissError,
    WikipediaError,
    WikipediaQueryRun,
    open_encyclopedia,
)


class _Site(ThreadingHTTPServer):
    """Speaks the part of the MediaWiki API that the tool uses; `faults` are answered first."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[dict[str, str]] = []
        self.agents: set[str] = set()
        self.faults: list[tuple[int, str]] = []

    @property
    def api(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/w/api.php"


class _Handler(BaseHTTPRequestHandler):
    server: _Site

    def do_GET(self) -> None:
        query = {key: values[0] for key, values in parse_qs(urlsplit(self.path).query).items()}
        self.server.asked.append(query)
        self.server.agents.add(self.headers["User-Agent"])
        status, body = (
            self.server.faults.pop(0) if self.server.faults else (200, json.dumps(self._answer(query)))
        )
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def _answer(self, query: dict[str, str]) -> dict:
        if query.get("list") == "search":
            hits = {"mercury": ["Mercury", "Mercury (planet)"], "nothing": []}.get(
                query["srsearch"], ["Long page"]
            )
            return {"query": {"search": [{"title": title} for title in hits]}}
        pages = {
            "Mercury": {"title": "Mercury", "pageprops": {"disambiguation": ""}, "extract": "Mercury may be"},
            "Mercury (planet)": {"title": "Mercury (planet)", "extract": "The first planet.\n"},
            "Long page": {"title": "Long page", "extract": "x" * 3000},
        }
        return {"query": {"pages": [pages[query["titles"]]]}}

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[_Site]:
    with _Site() as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def _live(site: _Site, cache: Path | str = ":memory:") -> LiveWikipedia:
    return LiveWikipedia(cache, api=site.api, sleep=lambda _: None)


@pytest.mark.slow
def test_disambiguation_pages_are_passed_over(site: _Site) -> None:
    assert _live(site).search("mercury") == "Page: Mercury (planet)\nSummary: The first planet."
    assert all("histobench/" in agent for agent in site.agents)


@pytest.mark.slow
def test_a_question_is_asked_once_even_over_two_runs(site: _Site, tmp_path: Path) -> None:
    first = _live(site, tmp_path / "wiki.sqlite").search("mercury")
    asked = len(site.asked)
    again = in_a_thread(_live(site, tmp_path / "wiki.sqlite").search)  # episodes are played in threads
    assert again("mercury") == first
    assert len(site.asked) == asked


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [(429, "slow down"), (503, "lag"), (200, "{broken"), (200, '{"error": {"info": "x"}}')]
)
def test_a_passing_fault_is_tried_again(site: _Site, fault: tuple[int, str]) -> None:
    site.faults = [fault, fault]
    assert "first planet" in _live(site).search("mercury")


@pytest.mark.slow
def test_a_lasting_fault_is_an_error_in_the_agents_code_and_is_not_remembered(site: _Site) -> None:
    site.faults = [(500, "down")] * 4
    live = _live(site)
    with pytest.raises(WikipediaError, match="500"):
        live.search("mercury")
    assert "first planet" in live.search("mercury")


def test_a_tape_answers_what_was_recorded_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "tape.json"
    path.write_text(json.dumps({"q": "Page: Q"}))
    tool = WikipediaQueryRun(Tape(path))
    assert tool("q") == "Page: Q"
    with pytest.raises(TapeMissError, match="no recorded answer"):
        tool("other")
    path.write_text("[]")
    with pytest.raises(HistobenchError, match="not a tape"):
        Tape(path)


def test_a_folder_of_articles_can_be_searched(tmp_path: Path) -> None:
    (tmp_path / "Adipose_tissue.txt").write_text("Fat stores energy.\n\nIt has cells.")
    (tmp_path / "Colon.md").write_text("# Colon\n\nThe colon is part of the large bowel.\n\nSee fat.")
    index = FolderIndex(tmp_path)
    assert index.search("adipose cells") == "Page: Adipose tissue\nSummary: Fat stores energy."
    assert index.search("colons").startswith("Page: Colon\nSummary: The colon is part")
    assert index.search('") DROP TABLE') == NOTHING_FOUND
    with pytest.raises(HistobenchError, match="no folder"):
        FolderIndex(tmp_path / "absent")


def test_two_tools_of_one_name_are_refused_and_the_list_is_numbered(tmp_path: Path) -> None:
    (tmp_path / "A.txt").write_text("a")
    tool = WikipediaQueryRun(FolderIndex(tmp_path))
    assert "[1] wikipedia_search(query: str) -> str\n" in get_toolset_description([tool])
    assert get_toolset_description([]) == ""
    with pytest.raises(HistobenchError, match="two tools are called"):
        check_unique_names([tool, tool])


def test_a_run_names_its_encyclopedia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    open_encyclopedia.cache_clear()
    (tmp_path / "articles").mkdir()
    (tmp_path / "articles" / "Cell.txt").write_text("The unit of life.", encoding="utf-8")
    (tmp_path / "tape.json").write_text('{"cell": "recorded"}', encoding="utf-8")
    assert "The unit of life." in open_encyclopedia(f"folder:{tmp_path / 'articles'}").search("cell")
    assert open_encyclopedia(f"tape:{tmp_path / 'tape.json'}").search("cell") == "recorded"
    assert open_encyclopedia("live") is open_encyclopedia("live")
    assert (tmp_path / "cache" / "wikipedia.sqlite").is_file()
    for source in ("tape:", "book", "folder"):
        with pytest.raises(HistobenchError, match="known: live, tape:FILE, folder:DIR"):
            open_encyclopedia(source)
    open_encyclopedia.cache_clear()
