"""`histobench demo`: the three parts on synthetic data, in about 75 seconds on two cores."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.cli.entry import USER_ERROR
from histobench.cli.flags import out_option
from histobench.cli.terminal import open_terminal, print_answer, print_overview
from histobench.core.errors import HistobenchError
from histobench.core.records import option, record

if TYPE_CHECKING:
    from rich.console import Console

    from histobench.mint.configs.cell import Cell
    from histobench.roi.options import Plan
    from histobench.roi.plan.plan_outcome import BenchmarkOutcome

ENCODERS = ("efficientnet-lite0", "tiny-vl", "random-vit")
#: Seconds of the short demo on two cores without other work; a line says when it took longer, and why.
ANNOUNCED = 75
AGENTS = "mint"
CONSULT = "consult"
#: The full demo plays a very small language model, a few minutes on two cores.
SMALL_MODEL: dict[str, Any] = {
    "tasks": "quickstart",
    "constrain": True,
    "limit": 4,
    "k": "2",
    "max_tokens": 64,
}
CONSULTING_MODEL = {"agent": "local:", "limit": 3, "constrain": True, "max_tokens": 64}


@dataclass(frozen=True)
class DemoSize:
    """How much the demo computes."""

    train: int  # tiles per class
    test: int
    tiles_per_patient: int  # of each class
    pixels: int | None  # image side that encoders see; None: each encoder's own
    shots: tuple[int, ...]
    neighbors: int
    robustness: bool
    cases: int
    arms: tuple[str, ...]
    policies: tuple[str, ...]
    sites: str
    language_model: bool


#: With 24 test patients, 144 cases and all 48 recorded episodes every interval is narrower than 0.3.
SHORT = DemoSize(
    train=12,
    test=24,
    tiles_per_patient=1,
    pixels=112,
    shots=(1, 4, 8),
    neighbors=5,
    robustness=False,  # its intervals need more patients
    cases=144,
    arms=("none", "strong", "random"),
    policies=("always-trust", "rational"),
    sites="crossed",
    language_model=False,
)
FULL = DemoSize(
    train=40,
    test=60,
    tiles_per_patient=2,
    pixels=None,
    shots=(1, 2, 4, 8, 16, 32),
    neighbors=20,
    robustness=True,
    cases=144,
    arms=("none", "strong", "random", "sequence", "sequence-same"),
    policies=("always-trust", "reader", "rational", "learner"),
    sites="crossed",
    language_model=True,
)


@record
class DemoFlags:
    """The flags of `demo`."""

    out: str = out_option("folder to write", default="demo-results")
    full: bool = option(
        "more tiles, full image size, all agents and a small language model: several minutes", default=False
    )
    per_class: int | None = option(
        "training tiles per class",
        default=None,
        least=1,
        default_text=f"{SHORT.train}; with --full {FULL.train}",
    )
    test_per_class: int | None = option(
        "test tiles per class", default=None, least=1, default_text=f"{SHORT.test}; with --full {FULL.test}"
    )
    seed: int = option("seed of everything random", default=0, least=0)


def demo_command(args: DemoFlags) -> int:
    """Try everything on synthetic tissue: compare three encoders, replay agents,
    run a small Consult study and build the web pages.

    Takes about 75 seconds on two cores. Needs no network and no GPU. A program
    draws the tiles: the numbers show that everything works, not which encoder is
    good at pathology.

    Examples:
      histobench demo
      histobench demo --full -o demo-full
    """
    from histobench.roi.data.demo import write_demo_dataset
    from histobench.roi.plan.whole_benchmark import run_benchmark

    size = FULL if args.full else SHORT
    train, test = args.per_class or size.train, args.test_per_class or size.test
    console = open_terminal()
    output = Path(args.out)
    steps = DemoSteps(console, total=5)
    patients = -(-train // size.tiles_per_patient) + -(-test // size.tiles_per_patient)
    drawing = f"draw {9 * (train + test):,} synthetic tiles of {patients} patients"
    with steps.step(drawing), console.status(drawing):
        table = write_demo_dataset(
            output / "data",
            train_per_class=train,
            test_per_class=test,
            seed=args.seed,
            sites=size.sites,
            tiles_per_patient=size.tiles_per_patient,
        )
    plan = demo_plan(table, output, size, args.seed)
    comparing = f"compare {len(ENCODERS)} image encoders in {len(plan.tasks)} tasks"
    with steps.step(comparing), console.status(comparing):
        done = run_benchmark(plan, heading="Synthetic tissue: a demonstration, not a benchmark")
    with steps.step("replay a recorded language-model agent that solves tasks"):
        played = play_agents(output, console, size)
    with steps.step(f"let agents ask the encoders about {size.cases} tiles (Consult)"):
        study = play_consult(table, output, console, size, seed=args.seed)
    page = None
    with steps.step("build the web pages"):
        page = build_pages(output, console)
    console.print(f"{steps.total_line()}\n", soft_wrap=True)
    answer = print_encoders(done, console)
    print_agents(output, played, console)
    if study is not None:
        print_study(study, console)
    if answer:
        print_answer(answer, console)
    if page is not None:
        console.print(f"Look: open {page} in a browser", soft_wrap=True)
    console.print(
        "Next: histobench run --data YOUR_FOLDER --split 0.7/0.3 --encoders efficientnet-lite0,random-vit",
        style="bold",
        soft_wrap=True,
    )
    return USER_ERROR if done.outcome.failures or not done.outcome.has_results else 0


def print_encoders(done: BenchmarkOutcome, console: Console) -> str:
    """Print encoders x tasks, and what failed; return the answer."""
    from histobench.cli.run import explanations
    from histobench.roi.plan.whole_benchmark import tables_shown

    shown = tables_shown(done)
    for overview in shown.overviews:
        print_overview(overview, console)
    for failure in done.outcome.failures:
        console.print(f"FAILED: {failure.job}: {failure.reason}", soft_wrap=True, style="red")
    if shown.overviews:
        console.print(f"{next(explanations(shown.overviews, 0))}\n", soft_wrap=True)
    return shown.answer


def demo_plan(table: Path, output: Path, size: DemoSize, seed: int) -> Plan:
    """The benchmark of the demo."""
    from histobench.roi.options import DatasetEntry, Options, Plan, Settings
    from histobench.roi.task_catalogue import DEFAULT_TASKS, ROBUSTNESS

    tasks = (*DEFAULT_TASKS, ROBUSTNESS) if size.robustness else DEFAULT_TASKS

    name = table.stem
    return Plan(
        datasets=(
            DatasetEntry(
                name,
                table,
                class2id=table.with_suffix(".txt"),
                prompts=table.with_name(f"{name}-Zero_Shot_Prompts.txt"),
            ),
        ),
        encoders=ENCODERS,
        results=output / "results",
        tasks=tasks,
        seed=seed,
        size=size.pixels,
        settings=Settings(batch_size="auto", compile="off"),
        options=Options(n_shot=size.shots, n_neighbors=size.neighbors),
    )


@dataclass
class DemoSteps:
    """Prints one line per step with its time, and remembers which was the slowest."""

    console: Console
    total: int
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Measure one step."""
        began = time.perf_counter()
        yield
        self.seconds[what] = time.perf_counter() - began
        place = f"{len(self.seconds)}/{self.total}"
        self.console.print(f"{place} {what:<58} {self.seconds[what]:6.1f} s", soft_wrap=True)

    def total_line(self) -> str:
        """How long everything took; where that is long, what took the time."""
        total = sum(self.seconds.values())
        slowest = max(self.seconds, key=lambda what: self.seconds[what])
        late = f"; the longest step: {slowest}" if total > ANNOUNCED else ""
        return f"{total:.0f} s in all{late}"


