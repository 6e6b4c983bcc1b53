"""Messages over a stream socket: four bytes of length, then one JSON object. Nothing is ever unpickled."""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct("!I")
MAX_FRAME = 4 * 1024 * 1024


class BrokenFrameError(Exception):
    """The other side sent something that is not a message."""


class LongMessageError(ValueError):
    """A message longer than the channel takes; nothing of it was sent."""


class Channel:
    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._buffer = bytearray()

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        if len(body) > MAX_FRAME:
            raise LongMessageError(f"a message of {len(body):,} bytes is too long for the sandbox's channel")
        self.socket.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, deadline: float | None = None) -> dict[str, Any]:
        """The next message; EOFError if the other side is gone, TimeoutError after `deadline` (monotonic)."""
        while (body := self._take()) is None:
            self.wait(deadline)
            try:
                chunk = self.socket.recv(1 << 16)
            except ConnectionError:
                chunk = b""
            if not chunk:
                raise EOFError("the other side is gone")
            self._buffer += chunk
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise BrokenFrameError(f"not a message: {error}") from error
        if not isinstance(message, dict):
            raise BrokenFrameError("not a message: no object")
        return message

    def close(self) -> None:
        self.socket.close()

    def wait(self, deadline: float | None) -> None:
        """Return when there is something to read; TimeoutError after `deadline` (monotonic)."""
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        if not poller.poll(left):
            raise TimeoutError("no message before the deadline")

    def _take(self) -> bytes | None:
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > MAX_FRAME:
            raise BrokenFrameError(f"a message of {length:,} bytes was announced")
        end = _LENGTH.size + length
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[_LENGTH.size : end])
        del self._buffer[:end]
        return body
