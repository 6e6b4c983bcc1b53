"""The base class of every task, and the scoring rules."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.core.files import read_plain_text
from histobench.core.plain_data import parse_json

#: `strict` is the default; `published` is the benchmark's own checker, bug for bug; `recorded` is `published`
#: with the comparators of the time of the public recordings, which met no negative reference and no option of
#: TheoremQA.
Rule = Literal["strict", "published", "recorded"]
RULES: tuple[str, ...] = get_args(Rule)


def as_rule(name: str) -> Rule:
    if name not in RULES:
        raise HistobenchError(f"unknown scoring rule {name!r}; {did_you_mean(name, RULES)}")
    return name  # type: ignore[return-value]


EXAMPLES = Path(__file__).parent / "in_context_examples"


class Task:
    """One instance: a prompt for the agent, a reference, and a checker.

    A task class sets `task_name` (and `in_context_example_dir` if its worked example lies elsewhere), stores
    `_id`, `_prompt` and `_reference` in its `__init__`, and implements `success`.
    """

    task_name: ClassVar[str] = "base"
    in_context_example_dir: ClassVar[str | Path] = EXAMPLES
    #: For datasets of a plug-in: the family in results (default: the dataset's own name), the tools of its
    #: sessions by name, and the file or folder of its tasks if it comes with the package.
    task_type: ClassVar[str] = ""
    tool_names: ClassVar[Sequence[str]] = ()
    data_path: ClassVar[str | Path | None] = None
    #: Whether what the agent did counts, not what it answered.
    decided_by_acting: ClassVar[bool] = False
    #: Which checker decides; set on the instance by the runner.
    rule: Rule = "strict"

    _id: Any
    _prompt: str
    _reference: Any

    def __init__(self, **kwargs: Any) -> None:
        self.loaded_history: Any = kwargs.get("loaded_history")
        self.metadata: dict[str, Any] = {}

    @property
    def task_id(self) -> Any:
        return self._id

    @property
    def prompt(self) -> str:
        return self._prompt

    @property
    def bare_prompt(self) -> str:
        """The dataset's text alone, where the prompt puts a sentence of this project before it."""
        return self.prompt

    @property
    def reference(self) -> Any:
        return self._reference

    def in_context_example(self, use_tool: bool = True, with_feedback: bool = False) -> str:
        if not use_tool:
            raise HistobenchError(
                "there is no worked example without tools: the published benchmark has none either"
            )
        file = "with_tool_and_feedback.txt" if with_feedback else "with_tool.txt"
        return read_plain_text(Path(self.in_context_example_dir) / self.task_name / file)

    def open_environment(self, tools: Sequence[Any], **settings: Any) -> Any:
        """Its own subclass of `GeneralEnv`, made with `settings`; None asks for the general one."""
        return None

    def extract_answer(self, solution: str) -> Any:
        """The answer within a solution; the default is the solution itself."""
        return solution

    def success(self, solution: str) -> bool:
        return bool(self.extract_answer(solution) == self.reference)

    @classmethod
    def load_tasks(cls, path: str) -> tuple[Iterable[Task], int]:
        tasks = [cls(**record) for record in read_records(path)]
        return tasks, len(tasks)

    def to_dict(self) -> dict[str, Any]:
        return {
            "task_name": self.task_name,
            "task_id": self.task_id,
            "prompt": self.prompt,
            "reference": self.reference,
            "metadata": self.metadata,
        }


class LineTask(Task):
    def __init__(self, id: Any, prompt: str, reference: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._id = id
        self._prompt = prompt
        self._reference = reference


class CheckerError(HistobenchError):
    """A task's own `success` raised: neither right nor wrong, and nothing that the agent may read."""


def checked(task: Task, solution: str) -> bool:
    """The task's verdict on a solution; raises `CheckerError`, which names the file and the line.

    What the exception says may hold the reference: it is for the author of the checker, never for the agent.
    """
    try:
        return bool(task.success(solution))
    except HistobenchError:
        raise  # a sandbox that was lost, say: not the checker's fault
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        name = f"task {getattr(task, '_id', None)!r} ({type(task).__name__}.success)"
        place = f"{frame.filename}:{frame.lineno}"
        raise CheckerError(
            f"the checker of {name} raised at {place}: {type(error).__name__}: {error}"
        ) from error


def read_records(path: str | Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; each must have `id`, `prompt` and `reference`."""
    path = Path(path)
    records: list[dict[str, Any]] = []
    # Not splitlines: a prompt may hold one of the rarer line ends of Unicode.
    lines = read_plain_text(path, encoding="utf-8-sig").split("\n")  # some editors begin a file with a mark
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise HistobenchError(f"{path}:{number}: not a JSON object ({error})") from error
        if not isinstance(record, dict) or not {"id", "prompt", "reference"} <= record.keys():
            raise HistobenchError(f"{path}:{number}: 'id', 'prompt' or 'reference' missing")
        records.append(record)
    return records
