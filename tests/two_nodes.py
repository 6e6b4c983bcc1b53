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
from collections.abc import Callable, Sequence
from pathlib import Path

#: No command may take longer; a hang is a failure.
LIMIT = 300.0


def wait_for(ready: Callable[[], bool], seconds: float, otherwise: str) -> None:
    """Look again and again, but not for ever."""
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(otherwise)
        time.sleep(0.1)


def send(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal, if the process is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def processes() -> dict[int, tuple[int, str]]:
    """Process number -> its parent and its command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(entry.name)] = parent, line
    return found


def environment_of(pid: int) -> str:
    """Return the environment with which a process was started; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode("utf-8", "replace")
    except OSError:
        return ""


def _below(pid: int) -> list[int]:
    every, found = processes(), [pid]
    for parent in found:
        found += [child for child, (its, _) in every.items() if its == parent]
    return found


class RayCluster:
    """A head and a second node, each with one core."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._ray = str(Path(sys.executable).with_name("ray"))
        # A busy machine starts slowly.
        patience = {"RAY_raylet_start_wait_time_s": "45", "RAY_gcs_server_request_timeout_seconds": "120"}
        # A token that another cluster has left in the user's home would keep the second node out.
        alike = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
        # Other tests fill the memory of this machine; Ray would kill workers for that.
        calm = {"RAY_memory_monitor_refresh_ms": "0"}
        self.environment = {**environment, **patience, **alike, **calm}
        self._port = _free_port()
        self._folder = folder
        self._nodes: list[subprocess.Popen[bytes]] = []
        # Unix sockets have short names: not below pytest's folders.
        self._temporary = tempfile.mkdtemp(prefix="ray-", dir="/tmp")

    @property
    def flags(self) -> tuple[str, ...]:
        """What commands need to use this cluster."""
        return "--engine", "ray", "--ray-address", f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start both nodes."""
        head = ["--head", f"--port={self._port}", f"--temp-dir={self._temporary}"]
        self._start(*head, "--include-dashboard=false", "--no-monitor")
        self._start(f"--address=127.0.0.1:{self._port}")

    def stop(self) -> None:
        """Kill both nodes."""
        while self._nodes:
            self._kill_node()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def kill_node(self) -> None:
        """Lose the second node, and start another."""
        self._kill_node()
        self._start(f"--address=127.0.0.1:{self._port}")

    def kill_head(self) -> None:
        """Lose the head, and with it the cluster; `start` begins a new one at the same address."""
        self._kill_node(0)

    def is_idle(self) -> bool:
        """Return whether nothing is queued: work ends with the command."""
        return True

    def workers(self) -> list[int]:
        """Return the processes that do units."""
        every, nodes = processes(), {pid for node in self._nodes for pid in _below(node.pid)}
        return [pid for pid in nodes if "RayWorker" in every.get(pid, (0, ""))[1]]

    def _kill_node(self, number: int = -1) -> None:
        node = self._nodes.pop(number)
        for pid in _below(node.pid):
            send(pid)
        node.wait(timeout=60)

    def _start(self, *flags: str, attempts: int = 5) -> None:
        """Start a node and wait for it; it gives up where its agents need more than 15 s."""
        agents = ("dashboard-agent-grpc", "dashboard-agent-listen", "runtime-env-agent", "metrics-export")
        named = [f"--{name}-port={_free_port()}" for name in agents]
        command = [self._ray, "start", *flags, *named, "--num-cpus=1", "--num-gpus=0", "--block"]
        command += ["--disable-usage-stats", "--include-log-monitor=false", "--object-store-memory=80000000"]
        said = self._folder / "node.log"
        with said.open("wb") as log:
            node = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        self._nodes.append(node)
        _hurry(node.pid, -10)
        wait_for(
            lambda: node.poll() is not None or b"Ray runtime started" in said.read_bytes(),
            LIMIT,
            "a node of the Ray cluster does not start",
        )
        if node.poll() is None:
            for pid in _below(node.pid):
                _hurry(pid, os.getpriority(os.PRIO_PROCESS, 0))
            return
        self._kill_node()
        if attempts == 1:
            raise RuntimeError(f"a node ended while it started: {said.read_text().strip().splitlines()[-1:]}")
        self._start(*flags, attempts=attempts - 1)


def _hurry(pid: int, nice: int) -> None:
    """Set the priority of a process: beside other work a node would not start in the time that it has."""
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, pid, nice)


