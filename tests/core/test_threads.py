from __future__ import annotations

import os
import sys
import threading

import pytest
import torch

from histobench.core.threads import one_thread, spread, stream


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> int:
    """One and two threads of torch, as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_come_in_the_order_of_the_parts(threads: int) -> None:
    assert spread(lambda part: part * part, range(20)) == [part * part for part in range(20)]
    assert spread(lambda part: part, []) == []


def test_each_part_runs_on_one_thread_and_the_number_is_as_before_afterwards(threads: int) -> None:
    meet = threading.Barrier(threads)

    def work(part: int) -> tuple[str, int]:
        meet.wait(timeout=300)  # all threads have a part at the same time
        return threading.current_thread().name, torch.get_num_threads()

    seen = spread(work, range(2))
    assert len({name for name, _ in seen}) == threads
    assert {inside for _, inside in seen} == {1}
    assert torch.get_num_threads() == threads
    with pytest.raises(ZeroDivisionError):
        spread(lambda part: 1 // part, [1, 0])
    assert torch.get_num_threads() == threads


def test_tensors_of_the_inference_mode_may_be_changed_inside(threads: int) -> None:
    with torch.inference_mode():
        table = torch.zeros(4)
        spread(lambda part: table[part].add_(part), range(4))
    assert table.tolist() == [0, 1, 2, 3]


def test_parts_are_spread_while_everything_else_stays_on_one_thread(threads: int) -> None:
    meet = threading.Barrier(threads)

    def work(part: int) -> int:
        meet.wait(timeout=300)
        return threading.get_ident()

    with one_thread() as many:
        assert (many, torch.get_num_threads()) == (threads, 1)
        assert len(set(spread(work, range(2), threads=many))) == threads
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == threads


copies = pytest.mark.skipif(sys.platform != "linux", reason="processes are copies of this one")


@pytest.mark.slow
@copies
def test_processes_share_what_this_one_holds_and_errors_come_back() -> None:
    table = torch.arange(20.0)

    def work(part: int) -> tuple[int, int, float]:
        return os.getpid(), torch.get_num_threads(), float(1 / table[part + 1] if part else table.sum())

    seen = list(stream(work, range(12), threads=3, processes=True))
    assert [value for *_, value in seen] == [190, *(pytest.approx(1 / k) for k in range(2, 13))]
    assert os.getpid() not in {pid for pid, *_ in seen}
    assert {count for _, count, _ in seen} == {1}
    with pytest.raises(ZeroDivisionError):
        list(stream(lambda part: 1 // part, [1, 0], threads=3, processes=True))
