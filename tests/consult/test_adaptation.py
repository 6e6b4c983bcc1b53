"""The adaptation time recovers a change point that is known, with sequences of the default length."""

from __future__ import annotations

import numpy as np
import pytest
from tests.consult.conftest import plays_of

from histobench.consult.adaptation import cases_until, followed_before, median_until
from histobench.consult.findings import _quarter
from histobench.consult.measures import Plays

SEQUENCES, LENGTH = 8, 40


def sequences(
    follows: float, stops_after: int | None, seed: int, *, tool_wrong: tuple[float, float]
) -> Plays:
    """An agent that follows a wrong tool with one chance, and 10 % of it once it has stopped.

    `tool_wrong` is the share of wrong answers in the first and in the second half.
    """
    generator = np.random.default_rng(seed)
    n = SEQUENCES * LENGTH
    position = np.tile(np.arange(LENGTH), SEQUENCES)
    late = position >= LENGTH // 2
    wrong = generator.random(n) < np.where(late, tool_wrong[1], tool_wrong[0])
    stopped = np.full(n, False) if stops_after is None else position >= LENGTH // 2 + stops_after
    followed = generator.random(n) < np.where(stopped, 0.1 * follows, follows)
    tool = np.where(wrong, 1, 0)
    return plays_of(
        np.where(followed, tool, 2),
        tool,
        arm="sequence",
        sequence=np.repeat(np.arange(SEQUENCES), LENGTH),
        position=position,
    )


@pytest.mark.parametrize(("follows", "stops_after"), [(1.0, 3), (0.8, 3), (0.7, 8), (0.6, 0)])
def test_a_known_change_point_is_recovered_without_false_alarms(follows: float, stops_after: int) -> None:
    adapted, medians, alarms = [], [], []
    for seed in range(25):
        changed = sequences(follows, stops_after, seed, tool_wrong=(0.5, 0.7))
        same = sequences(follows, None, seed + 1000, tool_wrong=(0.5, 0.5))
        before = followed_before([changed, same], LENGTH)
        assert before is not None
        found = cases_until(changed, before, LENGTH)
        adapted.append(np.mean([each is not None for each in found]))
        medians.append(median_until(found))
        alarms.append(np.mean([each is not None for each in cases_until(same, before, LENGTH)]))
    assert np.mean(adapted) > 0.9
    assert np.mean(alarms) < 0.08  # 5 % by design
    assert None not in medians
    assert abs(np.median([each for each in medians if each is not None]) - stops_after) <= 1


def test_an_agent_that_never_stops_and_one_that_never_followed_are_censored() -> None:
    always = sequences(1.0, None, 0, tool_wrong=(0.5, 0.7))
    assert cases_until(always, 0.98, LENGTH) == [None] * SEQUENCES
    assert median_until([None, None, 3]) is None
    right = sequences(1.0, 3, 0, tool_wrong=(0.0, 0.0))
    assert followed_before([right], LENGTH) is None


def test_a_quarter_is_the_last_steps_before_the_change_or_of_the_sequence() -> None:
    plays = sequences(1.0, None, 0, tool_wrong=(0.5, 0.5))
    for part, end in (("before", LENGTH // 2), ("after", LENGTH)):
        assert set(_quarter(plays, part, LENGTH).position) == set(range(end - LENGTH // 4, end))
