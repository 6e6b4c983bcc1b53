"""histobench: which pathology foundation model should I use, and how sure can I be?

Benchmark frozen image encoders on your own labeled tiles (`run`, `compare`, `robustness`), language models as
agents (`histobench.mint`), and agents that may ask an encoder (`histobench.consult`).

>>> import tempfile, histobench as hb
>>> folder = tempfile.mkdtemp()
>>> data = hb.demo_dataset(f"{folder}/tiles", train_per_class=4, test_per_class=4, size=64)
>>> bench = hb.run(data, "tiny-vl", tasks=["KNN", "Proto"], results=f"{folder}/results", n_neighbors=3)
>>> bench.table().query("metric == 'accuracy'")[["encoder", "task"]].values.tolist()
[['tiny-vl', 'KNN'], ['tiny-vl', 'Proto']]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from histobench.core.version import __version__

#: public name -> where it is; nothing is imported before it is asked for, so that importing is quick
_HOMES = {
    "Benchmark": "histobench.api.benchmark",
    "ComparisonTable": "histobench.api.benchmark",
    "Dataset": "histobench.api.dataset",
    "Encoder": "histobench.api.encoder",
    "FeatureSets": "histobench.api.features",
    "Features": "histobench.api.features",
    "HistobenchError": "histobench.core.errors",
    "RobustnessTables": "histobench.api.site_robustness",
    "choose": "histobench.api.benchmark",
    "compare": "histobench.api.benchmark",
    "create_encoder": "histobench.api.encoder",
    "demo_dataset": "histobench.api.dataset",
    "evaluate": "histobench.api.features",
    "extract": "histobench.api.features",
    "features": "histobench.api.features",
    "list_encoders": "histobench.api.encoder",
    "load_dataset": "histobench.api.dataset",
    "open_results": "histobench.api.benchmark",
    "robustness": "histobench.api.site_robustness",
    "run": "histobench.api.benchmark",
    "similarity": "histobench.api.benchmark",
}
_MODULES = ("consult", "estimators", "mint")

__all__ = [
    "Benchmark",
    "ComparisonTable",
    "Dataset",
    "Encoder",
    "FeatureSets",
    "Features",
    "HistobenchError",
    "RobustnessTables",
    "__version__",
    "choose",
    "compare",
    "consult",
    "create_encoder",
    "demo_dataset",
    "estimators",
    "evaluate",
    "extract",
    "features",
    "list_encoders",
    "load_dataset",
    "mint",
    "open_results",
    "robustness",
    "run",
    "similarity",
]

if TYPE_CHECKING:
    from histobench import consult, estimators, mint
    from histobench.api.benchmark import (
        Benchmark,
        ComparisonTable,
        choose,
        compare,
        open_results,
        run,
        similarity,
    )
    from histobench.api.dataset import Dataset, demo_dataset, load_dataset
    from histobench.api.encoder import Encoder, create_encoder, list_encoders
    from histobench.api.features import Features, FeatureSets, evaluate, extract, features
    from histobench.api.site_robustness import RobustnessTables, robustness
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
