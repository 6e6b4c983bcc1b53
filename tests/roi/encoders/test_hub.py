"""The hub: what is asked of it, and what is said when it does not answer."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from huggingface_hub import constants, file_download
from safetensors.torch import save_file

from histobench.core.errors import HistobenchError
from histobench.core.http import call_while_reachable
from histobench.roi.encoders import weights_download as download
from histobench.roi.encoders.construct import construct
from histobench.roi.encoders.encoder_checkup import check_encoders
from histobench.roi.encoders.file_hash import sha256_of
from histobench.roi.encoders.registry import create_encoder, get_spec


def test_offline_nothing_is_asked_of_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "_download", lambda *_: pytest.fail("went to the network"))
    for name in ("uni_v1", "plip", "lunit-bt"):
        with pytest.raises(HistobenchError, match=r"HF_HUB_OFFLINE=1 forbids"):
            create_encoder(name)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A hub that answers; the test says what it gives."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr("histobench.core.http.answers", lambda url, seconds: True)
    monkeypatch.setattr(download, "_unreachable_at", None)
    return monkeypatch


@pytest.mark.parametrize(
    ("status", "header", "words"),
    [
        (403, "GatedRepo", "the authors of MahmoodLab/UNI2-h have not given you access"),
        (403, "", "refuses access (HTTP 403): is your token valid, with access to gated repositories?"),
        (401, "", "refuses access (HTTP 401): is your token valid, with access to gated repositories?"),
        (404, "RepoNotFound", "failed (RepositoryNotFoundError)"),
    ],
)
def test_what_the_hub_answers_is_told_with_the_steps(
    online: pytest.MonkeyPatch, tmp_path: Path, status: int, header: str, words: str
) -> None:
    class Refusing(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", header)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        template = f"http://127.0.0.1:{server.server_port}/{{repo_id}}/{{revision}}/{{filename}}"
        for module in (constants, file_download):  # older versions read it from there
            online.setattr(module, "HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        online.setattr(constants, "HF_HUB_OFFLINE", False)
        online.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        with pytest.raises(HistobenchError) as failure:
            create_encoder("uni_v2")
        server.shutdown()
    first, *steps = str(failure.value).splitlines()
    assert words in first
    page = "https://huggingface.co/MahmoodLab/UNI2-h"
    assert steps[0] == f"  with internet: request access at {page} and run: hf auth login"
    assert steps[1].startswith(f"  without: copy pytorch_model.bin of {page} here and give `weights` FILE")


def test_a_hub_that_cannot_be_reached_is_not_waited_for_again_and_again(online: pytest.MonkeyPatch) -> None:
    from huggingface_hub.errors import LocalEntryNotFoundError

    asked: list[str] = []

    def away(repo: str, *_: Any, **__: Any) -> str:
        asked.append(repo)
        raise LocalEntryNotFoundError("no connection")

    online.setattr("huggingface_hub.hf_hub_download", away)
    for name in ("uni_v1", "uni_v1", "virchow2"):
        with pytest.raises(
            HistobenchError, match=f"{name}: no weights on this machine, and the model hub cannot be reached"
        ):
            create_encoder(name)
    assert asked == ["MahmoodLab/uni"]
    online.setattr(download, "_UNREACHABLE_SECONDS", 0.0)
    with pytest.raises(HistobenchError, match="virchow2: no weights on this machine, and the model hub"):
        create_encoder("virchow2")
    assert asked == ["MahmoodLab/uni", "paige-ai/Virchow2"]


def test_a_connection_that_breaks_off_says_what_to_do(online: pytest.MonkeyPatch) -> None:
    def break_off(*_: Any, **__: Any) -> str:
        raise httpx.RemoteProtocolError("no error of the operating system")

    online.setattr("huggingface_hub.hf_hub_download", break_off)
    with pytest.raises(HistobenchError, match=r"uni/pytorch_model\.bin failed \(RemoteProtocolError\)"):
        create_encoder("uni_v1")
    online.setattr("huggingface_hub.HfApi.auth_check", break_off)
    found = check_encoders(["uni_v1"], online=True)
    assert any("cannot ask the model hub" in result.message for result in found)


def test_the_hub_is_asked_for_the_pinned_revision(online: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def give(repo: str, file: str, **kwargs: Any) -> str:
        asked.update(repo=repo, file=file, **kwargs)
        (tmp_path / file).write_bytes(b"something else")
        return str(tmp_path / file)

    online.setattr("huggingface_hub.hf_hub_download", give)
    spec = get_spec("uni_v1")
    with pytest.raises(HistobenchError, match=f"not the pinned {spec.source.sha256}"):
        create_encoder("uni_v1")
    assert asked == {"repo": "MahmoodLab/uni", "file": "pytorch_model.bin", "revision": spec.source.revision}


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.slow
def test_a_cache_at_another_revision_is_told_and_taken_only_on_request(
    checkpoint: Path, hub_cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = get_spec("lunit-vits16")
    folder = hub_cache / f"models--{spec.source.repo.replace('/', '--')}" / "snapshots" / ("f" * 40)
    folder.mkdir(parents=True)
    network = construct(spec, allow_random=True, depth=1).network
    save_file(network.state_dict(), folder / spec.source.file)
    with pytest.raises(HistobenchError) as failure:
        construct(spec, depth=1)
    said = str(failure.value)
    assert f"has it at revision {'f' * 40} instead of the pinned {spec.source.revision}" in said
    assert "`allow_revision` takes that" in said
    encoder = construct(spec, depth=1, allow_revision=True)
    assert encoder.identity["weights"] == f"sha256:{sha256_of(folder / spec.source.file)}"
    assert encoder.identity["revision"] == "f" * 40
    assert f"not at the pinned {spec.source.revision}" in caplog.text
    # The very bytes that are pinned need no permission, whatever their revision is called.
    pinned = replace(spec, source=replace(spec.source, sha256=sha256_of(folder / spec.source.file)))
    assert construct(pinned, depth=1).identity["weights"] == encoder.identity["weights"]


def test_a_hub_that_is_silent_is_given_up_soon_and_without_noise(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and never says a word
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.delenv("HF_HUB_OFFLINE")
        monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "0.2")
        monkeypatch.setattr(download, "_unreachable_at", None)
        monkeypatch.setattr("huggingface_hub.hf_hub_download", lambda *_, **__: threading.Event().wait())
        with pytest.raises(
            HistobenchError, match="uni_v1: no weights on this machine, and the model hub cannot be reached"
        ):
            create_encoder("uni_v1")
    assert capfd.readouterr().err == ""


def test_a_server_that_answers_with_an_error_is_reachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "5")
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:  # answers 501 to anything
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert call_while_reachable(lambda: "the file", url) == "the file"
        with pytest.raises(ZeroDivisionError):
            call_while_reachable(lambda: 1 / 0, url)
        server.shutdown()


@pytest.mark.slow
def test_weights_at_a_fixed_address_are_asked_for_again_while_the_server_is_busy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []

    class Busy(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(200)
            self.end_headers()

        def do_GET(self) -> None:
            asked.append(self.path)
            busy = len(asked) == 1
            self.send_response(503 if busy else 404 if self.path == "/gone.bin" else 200)
            self.send_header("Retry-After" if busy else "Content-Length", "0" if busy else "7")
            self.end_headers()
            if not busy:
                self.wfile.write(b"weights")

        def log_message(self, *_: Any) -> None:
            pass

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_HUB_ETAG_TIMEOUT", "60")
    monkeypatch.setattr(download, "cache_dir", lambda: tmp_path)
    spec = get_spec("lunit-bt")
    with ThreadingHTTPServer(("127.0.0.1", 0), Busy) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        host = f"http://127.0.0.1:{server.server_port}"
        path = download.fetch_from_url(spec, f"{host}/weights.bin")
        assert path.read_bytes() == b"weights"
        assert download.fetch_from_url(spec, f"{host}/weights.bin") == path
        assert asked == ["/weights.bin"] * 2
        with pytest.raises(HistobenchError, match=r"cannot download .*gone\.bin .*download it on another"):
            download.fetch_from_url(spec, f"{host}/gone.bin")
        server.shutdown()
    assert [file.name for file in path.parent.iterdir()] == ["weights.bin"]  # no parts, no notes
