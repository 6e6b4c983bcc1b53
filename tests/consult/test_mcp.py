"""The tools over the Model Context Protocol, asked by the official client."""

from __future__ import annotations

import asyncio
import base64
import io
import os
import re
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.metrics.pairwise import cosine_similarity

from builders import in_a_thread
from histobench.cli.main import main
from histobench.consult.encoder_views import NAME_LENGTH, EncoderView, Regions
from histobench.consult.study_plan import StudyPlan
from histobench.consult.tool_text import read_neighbours
from histobench.core.errors import HistobenchError
from histobench.roi.data.image_ref import digest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("mcp") is None, reason="needs the package mcp")]

TOOLS = {"list_regions", "predict", "neighbours", "region_image", "zero_shot", "measure"}
PROGRAM = "import sys; from histobench.cli.main import main; sys.exit(main())"


def mcp() -> Any:
    """Imported when a test needs it: every worker imports this file, and few run it."""
    return import_module("mcp")


def ours() -> Any:
    """The server, which imports that package."""
    return import_module("histobench.consult.mcp_server")


completed = in_a_thread(asyncio.run)


def arguments(study_folder: Path) -> list[str]:
    source = study_folder.parent
    encoders = ",".join(f"{source / 'three.py'}:{name}" for name in ("Colours", "Green"))
    data = ["--data", str(source / "tiles.csv"), "--classes", str(source / "tiles.txt")]
    return ["-c", PROGRAM, "mcp", *data, "--encoders", encoders, "--num_workers", "0", "--device", "cpu"]


async def conversation(server: Any) -> dict[str, Any]:
    """What a client hears."""
    async with mcp().Client(server, read_timeout_seconds=600) as client:
        tools = (await client.list_tools()).tools
        told: list[float] = []

        async def hear(done: float, total: float | None, message: str | None) -> None:
            told.append(done)

        listed = text(await client.call_tool("list_regions", {"count": 3}, progress_callback=hear))
        region = listed.splitlines()[-1]
        asked = {"region": region, "encoder": listed.splitlines()[0].removeprefix("encoders: ").split(",")[0]}
        return {
            "tools": {tool.name for tool in tools},
            "progress": told,
            "many": text(await client.call_tool("predict", {"regions": listed.splitlines()[-3:]})),
            "region": (await client.call_tool("region_image", {"region": region, "side": 32})).content,
            "too_large": await client.call_tool("region_image", {"region": region, "side": 100_000}),
            "read_only": all(tool.annotations and tool.annotations.read_only_hint for tool in tools),
            "listed": listed,
            "predict": text(
                await client.call_tool("predict", {"regions": [region], "encoder": asked["encoder"], "n": 2})
            ),
            "neighbours": text(await client.call_tool("neighbours", {**asked, "k": 3})),
            "measure": text(await client.call_tool("measure", {"region": region})),
            "outside": [
                await client.call_tool(tool, {**asked, "region": path, "regions": [path]})
                for tool in ("measure", "region_image", "neighbours", "predict")
                for path in (
                    __file__,
                    f"file://{__file__}",
                    "../../etc/passwd",
                    f"{region}/../x.png",
                    "0",
                    "",
                )
            ],
            "unread": await client.call_tool("zero_shot", asked),
        }


def text(result: Any) -> str:
    assert not result.is_error, result.content
    return str(result.content[0].text)


def check(heard: dict[str, Any]) -> None:
    assert heard["tools"] == TOOLS
    assert heard["read_only"]
    # The assistant is not allowed to know which encoders it asks, nor how good they are.
    assert heard["listed"].splitlines()[0] == "encoders: A, B"
    assert not re.search("Colours|Green|%", heard["listed"] + heard["many"])
    assert heard["predict"].count(",") == 1
    assert len(heard["neighbours"].splitlines()) == 4  # and how similar the nearest is
    assert len(heard["many"].splitlines()) == 3
    size, picture = heard["region"]
    assert "32 x 32 pixels, its full size" in size.text
    assert Image.open(io.BytesIO(base64.b64decode(picture.data))).size == (32, 32)
    assert heard["too_large"].is_error
    for said in ("listed", "neighbours", "many"):  # no folder, no file, no class by the name of a region
        assert not re.search(r"tiles|\.png|test-\d", heard[said])
    assert all(re.fullmatch("r-[0-9a-f]{10}", line) for line in heard["listed"].splitlines()[-3:])
    assert heard["progress"] == sorted(heard["progress"])
    assert "tissue" in heard["measure"]
    assert all(re.fullmatch(r"r-\w{10}: A .*; B .*", line) for line in heard["many"].splitlines())
    assert all(result.is_error for result in heard["outside"])
    assert all("no region" in result.content[0].text for result in heard["outside"])
    assert heard["unread"].is_error


