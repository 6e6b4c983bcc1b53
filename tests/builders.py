"""What many tests build before they test anything."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from numpy.typing import ArrayLike

from histobench.core.records import Declared
from histobench.roi.data.roi_dataset import Reading
from histobench.roi.data.table_reader import Wanted, read_table
from histobench.roi.data.tables import CsvSheet
from histobench.roi.features.feature_file import FeatureSet
from histobench.roi.protocols.few_shot import Episodes, FewShotSetting, Queries


def encoder_file(
    name: str, forward: str = "images.mean(dim=(2, 3))", *, size: int = 16, dim: int = 3, **parts: str
) -> str:
    """A file with an encoder of a user's own; `parts` are modules that it has and what makes them."""
    made = "".join(f"        self.{part} = {text}\n" for part, text in parts.items())
    made = f"        torch.manual_seed(0)\n{made}" if made else ""
    return f"""
import os, sys, time
import torch
from histobench.roi.encoders.base import BasePatchEncoder
from histobench.roi.encoders.transform import TransformSpec


class {name}(BasePatchEncoder):
    def __init__(self):
        super().__init__()
{made}        self.eval_transforms = TransformSpec(resize={size}, crop={size})
        self.embed_dim = {dim}

    def forward(self, images):
        return {forward}
"""


MEAN_ENCODER = encoder_file("Mean")
TINY_VIT = encoder_file(
    "Tiny",
    "self.net(images)",
    dim=24,
    net="__import__('timm').models.VisionTransformer(img_size=16, patch_size=4, embed_dim=24, depth=2, "
    "num_heads=2, num_classes=0, dynamic_img_size=True)",
)


def feature_set(
    rows: ArrayLike | torch.Tensor,
    labels: ArrayLike | torch.Tensor,
    *,
    names: str = "{}.png",
    groups: Iterable[object] | None = None,
    sites: dict[str, tuple[str, ...]] | None = None,
    **metadata: Any,
) -> FeatureSet:
    """Features [n, d] of n images; `names` is filled with the number of each, `metadata` is kept as it is."""
    embeddings = torch.as_tensor(rows).float()
    return FeatureSet(
        embeddings,
        torch.as_tensor(labels).long(),
        tuple(names.format(number) for number in range(len(embeddings))),
        None if groups is None else tuple(map(str, groups)),
        metadata,
        sites or {},
    )


def examples(whole: int) -> int:
    """How many random examples to draw: all, or the share of a run that leaves tests out."""
    share: float = settings.default.max_examples / settings.get_profile("patient").max_examples
    return max(10, round(whole * share))


def in_a_thread(work: Callable[..., Any]) -> Callable[..., Any]:
    """The same in a thread of its own: this one may hold the event loop of a browser that other tests use."""

    def called(*args: Any, **kwargs: Any) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(work, *args, **kwargs).result()

    return called


def scan_csv(
    path: Path, classes: Sequence[str] | None = None, name: str | None = None, **options: Any
) -> Reading:
    """A CSV as `DatasetSource.read` reads it."""
    target = options.pop("target", None)
    wanted = Wanted(classes=classes, name=name, **options)
    return read_table(CsvSheet.open(Path(path)), wanted, Path(path).stem, target)


#: Solved tries of each task of two agents: datasets of 3 and 7 tasks, unequal tries, ids that sort badly.
PLAYED = {
    "one": {"gsm8k": [1, 0, 2, 1, 2, 2, 0], "mbpp": [0, 1, 0]},
    "two": {"gsm8k": [0, 0, 1, 2, 1, 0], "mbpp": [2, 0, 0]},
}


