"""The tables to edit (or to extend from a package of your own) when a tool, a dataset or a setting is added.

docs/CONFIG.md explains every entry; `histobench mint configs` writes a JSON file for each cell of the matrix.
"""

from __future__ import annotations

from typing import Any

DATASET_DIR = "data/processed"
DATA_OUTPUTS_DIR = "data/outputs"

#: dataset -> its task class (a name in histobench.mint.tasks, or "module:Class") and its type.
TASK_INFO_MAP: dict[str, dict[str, str]] = {
    "gsm8k": {"class": "ReasoningTask", "type": "reasoning"},
    "math": {"class": "ReasoningTask", "type": "reasoning"},
    "hotpotqa": {"class": "ReasoningTask", "type": "reasoning"},
    "mmlu": {"class": "MultipleChoiceTask", "type": "reasoning"},
    "theoremqa": {"class": "TheoremqaTask", "type": "reasoning"},
    "humaneval": {"class": "HumanEvalTask", "type": "code_generation"},
    "mbpp": {"class": "MBPPTask", "type": "code_generation"},
    "alfworld": {"class": "AlfWorldTask", "type": "decision_making"},
}

#: task type -> tools placed in the Python session, as (module, class). The ALFWorld environment adds its own.
TASK_TYPE_TO_TOOL_IMPORT: dict[str, list[tuple[str, str]]] = {
    "reasoning": [("histobench.mint.tools.wikipedia_search", "WikipediaQueryRun")],
    "code_generation": [],
    "decision_making": [],
}

#: Budgets: k actions, of which at most p proposals.
ENV_CONFIGS: list[dict[str, Any]] = [
    {"max_steps": k, "use_tools": True, "max_propose_solution": p, "count_down": True}
    for k, p in ((5, 2), (4, 2), (3, 2), (2, 2), (1, 1))
]

#: With an expert only the full budget is run.
FEEDBACK_ENV_CONFIGS: list[dict[str, Any]] = [ENV_CONFIGS[0]]

FEEDBACK_TYPES: list[dict[str, str]] = [
    {"pseudo_human_feedback": "no_GT", "feedback_form": "textual"},
    {"pseudo_human_feedback": "no_GT", "feedback_form": "binary"},
    {"pseudo_human_feedback": "GT", "feedback_form": "textual"},
    {"pseudo_human_feedback": "GT", "feedback_form": "binary"},
]

NO_FEEDBACK_PROVIDER: dict[str, Any] = {"agent_class": "None", "model_name": "None"}
NO_FEEDBACK_TYPE: dict[str, str] = {"pseudo_human_feedback": "None", "feedback_form": "None"}

#: Experts; each is run with every feedback type. The published headline uses this one.
FEEDBACK_PROVIDER_LIST: list[dict[str, Any]] = [
    {"agent_class": "OpenAIFeedbackAgent", "model_name": "gpt-4-0613"},
]

FEEDBACK_AGENT_DEFAULTS: dict[str, Any] = {"chat_mode": True, "max_tokens": 1024, "temperature": 0.0}

#: Models under test.
EVALUATED_MODEL_LIST: list[dict[str, Any]] = [
    {
        "agent_class": "OpenAILMAgent",
        "config": {
            "model_name": "gpt-3.5-turbo-0613",
            "chat_mode": True,
            "max_tokens": 512,
            "temperature": 0.0,
        },
    },
]