class SlurmCluster:
    """A controller and two nodes with one core each. Needs root, slurm-wlm and munge."""

    flags = ("--engine", "slurm")

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._folder = folder / "slurm"
        self.environment = {**environment, "SLURM_CONF": str(self._folder / "slurm.conf")}
        self._daemons: list[int] = []
        # Unix sockets have short names: not below pytest's folders.
        self._munge = Path(tempfile.mkdtemp(prefix="munge-", dir="/tmp"))
        self._munged: subprocess.Popen[bytes] | None = None

    @staticmethod
    def missing() -> str:
        """Why there can be none here; empty if there can."""
        lacking = [name for name in ("munged", "slurmctld", "slurmd", "sbatch") if shutil.which(name) is None]
        if lacking:
            return f"not installed: {', '.join(lacking)} (apt-get install slurm-wlm munge)"
        return "" if os.geteuid() == 0 else "a Slurm of one's own needs root"

    def start(self) -> None:
        """Start a munge of its own, which no other cluster here can end, the controller and both nodes."""
        for name in ("state", "run", "log", "spool/n1", "spool/n2"):
            (self._folder / name).mkdir(parents=True)
        host = socket.gethostname().partition(".")[0]
        ports = [_free_port() for _ in range(3)]
        (self._folder / "slurm.conf").write_text(
            SLURM_CONF.format(folder=self._folder, host=host, ports=ports, munge=self._munge / "socket")
        )
        self._start_munge()
        self._daemon("ctld", "slurmctld")
        for node in ("n1", "n2"):
            self._daemon(f"slurmd.{node}", "slurmd", "-N", node)
        wait_for(
            lambda: self.run("sinfo", "-h", "-N", "-o", "%T").split() == ["idle"] * 2, LIMIT, "no idle nodes"
        )

    def stop(self) -> None:
        """End jobs, nodes and controller."""
        self.run("scancel", "--full", "--user", "root", check=False)
        self.run("scontrol", "shutdown", check=False)
        every = processes()
        for pid in self._daemons:  # one may still wait for a job that is gone
            if "slurm" in every.get(pid, (0, ""))[1]:
                send(pid)
        if self._munged is not None:
            self._munged.kill()
            self._munged.wait()
        shutil.rmtree(self._munge, ignore_errors=True)

    def _start_munge(self) -> None:
        folder, socket_, key = self._munge, str(self._munge / "socket"), self._munge / "key"
        folder.chmod(0o755)
        key.touch(0o600)
        key.write_bytes(os.urandom(64))
        files = [f"--{name}-file={folder / name}" for name in ("key", "log", "pid", "seed")]
        self._munged = subprocess.Popen(
            ["munged", "--foreground", f"--socket={socket_}", *files], stderr=subprocess.DEVNULL
        )
        works = ["munge", f"--socket={socket_}", "--no-input"]
        wait_for(
            lambda: subprocess.run(works, capture_output=True, timeout=30).returncode == 0,
            LIMIT,
            "munged does not start",
        )

    def is_idle(self) -> bool:
        """Return whether the queue is empty; a controller that is too busy to answer is asked again."""
        done = subprocess.run(["squeue", "-h"], env=self.environment, capture_output=True, timeout=LIMIT)
        return done.returncode == 0 and not done.stdout.strip()

    def running(self) -> list[str]:
        """Return the jobs that run now."""
        return self.run("squeue", "-h", "-t", "R", "-o", "%i", check=False).split()

    def workers(self) -> list[int]:
        """Return the processes that do units."""
        every = processes()
        below = {pid for step in self._steps() for pid in _below(step)}
        lines = {pid: every.get(pid, (0, ""))[1] for pid in below}
        return [pid for pid, line in lines.items() if "histobench.cli.main" in line and "bash" not in line]

    def kill_node(self) -> None:
        """Lose a node with its jobs, and start it again."""
        file = self._folder / "run" / "slurmd.n2.pid"
        below = [pid for step in self._steps() for pid in _below(step)]
        for pid in (int(file.read_text()), *below):
            send(pid)
        file.unlink()
        self._daemon("slurmd.n2", "slurmd", "-N", "n2")

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command of Slurm; return what it prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=LIMIT)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def _steps(self) -> list[int]:
        steps = [pid for pid, (_, line) in processes().items() if "slurmstepd" in line]
        return [pid for pid in steps if str(self._folder) in environment_of(pid)]

    def _daemon(self, name: str, *command: str) -> None:
        """Start one, and remember it."""
        self.run(*command)
        file = self._folder / "run" / f"{name}.pid"
        wait_for(
            lambda: file.is_file() and file.read_text().strip().isdigit(),
            LIMIT,
            f"{command[0]} does not start",
        )
        self._daemons.append(int(file.read_text()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def begin(made: RayCluster | SlurmCluster, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a command that uses the cluster; what it prints is added to a file."""
    with log.open("ab") as file:
        return subprocess.Popen(command, env=made.environment, stdout=file, stderr=file)


def opened(engine: str, folder: Path, **environment: str) -> RayCluster | SlurmCluster:
    """A cluster that is not started yet."""
    known = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **environment}
    known.pop("PYTHONDONTWRITEBYTECODE", None)  # each process would compile all that it imports
    return RayCluster(folder, known) if engine == "ray" else SlurmCluster(folder, known)


SLURM_CONF = """ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[2]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5,socket={munge}
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
SchedulerParameters=requeue_setup_env_fail,sched_interval=1,sched_min_interval=1,batch_sched_delay=0,bf_interval=1
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[0]} CPUs=1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=1 State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""
