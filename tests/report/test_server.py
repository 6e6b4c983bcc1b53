"""The server shows the site to this machine, follows the results, and gives away nothing else."""

from __future__ import annotations

import http.client
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from histobench.core.errors import HistobenchError
from histobench.report.server import SiteServer, file_of, follow, snapshot, write_waiting_page

#: Seconds that anything may take on a busy machine.
PATIENCE = 120


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SiteServer]:
    site = tmp_path / "site"
    (site / "data").mkdir(parents=True)
    (site / "index.html").write_text("home")
    (site / "data" / "site.js").write_text("data")
    (site / ".histobench-site").write_text("mark")
    (site / "secret.pem").write_text("key")
    (tmp_path / "private.txt").write_text("private")
    (site / "link.txt").symlink_to(tmp_path / "private.txt")
    running = SiteServer(site, port=0)
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def ask(
    server: SiteServer, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=PATIENCE)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_address[1]}")
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content, dict(answer.getheaders())


def test_it_listens_on_this_machine_only(server: SiteServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.address.startswith("http://127.0.0.1:")


def test_files_of_the_site_are_served(server: SiteServer) -> None:
    assert ask(server, "/")[:2] == (200, b"home")
    status, content, headers = ask(server, "/data/site.js?x=1")
    assert (status, content) == (200, b"data")
    assert headers["Content-Type"].startswith("text/javascript")
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert ask(server, "/", method="HEAD")[:2] == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/../private.txt",
        "/%2e%2e/private.txt",
        "/..%2fprivate.txt",
        "/data/../../private.txt",
        "/data/%2e%2e/%2e%2e/private.txt",
        "//etc/passwd",
        "/%00",
        "/..%5cprivate.txt",
        "/link.txt",
        "/.histobench-site",
        "/secret.pem",
        "/data",
        "/data/",
        "/nowhere.js",
        "http://127.0.0.1/../private.txt",
    ],
)
def test_nothing_else_is_served(server: SiteServer, path: str) -> None:
    status, content, _ = ask(server, path)
    assert (status, content) == (404, b"not found\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(server: SiteServer, method: str) -> None:
    assert ask(server, "/", method=method)[0] == 501


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_another_name_for_this_machine_is_refused(server: SiteServer, host: str) -> None:
    assert ask(server, "/", host=host)[0] == 403


def test_localhost_is_this_machine(server: SiteServer) -> None:
    assert ask(server, "/", host=f"localhost:{server.server_address[1]}")[0] == 200


def test_an_absolute_address_outside_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert file_of(tmp_path, "/a.txt") == (tmp_path / "a.txt").resolve()
    assert file_of(tmp_path / "b", "/a.txt") is None


def test_a_port_in_use_is_a_clear_error(server: SiteServer) -> None:
    with pytest.raises(HistobenchError, match="`port`"):
        SiteServer(server.site, port=server.server_address[1])


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
    assert not built.wait(0.2)
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


def test_a_build_that_fails_is_told_and_the_watch_goes_on(tmp_path: Path) -> None:
    told: list[str] = []
    stop = threading.Event()

    def build() -> None:
        raise HistobenchError("not yet")

    def tell(text: str) -> None:
        told.append(text)
        if len(told) == 2:
            stop.set()
        else:
            (tmp_path / "b_complete_results.json").write_text("{}")

    (tmp_path / "a_complete_results.json").write_text("{}")
    follow(tmp_path, build, stop, seen={}, interval=0.02, on_problem=tell)
    assert told == ["not yet", "not yet"]


def test_a_defect_does_not_end_the_watch(tmp_path: Path) -> None:
    stop, told = threading.Event(), []

    def build() -> None:
        raise FileNotFoundError("gone") if not told else ZeroDivisionError("defect")

    def tell(text: str) -> None:
        told.append(text)
        (tmp_path / f"{len(told)}_complete_results.json").write_text("{}")
        if len(told) == 2:
            stop.set()

    (tmp_path / "KNN_complete_results.json").write_text("{}")
    follow(tmp_path, build, stop, seen={}, interval=0.02, on_problem=tell)
    assert told[0] == "gone"
    assert "unexpected ZeroDivisionError: defect" in told[1]


def test_before_the_first_result_a_page_waits(tmp_path: Path) -> None:
    write_waiting_page(tmp_path / "site", "no results in <b>")
    text = (tmp_path / "site" / "index.html").read_text()
    assert "&lt;b&gt;" in text
    assert 'http-equiv="refresh"' in text


def raw(server: SiteServer, request: bytes) -> bytes:
    """The first line of the answer to some bytes."""
    with socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=PATIENCE) as client:
        client.sendall(request)
        return client.recv(4096).split(b"\r\n")[0]


@pytest.mark.parametrize("target", ["http://[/", "http://[", "//[", "http://[::1", "/%", "/%00", "*"])
def test_half_an_address_is_not_found(
    server: SiteServer, target: str, capfd: pytest.CaptureFixture[str]
) -> None:
    request = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert raw(server, request.encode()).startswith(b"HTTP/1.1 404")
    assert capfd.readouterr().err == ""


def test_hanging_up_leaves_no_trace(server: SiteServer, capfd: pytest.CaptureFixture[str]) -> None:
    (server.site / "large.txt").write_bytes(b"x" * (32 << 20))
    large = b"GET /large.txt HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for request in (b"", b"GET", large, b"\x16\x03\x01\x00"):
        client = socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=PATIENCE)
        client.sendall(request)
        # A reset, not a polite end.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        client.close()
    assert ask(server, "/")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.nightly
def test_more_connections_than_allowed_are_turned_away_and_room_comes_back(server: SiteServer) -> None:
    place = ("127.0.0.1", server.server_address[1])
    waiting = [socket.create_connection(place, timeout=PATIENCE) for _ in range(server.max_connections)]
    try:
        assert raw(server, b"") == b"HTTP/1.1 503 Service Unavailable"
    finally:
        for client in waiting:
            client.close()
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if ask(server, "/")[0] == 200:
                return
        except OSError:  # turned away before it had asked
            time.sleep(0.01)
    raise AssertionError("the places were not given back")
