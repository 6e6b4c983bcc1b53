"""Have other models grade the answers of finished runs against a rubric, and check them against a person.

The rubric is a YAML file: `rubric` (when an answer deserves which grade), `grades`, and `passes` (the grades
that are good enough; default: the first). The first call writes grades.csv and sample.csv to the output
folder. A person fills the column `label` of sample.csv; the same command with --labels then prints Cohen's
kappa of each grader with the person (answers that were graded are not asked for again). Success rates of
`mint table` are those of the exact checkers and never change.

Examples:
  histobench mint grade mint-results --rubric rubric.yaml --grader openai:gpt-4o --grader anthropic:MODEL
  histobench mint grade mint-results --rubric rubric.yaml --grader openai:gpt-4o --labels grades/sample.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.whole_lines import whole_lines
from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from histobench.mint.agents.agent import Player
    from histobench.mint.agents.factory import Terms
    from histobench.mint.rubric import Graded, Rubric
    from histobench.statistics.tests import Agreement

SAMPLE, GRADES, CALLS = "sample.csv", "grades.csv", "calls.jsonl"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is graded, by whom, against what."""
    parser.add_argument("results", help="folder of finished runs")
    parser.add_argument("--rubric", required=True, help="YAML file with `rubric`, `grades` and `passes`")
    parser.add_argument(
        "--grader",
        action="append",
        required=True,
        help="a model that grades, as --agent of `mint run`; again for more",
    )
    parser.add_argument("-o", "--output", default="grades", help="folder of the grades (default: grades)")
    parser.add_argument("--labels", help="sample.csv with its column `label` filled by a person")
    parser.add_argument("--sample", type=int, default=50, help="answers for the person (default: 50)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (default: 0)")
    parser.add_argument("--limit", type=int, help="grade only the first N answers")
    parser.add_argument("--concurrency", type=int, default=8, help="answers at a time (default: 8)")
    parser.add_argument("--max-cost", type=float, help="dollars that grading may cost")
    parser.add_argument("--prices", help="YAML file of prices, as for `mint run`")
    parser.add_argument("--max-tokens", type=int, default=512, help="of one grader's reply (default: 512)")


def run(args: argparse.Namespace) -> None:
    """Grade, write, and tell how far graders and person agree."""
    from histobench.mint.agents.cache import AnswerCache
    from histobench.mint.agents.factory import Terms
    from histobench.mint.agents.limits import CostTracker, read_prices
    from histobench.mint.rubric import agreements, grade, read_answers, read_labels, read_rubric

    for name in ("sample", "concurrency", "max_tokens", "limit"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise HistobenchError(f"--{name.replace('_', '-')} must be at least 1, not {value}")
    rubric = read_rubric(args.rubric)
    labels = read_labels(args.labels, rubric) if args.labels else None
    answers = read_answers(args.results)[: args.limit]
    if not answers:
        raise HistobenchError(f"no episode in {args.results} has given an answer")
    output = Path(args.output)
    cache = AnswerCache(output / "answers.sqlite")
    costs = CostTracker(max_cost=args.max_cost, spent=cache.spent())
    terms = Terms(concurrency=args.concurrency, cache=cache, prices=read_prices(args.prices), costs=costs)
    graders = _open(args, terms)
    try:
        graded = grade(answers, rubric, graders, concurrency=args.concurrency)
    finally:
        for player in graders.values():
            player.close()
        cache.close()
    _keep(output, graded, args)
    _print(graded, rubric, agreements(graded, labels))
    if not labels:
        whole_lines().print(
            f"Fill the column `label` of {output / SAMPLE}, then give it with --labels: without a person's "
            "labels nobody knows whether the graders are right.",
            soft_wrap=True,
        )


def _open(args: argparse.Namespace, terms: Terms) -> dict[str, Player]:
    from histobench.mint.agents.completion import Sampling
    from histobench.mint.agents.factory import open_player
    from histobench.mint.agents.limits import find_price
    from histobench.mint.agents.spec import parse_agent

    graders: dict[str, Player] = {}
    for text in args.grader:
        spec = parse_agent(text)
        if args.max_cost is not None and spec.is_endpoint and find_price(spec.target, terms.prices) is None:
            raise HistobenchError(f"--max-cost needs the price of {spec.target}; give it with --prices")
        if str(spec) in graders:
            raise HistobenchError(f"--grader {spec} is given twice")
        sampling = Sampling(max_tokens=args.max_tokens)
        graders[str(spec)] = open_player(spec, terms, sampling=sampling, stop=())
    return graders


def _keep(output: Path, graded: Sequence[Graded], args: argparse.Namespace) -> None:
    import json

    from histobench.core.files import atomic_path
    from histobench.mint.rubric import write_grades, write_sample

    write_grades(output / GRADES, graded)
    with atomic_path(output / CALLS) as temporary:
        lines = [json.dumps(call, default=str) for row in graded for call in row.calls]
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    if not (output / SAMPLE).exists():  # a person may be at work on it
        write_sample(output / SAMPLE, graded, args.sample, seed=args.seed)


def _print(graded: Sequence[Graded], rubric: Rubric, found: Mapping[tuple[str, str], Agreement]) -> None:
    from rich.table import Table

    from histobench.mint.rubric import pass_rates

    rates = Table(box=None, pad_edge=False)
    for title in ("run", "grader"):
        rates.add_column(title)
    for title in ("answers", "passed", "95 % interval"):
        rates.add_column(title, justify="right")
    for (run, name), (n, share, low, high) in pass_rates(graded, rubric).items():
        rates.add_row(run, name, str(n), f"{100 * share:.1f} %", f"{100 * low:.1f} to {100 * high:.1f}")
    whole_lines().print(rates)
    ungraded = sum(said is None for row in graded for said in row.grades.values())
    if ungraded:
        whole_lines().print(f"{ungraded} replies gave no grade of the rubric and are left out")
    for problem in sorted({problem for row in graded for problem in row.problems})[:5]:
        whole_lines().print(f"not graded: {problem}", soft_wrap=True)
    if not found:
        return
    table = Table(box=None, pad_edge=False)
    for title in ("agreement of", "with"):
        table.add_column(title)
    for title in ("answers", "same grade", "kappa", "95 % interval"):
        table.add_column(title, justify="right")
    for (first, second), agreement in found.items():
        interval = agreement.interval
        unknown = interval.low is None or interval.high is None
        table.add_row(
            second,
            first,
            str(agreement.n),
            f"{100 * agreement.observed:.1f} %",
            "-" if agreement.kappa is None else f"{agreement.kappa:.2f}",
            interval.reason if unknown else f"{interval.low:.2f} to {interval.high:.2f}",
        )
    whole_lines().print(table)