@contextlib.contextmanager
def _going_on(console: Console) -> Iterator[None]:
    """Say what cannot be done here, and continue."""
    try:
        yield
    except HistobenchError as error:
        console.print(f"left out: {error}", soft_wrap=True)


def build_pages(output: Path, console: Console) -> Path | None:
    """The web pages of everything the demo has made; None where all of it failed."""
    from histobench.report.site import build_site

    if not any(output.rglob("*_complete_results.json")):
        return None
    with console.status("building the web pages"):
        return build_site(output, output / "site", title="histobench demo")


# The language-model part: published episodes played again; in the full demo also a small model.


def play_agents(output: Path, console: Console, size: DemoSize) -> list[Cell]:
    """Play the episodes; where the model or the sandbox is missing, say so and continue."""
    from histobench.mint import runs

    recording = Path(runs.__file__).parent / "demo_recording"
    agent = f"replay:{next(recording.glob('*.jsonl.gz'))}"
    played = _play_episodes(output, console, agent=agent, tasks="gsm8k", data=str(recording))
    if size.language_model:
        played += _play_episodes(output, console, **SMALL_MODEL)
    return played


def _play_episodes(output: Path, console: Console, **options: Any) -> list[Cell]:
    from histobench.cli.mint import progress_display
    from histobench.mint.runs.play import play
    from histobench.mint.runs.run_options import RunOptions

    run = RunOptions(**options, output=str(output / AGENTS))
    with _going_on(console):
        played = play(run, lambda counter: progress_display(open_terminal(error=True), counter))
        return [cell.cell for cell in played.cells]
    return []


