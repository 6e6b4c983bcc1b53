"""`histobench mint table`, `compare`, `export`, `import` and `grade`: results of agents."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from histobench.cli.flags import out_option
from histobench.cli.mint import INCOMPLETE
from histobench.cli.terminal import open_terminal, print_table, say
from histobench.core.errors import HistobenchError, needing
from histobench.core.files import write_json, write_text
from histobench.core.records import Declared, add_flags, from_flags, option, options_of, record
from histobench.mint.runs.run_options import RunOptions

if TYPE_CHECKING:
    from histobench.mint.results.episode_outcome import EpisodeOutcome
    from histobench.mint.results.result_tables import GroupRow, LeaderboardRow
    from histobench.mint.results.stored_episode import StoredEpisode
    from histobench.mint.results.uncertainty import TriesRow
    from histobench.mint.rubric import Graded, Rubric
    from histobench.statistics.intervals import Interval
    from histobench.statistics.resampling import PairedDifference
    from histobench.statistics.tests import Agreement


_COUNTED = "what counts"


@record
class RunsFlags:
    results: tuple[str, ...] = option(
        "folders of runs, recordings or outcome tables",
        default=(),
        positional=True,
        required=True,
        metavar="RESULTS",
    )


@record
class MintTableFlags(RunsFlags):
    by: str = option(
        "one row per model (all), task family or dataset", default="all", choices=("all", "family", "dataset")
    )
    intervals: bool = option("add 95 % intervals and what the agents did", default=False)
    json: str | None = option("also write the table to this file, in the published shape", default=None)
    failures: str | None = option(
        "outcomes that count as failures, separated by commas, or all; other episodes are excluded from "
        "every rate",
        default=None,
        metavar="OUTCOMES",
        default_text="all except checker_error and provider_failure, which are played again",
        group=_COUNTED,
    )
    feedback_model: str = option("expert of the feedback column", default="gpt-4-0613", group=_COUNTED)
    feedback_type: str = option("kind of its feedback", default="no_GT-textual", group=_COUNTED)


def table_command(args: MintTableFlags) -> None:
    """Print the leaderboard: success rate SRk for every budget of k actions, slope
    per turn, and gain from expert feedback.

    Reads any mix of outcome tables (.csv, .csv.gz), recordings (*.k5.jsonl.gz) and
    folders of finished runs. --by family or --by dataset shows where a model is
    good; --intervals adds confidence intervals over tasks. A second table counts how
    the episodes ended; --failures chooses which outcomes count as failures. A model
    that was run with text and with native calls (`mint run --calls`) gets a line
    that compares both on the same tasks.

    Examples:
      histobench mint table mint-results
      histobench mint table mint-results --by dataset --intervals
    """
    from histobench.mint.outcomes import read_all_outcomes
    from histobench.mint.results.episode_outcome import FAILURES, NO_FEEDBACK, counted, parse_failures
    from histobench.mint.results.result_tables import group_rows, leaderboard
    from histobench.mint.results.uncertainty import tries_rows

    everything = [outcome for path in args.results for outcome in read_all_outcomes(path)]
    failures = FAILURES if args.failures is None else parse_failures(args.failures)
    outcomes = counted(everything, failures)
    if not outcomes:
        print_table(_outcome_counts(everything, failures))
        raise HistobenchError(f"no finished episode in {', '.join(args.results)}")
    standings = leaderboard(outcomes, feedback_model=args.feedback_model, feedback_type=args.feedback_type)
    standings.sort(key=lambda standing: -standing.rates.get(5, max(standing.rates.values(), default=0.0)))
    print_table([_standing(standing) for standing in standings])
    print_table(_outcome_counts(everything, failures))
    if args.intervals or args.by != "all":
        print_table([_group(row) for row in group_rows(outcomes, args.by)], lead=2)
    if args.intervals and any(outcome.feedback_model != NO_FEEDBACK for outcome in outcomes):
        print_table(_feedback(outcomes), lead=3)
    print_table([_tries(row) for row in tries_rows(outcomes)])
    if args.json:
        write_json(args.json, {standing.model: standing.as_published() for standing in standings})


def _standing(row: LeaderboardRow) -> dict[str, str]:
    from histobench.mint.results.result_tables import AVERAGE, display_name

    line = row.trend
    return {
        "model": display_name(row.model),
        **{f"SR{k}": f"{rate:.2f}" for k, rate in sorted(row.rates.items())},
        "slope": "" if line is None else f"{line.slope:.2f}",
        "R²": "" if line is None or line.r2 is None else f"{line.r2:.2f}",
        "SR5+expert": _number(row.with_feedback.get(AVERAGE), ".1f"),
        "gain": _number(row.feedback_gain, "+.1f"),
        "episodes": str(row.episodes),
    }


def _outcome_counts(outcomes: Sequence[EpisodeOutcome], failures: Collection[str]) -> list[dict[str, str]]:
    """How the episodes of each model went; in brackets what is left out of every rate."""
    from histobench.mint.results.episode_outcome import OUTCOMES, SOLVED
    from histobench.mint.results.result_tables import display_name

    found = Counter(outcome.outcome for outcome in outcomes)
    kinds = [name for name in OUTCOMES if found[name] or name in (SOLVED, "wrong")]
    runs: dict[str, Counter[str]] = {}
    for outcome in outcomes:
        runs.setdefault(outcome.model, Counter())[outcome.outcome] += 1
    return [
        {"outcomes of": f"{display_name(model)}:"}
        | {
            kind.replace("_", " "): f"{counts[kind]}" if kind in (SOLVED, *failures) else f"({counts[kind]})"
            for kind in kinds
        }
        for model, counts in sorted(runs.items())
    ]


def _group(row: GroupRow) -> dict[str, str]:
    from histobench.mint.results.result_tables import display_name

    return {
        "model": display_name(row.model),
        "tasks": row.group,
        **{f"SR{k}": f"{rate:.2f}" for k, rate in sorted(row.rates.items())},
        "95 % interval": _range(row.interval, 100),
        "of the slope": _range(row.slope),
        "actions": f"{row.actions:.1f}",
        "invalid": f"{100 * row.invalid_rate:.1f} %",
        "tokens": _number(row.tokens, ",.0f"),
        "episodes": str(row.episodes),
        "all tries": "" if row.pass_hat is None else f"{100 * row.pass_hat:.1f} % (of {row.tries})",
        "interval of all tries": _range(row.pass_hat_interval, 100),
    }


def _feedback(outcomes: Sequence[EpisodeOutcome]) -> list[dict[str, str]]:
    """Success with each expert, and the paired gain over the same tasks without one.

    The last column is the share of episodes in which the expert gave the answer away, of those where that can
    be judged.
    """
    from histobench.mint.results.episode_outcome import NO_FEEDBACK
    from histobench.mint.results.result_tables import display_name
    from histobench.mint.results.uncertainty import gain, success_rate

    runs: dict[tuple[str, str, str, int], list[EpisodeOutcome]] = {}
    alone: dict[tuple[str, int], list[EpisodeOutcome]] = {}
    for each in outcomes:
        if each.feedback_model == NO_FEEDBACK:
            alone.setdefault((each.model, each.k), []).append(each)
        else:
            runs.setdefault((each.model, each.feedback_model, each.feedback_type, each.k), []).append(each)
    rows = []
    for (model, expert, kind, k), played in sorted(runs.items()):
        judged = [outcome.leaked for outcome in played if outcome.leaked is not None]
        rows.append(
            {
                "model": display_name(model),
                "expert": expert,
                "feedback": kind,
                "k": str(k),
                "success": f"{success_rate(played) or 0.0:.2f}",
                **_difference("gain", gain(played, alone.get((model, k), []))),
                "episodes": str(len(played)),
                "answer given away": f"{100 * sum(judged) / len(judged):.1f} %" if judged else "",
            }
        )
    return rows


def _tries(row: TriesRow) -> dict[str, str]:
    from histobench.mint.results.result_tables import display_name

    return {
        "model, several tries": display_name(row.model),
        "k": str(row.k),
        "tasks": str(row.tasks),
        **{f"pass@{n}": f"{100 * share:.1f} %" for n, share in enumerate(row.pass_at, start=1)},
        **{f"pass^{n}": f"{100 * share:.1f} %" for n, share in enumerate(row.pass_hat, start=1) if n > 1},
        f"95 % interval of pass^{len(row.pass_hat)}": _range(row.interval, 100),
    }


def _difference(title: str, found: PairedDifference | None) -> dict[str, str]:
    if found is None:
        return {title: "", "95 % interval": "", "p": ""}
    return {
        title: f"{100 * found.difference:+.1f}",
        "95 % interval": _range(found.interval, 100, "+"),
        "p": f"{found.p_value:.3g}",
    }


def _range(interval: Interval | None, scale: float = 1, sign: str = "") -> str:
    if interval is None or interval.low is None or interval.high is None:
        return ""
    return f"{scale * interval.low:{sign}.1f} to {scale * interval.high:{sign}.1f}"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


#: The chance of any false claim in a table.
ALPHA = 0.05


@record
class MintCompareFlags(RunsFlags):
    first: str = option("MODEL or MODEL+EXPERT[/KIND]", default="", required=True)
    second: str = option("MODEL or MODEL+EXPERT[/KIND]", default="", required=True)
    k: int = option("budget of actions", default=5)
    seed: int = option("ignored; accepted for older commands", default=0)


def compare_command(args: MintCompareFlags) -> None:
    """Compare two agents (or one with and without an expert) on the tasks that both
    have played.

    Differences are paired by task (Student's t over tasks, within datasets). The
    p-values are also corrected for all rows of the table (Holm); the column `differ`
    goes by these at 5 %. RESULTS are folders of runs, recordings or outcome tables.
    --first and --second name a model, or MODEL+EXPERT for a run with feedback
    (MODEL+EXPERT/KIND if an expert gave several kinds).

    Examples:
      histobench mint compare outputs/ --first gpt-4o-mini --second SmolLM2-135M-Instruct
      histobench mint compare outputs/ --first gpt-4o-mini+placebo --second gpt-4o-mini
    """
    from histobench.mint.outcomes import read_outcomes
    from histobench.mint.results.agent_comparison import compare_agents, side_by_name

    outcomes = [outcome for path in args.results for outcome in read_outcomes(path)]
    compared = compare_agents(*side_by_name(outcomes, args.first, args.second, k=args.k))
    if not compared:
        raise HistobenchError(f"{args.first} and {args.second} have played fewer than two tasks in common")
    print_table(
        [
            {
                "tasks": row.group,
                "n": str(row.tasks),
                args.first: f"{100 * row.first_rate:.1f} %",
                args.second: f"{100 * row.second_rate:.1f} %",
                **_difference("difference", row.difference),
                f"p (Holm, {len(compared)})": f"{row.p_holm:.3g}",
                "differ": "yes" if row.p_holm <= ALPHA else "not shown",
                "only first/second": "/".join(map(str, row.solved_by_one)),
            }
            for row in compared
        ]
    )


@record
class MintExportFlags(RunsFlags):
    to: str = option("output format", default="", choices=("inspect", "jsonl"), required=True)
    out: str = out_option("output folder; for jsonl, a file", default="", required=True)


def export_command(args: MintExportFlags) -> None:
    """Export finished runs for other programs.

      --to inspect   logs of Inspect (*.eval), also for `mint table`
      --to jsonl     one line for each turn

    Examples:
      histobench mint export mint-results --to jsonl -o turns.jsonl
      histobench mint export mint-results --to inspect -o logs
    """
    from histobench.mint.results.stored_episode import find_result_files, read_files

    episodes = list(read_files([file for path in args.results for file in find_result_files(path)]))
    if not episodes:
        raise HistobenchError(f"no finished episodes in {', '.join(args.results)}")
    output = Path(args.out)
    if args.to == "inspect":
        with needing("logs of Inspect need pip install 'histobench[inspect]'"):
            from histobench.mint.inspect.inspect_logs import write_inspect_logs
        write_inspect_logs(episodes, output)
    else:
        lines = [json.dumps(line, ensure_ascii=False) + "\n" for each in episodes for line in _turns(each)]
        write_text(output, "".join(lines))
    say(f"{len(episodes)} episodes in {output}")


def _turns(episode: StoredEpisode) -> Iterator[dict[str, Any]]:
    """Who wrote what in which turn, how that was read, and how the episode ended."""
    from histobench.mint.envs.action import classify

    outcome = episode.outcome
    who = {"run": outcome.run_name, "dataset": outcome.task, "task_id": outcome.task_id}
    for number, (text, answer) in enumerate(episode.exchanges, start=1):
        yield {**who, "turn": number, "kind": classify(text).kind, "said": text, "answer": answer}
    yield {**who, "turn": None, "success": outcome.success, "terminate_reason": outcome.terminate_reason}


@record
class ImportFlags:
    logs: tuple[str, ...] = option(
        "Inspect logs (.eval or .json)", default=(), positional=True, required=True, metavar="LOG"
    )
    out: str = out_option("table to write (.csv)", default="", required=True)


def import_command(args: ImportFlags) -> None:
    """Import Inspect logs of any benchmark as a table of outcomes that `mint table`
    and `mint compare` read.

    Each sample becomes an episode with its task, id, tokens, and whether its first
    score says that it was solved. Fields that a log does not have (invalid actions)
    stay empty. The budget is the largest number of turns of any sample. Samples
    without a clear verdict are left out.

    Example:
      histobench mint import logs/*.eval -o outcomes.csv
    """
    from histobench.mint.outcomes import log_outcomes
    from histobench.mint.results.episode_outcome import write_outcome_table

    outcomes = [outcome for log in args.logs for outcome in log_outcomes(log)]
    if not outcomes:
        raise HistobenchError("no sample of these logs has a score that says solved or not solved")
    write_outcome_table(args.out, outcomes)
    say(f"{len(outcomes)} episodes in {args.out}")


SAMPLE, GRADES, CALLS = "sample.csv", "grades.csv", "calls.jsonl"
_OUTPUT = "grades"
#: The options that `mint grade` shares with `mint run`; with help where they mean something else.
_OF_A_RUN = {
    "output": "folder of the grades",
    "limit": "grade only the first N answers",
    "concurrency": "answers that are graded at the same time",
    "max_cost": "",
    "max_tokens": "",
    "prices": "",
}


@record
class GradeFlags:
    """The flags of `mint grade` besides those that it shares with `mint run`."""

    results: str = option("folder of finished runs", default="", positional=True, required=True)
    rubric: str = option("YAML file with `rubric`, `grades` and `passes`", default="", required=True)
    grader: tuple[str, ...] = option(
        "models that grade, as --agent of `mint run`; repeatable", default=(), required=True, metavar="AGENT"
    )
    labels: str | None = option("sample.csv with its column `label` filled by a person", default=None)
    sample: int = option("answers for a person to label", default=50, least=1)
    seed: int = option("seed of the sample", default=0)


def grade_flags(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, [*options_of(GradeFlags), *_options_of_grading()])


def _options_of_grading() -> list[Declared]:
    found = {each.name: each for each in options_of(RunOptions) if each.name in _OF_A_RUN}
    for name, text in _OF_A_RUN.items():
        if text:
            found[name] = replace(found[name], said=replace(found[name].said, help=text, default_text=None))
    output = found["output"]
    flag = replace(output.said, flag="--out", old=("--output",))
    found["output"] = replace(output, default=_OUTPUT, said=flag)
    return list(found.values())


def grade_command(args: argparse.Namespace) -> int:
    """Let other models grade the answers of finished runs against a rubric, and
    compare their grades with those of a person.

    The rubric is a YAML file: `rubric` (when an answer deserves which grade),
    `grades`, and `passes` (the grades that are good enough; default: the first).
    The first call writes grades.csv and sample.csv to the output folder. A person
    fills the column `label` of sample.csv; the same command with --labels then
    prints Cohen's kappa of each grader with the person (answers that were graded
    are not asked for again, nor after --max-cost was reached). Success rates of
    `mint table` are those of the exact checkers and never change.

    Examples:
      histobench mint grade mint-results --rubric rubric.yaml --grader openai:gpt-4o --grader anthropic:MODEL
      histobench mint grade mint-results --rubric rubric.yaml --grader openai:M --labels grades/sample.csv
    """
    from histobench.mint.agents.agent_spec import parse_agent
    from histobench.mint.agents.completion import Sampling
    from histobench.mint.agents.factory import open_player
    from histobench.mint.rubric import (
        agreements,
        grade,
        read_answers,
        read_labels,
        read_rubric,
        write_grades,
        write_sample,
    )
    from histobench.mint.runs.play import open_terms

    flags = from_flags(GradeFlags, args)
    options = RunOptions.of(argparse.Namespace(**{name: getattr(args, name) for name in _OF_A_RUN}))
    specs = [parse_agent(text) for text in flags.grader]
    for spec, times in Counter(map(str, specs)).items():
        if times > 1:
            raise HistobenchError(f"--grader {spec} is given twice")
    rubric = read_rubric(flags.rubric)
    labels = read_labels(flags.labels, rubric) if flags.labels else None
    answers = read_answers(flags.results)[: args.limit]
    if not answers:
        raise HistobenchError(f"no episode in {flags.results} has given an answer")
    output = Path(options.output or _OUTPUT)
    terms = open_terms(options, output, specs)
    sampling = Sampling(max_tokens=options.max_tokens)
    graders = {str(spec): open_player(spec, terms, sampling=sampling, stop=()) for spec in specs}
    try:
        graded, stopped = grade(answers, rubric, graders, concurrency=options.concurrency)
    finally:
        for player in graders.values():
            player.close()
        if terms.cache is not None:
            terms.cache.close()
    if graded:
        write_grades(output / GRADES, graded)
        calls = (json.dumps(call, default=str) for row in graded for call in row.calls)
        write_text(output / CALLS, "".join(f"{line}\n" for line in calls))
        _print(graded, rubric, agreements(graded, labels))
    if stopped:
        say(f"stopped: {stopped}")
        return INCOMPLETE
    if not (output / SAMPLE).exists():  # a person may be at work on it
        write_sample(output / SAMPLE, graded, flags.sample, seed=flags.seed)
    if not labels:
        open_terminal().print(
            f"Next: fill the column `label` of {output / SAMPLE}, then repeat with --labels to check the "
            "graders against a person."
        )
    return 0


def _print(graded: Sequence[Graded], rubric: Rubric, found: Mapping[tuple[str, str], Agreement]) -> None:
    from histobench.mint.rubric import pass_rates

    console = open_terminal()
    rates = [
        {
            "run": run,
            "grader": name,
            "answers": str(n),
            "passed": f"{100 * share:.1f} %",
            "95 % interval": f"{100 * low:.1f} to {100 * high:.1f}",
        }
        for (run, name), (n, share, low, high) in pass_rates(graded, rubric).items()
    ]
    print_table(rates, console, lead=2)
    ungraded = sum(row.grades[call["grader"]] is None for row in graded for call in row.calls)
    if ungraded:
        console.print(f"{ungraded} replies gave no grade of the rubric and are left out")
    for problem in sorted({problem for row in graded for problem in row.problems})[:5]:
        console.print(f"not graded: {problem}")
    rows = []
    for (first, second), agreement in found.items():
        low, high = agreement.interval.low, agreement.interval.high
        unknown = low is None or high is None
        rows.append(
            {
                "agreement of": second,
                "with": first,
                "answers": str(agreement.n),
                "same grade": f"{100 * agreement.observed:.1f} %",
                "kappa": "-" if agreement.kappa is None else f"{agreement.kappa:.2f}",
                "95 % interval": str(agreement.interval.reason) if unknown else f"{low:.2f} to {high:.2f}",
            }
        )
    print_table(rows, console, lead=2)
