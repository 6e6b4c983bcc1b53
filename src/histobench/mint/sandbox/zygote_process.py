"""The host's handle on one zygote: start it, ask it for episodes, hear what became of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import struct
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import IO

from histobench.core.errors import HistobenchError
from histobench.mint.sandbox.guest.frames import Channel
from histobench.mint.sandbox.guest.scratch import remove_tree
from histobench.mint.sandbox.launch import SessionSetup, plan_launch

_START_SECONDS = 120.0
SEND_SECONDS = 10.0
_CREDENTIALS = struct.Struct("iII")  # process, user, group

# bubblewrap's --die-with-parent fires when the *thread* that started it ends, so one thread starts them all.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sandbox-starter")


class SandboxError(HistobenchError):
    """The sandbox could not be started or was lost."""


class ZygoteProcess:
    def __init__(self, backend: str, setup: SessionSetup) -> None:
        self.backend = backend
        self._lock = threading.Lock()
        self._next = 0
        self._ends: dict[int, str] = {}
        self._scratch: str | None = None
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)  # the settings are one message
        if backend != "bubblewrap":  # episodes have no tmpfs of their own
            self._scratch = tempfile.mkdtemp(prefix="histobench-scratch-")
            os.chmod(self._scratch, 0o711)  # an episode enters its own folder there and sees no other
        with theirs:
            descriptor = theirs.fileno()
            plan = plan_launch(backend, setup, descriptor=descriptor, scratch=self._scratch)
            command, environment, config = plan
            self._process = _starter.submit(self._start, command, environment, descriptor).result()
        self.pid = self._process.pid  # of the outermost process started
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended already; the reason is reported below
                self._control.send(json.dumps(config).encode())
            self._await_ready()
        except BaseException:
            self.close()
            raise

    def alive(self) -> bool:
        return self._process.poll() is None

    def spawn(self) -> tuple[int, Channel]:
        """Ask for one more episode; returns at once with its number and the host's end of its socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        ours.settimeout(SEND_SECONDS)  # an episode that stops reading must not stop the host
        with theirs, self._lock:
            self._next += 1
            number = self._next
            order = json.dumps({"op": "spawn", "id": number}).encode()
            try:
                socket.send_fds(self._control, [order], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise SandboxError(f"the sandbox ended: {error}; run again") from error
            self._listen()
        return number, Channel(ours)

    def kill(self, number: int) -> None:
        with self._lock, contextlib.suppress(OSError):  # with the zygote gone its episodes are gone too
            self._control.send(json.dumps({"op": "kill", "id": number}).encode())
            self._listen()

    def end_of(self, number: int) -> str:
        """The limit that ended an episode which hung up ("" if none), waiting for the news a little."""
        until = time.monotonic() + 1.0
        while True:
            with self._lock:
                self._listen()
                if number in self._ends:
                    return self._ends.pop(number)
            if time.monotonic() > until or not self.alive():
                return ""
            time.sleep(0.005)

    def close(self) -> None:
        self._control.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()
        if self._scratch:
            remove_tree(self._scratch)
            self._scratch = None

    def _start(
        self, command: list[str], environment: dict[str, str], descriptor: int
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(descriptor,),
                cwd="/",
                start_new_session=True,  # the host's Ctrl-C is the host's business
            )
        except OSError as error:
            raise SandboxError(f"cannot start the {self.backend} sandbox: {error}") from error

    def _await_ready(self) -> None:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        if not poller.poll(_START_SECONDS * 1000):
            raise SandboxError(f"the {self.backend} sandbox did not start within {_START_SECONDS:.0f} s")
        try:
            payload = self._control.recv(1 << 16)
        except ConnectionError:
            payload = b""
        news = json.loads(payload) if payload else {}
        if news.get("op") != "ready":
            why = news.get("why") or last_line(self._process, self._errors)
            why = why or f"it ended with status {self._process.poll()}"
            raise SandboxError(f"the {self.backend} sandbox did not start: {why}")

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while payload := self._control.recv(1 << 16, socket.MSG_DONTWAIT):
                news = json.loads(payload)
                self._ends[news["id"]] = news["why"]


def last_line(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    """The last line of what a process that is about to end wrote to `errors`, before Docker's advice."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=2)
    errors.seek(0)
    text = errors.read().decode("utf-8", "replace").partition("\n\nRun 'docker run --help'")[0]
    return (text.strip().splitlines() or [""])[-1]


def sender_pid(sock: socket.socket) -> int:
    _, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size), socket.MSG_PEEK)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(data)[0])
    return 0
