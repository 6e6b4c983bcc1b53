"""The flags that say where a plan is run: this process, a Ray cluster, Slurm."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from histobench.core.errors import HistobenchError

if TYPE_CHECKING:
    from histobench.roi.options import Plan
    from histobench.roi.work.engines.local import Engine


#: Which engines a flag is for.
_ENGINES_OF_FLAG = {
    "ray_address": ("ray",),
    "slurm": ("slurm",),
    "slurm_cpu": ("slurm",),
    "workers": ("ray", "slurm"),
}


def add_workers_arguments(group: argparse._ArgumentGroup) -> None:
    """`--engine` of a run of agents, whose workers are all alike."""
    add_engine_choice(group, "this process (default), a Ray cluster, or Slurm jobs")
    group.add_argument("--workers", type=int, help="processes that share the episodes (default: 4)")
    group.add_argument("--slurm", metavar="KEY=VALUE,...", help="options of the jobs: partition=cpu,mem=8G")


def add_engine_choice(group: argparse._ArgumentGroup, which: str) -> None:
    """`--engine` and the address of a Ray cluster."""
    group.add_argument("--engine", choices=("local", "ray", "slurm"), default="local", help=which)
    group.add_argument("--ray-address", help="the cluster (default: the one of this machine, else a new one)")


def check_engine_flags(args: argparse.Namespace) -> None:
    """Raise where a flag belongs to another engine than the one that is asked for."""
    for flag, engines in _ENGINES_OF_FLAG.items():
        if getattr(args, flag, None) is not None and args.engine not in engines:
            raise HistobenchError(f"--{flag.replace('_', '-')} goes with --engine {' or '.join(engines)}")


def chosen_engine(args: argparse.Namespace, plan: Plan) -> Engine:
    """The engine that is asked for; flags of another one are a mistake."""
    check_engine_flags(args)
    if args.engine == "local":
        from histobench.roi.work.engines.local import LocalEngine

        return LocalEngine()
    if plan.settings.no_cache:
        raise HistobenchError("--no-cache goes with --engine local: workers meet in the cache")
    if args.engine == "ray":
        from histobench.roi.work.engines.ray import RayEngine

        return RayEngine(args.ray_address)
    from histobench.core.clusters import read_options
    from histobench.roi.work.engines.slurm import SlurmEngine

    common = read_options(plan.slurm, "slurm")
    apart = read_options(plan.slurm_cpu, "slurm_cpu")
    return SlurmEngine(common, apart)
