"""Coverage of Consult's intervals and false claims of its contrasts, in simulated studies.

Agents of known trust meet cases in groups (patients): the tool's accuracy and whether the agent follows it
vary between groups with a latent normal effect (`icc`), half of the cases are drawn from the tool's errors
where there are enough, and everything goes through `Findings`, as in `histobench consult table`. The agent
behaves alike in all arms, so that the contrasts between arms are 0 in truth, and every claim (Holm) is false.
Every setting draws its own random numbers: with common ones, one unlucky draw would show in all settings of a
number of groups at once, and look like a fault of the method.

    python benchmarks/studies/consult_coverage.py --quick
    python benchmarks/studies/consult_coverage.py --workers 16 --simulations 1000
    python benchmarks/studies/consult_coverage.py --groups 24 --sizes lognormal --intervals-only
"""

from __future__ import annotations

import argparse
import itertools
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from histobench.consult.arms import select_cases
from histobench.consult.findings import StudyFindings
from histobench.consult.measures import Plays
from histobench.consult.study import Case, Study, StudyFacts, ToolView
from histobench.statistics.intervals import Interval

CLASSES = 5
PER_GROUP = 25
MEASURES = ("final", "over_tool", "u_right", "u_wrong", "discrimination")
#: In `wrong-25` one in four answers is wrong by design.
DOSE = 0.25
SEQUENCES, LENGTH = 8, 40


@dataclass(frozen=True)
class Setting:
    """One cell of the grid."""

    groups: int
    accuracy: float  # of the tool
    right: float  # how often the agent follows it when it is right
    wrong: float  # and when it is wrong
    icc: float
    sizes: str  # equal, or lognormal


@dataclass
class Tally:
    """Of all simulations of a setting: how many intervals there were and how many held the truth."""

    intervals: dict[str, list[int]]
    claims: int = 0
    tested: int = 0
    sequence_claims: int = 0
    sequence_tested: int = 0


def clustered(
    chance: float, group: NDArray[np.int64], icc: float, generator: np.random.Generator
) -> NDArray[np.bool_]:
    """Bernoulli draws with this mean whose latent normals correlate within groups."""
    shared = generator.normal(size=int(group.max()) + 1)[group]
    latent = np.sqrt(icc) * shared + np.sqrt(1 - icc) * generator.normal(size=len(group))
    drawn: NDArray[np.bool_] = latent < norm.ppf(chance)
    return drawn


def population(setting: Setting, generator: np.random.Generator) -> NDArray[np.int64]:
    """The group of every test region."""
    sizes = np.full(setting.groups, 4 * PER_GROUP)
    if setting.sizes == "lognormal":
        draw = generator.lognormal(0, 1, setting.groups)
        sizes = np.maximum(4, np.rint(draw / draw.sum() * 4 * PER_GROUP * setting.groups)).astype(np.int64)
    return np.repeat(np.arange(setting.groups), sizes)


def tool_of(
    reference: NDArray[np.int64], right: NDArray[np.bool_], generator: np.random.Generator
) -> NDArray[np.int64]:
    """A class for each region: the reference, or another one."""
    other = (reference + generator.integers(1, CLASSES, len(reference))) % CLASSES
    return np.where(right, reference, other)


