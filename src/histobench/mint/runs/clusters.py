"""Workers of a run in parts on other machines: as an array of Slurm, or as tasks of a Ray cluster."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from histobench.core import slurm
from histobench.core.atomic import write_json
from histobench.core.errors import HistobenchError
from histobench.core.reading import files_below, read_note
from histobench.mint.results.stored_episode import WRITERS
from histobench.mint.runs.parted_run import RUNS, PartedRun, play_part
from histobench.mint.runs.play import no_display

#: Ends the name of the file that tells the number of a run's job.
JOB = ".job"
#: How often Ray gives a part whose worker or node was lost to another.
RETRIES = 3
#: Seconds between two looks at how far the workers are.
PAUSE = 1.0
#: What a worker takes from the environment of the command; nothing of it is written down.
ENVIRONMENT = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "GEMINI_API_KEY",
    "HISTOBENCH_API_KEY",
    "HISTOBENCH_KEY_OVER_HTTP",
)


def check_queue(output: Path) -> None:
    """Raise while jobs of an earlier command are queued: two arrays would play the same episodes."""
    for path in files_below(output / WRITERS / RUNS, JOB, deep=False):
        job = str((read_note(path) or {}).get("job", ""))
        if job and (tasks := slurm.queued_tasks(job)):
            raise HistobenchError(
                f"job {job} of Slurm plays {output} with {tasks} tasks; wait for it, or end it: scancel {job}"
            )


def submit(run: PartedRun, options: Mapping[str, str]) -> str:
    """Queue an array with one task for each part; gives the job's number."""
    logs = run.folder.parent / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    job = slurm.submit_array(
        "agents",
        ["mint", "part", str(run.file.absolute()), "$SLURM_ARRAY_TASK_ID"],
        tasks=run.parts,
        options=options,
        script=run.file.with_suffix(".sh"),
        logs=logs,
    )
    write_json(run.file.with_suffix(JOB), {"job": job})
    return job


def play_on_ray(run: PartedRun, watch: Callable[[], None]) -> list[str]:
    """Have all parts played by the cluster that `connect` found; gives what kept workers from going on."""
    import ray

    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    task = ray.remote(num_cpus=1, max_retries=RETRIES)(_play)
    waiting = [
        task.remote(str(run.file.absolute()), number, os.getcwd(), environment) for number in range(run.parts)
    ]
    problems: list[str] = []
    try:
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1, timeout=PAUSE)
            watch()
            for one in ready:
                try:
                    problems += [text for text in ray.get(one) if text not in problems]
                except ray.exceptions.RayError as error:
                    problems.append(f"a worker was lost {RETRIES + 1} times: {str(error).splitlines()[0]}")
    finally:
        ray.shutdown()
    return problems


def _play(file: str, number: int, place: str, environment: dict[str, str]) -> Sequence[str]:
    """What runs on a node."""
    os.chdir(place)
    os.environ.update(environment)
    try:
        outcome = play_part(Path(file), number, no_display).outcome
    except HistobenchError as error:
        return [str(error)]
    return [*outcome.problems, *([outcome.stopped] if outcome.stopped else [])]
