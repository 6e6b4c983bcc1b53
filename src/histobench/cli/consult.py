"""`histobench consult`: study how well agents use the image encoders that they may ask."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from histobench.cli.entry import Command
from histobench.cli.flags import DATA, WorkersFlags, check_engine_flags, engine_of, out_option
from histobench.cli.mint import INCOMPLETE
from histobench.cli.terminal import in_flags, open_terminal, say
from histobench.consult.study_plan import RUN_OPTIONS, ConsultRun, ReadsStudy, study_options
from histobench.core.records import Declared, add_flags, from_flags, given_flags, option, options_of, record
from histobench.mint.runs.run_options import CONSULT_MAX_TOKENS, RunOptions
from histobench.roi.options import DATA_GROUP, Origin

CONSULT_COMMANDS = {
    "prepare": Command("consult:prepare", "create a study from a dataset: cases and recorded tool answers"),
    "register": Command("consult:register", "register the contrasts of a study before agents play"),
    "run": Command("consult:run", "run an agent or a reference policy on the cases of a study"),
    "table": Command("consult_results:table", "print accuracy, contrasts, trust and cost, with intervals"),
    "power": Command("consult_results:power", "compute how many cases the next study needs"),
    "compare": Command("consult_results:compare", "compare two agents on the same cases"),
}


def consult_command() -> None:
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


@record
class PrepareFlags(Origin):
    """The flags of `consult prepare` besides the options of a study."""

    data: str = option(DATA, default="", positional=True, required=True)
    encoders: tuple[str, ...] = option(
        "STRONG[,WEAK[,RANDOM]], such as uni_v1,resnet50,random-vit",
        default=(),
        metavar="NAME,...",
        required=True,
    )
    arms: str = option(
        "arms, separated by commas; `default`: those of the registered contrasts and one per encoder; "
        "`all`: every arm",
        default="default",
    )
    out: str = out_option("folder of the study", default="consult")
    classes: str | None = option(
        "class mapping file", default=None, default_text="from the labels or folder names", group=DATA_GROUP
    )


def prepare_flags(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, [*options_of(PrepareFlags), *study_options()])


def prepare_command(args: argparse.Namespace) -> int:
    """Create a study: choose cases, run every encoder once, and record the answers
    of all tools in all arms.

    Name encoders in the order strong, weak, random. Features come from the cache if
    they were computed before. The study can be shared without the images: running
    it needs neither a GPU nor images.

    Examples:
      histobench consult prepare crc.csv --encoders uni_v1,efficientnet-lite0,random-vit --out study/
      histobench consult prepare tiles/ --split 0.6/0.2/0.2 --encoders uni_v1,random-vit --arms none,strong
    """
    from histobench.cli.extract import display
    from histobench.consult.preparing import plan_study, prepare
    from histobench.roi.data.source import load_dataset

    flags = from_flags(PrepareFlags, args)
    plan = plan_study(flags.encoders, flags.arms, given_flags(args, study_options()))
    dataset = load_dataset(
        flags.data, classes_file=flags.classes, seed=plan.seed, **given_flags(args, options_of(Origin))
    )
    study = prepare(dataset, plan, flags.out, progress=display())
    for encoder in study.facts.encoders:
        say(
            f"{encoder.role:<7} {encoder.name}: linear probe {100 * encoder.probe_accuracy:.1f}%, "
            f"KNN {100 * encoder.knn_accuracy:.1f}% of test images right"
        )
    for caution in study.facts.cautions:
        say(in_flags(f"caution: {caution}"), error=True)
    if any(check.blind for check in study.facts.blinding):
        say("Blinding: does the form of their answers tell two encoders apart? (AUC; 0.5: no)")
    for check in study.facts.blinding:
        if check.blind:
            say(f"  {check.sentence}")
    answers = f"{len(study.cassette.rows):,} recorded answers"
    say(f"{len(study.cases)} cases, {answers}, {len(study.facts.arms)} arms in {flags.out}")
    say(f"Next: histobench consult run {shlex.quote(flags.out)} --agent policy:reader")
    return 0


@record
class RegisterFlags(ReadsStudy):
    file: Path = option("JSON file of contrasts", default=Path(), positional=True, required=True)


def register_command(args: RegisterFlags) -> int:
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


def _options_of_any_run() -> list[Declared]:
    """The options of `mint run` that a study has, too, some with another default."""
    agent = "agent or reference policy, such as policy:reader"
    said: dict[str, dict[str, Any]] = {
        "agent": {"help": agent, "default_text": None, "required": True},
        "limit": {"help": "use a stratified random sample of N cases (in sequence arms: whole sequences)"},
        "output": {"default_text": "runs in the study's folder"},
    }
    found = [each for each in options_of(RunOptions) if each.name in RUN_OPTIONS]
    found = [replace(each, said=replace(each.said, **said.get(each.name, {}))) for each in found]
    return [
        replace(each, default=CONSULT_MAX_TOKENS) if each.name == "max_tokens" else each for each in found
    ]


def run_flags(parser: argparse.ArgumentParser) -> None:
    shared = _options_of_any_run()
    add_flags(parser, [*options_of(ReadsStudy), *options_of(ConsultRun), *shared, *options_of(WorkersFlags)])


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

    check_engine_flags(args)
    wanted = asked_for(args)
    if engine_of(args) != "local":
        return _run_elsewhere(args, wanted)
    played = play(wanted, display=partial(progress_display, open_terminal(error=True)))
    print_summary(played.output, [cell.cell for cell in played.cells], played.outcome)
    elsewhere = ["--results", args.output] if args.output else []
    say(f"Next: {shlex.join(['histobench', 'consult', 'table', args.study, *elsewhere])}")
    return 0 if played.outcome.complete else INCOMPLETE


def asked_for(args: argparse.Namespace) -> ConsultRun:
    options = RunOptions.of(args)
    if args.max_tokens is None:
        options = replace(options, max_tokens=CONSULT_MAX_TOKENS)
    return ConsultRun(args.study, options, **given_flags(args, options_of(ConsultRun)))


def _run_elsewhere(args: argparse.Namespace, wanted: ConsultRun) -> int:
    """Let workers on other machines play the parts of the run."""
    from histobench.cli.mint import share_out
    from histobench.consult.playing import StudyRun, plan_run

    study, planned, output = plan_run(wanted, elsewhere=True)
    more = {each.name: getattr(wanted, each.name) for each in options_of(ConsultRun)}
    more |= {
        "study": str(study.folder.absolute()),
        "arms": ",".join(cell.dataset.name.rpartition("@")[2] for cell, _ in planned),
    }
    return share_out(args, wanted.options, lambda: (planned, output), StudyRun, more)
