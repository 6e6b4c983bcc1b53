from pathlib import Path

from histobench.mint.tasks.base import Task
from histobench.mint.tools.base import Tool

HERE = Path(__file__).parent


class MicronsToPixels(Tool):
    name = "microns_to_pixels"
    signature = "microns_to_pixels(microns: float, microns_per_pixel: float) -> str"
    description = "Converts a length on the slide to pixels. Example: microns_to_pixels(10, 0.5)"

    def __call__(self, microns: float, microns_per_pixel: float) -> str:
        return f"{microns / microns_per_pixel:.0f}"


class MicronsTask(Task):
    task_name = "microns"  # the folder of its worked example
    in_context_example_dir = HERE / "examples"
    data_path = HERE / "test_prompts.json"
    tool_names = ("microns_to_pixels",)

    def __init__(self, id: int, prompt: str, reference: str, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self._id, self._prompt, self._reference = id, prompt, reference

    def success(self, solution: str) -> bool:
        return solution.strip() == self.reference
