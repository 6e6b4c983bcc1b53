"""One episode that has a container to itself: no zygote; standard input and output are its socket."""

from __future__ import annotations

import os
import sys

from . import confinement, guest_episode, seccomp
from .frames import BrokenFrameError, Channel


class TwoPipes:
    """Two descriptors that behave like one socket."""

    def __init__(self, reader: int, writer: int) -> None:
        self._reader, self._writer = reader, writer

    def fileno(self) -> int:
        return self._reader

    def recv(self, size: int) -> bytes:
        return os.read(self._reader, size)

    def sendall(self, data: bytes) -> None:
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
    except (OSError, ImportError) as error:
        channel.send({"op": "refused", "why": str(error)})
    except (EOFError, KeyboardInterrupt, BrokenFrameError):
        pass
    finally:
        os._exit(0)