def write_episodes(folder: Path, *, shuffled: int = 0, writers: int = 1) -> Path:
    """Stored episodes of `PLAYED`, each task twice at k = 5 and once at k = 2, in an order drawn by a seed.

    With several writers each episode is in the folder of one of them, as a run on several machines leaves it.
    """
    draw = random.Random(shuffled)
    family = {"gsm8k": "reasoning", "mbpp": "code_generation"}
    lines = [
        (f"repeat{number}/{agent}/F=None/max{k}_p2+tool+cd/{family[dataset]}/{dataset}", task, tries > number)
        for agent, datasets in PLAYED.items()
        for dataset, solved in datasets.items()
        for task, tries in enumerate(solved)
        for k, repeats in ((2, 1), (5, 2))
        for number in range(repeats)
    ]
    draw.shuffle(lines)
    for cell, task, success in lines:
        writer = draw.randrange(writers)
        below = f"writers/{writer}of{writers}-{draw.randrange(16**8):08x}" if writers > 1 else ""
        ended = "task_success" if success else "max_steps"
        state = {
            "history": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "Assistant:\n!"}],
            "agent_action_count": {"propose_solution": 1, "use_tool": task % 3, "invalid_action": task % 2},
            "success": success,
            "terminate_reason": ended,
            "token_counter": {"total_tokens": 10 + 7 * task},
        }
        path = folder / below / cell / "results.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"state": state, "task": {"task_id": str(task * 5)}}) + "\n")
        with path.with_name("details.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"task_id": str(task * 5), "cost": 0.1 * (task + 1)}) + "\n")
    return folder


def uneven_features(seed: int = 0) -> dict[str, FeatureSet]:
    """Train, val and test of four classes in which no two sides are equal.

    27, 11 and 15 images of 23 dimensions; class c is absent from val, class d from test; 8, 4 and 6 groups of
    different sizes that no two splits share, at three sites; a group moves its images as much as their class.
    """
    draw = np.random.default_rng(seed)
    centers, found = draw.normal(size=(4, 23)), {}
    for split, sizes, n_groups in (
        ("train", (11, 7, 5, 4), 8),
        ("val", (4, 3, 0, 4), 4),
        ("test", (9, 2, 4, 0), 6),
    ):
        labels = draw.permutation(np.repeat(np.arange(4), sizes))
        groups = np.minimum(draw.geometric(0.25, len(labels)) - 1, n_groups - 1)
        shift = draw.normal(size=(n_groups, 23))
        rows = 3 * (centers[labels] + shift[groups] + draw.normal(size=(len(labels), 23)))
        found[split] = feature_set(
            rows,
            labels,
            names=f"{split}/{{}}.png",
            groups=[f"{split}-{group}" for group in groups],
            sites={"hospital": tuple("NSW"[group % 3] for group in groups)},
            dataset="uneven",
            encoder="e",
            classes=["a", "b", "c", "d"],
        )
    return found


def another(option: Declared) -> Any:
    """Another value than the default of an option."""
    word = next((word for word in option.words if word != option.default), "other.json")
    value = {bool: not option.default, int: 77, float: 0.25}.get(option.kind, word)
    return (value,) if option.is_list else value


def played(queries: Queries, episodes: Episodes, *, n_classes: int) -> FewShotSetting:
    """One setting of Few-shot with the given episodes."""
    groups = queries.groups(episodes)
    return queries.joined(episodes, groups, [queries.play(episodes[group], n_classes) for group in groups])


def episodes_of(supports: ArrayLike, train_labels: ArrayLike) -> Episodes:
    """Episodes from explicit supports [E][way][shot], in any order of classes."""
    rows = np.asarray(supports, dtype=np.int64)
    classes = np.asarray(train_labels)[rows[:, :, 0]]
    order = np.argsort(classes, axis=1)
    return Episodes(np.take_along_axis(classes, order, 1), np.take_along_axis(rows, order[:, :, None], 1))


def published_prompts(folder: Path) -> Path:
    """Writes the files of the published benchmark that its prompts are read from."""
    files = {
        "mint/prompt/templates/template_with_tool.txt": (
            "Do {max_total_steps}, {max_propose_solution}.\n{tool_desc}\n---\n{in_context_example}\n---\n"
            "{task_prompt}\n"
        ),
        "mint/tools/__init__.py": (
            'from x import y\ndef get_toolset_description(tools):\n    """Words."""\n    if not tools:\n'
            '        return ""\n    output = "Tools:\\n"\n    return output\n'
        ),
        "mint/tools/wikipedia_search.py": (
            'import nothing_here\nclass A:\n    name = "wikipedia_search"\n    signature = f"x"\n'
            '    signature = "wiki(q)"\n    description = (\n        "Looks "\n        "up."\n    )\n'
        ),
        "mint/tools/alfworld.py": (
            'SHAPE = "{name}({args})"\nTEXT = """{desc}\nE.g.: {example}\n""".lstrip()\n'
            'class Put(Tool):\n    name = "put"\n    signature = SHAPE.format(name=name, args="a, b")\n'
            '    description = TEXT.format(desc="Puts.", example="put(1)")\n'
        ),
        "mint/tasks/reasoning.py": (
            "class TheoremqaTask:\n    def __init__(self, prompt):\n        self._prompt = (\n"
            '            "Answer well. "\n            + prompt.strip()\n        )\n'
        ),
        "mint/tasks/codegen.py": (
            'class HumanEvalTask:\n    @property\n    def prompt(self):\n        """Text."""\n'
            '        return "Finish:\\n\\n" + self._prompt\n'
        ),
        "mint/tasks/in_context_examples/reasoning/with_tool.txt": "EXAMPLE\n",
        "mint/tasks/in_context_examples/reasoning/with_tool_and_feedback.txt": "EXAMPLE WITH EXPERT\n",
        "mint/tasks/in_context_examples/humaneval/with_tool.txt": "CODE\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder
