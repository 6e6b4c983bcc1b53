"""Workers of a run in parts on other machines: as an array of Slurm, or as tasks of a Ray cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from histobench.core import slurm
from histobench.core.atomic import write_json
from histobench.core.errors import HistobenchError
from histobench.mint.agents.spec import OWN_KEY, PLAIN_HTTP, PROVIDERS
from histobench.mint.runs.parted_run import PartedRun, play_part
from histobench.mint.runs.play import Display, Played, no_display
from histobench.mint.runs.writers import JOB

#: How often Ray gives a part whose worker or node was lost to another.
RETRIES = 3
#: Seconds between two looks at how far the workers are.
PAUSE = 5.0
#: What a worker takes from the environment of the command; nothing of it is written down.
ENVIRONMENT = (*(name for _, names in PROVIDERS.values() for name in names), OWN_KEY, PLAIN_HTTP)


#: Plays a part of the run that a file describes; at the top of a module, so that workers find it.
PlayPart = Callable[[Path, int, Display], Played]


def submit(run: PartedRun, options: Mapping[str, str], *, track: str = "mint") -> str:
    """Queue an array with one task for each part, `histobench TRACK part`; gives the job's number."""
    logs = run.folder.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    job = slurm.submit_array(
        "agents",
        [track, "part", str(run.file.absolute()), "$SLURM_ARRAY_TASK_ID"],
        tasks=run.parts,
        options=options,
        script=run.file.with_suffix(".sh"),
        logs=logs,
    )
    write_json(run.file.with_suffix(JOB), {"job": job})
    return job


def play_on_ray(run: PartedRun, watch: Callable[[], None], play: PlayPart = play_part) -> list[str]:
    """Have all parts played by the cluster that `connect` found; gives what kept workers from going on."""
    import ray

    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_play)
    waiting = [
        task.remote(str(run.file.absolute()), number, os.getcwd(), environment, play)
        for number in range(run.parts)
    ]
    problems: list[str] = []
    try:
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=PAUSE)
            with contextlib.suppress(HistobenchError):  # a glance that fails is no reason to end the workers
                watch()
            for one in ready:
                try:
                    problems += [text for text in ray.get(one) if text not in problems]
                except ray.exceptions.RayTaskError as error:
                    cause = getattr(error, "cause", None) or error
                    problems.append(f"a worker ended: {type(cause).__name__}: {cause}")
                except ray.exceptions.RayError as error:
                    problems.append(f"a worker was lost {RETRIES + 1} times: {str(error).splitlines()[0]}")
    finally:
        ray.shutdown()
    return problems


def _play(file: str, number: int, place: str, environment: dict[str, str], play: PlayPart) -> Sequence[str]:
    """What runs on a node."""
    os.chdir(place)
    os.environ.update(environment)
    try:
        outcome = play(Path(file), number, no_display).outcome
    except HistobenchError as error:
        return [str(error)]
    return [*outcome.problems, *([outcome.stopped] if outcome.stopped else [])]
