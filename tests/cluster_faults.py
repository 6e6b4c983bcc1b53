"""Faults on a real cluster of two nodes: is anything lost, different, paid twice or left behind?

One process plays a small benchmark and a small run of agents undisturbed. Then a cluster does the same, one
fault happens at a random moment, and the command is repeated, as a user would: it must end with 0, and the
results must be the same, byte for byte except dates. Agents ask a server that counts.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from fault_tools import SBATCH, contents, provider, write_work
from two_nodes import (
    LIMIT,
    RayCluster,
    SlurmCluster,
    begin,
    environment_of,
    opened,
    processes,
    send,
    wait_for,
)

COMMON = ["driver kill", "driver term", "driver stop", "worker kill", "worker term", "worker stop"]
COMMON += ["node", "damage", "two drivers"]
FAULTS = {"ray": [*COMMON, "head"], "slurm": [*COMMON, "sbatch", "late sbatch", "requeue", "cancel"]}
#: What ends workers, and how many answers they may be waiting for then: two each.
DEADLY, UNDER_WAY = {"driver kill", "driver term", "worker kill", "worker term", "node", "damage", "head"}, 4
DEADLY |= {"requeue", "cancel"}
SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
TRACKS = ("roi", "agents")
#: Seconds of a fault that passes.
PASSING = 2.0, 7.0


class Harness:
    """A cluster, and two pieces of work whose outcome is known."""

    def __init__(self, engine: str, folder: Path) -> None:
        self.folder, self.engine, self.log = folder, engine, folder / "commands.log"
        self.shared, self.fault = folder / "shared", folder / "fault"
        for name in ("bin", "shared"):
            (folder / name).mkdir(parents=True)
        (folder / "bin" / "sbatch").write_text(SBATCH.format(fault=self.fault, sbatch=shutil.which("sbatch")))
        (folder / "bin" / "sbatch").chmod(0o755)
        self.made = opened(
            engine,
            folder,
            HISTOBENCH_CACHE=str(self.shared / "cache"),
            PATH=f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        )
        self.server = provider()
        write_work(folder, self.shared / "results")
        self._alone: dict[str, Path] = {}
        self._seconds: dict[str, float] = {}

    def command(self, track: str, *flags: str) -> list[str]:
        """Return the command, in one process or with the flags of a cluster."""
        program = [sys.executable, "-m", "histobench.cli.main"]
        if track == "roi":
            tasks = ("--slurm", "tasks=2") if "slurm" in flags else ()
            return [*program, "run", str(self.folder / "plan.yaml"), *flags, *tasks]
        mint = ["mint", "run", "--agent", f"openai:m@{self.server.url}", "--tasks", "gsm8k", "-o"]
        mint += [str(self.shared / "results"), "--data", str(self.folder / "data"), "--concurrency", "2"]
        mint += [*flags, "--workers", "2"] if flags else []
        return [*program, *mint]

    def alone(self, track: str) -> Path:
        """Return the results of one process that nothing disturbs."""
        if track not in self._alone:
            self.tidy()
            began = time.monotonic()
            assert begin(self.made, self.command(track), self.log).wait(timeout=LIMIT) == 0
            self._seconds[track] = time.monotonic() - began
            self._alone[track] = (self.shared / "results").rename(self.folder / f"alone-{track}")
        return self._alone[track]

    def tidy(self) -> None:
        """Forget all results, and what was asked."""
        for place in ("results", "cache"):
            shutil.rmtree(self.shared / place, ignore_errors=True)
        self.server.bodies.clear()
        self.log.write_text("")

    def play(self, track: str) -> int:
        """Run the command to its end, and that of its jobs; return its exit code."""
        process = begin(self.made, self.command(track, *self.made.flags), self.log)
        try:
            code = process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            send(process.pid)
            process.wait()
            raise TimeoutError("the command does not end") from None
        wait_for(self.made.is_idle, LIMIT, "jobs do not end")
        return code

    def suffer(self, track: str, fault: str, rng: random.Random) -> tuple[bool, list[str]]:
        """Play with a fault at a random moment, repeat the command.

        Return whether the fault met anything, and all that is wrong then.
        """
        self.alone(track)
        self.tidy()
        self.fault.write_text("")
        if "sbatch" in fault:
            self.fault.write_text(f"{fault.split()[0]} {rng.randint(1, 3) if track == 'roi' else 1}\n")
        first = begin(self.made, self.command(track, *self.made.flags), self.log)
        time.sleep(rng.uniform(0.0, 1.5 * self._seconds[track]))
        has_met = self._hurt(track, fault, rng, first)
        try:
            first.wait(timeout=LIMIT)
            if fault != "late sbatch":
                wait_for(self.made.is_idle, LIMIT, "jobs do not end")
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            send(first.pid)
            return True, [f"the first command: {error}"]
        if fault == "damage":
            has_met = self._damage(rng)
        if "sbatch" in fault:
            has_met = self.fault.read_text().split()[-1] == "0"
        if fault == "head":
            self.made.stop()
            self.made.start()
        self.fault.write_text("")
        code = self.play(track)
        if code == 2 and fault == "late sbatch":  # the job was there by then, and is waited for
            code = self.play(track)
        problems = [f"the repeated command ended with {code}"] if code else []
        problems += [f"different: {name}" for name in self.differences(track)]
        twice = len(self.server.bodies) - len(set(self.server.bodies))
        # A worker that is killed loses the answers that are under way.
        if twice > (UNDER_WAY if fault in DEADLY else 0):
            problems.append(f"{twice} questions paid twice")
        problems += re.findall(r"^Traceback.*|^\*\*\* SIG.*", self.log.read_text(), re.MULTILINE)
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: not self.left(), 30, "")
        return has_met, problems + [f"left: {line}" for line in self.left()]

    def _hurt(self, track: str, fault: str, rng: random.Random, first: subprocess.Popen[bytes]) -> bool:
        """Do harm, and wait until a fault that passes is over; return whether anything was hurt."""
        made, seconds = self.made, rng.uniform(*PASSING)
        who, _, what = fault.partition(" ")
        if who in ("worker", "requeue", "cancel"):
            self._victims(first)
        workers, running = made.workers(), first.poll() is None
        if what in SIGNALS:
            pids = workers[:1] if who == "worker" else [first.pid][: int(running)]
            for pid in pids:
                send(pid, SIGNALS[what])
            if what == "stop":
                time.sleep(seconds)
                for pid in pids:
                    send(pid, signal.SIGCONT)
            return bool(pids)
        if fault == "node":
            made.kill_node()
            return bool(workers)
        if fault == "damage":
            send(first.pid)
        elif fault == "two drivers":
            begin(made, self.command(track, *made.flags), self.log).wait(timeout=LIMIT)
            return running
        elif fault == "head" and isinstance(made, RayCluster):
            made.kill_head()
            return running
        elif isinstance(made, SlurmCluster):  # requeue, cancel
            jobs = made.running()[:1]
            for job in jobs:
                made.run(*(("scontrol", "requeue") if fault == "requeue" else ("scancel",)), job, check=False)
            return bool(jobs)
        return True

    def _victims(self, first: subprocess.Popen[bytes]) -> list[int]:
        """Workers, as soon as there are some."""
        with contextlib.suppress(TimeoutError):
            wait_for(lambda: bool(self.made.workers()) or first.poll() not in (None, 0), 30, "")
        return self.made.workers()

    def _damage(self, rng: random.Random) -> bool:
        """Damage some entries of the run folder; return whether there is one."""
        runs = [path.parent for path in self.shared.glob("results/*/runs/*/units.jsonl")]
        entries = sorted(
            path for run in runs for path in [*run.rglob("*"), run / "claims", run / "driver.json"]
        )
        for path in rng.sample(entries, min(3, len(entries))):
            how = rng.choice(["garbage", "empty", "link", "folder"])
            if how in ("garbage", "empty") and path.is_file():
                path.write_bytes(rng.randbytes(80) if how == "garbage" else b"")
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                path.mkdir() if how == "folder" else path.symlink_to(self.folder / "images")
        return bool(entries)

    def left(self) -> list[str]:
        """Return processes of the work that are still there."""
        marker = f"HISTOBENCH_CACHE={self.shared}"
        mine = {
            pid: line for pid, (_, line) in processes().items() if "histobench" in line or "RayWorker" in line
        }
        return [line for pid, line in mine.items() if pid != os.getpid() and marker in environment_of(pid)]

    def differences(self, track: str) -> list[str]:
        """Return what is not as one process made it."""
        ours, theirs = (contents(track, folder) for folder in (self.alone(track), self.shared / "results"))
        return sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name))
