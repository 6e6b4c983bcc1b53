"""The real engine plays the real games through the tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from histobench.mint.alfworld.games import GameFile
from histobench.mint.alfworld.simulator import MAX_ACTIONS, Simulator, SimulatorError
from histobench.mint.envs.action import classify
from histobench.mint.envs.general_env import AlfWorldEnv, GeneralEnv
from histobench.mint.results.recording import Recording, read_recordings
from histobench.mint.tasks.alfworld import AlfWorldTask
from histobench.mint.tools.alfworld import household_tools
from reproduction.gates import as_recorded, expert_calls, replay, replay_expert

pytestmark = pytest.mark.nightly

GOALS = ["put", "clean", "heat", "cool", "examine", "puttwo"]


def _shortest(games: list[GameFile], goal: str) -> GameFile:
    """The game of a goal whose expert needed the fewest actions and did not stop before the end."""
    last = {"examine": "use"}.get(goal, "put")
    puts = 2 if goal == "puttwo" else 1
    candidates = []
    for game in games:
        if game.goal_type == goal:
            calls = [call.tool for call in expert_calls(game.expert_trajectory())]
            if calls[-1] == last and (goal == "examine" or calls.count("put") >= puts):
                candidates.append((len(calls), game.id, game))
    return min(candidates)[2]


@pytest.mark.parametrize("goal", GOALS)
def test_the_recorded_expert_wins_through_the_tools(
    games: list[GameFile], simulator: Simulator, goal: str
) -> None:
    assert replay_expert(_shortest(games, goal), simulator) == (True, True)


def test_invalid_actions_are_answered_and_counted(games: list[GameFile], simulator: Simulator) -> None:
    game = simulator.start(games[0].path)
    tools = {tool.name: tool for tool in household_tools(game)}
    assert tools["goto"]("the moon") == "Nothing happens."
    assert tools["put"]("apple 1", "fridge 1") == "Nothing happens."
    assert game.actions == 2
    game.close()


def test_after_the_last_action_the_simulator_repeats_itself(
    games: list[GameFile], simulator: Simulator
) -> None:
    game = simulator.start(_shortest(games, "examine").path)
    for _ in range(MAX_ACTIONS - 1):
        game.step("look")
        assert not game.done
    last = game.step("nonsense")
    assert game.done
    assert not game.won
    assert game.step("look") == last == "Nothing happens."
    assert game.actions == MAX_ACTIONS
    game.close()


def test_plays_of_one_game_know_nothing_of_each_other(games: list[GameFile], simulator: Simulator) -> None:
    file = _shortest(games, "put")
    first, second = simulator.start(file.path), simulator.start(file.path)
    assert first.intro == second.intro
    calls = expert_calls(file.expert_trajectory())
    tools = {tool.name: tool for tool in household_tools(first)}
    for call in calls:
        tools[call.tool](*call.arguments)
    assert first.won
    assert not second.won
    assert second.step("inventory") == "You are not carrying anything."
    first.close()
    assert second.step("look")
    second.close()


def test_running_out_of_actions_is_success_only_under_the_published_rule(
    games: list[GameFile], simulator: Simulator
) -> None:
    task = AlfWorldTask(games[0])
    task._game = simulator.start(games[0].path)
    assert not task.solved()
    task._game.actions = MAX_ACTIONS
    assert not task.success("done")
    task.rule = "published"
    assert task.success("done")
    task.close()


@pytest.mark.usefixtures("needs_sandbox")
def test_an_episode_ends_when_the_goal_is_reached(games: list[GameFile], simulator: Simulator) -> None:
    file = _shortest(games, "examine")
    task = AlfWorldTask(file)
    task._game = simulator.start(file.path)
    assert task.prompt.splitlines()[-1].startswith("Your task is to: ")
    *before, last = expert_calls(file.expert_trajectory())
    with AlfWorldEnv(task) as env:
        code = "\n".join(f"print({call.tool}(*{call.arguments}))" for call in before)
        assert not env.outcome(classify(f"<execute>{code}</execute>")).success
        outcome = env.outcome(classify(f"<execute>{last.tool}(*{last.arguments})</execute>"))
    assert outcome.success


@pytest.mark.usefixtures("needs_sandbox")
def test_a_failure_of_the_simulator_is_not_the_agents(games: list[GameFile], simulator: Simulator) -> None:
    task = AlfWorldTask(games[0])
    task._game = simulator.start(games[0].path)
    with AlfWorldEnv(task) as env:
        task._game._connection.shutdown(2)
        code = "try:\n    look()\nexcept Exception:\n    pass"
        with pytest.raises(SimulatorError):
            env.outcome(classify(f"<execute>{code}</execute>"))


@pytest.mark.usefixtures("needs_sandbox")
def test_recorded_episodes_are_seen_again(
    games: list[GameFile], simulator: Simulator, shared_dir: Path
) -> None:
    file = shared_dir / "mint" / "replay" / "Llama-2-70b-chat-hf.k5.jsonl.gz"
    recordings = [recording for recording in read_recordings(file) if recording.task == "alfworld"]
    # A short one that succeeds, and one whose code calls an action with too many arguments.
    chosen = [
        next(r for r in recordings if r.success and len(r.turns) == 2),
        next(r for r in recordings if any("__call__()" in (turn.observation or "") for turn in r.turns)),
    ]
    files = {game.id: game for game in games}

    def open_env(recording: Recording) -> GeneralEnv:
        task = AlfWorldTask(files[recording.task_id])
        task.rule = "published"
        task._game = simulator.start(task.game_file.path)
        return as_recorded(AlfWorldEnv(task), recording.first_cell_number)

    for recording in chosen:
        played = replay(recording, open_env)
        assert played.agrees
        assert played.differences == ()
        assert played.observations > 0
