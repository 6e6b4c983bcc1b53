"""The server shows the site to this machine and follows the results."""

from __future__ import annotations

import http.client
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.report.server import SiteServer, follow, snapshot, write_waiting_page

#: Seconds that anything may take on a busy machine.
PATIENCE = 120


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SiteServer]:
    site = tmp_path / "site"
    (site / "data").mkdir(parents=True)
    (site / "index.html").write_text("home")
    (site / "data" / "site.js").write_text("data")
    (tmp_path / "private.txt").write_text("private")
    running = SiteServer(site, port=0)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def ask(
    server: SiteServer, path: str, *, method: str = "GET", host: str = "localhost"
) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=PATIENCE)
    connection.request(method, path, headers={"Host": host})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, answer.headers


def test_files_of_the_site_are_served_to_this_machine(server: SiteServer) -> None:
    assert server.address.startswith("http://127.0.0.1:")
    assert ask(server, "/")[:2] == (200, b"home")
    status, content, headers = ask(server, "/data/site.js?x=1")
    assert (status, content) == (200, b"data")
    assert headers["Content-Type"].startswith("text/javascript")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert ask(server, "/", method="POST")[0] == 501


@pytest.mark.parametrize(
    "path",
    ["/../private.txt", "/%2e%2e/private.txt", "/..%2fprivate.txt", "//etc/passwd", "/data/", "/nowhere.js"],
)
def test_nothing_else_is_served(server: SiteServer, path: str) -> None:
    assert ask(server, path)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_another_name_for_this_machine_is_refused(server: SiteServer, host: str) -> None:
    assert ask(server, "/", host=host)[0] == 403


def test_a_port_in_use_is_a_clear_error(server: SiteServer, tmp_path: Path) -> None:
    with pytest.raises(HistobenchError, match="`port`"):
        SiteServer(tmp_path, port=server.server_address[1])


def test_the_site_is_built_again_when_results_change(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    shutil.copytree(results / "clinic" / "plip" / "KNN", folder / "KNN")
    seen = snapshot(folder)
    assert len(seen) == 2
    built, stop = threading.Event(), threading.Event()
    watcher = threading.Thread(
        target=follow, args=(folder, built.set, stop), kwargs={"seen": seen, "interval": 0.02}
    )
    watcher.start()
    (folder / "notes.md").write_text("of no concern")
    assert not built.wait(0.2)
    shutil.copytree(results / "clinic" / "phikon" / "KNN", folder / "more" / "KNN")
    assert built.wait(PATIENCE)
    stop.set()
    watcher.join()


def test_a_run_that_never_rests_is_shown_all_the_same(tmp_path: Path) -> None:
    built, stop = threading.Event(), threading.Event()
    watcher = threading.Thread(
        target=follow, args=(tmp_path, built.set, stop), kwargs={"seen": {}, "interval": 0.02, "patience": 3}
    )
    watcher.start()
    for number in range(20_000):  # something new in every interval
        (tmp_path / f"{number}_complete_results.json").write_text("{}")
        if built.wait(0.005):
            break
    stop.set()
    watcher.join()
    assert built.is_set()


def test_a_build_that_fails_is_reported_and_the_watch_goes_on(tmp_path: Path) -> None:
    messages: list[str] = []
    stop = threading.Event()

    def build() -> None:
        raise HistobenchError("not yet") if not messages else ZeroDivisionError("defect")

    def report(text: str) -> None:
        messages.append(text)
        (tmp_path / f"{len(messages)}_complete_results.json").write_text("{}")
        if len(messages) == 2:
            stop.set()

    (tmp_path / "KNN_complete_results.json").write_text("{}")
    follow(tmp_path, build, stop, seen={}, interval=0.02, on_problem=report)
    assert [text.rpartition(": ")[2] for text in messages] == ["not yet", "defect"]


def test_before_the_first_result_a_page_waits(tmp_path: Path) -> None:
    write_waiting_page(tmp_path / "site", "no results in <b>")
    text = (tmp_path / "site" / "index.html").read_text()
    assert "&lt;b&gt;" in text
    assert 'http-equiv="refresh"' in text
