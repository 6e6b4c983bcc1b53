"""histobench: which pathology foundation model should I use, and how sure can I be?

>>> import histobench as hb
>>> [spec.name for spec in hb.list_encoders(zero_shot=True, open=True)][:1]
['tiny-vl']
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from histobench.core.version import __version__

#: public name -> where it is; nothing is imported before it is asked for, so that importing is quick
_HOMES = {
    "Benchmark": "histobench.api.benchmark",
    "Dataset": "histobench.api.dataset",
    "Encoder": "histobench.api.encoder",
    "FeatureSets": "histobench.api.features",
    "HistobenchError": "histobench.core.errors",
    "choose": "histobench.api.benchmark",
    "create_encoder": "histobench.api.encoder",
    "evaluate": "histobench.api.features",
    "extract": "histobench.api.features",
    "features": "histobench.api.features",
    "list_encoders": "histobench.api.encoder",
    "load_dataset": "histobench.api.dataset",
    "open_results": "histobench.api.benchmark",
    "run": "histobench.api.benchmark",
    "similarity": "histobench.api.benchmark",
}
_MODULES = ("estimators", "mint")

__all__ = [
    "Benchmark",
    "Dataset",
    "Encoder",
    "FeatureSets",
    "HistobenchError",
    "__version__",
    "choose",
    "create_encoder",
    "estimators",
    "evaluate",
    "extract",
    "features",
    "list_encoders",
    "load_dataset",
    "mint",
    "open_results",
    "run",
    "similarity",
]

if TYPE_CHECKING:
    from histobench import estimators, mint
    from histobench.api.benchmark import Benchmark, choose, open_results, run, similarity
    from histobench.api.dataset import Dataset, load_dataset
    from histobench.api.encoder import Encoder, create_encoder, list_encoders
    from histobench.api.features import FeatureSets, evaluate, extract, features
    from histobench.core.errors import HistobenchError


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"histobench.{name}")
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'histobench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
