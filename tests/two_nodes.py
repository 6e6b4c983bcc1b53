"""A real Ray or a real Slurm of two nodes on this machine, each with one core, that can be hurt at will."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

#: No command may take longer; a hang is a failure.
LIMIT = 600.0
#: Where a munged that was started here says which process it is.
MUNGED = Path("/run/munge/munged.pid")


def command(plan: Path, *more: str) -> list[str]:
    """`histobench run` in a process of its own."""
    return [sys.executable, "-m", "histobench.cli.main", "run", str(plan), *more]


def wait_for(ready: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Look again and again, but not for ever."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.2)


def descendants(pid: int) -> list[tuple[int, str]]:
    """The processes below one of ours, with their command lines."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, waiting = [], [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            waiting.append(child)
            try:
                line = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            found.append((child, line))
    return found


def kill(pid: int) -> None:
    """SIGKILL, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class RayCluster:
    """A head and a second node, each with one core; `inject` hurts them."""

    faults = ("worker", "node", "driver", "two drivers")

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._ray = str(Path(sys.executable).with_name("ray"))
        # A busy machine starts slowly.
        patience = {"RAY_raylet_start_wait_time_s": "120", "RAY_gcs_server_request_timeout_seconds": "120"}
        # A token that another cluster has left in the user's home would keep the second node out.
        alike = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        self.environment = {**environment, **patience, **alike}
        self._port = _free_port()
        self._folder = folder
        self._nodes: list[subprocess.Popen[bytes]] = []
        self._drivers: list[subprocess.Popen[bytes]] = []
        # Unix sockets have short names: not below pytest's folders.
        self._temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")

    @property
    def flags(self) -> tuple[str, ...]:
        """What `histobench run` is told."""
        return "--engine", "ray", "--ray-address", f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Both nodes."""
        (self._folder / "nodes.log").unlink(missing_ok=True)  # what a cluster before this one said
        self._start(
            "--head", f"--port={self._port}", "--include-dashboard=false", f"--temp-dir={self._temporary}"
        )
        wait_for(lambda: self._started(1), LIMIT, "the head of the Ray cluster does not start")
        self._start(f"--address=127.0.0.1:{self._port}")
        wait_for(lambda: self._started(2), LIMIT, "the second node of the Ray cluster does not start")

    def stop(self) -> None:
        """Everything that was started here."""
        for process in (*self._drivers, *self._nodes):
            below = descendants(process.pid)
            for pid in (process.pid, *(pid for pid, _ in below)):
                kill(pid)
            process.wait(timeout=60)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def submit(self, plan: Path) -> None:
        """Start a driver."""
        log = (self._folder / "drivers.log").open("ab")
        self._drivers.append(
            subprocess.Popen(command(plan, *self.flags), env=self.environment, stdout=log, stderr=log)
        )
        log.close()

    def is_done(self) -> bool:
        """Whether all drivers have ended."""
        return all(driver.poll() is not None for driver in self._drivers)

    def inject(self, fault: str, plan: Path) -> bool:
        """Do harm; False where there was nothing to harm just now."""
        if fault == "worker":
            workers = [
                pid for node in self._nodes for pid, line in descendants(node.pid) if "RayWorker" in line
            ]
            for pid in workers[:1]:
                kill(pid)
            return bool(workers)
        if fault == "node":
            node = self._nodes.pop()  # the second one: the head is the cluster itself
            for pid in (node.pid, *(pid for pid, _ in descendants(node.pid))):
                kill(pid)
            node.wait(timeout=60)
            self._start(f"--address=127.0.0.1:{self._port}")
            return True
        if fault == "driver":
            running = [driver for driver in self._drivers if driver.poll() is None]
            for driver in running:
                kill(driver.pid)
                driver.wait(timeout=60)
            self.submit(plan)
            return bool(running)
        self.submit(plan)
        return True

    def _start(self, *flags: str) -> None:
        # A node gives up where the agents are slow to tell their ports: the fewer to ask for, the better.
        agents = ("dashboard-agent-grpc", "dashboard-agent-listen", "runtime-env-agent", "metrics-export")
        named = [f"--{name}-port={_free_port()}" for name in agents]
        command = [self._ray, "start", *flags, *named, "--num-cpus=1", "--num-gpus=0", "--block"]
        command += ["--disable-usage-stats", "--object-store-memory=80000000"]
        log = (self._folder / "nodes.log").open("ab")
        node = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        log.close()
        self._nodes.append(node)

    def _started(self, nodes: int) -> bool:
        """Whether so many nodes have said that they are ready; RuntimeError where the last has given up."""
        said = (self._folder / "nodes.log").read_text(errors="replace")
        if self._nodes[-1].poll() is not None:
            raise RuntimeError(f"a node ended while it started: {said.strip().splitlines()[-1:]}")
        return said.count("Ray runtime started") == nodes


