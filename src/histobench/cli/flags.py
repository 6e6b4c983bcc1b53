"""Flags that several commands share, and how their values are read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError
from histobench.core.plain_data import LARGEST
from histobench.core.records import add_flags, given_flags, options_of
from histobench.core.text import listed
from histobench.roi.options import Origin, TargetOptions

if TYPE_CHECKING:
    from histobench.roi.data.source import DatasetSource
    from histobench.roi.options import Plan
    from histobench.work.engines import Engine


def positive(text: str) -> int:
    """A whole number of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, found {text!r}")
    return value


def seed(text: str) -> int:
    """A whole number of at least 0 that tables can hold."""
    digits = text.strip()
    if not digits.isdecimal() or len(digits) > 19 or int(digits) > LARGEST:
        shown = text if len(text) <= 40 else f"{text[:40]}..."
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least 0 (at most {LARGEST}), found {shown!r}"
        )
    return int(digits)


def required(text: str, flag: str, what: str) -> list[str]:
    """The items of a comma-separated flag, at least one; `what` they are is said where there is none."""
    items = listed(text)
    if not items:
        raise HistobenchError(f"{flag} is empty: name at least one {what}")
    return items


def add_results(parser: argparse.ArgumentParser) -> None:
    """The results folder of a command that reads one."""
    parser.add_argument(
        "results",
        nargs="?",
        default="results",
        help="results folder, searched with all its subfolders (default: results)",
    )


# How a dataset is read.


def add_source_flags(parser: Any, *, target: bool = True) -> None:
    """Split, groups, sites and (where `target` is wanted) the target; to a parser or a group of arguments."""
    add_flags(parser, (*options_of(Origin), *(options_of(TargetOptions) if target else ())))


def source_from(args: argparse.Namespace, source: str) -> DatasetSource:
    """The dataset that the flags describe."""
    from histobench.roi.data.source import DatasetSource

    return DatasetSource(
        source,
        classes_file=args.class2id_txt,
        name=args.dataset_name,
        seed=args.seed,
        **given_flags(args, options_of(Origin)),
        **(given_flags(args, options_of(TargetOptions)) if "target" in args else {}),
    )


# Where a plan runs: this process, a Ray cluster, Slurm.

#: Which engines a flag is for.
_ENGINES_OF_FLAG = {
    "ray_address": ("ray",),
    "slurm": ("slurm",),
    "slurm_cpu": ("slurm",),
    "workers": ("ray", "slurm"),
}


def add_workers_arguments(group: argparse._ArgumentGroup) -> None:
    """`--engine` of a run of agents, whose workers are all alike."""
    add_engine_choice(group, "local: this process (default); ray: a Ray cluster; slurm: Slurm jobs")
    group.add_argument("--workers", type=int, help="processes that share the episodes (default: 4)")
    group.add_argument(
        "--slurm", metavar="KEY=VALUE,...", help="options of the Slurm jobs, such as partition=cpu,mem=8G"
    )


def add_engine_choice(group: argparse._ArgumentGroup, which: str) -> None:
    """`--engine` and the address of a Ray cluster."""
    group.add_argument("--engine", choices=("local", "ray", "slurm"), default="local", help=which)
    group.add_argument(
        "--ray-address", help="address of the Ray cluster (default: the one of this machine, else a new one)"
    )


def check_engine_flags(args: argparse.Namespace) -> None:
    """Raise where a flag belongs to another engine than the one that is asked for."""
    for flag, engines in _ENGINES_OF_FLAG.items():
        if getattr(args, flag, None) is not None and args.engine not in engines:
            raise HistobenchError(f"--{flag.replace('_', '-')} needs --engine {' or '.join(engines)}")


def chosen_engine(args: argparse.Namespace, plan: Plan) -> Engine:
    """The engine that is asked for; flags of another one are a mistake."""
    check_engine_flags(args)
    if args.engine == "local":
        from histobench.roi.units.local_engine import LocalEngine

        return LocalEngine()
    if plan.settings.no_cache:
        raise HistobenchError("--no-cache needs --engine local: workers share the cache")
    if args.engine == "ray":
        from histobench.work.engines import RayEngine

        return RayEngine(args.ray_address)
    from histobench.work.clusters import read_options
    from histobench.work.engines import SlurmEngine

    common = read_options(plan.slurm, "slurm")
    apart = read_options(plan.slurm_cpu, "slurm_cpu")
    return SlurmEngine(common, apart)
