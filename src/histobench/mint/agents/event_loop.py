"""An event loop in a thread of its own, for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from histobench.mint.agents.completion import ProviderError

T = TypeVar("T")


class EventLoopThread:
    """Starts with the first coroutine; any number of threads may hand it work."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the result."""
        future = asyncio.run_coroutine_threadsafe(work, self._started())
        try:
            return future.result()
        except (asyncio.CancelledError, concurrent.futures.CancelledError):
            raise ProviderError("the request was broken off") from None
        except BaseException:
            future.cancel()
            raise

    def cancel_all(self) -> None:
        """Break off whatever is under way."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True)
                self._thread.start()
            return self._loop
