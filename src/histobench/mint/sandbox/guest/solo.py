"""One episode that has a container to itself: no zygote; standard input and output are its socket."""

from __future__ import annotations

import os
import select
import signal
import sys

from . import confinement, guest_episode, seccomp
from .frames import BrokenFrameError, Channel
from .syscalls import PR_SET_DUMPABLE, prctl


class TwoPipes:
    """Two descriptors that behave like one socket."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer

    def fileno(self) -> int:
        """What is polled for reading."""
        return self._reader

    def recv(self, size: int) -> bytes:
        """What has come, up to `size` bytes; nothing when the other side is gone."""
        return os.read(self._reader, size)

    def sendall(self, data: bytes) -> None:
        """Write all of `data`."""
        view = memoryview(data)
        while view:
            view = view[os.write(self._writer, view) :]

    def close(self) -> None:
        os.close(self._reader)
        os.close(self._writer)


def main() -> None:
    """Entry point inside the container, as its first process."""
    reader, writer = (os.dup(descriptor) for descriptor in (0, 1))
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    worker = os.fork()
    if worker:
        _guard(worker, reader)
    os.setsid()
    sys.argv[:] = [""]
    os.umask(0o077)
    channel = Channel(TwoPipes(reader, writer))  # type: ignore[arg-type]
    try:
        config = channel.receive()
        guest_episode.prepare(config)
        os.chdir(config["scratch_root"])
        confinement.set_limits(config["limits"])
        seccomp.install_filter(seccomp.packed_filter(namespaces=True))
        os.dup2(null, 2)
        os.close(null)
        guest_episode.serve(channel, config)
    except OSError as error:
        channel.send({"op": "refused", "why": str(error)})
    except ImportError as error:
        channel.send({"op": "refused", "why": f"cannot preload: {error}"})
    except (EOFError, KeyboardInterrupt, BrokenFrameError):
        pass
    finally:
        os._exit(0)


def _guard(worker: int, reader: int) -> None:
    """As process 1, which nothing inside can signal: end the container with the episode or with the host."""
    prctl(PR_SET_DUMPABLE, 0)
    waker, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poller = select.poll()
    poller.register(reader, 0)  # only whether the other side has hung up
    poller.register(waker, select.POLLIN)
    while True:
        ready = dict(poller.poll(1000))
        if ready.get(reader, 0) & select.POLLHUP:
            os._exit(0)
        if waker in ready:
            os.read(waker, 4096)
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == worker:
                os._exit(0)
            if pid == 0:
                break
