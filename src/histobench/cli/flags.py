"""Flags that several commands share, and how their values are read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from histobench.core.errors import HistobenchError
from histobench.core.records import option, record

if TYPE_CHECKING:
    from histobench.roi.options import Plan
    from histobench.work.engines import Engine


#: Help texts that several commands share.
DATA = "CSV file, folder of class folders, TAR shards, or name of a public dataset"
WEIGHTS = "checkpoint, folder of checkpoints, or table like model_weights.json"
SKIP_FAILED = "run the other encoders if some are unknown or have no weights (default: start nothing)"
ENGINE_GROUP = "advanced: where it runs (docs/how-to/cluster.md)"


def out_option(help: str, *, default: str | None = None, **more: Any) -> Any:
    return option(help, default=default, also=("-o",), old=("--output",), **more)


def verbose_option(help: str, **more: Any) -> Any:
    return option(help, default=False, also=("-v",), **more)


#: Which engines a flag is for.
_ENGINES_OF_FLAG = {
    "ray_address": ("ray",),
    "slurm": ("slurm",),
    "slurm_cpu": ("slurm",),
    "workers": ("ray", "slurm"),
}


@record
class EngineFlags:
    engine: str = option(
        "local: this process; ray: a Ray cluster; slurm: Slurm jobs",
        default="local",
        choices=("local", "ray", "slurm"),
        group=ENGINE_GROUP,
    )
    ray_address: str | None = option(
        "address of the Ray cluster",
        default=None,
        default_text="the one of this machine, else a new one",
        group=ENGINE_GROUP,
    )


@record
class WorkersFlags(EngineFlags):
    """The engine of a run of agents, whose workers are all alike."""

    workers: int | None = option(
        "processes that share the episodes", default=None, default_text="4", group=ENGINE_GROUP
    )
    slurm: str | None = option(
        "options of the Slurm jobs, such as partition=cpu,mem=8G",
        default=None,
        metavar="KEY=VALUE,...",
        group=ENGINE_GROUP,
    )


def engine_of(args: argparse.Namespace) -> str:
    return args.engine or EngineFlags.engine


def check_engine_flags(args: argparse.Namespace) -> None:
    """Raise where a flag belongs to another engine than the one that is asked for."""
    for flag, engines in _ENGINES_OF_FLAG.items():
        if getattr(args, flag, None) is not None and engine_of(args) not in engines:
            raise HistobenchError(f"--{flag.replace('_', '-')} needs --engine {' or '.join(engines)}")


def chosen_engine(args: argparse.Namespace, plan: Plan) -> Engine:
    """The engine that is asked for; flags of another one are a mistake."""
    check_engine_flags(args)
    engine = engine_of(args)
    if engine == "local":
        from histobench.roi.units.local_engine import LocalEngine

        return LocalEngine()
    if plan.settings.no_cache:
        raise HistobenchError("--no-cache needs --engine local: workers share the cache")
    if engine == "ray":
        from histobench.work.engines import RayEngine

        return RayEngine(args.ray_address)
    from histobench.work.clusters import read_options
    from histobench.work.engines import SlurmEngine

    return SlurmEngine(read_options(plan.slurm, "slurm"), read_options(plan.slurm_cpu, "slurm_cpu"))
