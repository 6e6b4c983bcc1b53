"""Simulated results folders, the sites built from them, and a real browser."""

from __future__ import annotations

import importlib.util
import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def simulated() -> ModuleType:
    """Writes results folders with simulated predictions."""
    module = _load(ROOT / "benchmarks" / "speed" / "simulated_results.py")
    for name in ("write_run", "write_features", "write_folder"):
        setattr(module, name, _unflushed(getattr(module, name)))
    return module


def _unflushed(write: Callable[..., Any]) -> Callable[..., Any]:
    """Simulated results need not survive a power cut, and flushing hundreds of files takes its time."""

    def write_quickly(*args: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("histobench.core.files._flush", lambda path: None)
            return write(*args, **options)

    return write_quickly


@pytest.fixture(scope="session")
def tiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic dataset with image files; the path of its CSV."""
    from histobench.roi.data.demo import write_demo_dataset

    return write_demo_dataset(
        tmp_path_factory.mktemp("tiles") / "data", train_per_class=2, test_per_class=12, size=64
    )


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory, simulated: ModuleType, tiles: Path) -> Path:
    """Five encoders on two datasets, one of which has images, features and patients."""
    from histobench.roi.data.source import load_dataset

    out = tmp_path_factory.mktemp("results") / "lab"
    data = load_dataset(tiles, classes_file=tiles.with_suffix(".txt"))
    images = data.splits["test"]
    with_images = simulated.SimulatedSet(
        "tissue",
        data.classes,
        tuple(image.name for image in images),
        np.array([image.label for image in images]),
    )
    plain = simulated.SimulatedSet.of_size("clinic", 200, classes=("benign", "malignant"), patients=50)
    encoders = {"uni_v1": 3.4, "phikon": 3.3, "plip": 2.4, "resnet50": 1.6, "my-encoder": 2.0}
    for data_set in (with_images, plain):
        for name, skill in encoders.items():
            folder = out / data_set.name / name
            c = len(data_set.classes)
            for task in ("Linear-Probe", "KNN"):
                simulated.write_run(folder, data_set, task, encoder=name, skill=skill)
            if name in ("uni_v1", "plip"):
                for shot in (1, 8):
                    simulated.write_run(
                        folder, data_set, "Few-shot", encoder=name, skill=skill + shot / 8,
                        setting=f"{c}way_{shot}shot", episodes=20,
                    )  # fmt: skip
                for share in (10, 100):
                    simulated.write_run(
                        folder, data_set, "Label-efficiency", encoder=name, skill=skill + share / 100,
                        setting=f"{share}pct",
                    )  # fmt: skip
    for name in ("uni_v1", "plip"):
        simulated.write_features(out, with_images, encoder=name, skill=encoders[name])
    write_agent_run(out / "agents")
    return out


def write_agent_run(folder: Path, text: str = "x", agent: str = "agent-x") -> None:
    """Two runs of an agent, one with an expert, in the published folders."""
    for expert, successes in (("F=None", (1, 0, 0)), ("F=judge/PHF=no_GT-textual", (1, 1, 0))):
        place = folder / agent / expert / "max5_p2+tool+cd" / "reasoning" / "gsm8k"
        place.mkdir(parents=True)
        lines = [
            json.dumps(_episode(k, bool(won), "judge" in expert, text)) for k, won in enumerate(successes)
        ]
        (place / "results.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _episode(number: int, won: bool, helped: bool, text: str) -> dict[str, Any]:
    answer = f"Observation:\nOut[1]: {number}\n" + (
        f"\nExpert feedback:\nLook again {text}\n" if helped else ""
    )
    history = [
        {"role": "user", "content": f"How many cells? {text}"},
        {
            "role": "assistant",
            "content": f"Assistant:\n<thought>count {text}</thought><execute>print({number})</execute>\n",
        },
        {"role": "user", "content": answer},
        {"role": "assistant", "content": f"Assistant:\nSo it is <solution>{number} {text}</solution>\n"},
    ]
    return {
        "state": {
            "history": history,
            "finished": True,
            "success": won,
            "latest_output": {},
            "agent_action_count": {"propose_solution": 1, "use_tool": 1, "invalid_action": 0},
            "token_counter": {"total_tokens": 100},
            "terminate_reason": "task_success" if won else "max_steps",
            "error": None,
        },
        "task": {
            "task_name": "reasoning",
            "task_id": number,
            "prompt": "",
            "reference": text,
            "metadata": {},
        },
    }


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, results: Path, tiles: Path) -> Path:
    """The site of `results`, with thumbnails."""
    from histobench.report.site import build_site

    return build_site(
        results, tmp_path_factory.mktemp("site") / "out", images={"tissue": tiles}, title="Our lab"
    )


@pytest.fixture(scope="session")
def data_of() -> Callable[[Path, str], Any]:
    """Reads the value of a data file of a site."""

    def read(site: Path, key: str) -> Any:
        text = (site.parent / "data" / f"{key}.js").read_text(encoding="ascii")
        arguments = text.removeprefix("histobench.receive(").removesuffix(");\n")
        return json.loads(f"[{arguments}]")[1]

    return read


@pytest.fixture(scope="session")
def consult_study() -> ModuleType:
    """Writes studies of Consult by hand."""
    return _load(Path(__file__).with_name("consult_study.py"))


@pytest.fixture(scope="session")
def played_study(tmp_path_factory: pytest.TempPathFactory, consult_study: ModuleType) -> Path:
    """A study beside runs of agents."""
    folder = tmp_path_factory.mktemp("consult") / "results"
    write_agent_run(folder / "agents")
    return Path(consult_study.write_study(folder / "study"))


#: How long a page may take, in milliseconds: other programs may keep the machine busy.
PATIENCE = 120_000
#: Asked in every frame: has the program drawn its page, with every figure and data file, and then kept
#: still? Work waits at most two frames for its turn, so that ten without a change are an end.
STILL = """(call) => {
  const watch = (window.drawnWatch ??= { call: 0, frames: 0 });
  if (!watch.observer) {
    watch.observer = new MutationObserver(() => { watch.frames = 0; });
    const all = { subtree: true, childList: true, attributes: true, characterData: true };
    watch.observer.observe(document, all);
  }
  if (watch.call !== call) Object.assign(watch, { call, frames: 0 });
  const drawn = document.readyState === 'complete' && document.fonts.status === 'loaded'
    && document.querySelector('main')?.textContent
    && !document.querySelector('p.loading, head script[src^="data/"]:not([defer])')
    && [...document.querySelectorAll('.plot')].every((plot) => !plot.clientWidth || plot.querySelector('svg'))
    && [...document.images].every((image) => image.complete || image.loading === 'lazy')
    && document.getAnimations().length === 0;
  watch.frames = drawn ? watch.frames + 1 : 0;
  return watch.frames > 10;
}"""


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium; tests that need it skip where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="the playwright package is not installed")
    program = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if program is None:
        pytest.skip("no Chromium on this machine (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=program, args=FLAGS, timeout=PATIENCE)
        yield running
        running.close()


@pytest.fixture(scope="session")
def expect(browser: Any) -> Any:
    """Playwright's `expect`: asserts what a page comes to show, and waits for it."""
    from playwright.sync_api import expect

    expect.set_options(timeout=PATIENCE)
    return expect


@pytest.fixture(scope="session")
def drawn() -> Callable[[Any], None]:
    """Waits until a page is drawn and at rest; before reading what no single element tells."""
    calls = itertools.count(1)

    def wait(page: Any) -> None:
        page.wait_for_function(STILL, arg=next(calls), polling="raf")

    return wait


@pytest.fixture(scope="session")
def idle_pages() -> dict[str, list[tuple[Any, list[str]]]]:
    """Pages that no test uses, by their settings, each with the list of what its console says."""
    return {}


@pytest.fixture
def open_page(
    browser: Any, drawn: Callable[[Any], None], idle_pages: dict[str, list[tuple[Any, list[str]]]]
) -> Iterator[Any]:
    """Opens pages and waits until they are drawn.

    A message of the browser's console at warning level or above fails the test. Tests use pages one after the
    other, emptied in between: a new one would compile the program of the report again.
    """
    taken: list[tuple[str, Any, list[str]]] = []

    def open_at(site: Path | str, place: str = "", **options: Any) -> Any:
        settings = {"viewport": {"width": 1440, "height": 900}, "reduced_motion": "reduce"} | options
        key = json.dumps(settings, sort_keys=True)
        idle = idle_pages.setdefault(key, [])
        page, complaints = idle.pop() if idle else _new_page(browser, settings)
        taken.append((key, page, complaints))
        page.goto((site.as_uri() if isinstance(site, Path) else site) + place)
        drawn(page)
        return page

    yield open_at
    said = [text for _, _, complaints in taken for text in complaints]
    for key, page, complaints in taken:
        if said:  # whatever went wrong goes with the page
            page.context.close()
            continue
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
        page.emulate_media(media="null")
        page.goto("about:blank")
        complaints.clear()
        idle_pages[key].append((page, complaints))
    assert said == []


def _new_page(browser: Any, settings: dict[str, Any]) -> tuple[Any, list[str]]:
    """A page in a context of its own, and the list that receives its console's complaints."""
    complaints: list[str] = []
    context = browser.new_context(**settings)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    page.on(
        "console", lambda message: message.type in ("error", "warning") and complaints.append(message.text)
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    return page, complaints
