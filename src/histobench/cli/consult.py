"""`histobench consult`: study how well agents use the image encoders that they may ask."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from histobench.cli.entry import Command, add_commands
from histobench.cli.flags import add_workers_arguments, check_engine_flags, positive
from histobench.cli.mint import INCOMPLETE
from histobench.cli.terminal import in_flags, open_terminal, say
from histobench.core.records import Declared, add_flags, given_flags, options_of
from histobench.core.text import listed
from histobench.mint.configs.cell import CALLS
from histobench.mint.runs.run_options import CONSULT_MAX_TOKENS, RunOptions

if TYPE_CHECKING:
    from histobench.consult.playing import ConsultRun


CONSULT_COMMANDS = {
    "prepare": Command("consult:prepare", "create a study from a dataset: cases and recorded tool answers"),
    "register": Command(
        "consult:register",
        "register the contrasts of a study before agents play",
    ),
    "run": Command("consult:run", "run an agent or a reference policy on the cases of a study"),
    "table": Command("consult_results:table", "print accuracy, contrasts, trust and cost, with intervals"),
    "power": Command("consult_results:power", "compute how many cases the next study needs"),
    "compare": Command("consult_results:compare", "compare two agents on the same cases"),
}


def consult_flags(parser: argparse.ArgumentParser) -> None:
    """Add the commands of the group."""
    add_commands(parser, CONSULT_COMMANDS)


def consult_command(args: argparse.Namespace) -> int | None:
    """Study how well an agent uses an image encoder. The agent is fixed; the encoder
    that it may ask is randomized.

    Examples:
      histobench consult prepare crc.csv --encoders uni_v1,efficientnet-lite0,random-vit --out study/
      histobench consult run study/ --agent policy:reader --arms all
      histobench consult run study/ --agent openai:gpt-4o-mini --arms none,strong --max-cost 5
      histobench consult register study/ contrasts.json
      histobench consult table study/
      histobench consult compare study/ gpt-4o-mini policy-reader
      histobench consult power pilot/ gpt-4o-mini --delta 0.1
    """
    return CONSULT_COMMANDS[args.job].run(args)


# `histobench consult prepare`.


def prepare_flags(parser: argparse.ArgumentParser) -> None:
    """The dataset, the encoders, the arms and the wording of the cases."""
    from histobench.consult.study_plan import StudyPlan, extraction_options

    parser.add_argument("dataset", help="CSV file, folder of class folders, TAR shards, or a public name")
    data = parser.add_argument_group("dataset")
    data.add_argument("--classes", help="class mapping file")
    data.add_argument(
        "--split", help="shares of train/val/test if the data has no split, such as 0.6/0.2/0.2"
    )
    data.add_argument("--group-regex", help="regular expression that finds the patient or slide in a path")
    data.add_argument("--group-column", help="column of the CSV with the patient or slide")
    what = parser.add_argument_group("encoders and arms")
    what.add_argument(
        "--encoders", required=True, help="STRONG[,WEAK[,RANDOM]], such as uni_v1,resnet50,random-vit"
    )
    what.add_argument(
        "--arms",
        default="default",
        help="arms, separated by commas; `default`: those of the registered contrasts and one per encoder; "
        "`all`: every arm (default: default)",
    )
    what.add_argument("--out", default="consult", help="folder of the study (default: consult)")
    add_flags(parser, [*options_of(StudyPlan), *extraction_options()])


def prepare_command(args: argparse.Namespace) -> int:
    """Create a study: choose cases, run every encoder once, and record the answers
    of all tools in all arms.

    Name encoders in the order strong, weak, random. Features come from the cache if
    they were computed before. The study can be shared without the images: playing
    it needs neither a GPU nor images.

    Examples:
      histobench consult prepare crc.csv --encoders uni_v1,efficientnet-lite0,random-vit --out study/
      histobench consult prepare tiles/ --split 0.6/0.2/0.2 --encoders uni_v1,random-vit --arms none,strong
    """
    from histobench.cli.extract import display
    from histobench.consult.arms import parse_arms
    from histobench.consult.preparing import prepare
    from histobench.consult.study_plan import StudyPlan, assign_roles, extraction_options
    from histobench.roi.data.source import load_dataset
    from histobench.roi.options import Settings

    names = tuple(listed(args.encoders))
    arms = tuple(parse_arms(args.arms, list(assign_roles(names))))
    dataset = load_dataset(
        args.dataset,
        classes_file=args.classes,
        split=args.split,
        group_regex=args.group_regex,
        group_column=args.group_column,
        seed=args.seed or 0,
    )
    settings = Settings(**given_flags(args, extraction_options()))
    plan = StudyPlan(names, arms, **given_flags(args, options_of(StudyPlan)), settings=settings)
    study = prepare(dataset, plan, args.out, progress=display())
    for encoder in study.facts.encoders:
        say(
            f"{encoder.role:<7} {encoder.name}: probe {100 * encoder.probe_accuracy:.1f} %, "
            f"KNN {100 * encoder.knn_accuracy:.1f} % of test images, temperature {encoder.temperature:.3g}"
        )
    for caution in study.facts.cautions:
        say(in_flags(f"caution: {caution}"), error=True)
    say(
        f"{len(study.cases)} cases, {len(study.cassette.rows)} recorded answers, "
        f"{len(study.facts.arms)} arms in {args.out}"
    )
    for check in study.facts.blinding:
        if check.blind:
            say(f"blinding: {check.sentence}")
    return 0


# `histobench consult register`.


def register_flags(parser: argparse.ArgumentParser) -> None:
    """The study and the file."""
    parser.add_argument("study", help="folder that `histobench consult prepare` wrote")
    parser.add_argument("file", type=Path, help="JSON file of contrasts")


def register_command(args: argparse.Namespace) -> int:
    """Register contrasts of a study with the time of registration. The table shows
    which were registered before an agent played.

    The file is a JSON list: [{"name": "dose", "measure": "u_wrong", "arm":
    "wrong-50", "against": "strong"}]. Measures: final, over_tool (without
    `against`), u_right, u_wrong, discrimination. In sequence arms `part` is after
    (the last quarter; default) or before (the last quarter before the change).

    Examples:
      histobench consult register study/ contrasts.json
    """
    from histobench.consult.study import open_study, read_contrasts, register_contrasts

    study = open_study(args.study)
    register_contrasts(study.folder, read_contrasts(args.file), study.facts.arms)
    for contrast in open_study(args.study).contrasts:
        say(f"{contrast.name}: {contrast.words} (registered {contrast.registered})")
    return 0


# `histobench consult run`.

#: Flags that every worker of a run must know besides those of all runs of agents.
MORE = ("arms", "calls", "pictures", "expert", "outcomes")


def _options_of_any_run() -> list[Declared]:
    """The options of `mint run` that a study has, too, some with another default."""
    shared = {
        *("repeat", "name", "output", "sandbox", "concurrency", "max_cost", "max_tokens", "temperature"),
        *("top_p", "seed", "reasoning_effort", "reasoning_history", "constrain", "cache", "prices"),
        *("attempts", "timeout", "rpm", "tpm", "balance", "batch"),
    }
    found = {each.name: each for each in options_of(RunOptions) if each.name in shared}
    output = found["output"]
    found["output"] = replace(output, said=replace(output.said, default_text="runs in the study's folder"))
    found["max_tokens"] = replace(found["max_tokens"], default=CONSULT_MAX_TOKENS)
    return list(found.values())


def run_flags(parser: argparse.ArgumentParser) -> None:
    """The agent, the arms and the output folder."""
    parser.add_argument("study", help="folder that `histobench consult prepare` wrote")
    what = parser.add_argument_group("what is run")
    what.add_argument("--agent", required=True, help="agent or reference policy, such as policy:reader")
    what.add_argument(
        "--arms", default="all", help="arms, separated by commas (default: all without an expert)"
    )
    what.add_argument(
        "--limit",
        type=positive,
        help="use a stratified random sample of N cases (in sequence arms: whole sequences)",
    )
    what.add_argument(
        "--outcomes",
        action="store_true",
        help="in sequence arms, tell the agent after each case whether its final answer was right",
    )
    what.add_argument("--pictures", action="store_true", help="the agent sees the region and may look(box)")
    what.add_argument("--expert", help="the agent that gives feedback in the arm expert")
    what.add_argument(
        "--calls",
        choices=CALLS,
        help="how the agent acts: tags in its text, or function calls (default: text; policies: native)",
    )
    add_flags(parser, _options_of_any_run())
    add_workers_arguments(parser.add_argument_group("advanced: where it runs (docs/how-to/cluster.md)"))


def run_command(args: argparse.Namespace) -> int:
    """Run an agent on the cases of a study. Finished episodes are kept: repeat the
    command to continue.

    Agents: policy:always-trust, policy:never-trust, policy:reader,
    policy:rational, policy:learner, policy:oracle, policy:random (reference agents
    that need no language model), and every agent of `histobench mint run`
    (openai:MODEL, anthropic:MODEL, gemini:MODEL, local:, human, replay:FILE, ...).

    Examples:
      histobench consult run study/ --agent policy:reader --arms all
      histobench consult run study/ --agent openai:gpt-4o-mini --arms none,strong --calls native --max-cost 5
      histobench consult run study/ --agent openai:gpt-4o-mini --arms sequence,sequence-same --outcomes
      histobench consult run study/ --agent openai:M@http://localhost:8000/v1 --arms none,strong --pictures
    """
    from histobench.cli.mint import print_summary, progress_display
    from histobench.consult.playing import play

    if args.engine != "local":
        return _run_elsewhere(args)
    check_engine_flags(args)
    played = play(asked_for(args), display=partial(progress_display, open_terminal(error=True)))
    print_summary(played.output, [cell.cell for cell in played.cells], played.outcome)
    return 0 if played.outcome.complete else INCOMPLETE


def asked_for(args: argparse.Namespace) -> ConsultRun:
    """The run that the flags ask for."""
    from histobench.consult.playing import ConsultRun

    more = {name: getattr(args, name) for name in ("study", *MORE)}
    options = RunOptions.of(args)
    if args.max_tokens is None:
        options = replace(options, max_tokens=CONSULT_MAX_TOKENS)
    return ConsultRun(options=options, **more)


def _run_elsewhere(args: argparse.Namespace) -> int:
    """Let workers on other machines play the parts of the run."""
    from histobench.cli.mint import share_out
    from histobench.consult.playing import StudyRun, plan_run

    check_engine_flags(args)
    wanted = asked_for(args)
    study, planned, output = plan_run(wanted, elsewhere=True)
    more = {name: getattr(args, name) for name in MORE}
    more |= {
        "study": str(study.folder.absolute()),
        "arms": ",".join(cell.dataset.name.rpartition("@")[2] for cell, _ in planned),
    }
    return share_out(args, wanted.options, lambda: (planned, output), StudyRun, more)
