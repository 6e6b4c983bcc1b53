"""`inspect eval histobench/mint`: the tasks of this project as an evaluation of Inspect.

The entry point of Inspect names this module.
"""

from __future__ import annotations

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig

from histobench.core.errors import HistobenchError, did_you_mean
from histobench.mint.agents.agent_spec import AgentSpec
from histobench.mint.agents.completion import Sampling
from histobench.mint.configs.cell import NONE
from histobench.mint.configs.datasets import TaskDataset
from histobench.mint.feedback.kind import FORMS, FeedbackKind
from histobench.mint.inspect.solver import EXPERT, Playbook, mint_episode, task_success
from histobench.mint.prompts.first_message import choose_wording
from histobench.mint.runs.planned_cell import PLACEBO, ExpertPlan, plan_cells
from histobench.mint.runs.task_source import NAME, choose_datasets, load_tasks
from histobench.mint.tasks.base import Task as MintTask
from histobench.mint.tasks.base import as_rule

__all__ = ["mint", "mint_episode", "task_success"]
SAMPLING = Sampling()


@task
def mint(
    tasks: str | list[str] = NAME,
    k: int = 5,
    data: str | None = None,
    rule: str = "strict",
    feedback: str = "none",
    gt: bool = False,
    prompts: str = "own",
    prompts_dir: str | None = None,
    wikipedia: str = "live",
) -> Task:
    """Agents that solve tasks in several turns with code, tools and feedback.

    Args:
        tasks: Datasets or families (gsm8k, math, ..., reasoning), separated by commas.
        k: Most actions of an episode.
        data: Folder of the datasets (default: data/processed).
        rule: The scoring rule, strict or published.
        feedback: none, textual or binary (of the model with the role `expert`), or placebo.
        gt: Whether the expert knows the solution.
        prompts: own, or official with prompts_dir.
        prompts_dir: A clone of the published benchmark.
        wikipedia: live, tape:FILE or folder:DIR.
    """
    names = tasks.split(",") if isinstance(tasks, str) else tasks
    datasets = choose_datasets([name.strip() for name in names])
    expert = _expert(feedback, gt)
    cells = plan_cells(
        "inspect",
        AgentSpec("inspect"),
        datasets,
        (k,),
        expert=expert,
        expert_name=NONE if expert is None else PLACEBO if feedback == PLACEBO else EXPERT,
        sampling=SAMPLING,
        rule=as_rule(rule),
        prompts=prompts,
    )
    loaded = [(dataset, item) for dataset in datasets for item in load_tasks(dataset, data)]
    playbook = Playbook(
        cells={planned.dataset.name: planned for planned in cells},
        tasks={(dataset.name, str(item.task_id)): item for dataset, item in loaded},
        wording=choose_wording(prompts, prompts_dir),
        wikipedia=wikipedia,
    )
    return Task(
        dataset=MemoryDataset([_sample(dataset, item, k) for dataset, item in loaded], name="mint"),
        solver=mint_episode(playbook),
        scorer=task_success(),
        config=GenerateConfig(temperature=SAMPLING.temperature, max_tokens=SAMPLING.max_tokens),
    )


def _expert(feedback: str, gt: bool) -> ExpertPlan | None:
    if feedback == "none":
        return None
    if feedback not in FORMS:
        raise HistobenchError(f"unknown feedback {feedback!r}; {did_you_mean(feedback, ('none', *FORMS))}")
    return ExpertPlan(FeedbackKind(gt, feedback))


def _sample(dataset: TaskDataset, item: MintTask, k: int) -> Sample:
    # A household task's introduction comes from the running game; none is started for the list.
    return Sample(
        input=f"{dataset.name}: {item.task_id}" if item.decided_by_acting else item.prompt,
        target="" if item.decided_by_acting else str(item.reference),
        id=f"{dataset.name}/{item.task_id}",
        metadata={"dataset": dataset.name, "family": dataset.type, "task_id": str(item.task_id), "k": k},
    )
