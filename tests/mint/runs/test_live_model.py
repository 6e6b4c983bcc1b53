"""A real small language model, end to end: in this process, and behind a real HTTP endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.mint.agents.local_model import MODEL, LocalServer, find_model

pytestmark = [pytest.mark.nightly, pytest.mark.usefixtures("one_sandbox")]


@pytest.fixture(scope="module")
def live_url() -> Iterator[str]:
    """An OpenAI-compatible server with the model."""
    pytest.importorskip("xllamacpp", reason="the extra `local` is not installed")
    try:
        server = LocalServer(find_model(), threads=1)
    except HistobenchError as error:
        pytest.skip(str(error))
    yield server.base_url
    server.close()


def run(output: Path, *arguments: str) -> None:
    short = ["--tasks", "starter", "--limit", "1", "--k", "2", "--max-tokens", "12"]
    assert main(["mint", "run", *short, "-o", str(output), *arguments]) == 0


def test_the_same_command_line_works_against_a_server_and_in_this_process(lab: Any, live_url: str) -> None:
    # Sums over another number of threads may round to another word.
    lab.monkeypatch.setattr("histobench.mint.agents.local_model.default_threads", lambda: 1)
    run(lab.tmp_path / "served", "--agent", f"openai:{MODEL}@{live_url}", "--concurrency", "1")
    run(lab.tmp_path / "embedded")
    served, embedded = (lab.script.lines(lab.tmp_path / name) for name in ("served", "embedded"))
    (line,) = served
    assert line["state"]["finished"]
    assert line["state"]["token_counter"]["completion_tokens"] > 0
    assert any(message["role"] == "assistant" for message in line["state"]["history"])
    assert embedded == served  # greedy decoding: the same words, tokens and verdict
    assert main(["mint", "table", str(lab.tmp_path / "served")]) == 0
    assert MODEL in lab.capsys.readouterr().out
