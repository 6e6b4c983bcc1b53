"""The episode's one socket, shared by all its threads: orders for the loop, answers for callers of tools."""

from __future__ import annotations

import builtins
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .alarm import alarm_paused, clock
from .frames import Channel

_ORDERS = ""


class EpisodeChannel(Channel):
    """The episode's end of its socket; the alarm interrupts waiting but never tears a message apart."""

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Hold the alarm back while bytes move."""
        with clock.held_back():
            yield

    def wait(self, deadline: float | None) -> None:
        """Return when there is something to read."""
        with clock.let_in():
            super().wait(deadline)


class _Box:
    """Messages for one addressee and a lock that opens when it should look again."""

    def __init__(self) -> None:
        self.messages: deque[dict[str, Any]] = deque()
        self.bell = threading.Lock()
        self.bell.acquire()

    def ring(self) -> None:
        with suppress(RuntimeError):  # it rings already
            self.bell.release()


class Mailbox:
    """Sends whole messages and hands each received one to the thread that waits for it.

    There is no thread for reading: of those that wait, one reads for all, and passes the task on when its own
    message has come or when the alarm takes it away.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._calls = itertools.count(1)
        self._abandoned = False
        self._renew()

    def send(self, message: dict[str, Any]) -> None:
        """Write one message, whole, whichever thread asks."""
        with clock.held_back(), self._sending:
            self._channel.send(message)

    def next_order(self) -> dict[str, Any]:
        """What the host wants next."""
        return self._await(_ORDERS)

    def tool(self, name: str) -> Callable[..., Any]:
        """A function that looks like the tool and asks the host to run it."""

        def tool(*args: Any, **kwargs: Any) -> Any:
            answer = self._call({"op": "tool", "name": name, "args": args, "kwargs": kwargs})
            if "error" in answer:
                kind = getattr(builtins, answer["error"], None)
                if not (isinstance(kind, type) and issubclass(kind, Exception)):
                    kind = RuntimeError
                raise kind(answer["message"])
            return answer["value"]

        tool.__name__ = tool.__qualname__ = name
        return tool

    def abandon(self) -> None:
        """In a forked process: the socket belongs to the process that was forked."""
        self._abandoned = True
        self._channel.close()
        self._renew()  # another thread may have held them

    def _renew(self) -> None:
        self._sending, self._reading = threading.Lock(), threading.Lock()
        self._boxes = {_ORDERS: _Box()}

    def _call(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._abandoned:
            raise RuntimeError(
                "tools can be called from the session's own process only, not from a fork of it"
            )
        call = str(next(self._calls))
        self._boxes[call] = _Box()
        try:
            with alarm_paused() as pause:
                self.send({**message, "call": call})
                answer = self._await(call)
                pause.excused = answer["excused"]
        finally:
            del self._boxes[call]  # an answer that comes after all is for no one
        return answer

    def _await(self, addressee: str) -> dict[str, Any]:
        box = self._boxes[addressee]
        with clock.held_back():
            while not box.messages:
                if self._reading.acquire(blocking=False):
                    try:
                        while not box.messages:
                            self._deliver(self._channel.receive())
                    finally:
                        self._reading.release()
                        self._ring_all()
                else:
                    try:
                        with clock.let_in():
                            box.bell.acquire()
                    except BaseException:
                        self._ring_all()  # it may have been this one's turn to read
                        raise
            return box.messages.popleft()

    def _deliver(self, message: dict[str, Any]) -> None:
        box = self._boxes.get(str(message.get("call", _ORDERS)))
        if box is not None:
            box.messages.append(message)
            box.ring()

    def _ring_all(self) -> None:
        for box in list(self._boxes.values()):
            box.ring()
