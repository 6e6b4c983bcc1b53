"""Work cut into parts, each done by one thread from its beginning to its end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def spread(work: Callable[[T], R], parts: Sequence[T], *, device: str = "cpu") -> list[R]:
    """Results of `work` on every part, in their order, by as many threads as torch may use.

    Operations inside of `work` run on the thread that calls them. An operation that is itself spread over
    threads ends with all of them waiting for the slowest, and they wait by spinning: with many operations
    and cores that others use too, most of the time goes there. A part that takes long delays nobody here.
    On a GPU the parts follow each other.
    """
    import torch

    threads = torch.get_num_threads()
    if min(threads, len(parts)) <= 1 or torch.device(device).type != "cpu":
        return [work(part) for part in parts]
    inference = torch.is_inference_mode_enabled()

    def alone(part: T) -> R:
        with torch.inference_mode(inference):
            return work(part)

    try:
        with ThreadPoolExecutor(
            min(threads, len(parts)), initializer=torch.set_num_threads, initargs=(1,)
        ) as pool:
            return list(pool.map(alone, parts))
    finally:
        # A worker's number is its own, but it is also what threads that start later begin with.
        torch.set_num_threads(threads)