class SlurmCluster:
    """A controller and two nodes with one core each; `inject` hurts them. Needs root, slurm-wlm and munge."""

    faults = ("worker", "node", "requeue", "two drivers")

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder / "slurm"
        self.environment = {**environment, "SLURM_CONF": str(self._folder / "slurm.conf")}
        # Images are copied first, which must not change a byte either.
        self.flags = ("--engine", "slurm", "--slurm", "tasks=2", "--stage", str(folder / "node"))
        self._log = folder / "drivers.log"
        self._daemons: list[int] = []
        self._munged = 0  # where it was not running before

    @staticmethod
    def missing() -> str:
        """Why there can be none here; empty if there can."""
        lacking = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
        if lacking:
            return f"not installed: {', '.join(lacking)} (apt-get install slurm-wlm munge)"
        return "" if os.geteuid() == 0 else "a Slurm of one's own needs root"

    def start(self) -> None:
        """munge where it does not run, the controller and both nodes."""
        for name in ("state", "run", "log", "spool/n1", "spool/n2"):
            (self._folder / name).mkdir(parents=True)
        host = socket.gethostname().partition(".")[0]
        ports = [_free_port() for _ in range(3)]
        (self._folder / "slurm.conf").write_text(
            SLURM_CONF.format(folder=self._folder, host=host, ports=ports)
        )
        if subprocess.run(["munge", "-n"], capture_output=True, timeout=30).returncode != 0:
            Path("/run/munge").mkdir(exist_ok=True)
            shutil.chown("/run/munge", "munge", "munge")
            MUNGED.unlink(missing_ok=True)
            self._run("runuser", "-u", "munge", "--", "munged")
            wait_for(lambda: MUNGED.is_file() and bool(MUNGED.read_text()), LIMIT, "munged does not start")
            self._munged = int(MUNGED.read_text())
        self._daemon("ctld", "slurmctld")
        for node in ("n1", "n2"):
            self._daemon(f"slurmd.{node}", "slurmd", "-N", node)
        wait_for(
            lambda: self._run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * 2, LIMIT, "no idle nodes"
        )

    def stop(self) -> None:
        """Jobs, nodes and controller."""
        self._run("scancel", "--full", "--user", "root", check=False)
        self._run("scontrol", "shutdown", check=False)
        for pid in self._daemons:  # one may still wait for a job that is gone
            if "slurm" in _line(pid):
                kill(pid)
        if self._munged and "munged" in _line(self._munged):
            os.kill(self._munged, signal.SIGTERM)  # it has a socket to tidy up

    def submit(self, plan: Path) -> None:
        """Have the jobs queued."""
        done = subprocess.run(
            command(plan, *self.flags), env=self.environment, capture_output=True, text=True, timeout=LIMIT
        )
        with self._log.open("a") as log:
            log.write(done.stdout + done.stderr)

    def is_done(self) -> bool:
        """Whether the queue is empty; a controller that is too busy to answer is asked again."""
        done = subprocess.run(["squeue", "-h"], env=self.environment, capture_output=True, timeout=LIMIT)
        return done.returncode == 0 and not done.stdout.strip()

    def inject(self, fault: str, plan: Path) -> bool:
        """Do harm; False where there was nothing to harm just now."""
        if fault == "requeue":
            jobs = self._run("squeue", "-h", "-t", "R", "-o", "%i", check=False).split()
            for job in jobs[:1]:
                self._run("scontrol", "requeue", job, check=False)
            return bool(jobs)
        if fault == "two drivers":
            self.submit(plan)
            return True
        steps = [
            (pid, line)
            for pid, line in descendants(1)
            if "slurmstepd" in line and str(self._folder) in _env(pid)
        ]
        below = [pid for step, _ in steps for pid, line in descendants(step)]
        workers = [pid for pid in below if "histobench.cli.main" in _line(pid) and "bash" not in _line(pid)]
        if fault == "worker":
            for pid in workers[:1]:
                kill(pid)
            return bool(workers)
        file = self._folder / "run" / "slurmd.n2.pid"
        kill(int(file.read_text()))
        file.unlink()
        for pid in (*below, *(pid for pid, _ in steps)):
            kill(pid)
        self._daemon("slurmd.n2", "slurmd", "-N", "n2")
        return True

    def _daemon(self, name: str, *command: str) -> None:
        """Start one, and remember it."""
        self._run(*command)
        file = self._folder / "run" / f"{name}.pid"
        wait_for(
            lambda: file.is_file() and file.read_text().strip().isdigit(),
            LIMIT,
            f"{command[0]} does not start",
        )
        self._daemons.append(int(file.read_text()))

    def _run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=LIMIT)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout


def _line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def _env(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def opened(engine: str, folder: Path) -> RayCluster | SlurmCluster:
    """A cluster with a cache of its own, not yet started."""
    environment = {**os.environ, "HISTOBENCH_CACHE": str(folder / "cache-cluster"), "HF_HUB_OFFLINE": "1"}
    return RayCluster(folder, environment) if engine == "ray" else SlurmCluster(folder, environment)


SLURM_CONF = """ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[2]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/ctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/ctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
SlurmdTimeout=10
KillWait=5
BatchStartTimeout=20
SchedulerParameters=requeue_setup_env_fail
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