def follow(
    setting: Setting,
    tool: NDArray[np.int64],
    reference: NDArray[np.int64],
    group: NDArray[np.int64],
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """Final answers of the agent: the tool's, or else any other class."""
    accepts = np.where(
        tool == reference,
        clustered(setting.right, group, setting.icc, generator),
        clustered(setting.wrong, group, setting.icc, generator),
    )
    return np.where(accepts, tool, (tool + generator.integers(1, CLASSES, len(tool))) % CLASSES)


def plays_of(
    arm: str,
    rows: NDArray[np.int64],
    reference: NDArray[np.int64],
    tool: NDArray[np.int64],
    final: NDArray[np.int64],
    sequence: NDArray[np.int64] | None = None,
    position: NDArray[np.int64] | None = None,
) -> Plays:
    n = len(rows)
    zeros = np.zeros((1, n))
    return Plays(
        agent="agent",
        arm=arm,
        rows=rows,
        reference=reference,
        tool=tool,
        tool_confidence=np.full(n, 0.5),
        sequence=np.full(n, -1) if sequence is None else sequence,
        position=np.zeros(n, dtype=np.int64) if position is None else position,
        first=np.zeros((1, n), dtype=np.int64),
        final=final[None],
        confidence=zeros + np.nan,
        deferred=zeros > 0,
        asked=zeros == 0,
        calls=zeros,
        tokens=zeros,
        cost=zeros,
    )


def simulate(setting: Setting, seed: int, *, only: str | None = None) -> StudyFindings:
    """One study: four arms and two sequence arms, in all of which the agent follows the same chances.

    `only` leaves out all arms but this one, without changing what is drawn for the first.
    """
    generator = np.random.default_rng([seed, zlib.crc32(repr(setting).encode())])
    group = population(setting, generator)
    reference = generator.integers(0, CLASSES, len(group))
    right = clustered(setting.accuracy, group, setting.icc, generator)
    tool = tool_of(reference, right, generator)
    chosen = select_cases(reference, ~right, count=setting.groups * PER_GROUP, seed=seed)
    kept = chosen.rows
    group, reference, tool = group[kept], reference[kept], tool[kept]
    rows = np.arange(len(kept))
    view = ToolView("e", "0", 0.5)
    names = tuple(map(str, range(CLASSES)))
    cases = tuple(
        Case(
            f"{row:08x}",
            "d",
            f"g{group[row]}",
            names,
            names[reference[row]],
            float(chosen.probability[row]),
            {"strong": view},
        )
        for row in rows
    )
    plays = {}
    wrong_by_design = np.isin(rows, generator.permutation(rows)[: round(DOSE * len(rows))])
    for arm in ("strong", "sure", "unsure", "wrong-25") if only is None else (only,):
        says = tool
        if arm == "wrong-25":
            says = np.where(wrong_by_design, (reference + 1) % CLASSES, tool)
        plays["agent", arm] = plays_of(
            arm, rows, reference, says, follow(setting, says, reference, group, generator)
        )
    length = min(LENGTH, len(rows))
    sequences = []
    for arm in ("sequence", "sequence-same") if only is None else ():
        order = np.concatenate(
            [np.random.default_rng([seed, k]).permutation(rows)[:length] for k in range(SEQUENCES)]
        )
        number, place = np.repeat(np.arange(SEQUENCES), length), np.tile(np.arange(length), SEQUENCES)
        # The same encoder in both: what differs after the change is chance alone.
        final = follow(setting, tool[order], reference[order], number, generator)
        plays["agent", arm] = plays_of(arm, order, reference[order], tool[order], final, number, place)
        sequences = [tuple(cases[row].id for row in order[number == k]) for k in range(SEQUENCES)]
    facts = StudyFacts(
        "d",
        names,
        (),
        ("strong", "sure", "unsure", "wrong-25", "sequence", "sequence-same"),
        seed,
        sequences=tuple(sequences),
    )
    return StudyFindings(Study(Path("/nonexistent"), facts, cases), plays)


def truths(setting: Setting) -> dict[str, float]:
    """The true values in arm strong."""
    wrong_final = (1 - setting.accuracy) * (1 - setting.wrong) / (CLASSES - 1)
    final = setting.accuracy * setting.right + wrong_final
    return {
        "final": final,
        "over_tool": final - setting.accuracy,
        "u_right": setting.right,
        "u_wrong": setting.wrong,
        "discrimination": setting.right - setting.wrong,
    }


def samples(setting: Setting, draws: int, seed: int) -> Iterator[tuple[str, float, Interval, float]]:
    """Of each study and measure: its name, estimate, interval and true value."""
    truth = truths(setting)
    for number in range(seed * 100_000, seed * 100_000 + draws):
        (line,) = simulate(setting, number, only="strong").lines()
        for name in MEASURES:
            estimate = line.estimates[name]
            if estimate.value is not None:
                yield name, estimate.value, estimate.interval, truth[name]


def run_setting(job: tuple[Setting, int, int, bool]) -> Tally:
    """Some simulations of one setting; the last of the job says whether contrasts are tested, too."""
    setting, first, count, contrasts = job
    tally = Tally({name: [0, 0] for name in MEASURES})
    truth = truths(setting)
    for seed in range(first, first + count):
        findings = simulate(setting, seed)
        strong = {("agent", "strong"): findings.plays["agent", "strong"]}
        (line,) = StudyFindings(findings.study, strong).lines()
        for name in MEASURES:
            interval = line.estimates[name].interval
            if interval.low is not None:
                tally.intervals[name][0] += 1
                tally.intervals[name][1] += interval.contains(truth[name])
        if not contrasts:
            continue
        null = [each for each in findings.contrasts("agent") if each.name in ("wrong-25", "sure", "sequence")]
        tested = [each for each in null if each.p_value is not None]
        tally.tested += bool(tested)
        tally.claims += any((each.adjusted or 1.0) <= 0.05 for each in tested)
        sequence = [each for each in tested if each.name == "sequence"]
        tally.sequence_tested += len(sequence)
        tally.sequence_claims += any((each.p_value or 1.0) <= 0.05 for each in sequence)
    return tally


def grid(quick: bool) -> list[Setting]:
    """The settings, those of few groups and rare errors among them."""
    if quick:
        return [Setting(12, 0.95, 0.9, 0.5, 0.3, "equal"), Setting(12, 0.8, 0.9, 0.3, 0.1, "lognormal")]
    return [
        Setting(*values)
        for values in itertools.product(
            (8, 12, 24, 40),
            (0.7, 0.85, 0.95),
            (0.95, 0.8),
            (0.8, 0.4),
            (0.0, 0.2, 0.5),
            ("equal", "lognormal"),
        )
    ]


def main() -> None:
    """Print a line for each setting, the worst first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--simulations", type=int, default=400, help="of each setting (default: 400)")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="two settings, 50 simulations each")
    parser.add_argument("--groups", type=int, help="only settings with so many groups")
    parser.add_argument("--sizes", choices=("equal", "lognormal"), help="only settings with such groups")
    parser.add_argument("--intervals-only", action="store_true", help="test no contrasts (ten times faster)")
    args = parser.parse_args()
    settings = [
        setting
        for setting in grid(args.quick)
        if args.groups in (None, setting.groups) and args.sizes in (None, setting.sizes)
    ]
    simulations = 50 if args.quick else args.simulations
    started = time.time()
    part = max(1, min(50, simulations))
    jobs = [
        (setting, args.seed + start, min(part, simulations - start), not args.intervals_only)
        for setting in settings
        for start in range(0, simulations, part)
    ]
    if args.workers > 1:
        with ProcessPoolExecutor(args.workers) as pool:
            tallies = list(pool.map(run_setting, jobs))
    else:
        tallies = [run_setting(job) for job in jobs]
    rows = []
    for setting in settings:
        mine = [tally for job, tally in zip(jobs, tallies, strict=True) if job[0] == setting]
        cover = {}
        for name in MEASURES:
            counts = np.array([tally.intervals[name] for tally in mine]).sum(axis=0)
            cover[name] = counts[1] / counts[0] if counts[0] else float("nan")
        tested, claims = sum(t.tested for t in mine), sum(t.claims for t in mine)
        rows.append((setting, cover, tested / simulations, claims / simulations))
    rows.sort(key=lambda row: min(row[1].values()))
    print(
        f"{'groups acc right wrong icc sizes':<38}"
        + "".join(f"{name[:9]:>10}" for name in MEASURES)
        + ("" if args.intervals_only else "    tested  claims")
    )
    for setting, cover, tested, claims in rows:
        numbers = (setting.accuracy, setting.right, setting.wrong, setting.icc)
        name = f"{setting.groups:>6} {' '.join(f'{number:g}' for number in numbers)} {setting.sizes}"
        print(
            f"{name:<38}"
            + "".join(f"{100 * cover[m]:>9.1f}%" for m in MEASURES)
            + ("" if args.intervals_only else f" {100 * tested:>8.1f}% {100 * claims:>6.1f}%")
        )
    large = [row for row in rows if row[0].groups >= 12] or rows
    print(f"from 12 groups: lowest coverage {100 * min(min(row[1].values()) for row in large):.1f} %")
    if not args.intervals_only:
        print(f"most false claims (Holm) {100 * max(row[3] for row in large):.1f} %")
    error = 100 * (0.95 * 0.05 / simulations) ** 0.5
    print(
        f"{simulations} simulations of {len(settings)} settings in {time.time() - started:.0f} s; "
        f"the standard error of a coverage of 95 % is {error:.1f} points"
    )


if __name__ == "__main__":
    main()
