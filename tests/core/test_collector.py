"""The collector is paused for a while and then as it was."""

from __future__ import annotations

import gc

import pytest

from histobench.core.devices import collector_paused


def test_the_collector_is_paused_and_comes_back_also_after_an_error() -> None:
    @collector_paused()
    def work(number: str) -> tuple[bool, int]:
        return gc.isenabled(), int(number)

    assert gc.isenabled()
    assert work("3") == (False, 3)
    with pytest.raises(ValueError, match="invalid literal"):
        work("three")
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
