"""histobench: which pathology foundation model should I use, and how sure can I be?

Benchmark frozen image encoders on your own labeled tiles (`run`, `compare`, `robustness`), language models as
agents (`histobench.mint`), and agents that may ask an encoder (`histobench.consult`).

>>> import tempfile, histobench as hb
>>> folder = tempfile.mkdtemp()
>>> data = hb.demo_dataset(f"{folder}/tiles", train_per_class=4, test_per_class=4, size=64)
>>> bench = hb.run(data, "tiny-vl", tasks=["KNN", "Proto"], results=f"{folder}/results", n_neighbors=3)
>>> bench.to_frame().query("metric == 'accuracy'")[["encoder", "task"]].values.tolist()
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
    "FeatureSplits": "histobench.api.features",
    "Features": "histobench.api.features",
    "HistobenchError": "histobench.core.errors",
    "RobustnessTables": "histobench.api.site_robustness",
    "choose": "histobench.api.benchmark",
    "compare": "histobench.api.benchmark",
    "create_encoder": "histobench.api.encoder",
    "demo_dataset": "histobench.api.dataset",
    "doctor": "histobench.api.checks",
    "evaluate": "histobench.api.features",
    "extract": "histobench.api.features",
    "list_encoders": "histobench.api.encoder",
    "load_dataset": "histobench.api.dataset",
    "load_features": "histobench.api.features",
    "open_results": "histobench.api.benchmark",
    "power": "histobench.api.checks",
    "robustness": "histobench.api.site_robustness",
    "run": "histobench.api.benchmark",
    "similarity": "histobench.api.benchmark",
    "verify": "histobench.api.checks",
}
#: Types of what functions return; they can be imported, too.
_RETURNED = {
    "Choice": "histobench.roi.comparison.choice",
    "EncoderSpec": "histobench.roi.encoders.encoder_spec",
    "Findings": "histobench.roi.data.check",
    "StoredRun": "histobench.roi.results.stored_run",
    "Study": "histobench.consult.study",
}
#: earlier name -> name
_RENAMED = {"FeatureSets": "FeatureSplits", "features": "load_features"}
_MODULES = ("consult", "estimators", "mint")

__all__ = [
    "Benchmark",
    "ComparisonTable",
    "Dataset",
    "Encoder",
    "FeatureSplits",
    "Features",
    "HistobenchError",
    "RobustnessTables",
    "__version__",
    "choose",
    "compare",
    "consult",
    "create_encoder",
    "demo_dataset",
    "doctor",
    "estimators",
    "evaluate",
    "extract",
    "list_encoders",
    "load_dataset",
    "load_features",
    "mint",
    "open_results",
    "power",
    "robustness",
    "run",
    "similarity",
    "verify",
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
    from histobench.api.checks import doctor, power, verify
    from histobench.api.dataset import Dataset, demo_dataset, load_dataset
    from histobench.api.encoder import Encoder, create_encoder, list_encoders
    from histobench.api.features import Features, FeatureSplits, evaluate, extract, load_features
    from histobench.api.site_robustness import RobustnessTables, robustness
    from histobench.consult.study import Study as Study
    from histobench.core.errors import HistobenchError
    from histobench.roi.comparison.choice import Choice as Choice
    from histobench.roi.data.check import Findings as Findings
    from histobench.roi.encoders.encoder_spec import EncoderSpec as EncoderSpec
    from histobench.roi.results.stored_run import StoredRun as StoredRun


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"histobench.{name}")
    if home := {**_HOMES, **_RETURNED}.get(name):
        value = getattr(import_module(home), name)
        globals()[name] = value
        return value
    if name in _RENAMED:
        from histobench.core.renamed import warn_renamed

        warn_renamed(f"histobench.{name}", f"histobench.{_RENAMED[name]}")
        return __getattr__(_RENAMED[name])
    raise AttributeError(f"module 'histobench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
