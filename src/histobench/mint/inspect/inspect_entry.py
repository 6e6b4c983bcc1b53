"""What Inspect finds under the name `histobench`: its entry point names this module."""

from histobench.mint.inspect.evaluation import mint
from histobench.mint.inspect.solver import mint_episode, task_success

__all__ = ["mint", "mint_episode", "task_success"]
