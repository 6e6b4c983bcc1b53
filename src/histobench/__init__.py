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

from histobench.core.version import __version__ as __version__

#: module -> its public names; nothing is imported before it is used, so that importing is quick
_HOMES = {
    "api.benchmark": "Benchmark ComparisonTable choose compare open_results run similarity",
    "api.checks": "doctor power verify",
    "api.dataset": "Dataset demo_dataset load_dataset",
    "api.encoder": "Encoder create_encoder list_encoders",
    "api.features": "FeatureSplits Features evaluate extract load_features",
    "api.site_robustness": "RobustnessTables robustness",
    "core.errors": "HistobenchError",
}
#: The same for types of what functions return.
_TYPES = {
    "consult.study": "Study",
    "roi.comparison.choice": "Choice",
    "roi.data.check": "Findings",
    "roi.encoders.encoder_spec": "EncoderSpec",
    "roi.results.stored_run": "StoredRun",
}
#: earlier name -> name
_RENAMED = {"FeatureSets": "FeatureSplits", "features": "load_features"}
_MODULES = ("consult", "estimators", "mint")

__all__ = sorted(["__version__", *_MODULES, *" ".join(_HOMES.values()).split()])

if TYPE_CHECKING:
    from histobench import consult as consult
    from histobench import estimators as estimators
    from histobench import mint as mint
    from histobench.api.benchmark import Benchmark as Benchmark
    from histobench.api.benchmark import ComparisonTable as ComparisonTable
    from histobench.api.benchmark import choose as choose
    from histobench.api.benchmark import compare as compare
    from histobench.api.benchmark import open_results as open_results
    from histobench.api.benchmark import run as run
    from histobench.api.benchmark import similarity as similarity
    from histobench.api.checks import doctor as doctor
    from histobench.api.checks import power as power
    from histobench.api.checks import verify as verify
    from histobench.api.dataset import Dataset as Dataset
    from histobench.api.dataset import demo_dataset as demo_dataset
    from histobench.api.dataset import load_dataset as load_dataset
    from histobench.api.encoder import Encoder as Encoder
    from histobench.api.encoder import create_encoder as create_encoder
    from histobench.api.encoder import list_encoders as list_encoders
    from histobench.api.features import Features as Features
    from histobench.api.features import FeatureSplits as FeatureSplits
    from histobench.api.features import evaluate as evaluate
    from histobench.api.features import extract as extract
    from histobench.api.features import load_features as load_features
    from histobench.api.site_robustness import RobustnessTables as RobustnessTables
    from histobench.api.site_robustness import robustness as robustness
    from histobench.consult.study import Study as Study
    from histobench.core.errors import HistobenchError as HistobenchError
    from histobench.roi.comparison.choice import Choice as Choice
    from histobench.roi.data.check import Findings as Findings
    from histobench.roi.encoders.encoder_spec import EncoderSpec as EncoderSpec
    from histobench.roi.results.stored_run import StoredRun as StoredRun


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"histobench.{name}")
    for home, names in (_HOMES | _TYPES).items():
        if name in names.split():
            globals()[name] = getattr(import_module(f"histobench.{home}"), name)
            return globals()[name]
    if name in _RENAMED:
        from histobench.core.renamed import warn_renamed

        warn_renamed(f"histobench.{name}", f"histobench.{_RENAMED[name]}")
        return __getattr__(_RENAMED[name])
    raise AttributeError(f"module 'histobench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
