"""What the expert is asked, what the agent gets to read, and what is kept."""

from __future__ import annotations

import pytest

from histobench.core.errors import HistobenchError
from histobench.mint.agents.agent import EpisodeAgent
from histobench.mint.agents.completion import ProviderError, Usage
from histobench.mint.envs.episode import RequestRefusedError
from histobench.mint.feedback.expert import EpisodeExpert, expert_prompt
from histobench.mint.feedback.kind import FORMS, SENTENCES, FeedbackKind, parse_kind, placebo
from histobench.mint.messages.parts import Message
from histobench.mint.prompts.first_message import OwnWording
from histobench.mint.tasks.reasoning import ReasoningTask, TheoremqaTask
from histobench.mint.tools.wikipedia_search import WikipediaQueryRun

TASK = ReasoningTask(id=1, prompt="How many legs have seven cats?", reference="28")
HISTORY = (
    Message("user", "instructions and an example\n---\nTask:\nHow many legs have seven cats?"),
    Message("assistant", "Assistant:\n<execute>7 * 3</execute>\n"),
)
OBSERVATION = "Observation:\nOut[1]: 21\nYou have 4 steps left and 2 chances to propose solution left.\n"


class Writer(EpisodeAgent):
    """Says what it is told to say."""

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[Message, ...]] = []
        self.usage = Usage(100, 10)

    def __call__(self, history: tuple[Message, ...]) -> str:
        self.asked.append(history)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def expert(kind: FeedbackKind, writer: Writer | None) -> EpisodeExpert:
    return EpisodeExpert(kind, TASK, [WikipediaQueryRun()], OwnWording(), writer)


def prompt(*, knows_solution: bool, task: object = TASK) -> str:
    return expert_prompt(
        task,  # type: ignore[arg-type]
        [WikipediaQueryRun()],
        OwnWording(),
        HISTORY,
        OBSERVATION,
        knows_solution=knows_solution,
    )


def test_the_expert_reads_example_tools_and_the_conversation_up_to_the_new_observation() -> None:
    text = prompt(knows_solution=False)
    assert "28" not in text
    example, now = text.split("This is the conversation that you have to comment on now:")
    assert "wikipedia_search(query" in example
    assert "Expert feedback:" in example
    assert now.index("How many legs") < now.index("7 * 3") < now.index("Out[1]: 21")
    assert "instructions and an example" not in text
    assert text.endswith("Expert feedback:")


@pytest.mark.parametrize(("rule", "shown"), [("strict", "False"), ("published", "NOT GIVEN")])
def test_the_published_expert_never_learns_a_solution_that_is_false(rule: str, shown: str) -> None:
    task = TheoremqaTask(id=1, prompt="Is it?", reference=False, answer_type="bool")
    task.rule = rule  # type: ignore[assignment]
    assert f"part): {shown}" in prompt(knows_solution=True, task=task)


def test_textual_feedback_is_passed_on_and_binary_feedback_is_one_bit() -> None:
    said = "This is BAD. A cat has four legs."
    assert expert(FeedbackKind(), Writer(f"  {said}\n"))(HISTORY, OBSERVATION) == said
    one_bit = expert(FeedbackKind(form="binary"), Writer(said, "This is GOOD!", "Hm."))
    given = [one_bit(HISTORY, OBSERVATION) for _ in range(3)]
    assert given == ["This is BAD.", "This is GOOD.", ""]


@pytest.mark.parametrize("failure", [ProviderError("down"), RequestRefusedError("too long")])
def test_an_expert_who_cannot_be_reached_says_nothing_and_is_counted(failure: Exception) -> None:
    asked = expert(FeedbackKind(), Writer(failure, "This is GOOD."))
    assert [asked(HISTORY, OBSERVATION), asked(HISTORY, OBSERVATION)] == ["", "This is GOOD."]
    assert asked.as_record() == {"given": 1, "leaks": [False, False], "failures": [str(failure)]}


def test_a_wrong_key_of_the_expert_is_not_passed_over() -> None:
    with pytest.raises(ProviderError):
        expert(FeedbackKind(), Writer(ProviderError("no key", hopeless=True)))(HISTORY, OBSERVATION)


def test_the_placebo_knows_nothing_and_asks_nobody() -> None:
    asked = expert(FeedbackKind(form="placebo"), None)
    assert asked(HISTORY, OBSERVATION) == SENTENCES[0]
    assert asked.usage == Usage()
    other = (Message("user", "another task"), Message("assistant", "another answer"))
    assert placebo(other) == SENTENCES[0]
    turns = [(Message("user", "x"),) * number for number in range(1, 6)]
    assert [placebo(history) for history in turns] == [*SENTENCES, SENTENCES[0]]


def test_kinds_are_named_as_the_published_folders() -> None:
    names = [FeedbackKind(knows, form).name for knows in (False, True) for form in FORMS]
    assert names[:2] == ["no_GT-textual", "no_GT-binary"]
    assert [parse_kind(name).name for name in names] == names
    assert FeedbackKind(True).state_type == "feedback_with_gt"
    with pytest.raises(HistobenchError, match="did you mean no_GT-textual"):
        parse_kind("no_GT-text")