def print_agents(output: Path, cells: Sequence[Cell], console: Console) -> None:
    """One line per agent."""
    from histobench.mint.results.episode_summary import summarise_cell

    for cell in cells:
        summary = summarise_cell(output / AGENTS, cell)
        if summary is None:
            continue
        bounds = summary.interval
        interval = "" if bounds.low is None else f" [{100 * bounds.low:.0f}, {100 * (bounds.high or 0):.0f}]"
        console.print(f"Agents: {cell.model} solves {summary.success_rate:.0f}%{interval} of "
                      f"{summary.episodes} tasks of {cell.dataset}.", soft_wrap=True)  # fmt: skip


# The Consult part: a small study with reference agents; in the full demo also a small model that asks.


def play_consult(
    table: Path, output: Path, console: Console, size: DemoSize, *, seed: int = 0
) -> Path | None:
    """Prepare and play a study; where something is missing, say so and continue."""
    study = output / CONSULT
    with _going_on(console):
        with console.status("asking every encoder about the cases"):
            _prepare_study(table, study, size, seed)
        for policy in size.policies:
            _play_study(study, "all", agent=f"policy:{policy}", max_tokens=800)
        with _going_on(console):
            if size.language_model:
                _play_study(study, "strong", **CONSULTING_MODEL)
        return study
    return None


def print_study(study: Path, console: Console) -> None:
    """Print the accuracy of the final answers: agents x encoders that they may ask."""
    from histobench.cli.consult_results import print_accuracy
    from histobench.consult.findings import findings_of

    print_accuracy(findings_of(study).lines(), console)
    console.print(
        "always-trust repeats the encoder; rational follows it only where it is probably right.\n",
        soft_wrap=True,
    )


def _prepare_study(table: Path, study: Path, size: DemoSize, seed: int) -> None:
    from histobench.consult.preparing import prepare
    from histobench.consult.study_plan import StudyPlan
    from histobench.roi.data.source import load_dataset
    from histobench.roi.options import Settings

    dataset = load_dataset(table, classes_file=table.with_suffix(".txt"))
    plan = StudyPlan(
        ENCODERS,
        size.arms,
        cases=size.cases,
        seed=seed,
        organ="colon",
        region="a synthetic tile that a program has drawn to look like tissue",
        measured=5,
        sequence_length=24,
        size=size.pixels,
        settings=Settings(compile="off"),  # as in the demo's own run, whose features are in the cache
    )
    prepare(dataset, plan, study)


def _play_study(study: Path, arms: str, **options: Any) -> None:
    from functools import partial

    from histobench.cli.mint import progress_display
    from histobench.consult.playing import play
    from histobench.consult.study_plan import ConsultRun
    from histobench.mint.runs.run_options import RunOptions

    run = ConsultRun(str(study), RunOptions(**options), arms, outcomes=True)
    outcome = play(run, display=partial(progress_display, open_terminal(error=True))).outcome
    if not outcome.complete:
        raise HistobenchError("; ".join(map(str, outcome.problems)) or "some episodes were not finished")
