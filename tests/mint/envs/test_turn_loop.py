"""The turn loop keeps the books as the published benchmark did."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from histobench.mint.envs.action import classify, provider_error
from histobench.mint.envs.general_env import HELP
from histobench.mint.envs.turn_loop import ActionOutcome, Budget, State, act, begin, observe, settle
from histobench.mint.results.recording import read_recordings
from reproduction.gates import book_differences


def _play(texts: list[str], outcomes: list[ActionOutcome], budget: Budget = Budget()) -> State:  # noqa: B008
    state = begin("task")
    for text, outcome in zip(texts, outcomes, strict=True):
        action = classify(text)
        state = settle(act(state, action), action, outcome, budget)
        state = observe(state, outcome, budget)
        if state.finished:
            break
    return state


def test_a_wrong_second_proposal_on_the_last_step_ends_by_proposals() -> None:
    wrong = "<solution>1</solution>"
    run = "<execute>1</execute>"
    state = _play([run, run, run, wrong, wrong], [ActionOutcome("x")] * 5)
    assert state.terminate_reason == "max_propose_steps"


def test_a_proposal_hides_the_code_beside_it() -> None:
    assert classify("<execute>1</execute><solution>2</solution>").kind == "proposal"


def test_two_empty_blocks_are_a_valid_cell_and_one_is_not() -> None:
    assert classify("<execute></execute>").kind == "invalid"
    assert classify("<execute></execute> <execute> </execute>").kind == "execute"


def test_an_empty_message_is_invalid_and_leaves_no_entry() -> None:
    state = _play([""], [ActionOutcome(HELP)])
    assert [message.role for message in state.history] == ["user", "user"]
    assert state.counts.invalid_action == 1


def test_a_provider_error_ends_the_episode_and_counts_nothing() -> None:
    action = provider_error("context too long")
    state = settle(act(begin("task"), action), action, ActionOutcome(), Budget())
    assert (state.terminate_reason, state.error, state.counts.total) == ("error", "context too long", 0)


def test_the_countdown_asks_for_a_solution_at_the_last_step() -> None:
    state = _play(["<execute>1</execute>"], [ActionOutcome()], Budget(2, 2))
    assert state.history[-1].content == (
        "Observation:\nYour answer is wrong.\nYou have 1 steps left and 2 chances to propose solution left.\n"
        "You should take the last step to propose a solution.\n"
    )


@pytest.mark.slow
@given(
    st.text()
    | st.lists(st.sampled_from(["<execute>", "</execute>", "<solution>", "</solution>", "x", "\n"])).map(
        "".join
    )
)
def test_any_text_is_one_of_the_four_kinds(text: str) -> None:
    action = classify(text)
    assert action.kind in ("execute", "invalid", "proposal", "proposal_unparsable")
    assert action.is_proposal == ("<solution>" in text)


@pytest.mark.slow
def test_every_recorded_episode_gives_the_recorded_books(reference_dir: Path) -> None:
    recordings = list(read_recordings(reference_dir / "mint" / "replay"))
    assert len(recordings) in (90, 586 * 6)  # of the slice, and of the whole
    assert {recording.name: wrong for recording in recordings if (wrong := book_differences(recording))} == {}
