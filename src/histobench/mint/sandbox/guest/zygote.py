"""The zygote: loads packages once, then forks one confined process per episode.

It never reads a byte that model code wrote: an episode talks to the host over a socket of its own.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from . import confinement, guest_episode, processes, seccomp
from .frames import Channel
from .scratch import remove_tree
from .syscalls import NEW_PID, PR_SET_CHILD_SUBREAPER, prctl, setns, unshare
from .watch import Watch

_FIRST_EPISODE_UID = 1_900_000_000  # a range that no distribution hands out
_UID_BLOCKS, _UIDS_PER_BLOCK = 100_000, 2048
_CHECK_SECONDS = 0.2


@dataclass
class Child:
    id: int
    pid: int
    scratch: str | None = None
    uid: int | None = None  # an id that no other process of the machine has
    reason: str = ""


@dataclass
class Zygote:
    control: socket.socket
    config: dict[str, Any]
    children: dict[int, Child] = field(default_factory=dict)  # by pid
    spawned: int = 0
    pid_namespace: int = -1

    def __post_init__(self) -> None:
        self.isolation = self.config["isolation"]  # namespaces, landlock or none
        own_mounts = (str(self.config["scratch_root"]), confinement.SHARED_MEMORY)
        self.watch = Watch(self.config["limits"], tmpfs=own_mounts if self.isolation == "namespaces" else ())

    def serve(self) -> None:
        if self.isolation == "namespaces":
            self.pid_namespace = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        else:
            # Whatever an episode leaves behind becomes a child of this process and can be found.
            prctl(PR_SET_CHILD_SUBREAPER, 1)
        seccomp.packed_filter(namespaces=self.isolation == "namespaces")  # so that no fork has to
        self._tell({"op": "ready"})
        try:
            self._loop()
        finally:
            while self.children:
                pid, child = self.children.popitem()
                _kill(pid)
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, 0)
                self._clear_away(child)
            if self.isolation != "namespaces":
                with contextlib.suppress(OSError):  # the host does it too, unless it was killed
                    os.rmdir(self.config["scratch_root"])

    def _loop(self) -> None:
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        checked = time.monotonic()
        while True:
            # Without children there is nothing to look at until the host has an order.
            if poller.poll(_CHECK_SECONDS * 1000 if self.children else None) and not self._obey():
                return
            self._reap()
            if time.monotonic() - checked >= _CHECK_SECONDS:
                self._police()
                checked = time.monotonic()

    def _obey(self) -> bool:
        try:
            payload, descriptors, _, _ = socket.recv_fds(self.control, 1 << 16, 1)
        except ConnectionError:  # the host is gone and left news unread
            return False
        if not payload:
            return False
        order = json.loads(payload)
        if order["op"] == "spawn":
            with socket.socket(fileno=descriptors[0]) as theirs:
                try:
                    self._spawn(order["id"], theirs.fileno())
                except OSError as error:  # out of processes or namespaces
                    Channel(theirs).send({"op": "refused", "why": str(error)})
        elif order["op"] == "kill":
            for child in self.children.values():
                if child.id == order["id"]:
                    _kill(child.pid)
        return True

    def _spawn(self, number: int, descriptor: int) -> None:
        self.spawned += 1
        child = Child(number, 0)
        if self.isolation != "namespaces":
            self._prepare_scratch(child)
        else:
            unshare(NEW_PID)
        gc.freeze()  # a collection in the child would otherwise touch, and so copy, every page
        child.pid = os.fork()
        if child.pid == 0:
            self._become_episode(child, descriptor)
        if self.isolation == "namespaces":
            setns(self.pid_namespace, NEW_PID)
        self.children[child.pid] = child

    def _prepare_scratch(self, child: Child) -> None:
        child.scratch = os.path.join(self.config["scratch_root"], f"{os.getpid()}-{self.spawned}")
        os.mkdir(child.scratch, 0o700)
        if os.getuid() == 0 and self.isolation == "landlock":
            child.uid = self._free_uid()
            os.chown(child.scratch, child.uid, child.uid)

    def _free_uid(self) -> int:
        """A user id that no other episode has: what limits or signals it reaches no other one."""
        taken = {child.uid for child in self.children.values()}
        block = _FIRST_EPISODE_UID + os.getpid() % _UID_BLOCKS * _UIDS_PER_BLOCK
        slots = (number % _UIDS_PER_BLOCK for number in itertools.count(self.spawned))
        return next(block + slot for slot in slots if block + slot not in taken)

    def _become_episode(self, child: Child, descriptor: int) -> None:
        status = 70
        try:
            self.control.detach()
            keep = os.dup2(descriptor, 3, inheritable=False)
            os.closerange(4, 1 << 16)
            os.setsid()
            channel = Channel(socket.socket(fileno=keep))
            try:
                self._confine(child)
            except OSError as error:
                channel.send({"op": "refused", "why": str(error)})
                return
            guest_episode.serve(channel, self.config)
            status = 0
        except (EOFError, KeyboardInterrupt):
            status = 0
        finally:
            os._exit(status)

    def _confine(self, child: Child) -> None:
        limits = self.config["limits"]
        if self.isolation == "namespaces":
            confinement.confine_in_namespaces(limits, scratch=self.config["scratch_root"])
            return
        scratch = str(child.scratch)
        os.environ.update(HOME=scratch, TMPDIR=scratch)
        if self.isolation == "landlock":
            confinement.confine_with_landlock(
                limits,
                readable=self.config["readable"],
                listable=self.config["listable"],
                scratch=scratch,
                uid=child.uid,
                behind_closed_folder=self.config["behind_closed_folder"],
            )
        else:
            os.chdir(scratch)
            confinement.stay_in_the_zygotes_hands()
            confinement.set_limits(limits, others=processes.threads_of(os.getuid()))

    def _reap(self) -> None:
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if child := self.children.pop(pid, None):
                self._clear_away(child)
                self._tell({"op": "exit", "id": child.id, "why": child.reason})

    def _clear_away(self, child: Child) -> None:
        if child.scratch:  # else the pid namespace took every process along, the mount namespace every file
            _kill_leftovers(set(self.children))
            remove_tree(child.scratch)

    def _police(self) -> None:
        for pid, reason in self.watch.look({c.pid: c.scratch for c in self.children.values()}).items():
            child = self.children[pid]
            child.reason = reason
            self._tell({"op": "exit", "id": child.id, "why": reason})  # now: its end can take a while
            _kill(pid)

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the host is not listening; the notice is a courtesy
            self.control.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)


def main() -> None:
    """Entry point inside the sandbox: `argv[1]` is the control socket's descriptor."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    config = json.loads(control.recv(1 << 20))
    sys.argv[:] = [""]
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    os.umask(0o077)
    try:
        guest_episode.prepare(config)
    except ImportError as error:
        control.send(json.dumps({"op": "failed", "why": f"cannot preload: {error}"}).encode())
        os._exit(1)
    os.dup2(null, 2)
    gc.collect()
    Zygote(control, config).serve()
    os._exit(0)


def _kill(pid: int, signal_number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal_number)


def _kill_leftovers(known: set[int]) -> None:
    """Kill all processes of this tree but `known`; stopped first, so that a fork bomb runs dry."""
    own, stopped = os.getpid(), set[int]()
    while left := _descendants(own, known) - stopped:
        for pid in left:
            _kill(pid, signal.SIGSTOP)
        stopped |= left
    for pid in stopped:
        _kill(pid)
    for pid in stopped:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _descendants(root: int, without: set[int]) -> set[int]:
    table = processes.process_table()
    return {row.pid for row in processes.trees([*without, root], table)[root]} - {root}