def test_a_client_is_served_what_the_command_names(
    study_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(
        "mcp.server.mcpserver.MCPServer.run", lambda server, transport: made.append((server, transport))
    )
    monkeypatch.setenv("HISTOBENCH_CACHE", str(study_folder.parent / "cache"))
    assert main(arguments(study_folder)[2:]) == 0
    ((server, transport),) = made
    assert transport == "stdio"
    check(completed(conversation(server)))


@pytest.mark.nightly
def test_a_client_over_standard_input_and_output_is_served(study_folder: Path) -> None:
    server = mcp().StdioServerParameters(
        command=sys.executable,
        args=arguments(study_folder),
        env={**os.environ, "HISTOBENCH_CACHE": str(study_folder.parent / "cache")},
    )
    check(completed(conversation(server)))


@pytest.mark.nightly
def test_a_client_over_http_is_served_on_this_machine_alone(study_folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, *arguments(study_folder), "--http", str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 600
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=60).close()
                break
            except OSError:
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.2)
        with ThreadPoolExecutor(1) as thread:  # the loop of another test may be running in this one
            check(thread.submit(asyncio.run, conversation(f"http://127.0.0.1:{port}/mcp")).result())
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize("disclosed", [True, False])
def test_the_server_answers_before_features_are_there_and_reports_their_progress(
    disclosed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    go = threading.Event()

    def make(progress: Any) -> Any:
        progress.begin("features", 10)
        for _ in range(10):
            progress.advance(1)
        assert go.wait(60)
        raise HistobenchError("no features of uni_v1 today")

    server = ours().make_server(ours().OpeningBench(make, disclosed=disclosed).start())

    async def talk() -> tuple[list[Any], Any]:
        told: list[Any] = []

        async def hear(done: float, total: float | None, message: str | None) -> None:
            told.append((done, total, message))
            go.set()

        async with mcp().Client(server) as client:
            assert (await client.list_tools()).tools
            return told, await client.call_tool("list_regions", {}, progress_callback=hear)

    told, result = completed(talk())
    assert told[0] == (10, 10, "computing features")
    assert result.is_error
    assert ("no features of uni_v1 today" in result.content[0].text) == disclosed
    assert "no features of uni_v1 today" in caplog.text


@pytest.mark.parametrize("way", ["link", "other", "gone"])
def test_a_picture_that_is_replaced_after_the_start_is_not_shown(tmp_path: Path, way: str) -> None:
    """A link in the place of an image would show any picture that the server can read."""
    shown, secret = tmp_path / "data.png", tmp_path / "secret.png"
    Image.new("RGB", (8, 8), "red").save(shown)
    Image.new("RGB", (8, 8), "blue").save(secret)
    name = digest(shown.read_bytes()).hex()[:NAME_LENGTH]
    regions = Regions(np.zeros(1, dtype=np.int64), (name,), ("",), (shown,))
    assert tuple(regions.pixels(0)[0, 0]) == (255, 0, 0)
    shown.unlink()
    if way == "link":
        shown.symlink_to(secret)
    elif way == "other":
        secret.rename(shown)
    server = ours().make_server(
        ours().OpeningBench(lambda progress: ours().Bench(("x",), {"test": regions}, {})).start()
    )

    async def talk() -> list[Any]:
        async with mcp().Client(server) as client:
            asked = {"region": ours().region_id(name)}
            return [await client.call_tool(tool, asked) for tool in ("region_image", "measure")]

    for result in completed(talk()):
        assert result.is_error
        assert [part.type for part in result.content] == ["text"]


def test_only_a_server_that_discloses_names_the_encoders_and_their_accuracy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = ["uni_v1", "random-vit", "efficientnet-lite0"]
    monkeypatch.setattr(ours(), "view_encoders", lambda dataset, roles, *_, **__: ({}, roles))
    for seed in (0, 1):  # which deal differently
        dealt = ours().shown_names(names, disclosed=False, seed=seed)
        plan = StudyPlan(tuple(names), (), seed=seed)
        found = ours().open_bench(SimpleNamespace(classes=()), plan, Path()).views
        assert list(found.items()) == [(letter, name) for name, letter in dealt.items()]
        assert list(found) == ["A", "B", "C"]
    facts, scores = SimpleNamespace(probe_accuracy=0.875), np.array([[1.0]])
    views = {name: SimpleNamespace(facts=facts, zero_shot=has) for name, has in (("A", scores), ("B", None))}
    regions = {"test": Regions(np.zeros(1, dtype=np.int64), ("image",), ("",), ())}
    blind, open_one = (ours().Bench(("x",), regions, views, disclosed) for disclosed in (False, True))
    assert blind.listed().splitlines()[0] == "encoders: A, B"
    shares = "encoders: A (probe 87.5% of test regions), B (probe 87.5% of test regions)"
    assert open_one.listed().splitlines()[0] == shares
    # A text tower that only some encoders have would identify them.
    region = ours().region_id("image")
    said = set()
    for name in views:
        with pytest.raises(HistobenchError) as refused:
            blind.zero_shot(region, name)
        said.add(str(refused.value))
    assert len(said) == 1
    assert open_one.zero_shot(region, "A") == "x 1.00"


def test_regions_are_listed_in_parts_and_never_shown_beside_their_own_patient() -> None:
    draw, sizes = np.random.default_rng(0), {"train": 30, "test": 5}
    patients = {split: [f"patient {k % 3}" for k in range(n)] for split, n in sizes.items()}
    regions = {
        split: Regions(np.arange(n) % 4, tuple(f"{split} {k}" for k in range(n)), tuple(patients[split]), ())
        for split, n in sizes.items()
    }
    features = {split: draw.normal(size=(n, 6)).astype(np.float32) for split, n in sizes.items()}
    scores = draw.dirichlet(np.ones(4), 5)
    view = EncoderView(None, scores, scores, features, zero_shot=scores)  # type: ignore[arg-type]
    bench = ours().Bench(tuple("abcd"), regions, {"A": view})
    assert bench.listed(2, 2).splitlines()[2:] == ["5 regions, from 2:", *list(bench.ids)[2:4]]
    cosines = cosine_similarity(features["test"], features["train"])
    for region, row in bench.ids.items():
        others = [k for k in np.argsort(-cosines[row]) if patients["train"][k] != patients["test"][row]]
        shown = [near.image for near in read_neighbours(bench.neighbours(region, "A", 7))]
        assert shown == [ours().region_id(f"train {k}") for k in others[:7]]
        assert bench.zero_shot(region, "A").count(",") == 3
