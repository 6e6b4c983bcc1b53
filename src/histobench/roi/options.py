"""Every option of the ROI track, declared once. Nothing heavy is imported: help needs only this file."""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from histobench.core.errors import HistobenchError
from histobench.core.records import Declared, option, options_of, record
from histobench.core.text import check_plain_name
from histobench.roi.presets import CHOICES, PRESETS
from histobench.roi.task_catalogue import CLASS, DEFAULT_TASKS, TARGETS, TASKS

LAB_KEYS = ("cost", "class_weight", "cox_alpha", "l1_ratio")
TUNE_KEYS = (
    *("lora_rank", "lora_alpha", "tune_epochs", "tune_rates", "tune_batch_size", "tune_seeds"),
    "save_adapters",
)
IMAGE_KEYS = (*TUNE_KEYS, "token_store", "head_steps")
#: Of the options of the tasks, those that a plan has; all of the extraction's settings are keys of a plan.
TASK_KEYS = ("n_shot", "n_way", "n_iter", "n_neighbors", "choose_by", *LAB_KEYS, *IMAGE_KEYS)
#: What a plan assumes where the single commands assume something else.
SETTINGS_OF_PLANS: dict[str, Any] = {"batch_size": "auto"}
DATA_GROUP = "how the data is read"
_INFERENCE, _RECIPE = "inference", "recipe"
_SPLITS = "other splits of the same features"
LEAVE_ONE_GROUP_OUT, GIVEN = "leave-one-group-out", "given"
ENGINE_GROUP = "advanced: where it runs (docs/how-to/cluster.md)"

#: Options under one heading.
_data = partial(option, default=None, group=DATA_GROUP)
_inference = partial(option, default=None, group=_INFERENCE)
_splits = partial(option, default=None, group=_SPLITS)
_recipe = partial(option, default=None, group=_RECIPE)
_engine = partial(option, default=None, group=ENGINE_GROUP)


@record
class Origin:
    """How a dataset is split, and how the patient, slide, hospital or scanner of an image is found."""

    _: KW_ONLY
    split: str | None = _data("train/test or train/val/test shares for data without a split, such as 0.7/0.3")
    group_regex: str | None = _data(
        "finds the patient or slide in a path; a group is never divided between splits", regex=True
    )
    image_column: str | None = _data(
        "image column of the table or the Hugging Face dataset", default_text="image_path, path, file, ..."
    )
    label_column: str | None = _data("column of the table with the labels", default_text="label, class")
    group_column: str | None = _data(
        "column of the table with the patient or slide",
        default_text="group, patient, patient_id, case_id, slide, slide_id",
    )
    split_column: str | None = _data("column of the table with train, val or test", default_text="split")
    root: str | None = _data(
        "folder that relative paths in the table start from", default_text="the folder of the table"
    )
    tree: str | None = _data(
        "what the folders above the images are, such as split/class/patient; * is any other folder",
        default_text="recognized, and shown",
    )
    site_regex: str | None = _data(
        "finds hospital, scanner or stain in a path; named groups such as (?P<scanner>...) become columns",
        regex=True,
    )
    site_columns: tuple[str, ...] = _data(
        "further columns of the CSV with a site (site, scanner, stain, hospital, ... are found by name)",
        default=(),
        also=("--site-column",),
        metavar="NAME,...",
    )
    pool: str | None = _data(
        "average features of another tool to one row per patient: over all its tiles, or over the means of "
        "its slides",
        choices=("tiles", "slides"),
        default_text="slides for a Patho-Bench task, else no averaging",
    )


@record
class TargetOptions:
    """What is predicted, and where the table has it."""

    _: KW_ONLY
    target: str = _data("what is predicted", choices=(CLASS, *TARGETS), default=CLASS)
    target_columns: tuple[str, ...] = _data(
        "columns of the CSV with the target",
        default=(),
        default_text="; ".join(
            f"{kind.name}: {','.join(kind.columns) or 'none'}" for kind in TARGETS.values()
        ),
        metavar="NAME,...",
    )
    mask_classes: str | None = _data(
        "class of each code of the masks, such as 0:background,1:tumor,255:ignore, or a JSON file",
        default_text="classes.json next to the table",
        metavar="CODE:CLASS,...",
    )


@record
class DataOptions(Origin):
    """How one dataset is read, called and split."""

    _: KW_ONLY
    classes: str | None = _data(
        "class mapping file",
        old=("--class2id_txt", "--class2id"),
        default_text="from the labels or folder names",
    )
    name: str | None = _data(
        "name of the dataset", old=("--dataset_name",), default_text="from the file name"
    )
    seed: int = _data("seed of the split", default=0, least=0)


@record
class LoadOptions(DataOptions, TargetOptions):
    """How one dataset is read, and what is predicted."""

    def check(self) -> None:
        """Folders are called as datasets are."""
        if self.name is not None:
            check_plain_name(re.sub(r"[\[\]/\\]", "_", self.name), what="name:")

    def noted(self) -> dict[str, Any]:
        """Return the options as an entry of a plan."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        del given["seed"]
        given["class2id"] = given.pop("classes")
        given["target"] = None if self.target == CLASS else self.target
        return {name: list(each) if isinstance(each, tuple) else each for name, each in given.items()}


@record
class Settings:
    """How features are extracted: the speed, at most their last bits, and which bad images are left out."""

    device: str | None = _inference(
        "device: cpu, cuda:0, mps, or several: cuda:0,cuda:1", default_text="the GPU if there is one"
    )
    batch_size: int | str = _inference(
        "images per forward pass, or auto", choices=("auto",), default=256, least=1
    )
    num_workers: int = _inference("processes that load images, at most one per core", default=8, least=0)
    precision: str = _inference(
        "numeric precision; auto follows the encoder's authors on a GPU and uses fp32 on a CPU",
        choices=("auto", "fp32", "bf16", "fp16"),
        default="auto",
    )
    compile: str = _inference(
        "compile the network; auto: for long jobs", choices=("auto", "on", "off"), default="auto"
    )
    on_bad_image: str = _inference(
        "unreadable images: stop with one error that lists them, or skip them",
        choices=("stop", "skip"),
        default="stop",
    )
    recheck: int | str = _inference(
        "number of cached images to recompute as a check (auto: 8; up to 300 for your own encoder)",
        choices=("auto",),
        default="auto",
        least=0,
    )
    no_cache: bool = _inference(
        "compute all features; neither use cached features nor keep any", default=False
    )

    def is_exact(self, precision: str) -> bool:
        """Whether nothing may touch the arithmetic: plain fp32, bit for bit the same in every run."""
        return precision == "fp32" and self.compile == "off"

    @property
    def devices(self) -> tuple[str | None, ...]:
        """The devices of a list such as `cuda:0,cuda:1`."""
        names = tuple(name.strip() for name in (self.device or "").split(",") if name.strip())
        return names or (None,)


@record
class Options:
    """The options of the tasks, with the documented defaults."""

    max_iteration: int = option("iteration limit of the solver", default=1000, least=1, group="linear probe")
    use_sklearn: bool = option(
        "fit the linear probe with scikit-learn", default=False, takes_value=True, group="linear probe"
    )
    n_neighbors: int = option("number of neighbors", default=20, least=1, group="KNN")
    n_iter: int = option("few-shot episodes per setting", default=100, least=1, group="few-shot")
    use_all_way: bool = option(
        "add the setting with all classes", default=True, takes_value=True, group="few-shot"
    )
    n_way: tuple[int, ...] = option(
        "classes of an episode",
        default=(),
        script_default=(2, 3, 4, 5, 6, 7, 8, 9, 10),
        least=2,
        default_text="all classes",
        group="few-shot",
    )
    n_shot: tuple[int, ...] = option(
        "training images per class of an episode",
        default=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        least=1,
        group="few-shot",
    )
    keep_probabilities: bool = option(
        "store the probabilities of every episode, for intervals of AUROC and log loss over images",
        default=False,
        takes_value=True,
        group="few-shot",
    )
    zeroshot_model_name: str | None = option(
        "encoder with a text tower", default=None, default_text="the features' encoder", group="zero-shot"
    )
    zeroshot_prompt_file: Path | None = option(
        "one prompt per class, or templates x names as YAML or JSON", default=None, group="zero-shot"
    )
    zeroshot_batch_size: int = option("images per forward pass", default=32, least=1, group="zero-shot")
    lora_rank: int = option("rank of the LoRA adapter", default=16, least=1, group="fine-tune")
    lora_alpha: float = option(
        "scale of the adapter, which is divided by the rank", default=16.0, above=0, group="fine-tune"
    )
    tune_epochs: int = option("epochs of a training", default=20, least=1, group="fine-tune")
    tune_rates: tuple[float, ...] = option(
        "learning rates; one is chosen on held-out images",
        default=(1e-3, 1e-4, 1e-5),
        above=0,
        group="fine-tune",
    )
    tune_batch_size: int = option("images per training step", default=32, least=1, group="fine-tune")
    tune_seeds: int = option(
        "trainings with different seeds; an interval needs 3", default=3, least=1, group="fine-tune"
    )
    save_adapters: bool = option("save adapters to use as encoders", default=False, group="fine-tune")
    cost: float | str = option(
        "C of the logistic regression of the preset patho-bench; adaptive: dimensions x classes / 100",
        choices=("adaptive",),
        default=0.5,
        above=0,
        group="patho-bench",
    )
    class_weight: str = option(
        "class weights of that logistic regression",
        choices=("balanced", "none"),
        default="balanced",
        group="patho-bench",
    )
    cox_alpha: float = option(
        "penalty of the Cox model of the preset patho-bench", default=0.07, above=0, group="patho-bench"
    )
    l1_ratio: float = option(
        "share of its L1 penalty; 0: L2 alone", default=0.5, least=0, most=1, group="patho-bench"
    )
    token_store: float = option(
        "gigabytes of patch tokens that are kept in a temporary file; more are computed again in every epoch",
        default=20.0,
        least=0,
        group="segmentation",
    )
    head_steps: int = option(
        "minimum number of training steps of the linear readout of patch tokens (20 epochs if that is more)",
        default=100,
        least=1,
        group="segmentation",
    )
    choose_by: str = _recipe(
        "how to hold out data for model selection when there is no validation set: whole groups where the "
        "data has any, or single images as in the published recipes",
        default="group",
        choices=CHOICES,
    )


@record
class DatasetEntry(Origin):
    """One dataset of a plan: where it is and how it is split."""

    name: str
    source: Path
    class2id: Path | None = option(
        "class map: Name,ID or ID:Name lines, or plain names",
        default=None,
        default_text="from the labels or folder names",
        flag="--classes",
        old=("--class2id", "--class2id-txt"),
        group=DATA_GROUP,
    )
    prompts: Path | None = option(
        "zero-shot prompts: a line per class, or YAML or JSON with names and templates",
        default=None,
        group=DATA_GROUP,
    )


@dataclass(frozen=True)
class Scheme:
    """How often folds are drawn, and how many; 0 folds leave out one group at a time, 0 repeats are given."""

    repeats: int
    folds: int

    @property
    def name(self) -> str:
        """As in file names and on pages: `5x2` are five repeats of two folds."""
        if not self.repeats:
            return GIVEN
        return f"{self.repeats}x{self.folds}" if self.folds else LEAVE_ONE_GROUP_OUT


#: The folds that the data itself gives.
GIVEN_FOLDS = Scheme(0, 0)


def scheme_of(splits: str | None, folds: int | None, repeats: int | None) -> Scheme | None:
    """The scheme that is asked for, by name or by numbers; None where none is."""
    if splits is None:
        if folds is None and repeats is not None:
            raise HistobenchError("`repeats` needs `folds`: how many parts?")
        return None if folds is None else Scheme(repeats or 1, folds)
    if folds is not None or repeats is not None:
        raise HistobenchError("give `splits`, or `folds` and `repeats`, not both")
    if splits in (LEAVE_ONE_GROUP_OUT, GIVEN):
        return Scheme(1, 0) if splits == LEAVE_ONE_GROUP_OUT else GIVEN_FOLDS
    match = re.fullmatch(r"([1-9]\d*)x([2-9]|[1-9]\d+)", splits.strip())
    if not match:
        expected = f"repeats x folds such as 5x2 (1x2 or more), or {LEAVE_ONE_GROUP_OUT}"
        raise HistobenchError(f"`splits` {splits!r}: expected {expected}")
    return Scheme(int(match[1]), int(match[2]))


@record
class SplitOptions:
    """Other train/test splits of the same features."""

    _: KW_ONLY
    splits: str | None = _splits(
        "repeat the evaluation on other train/test splits of the same features: repeats x folds such as 5x2, "
        "or leave-one-group-out",
        metavar="RxF",
    )
    folds: int | None = _splits("folds of each repeat (instead of --splits)", least=2)
    repeats: int | None = _splits("repeats of the folds", least=1, default_text="1")

    def check(self) -> None:
        """The options must name one scheme."""
        _ = self.scheme

    @cached_property
    def scheme(self) -> Scheme | None:
        """Which other splits are asked for."""
        return scheme_of(self.splits, self.folds, self.repeats)


@record
class Plan(SplitOptions, TargetOptions):
    """Every combination of datasets, encoders, tasks and presets, and where the results go."""

    datasets: tuple[DatasetEntry, ...]
    encoders: tuple[str, ...]
    results: Path
    features: tuple[str, ...] = option(
        "features computed by another tool (.h5, .pt, .npz, .parquet, .h5ad, or a folder of these), as PATH "
        "or NAME=PATH; --data is the table of labels",
        default=(),
        metavar="PATH,...",
        group=DATA_GROUP,
    )
    combine: tuple[str, ...] = _recipe(
        "encoders whose features are put side by side, as a+b; or: all pairs", default=(), metavar="A+B,..."
    )
    tasks: tuple[str, ...] = option(f"tasks: {', '.join(TASKS)}", default=DEFAULT_TASKS, metavar="TASK,...")
    presets: tuple[str, ...] = _recipe(
        f"recipes: {', '.join(PRESETS)}", default=("uni",), metavar="PRESET,..."
    )
    seed: int = _recipe("seed of splits, episodes and everything else random", default=0, least=0)
    size: int | None = _inference(
        "image size in pixels as the encoder sees it",
        least=1,
        old=("--resize-size",),
        default_text="each encoder's own",
    )
    weights: str | None = _inference(
        "checkpoint, folder of checkpoints, or table like model_weights.json", metavar="PATH"
    )
    allow_revision: bool = _inference(
        "use weights in the hub's cache even if their revision is not the pinned one", default=False
    )
    settings: Settings = field(default_factory=lambda: Settings(**SETTINGS_OF_PLANS))
    options: Options = field(default_factory=Options)
    n_bootstrap: int | None = _recipe(
        "also write the older bootstrap intervals, from this many resamples", least=2
    )
    slurm: str | None = _engine(
        "options of Slurm jobs that run encoders: partition=gpu,gres=gpu:1,time=4:00:00",
        metavar="KEY=VALUE,...",
    )
    slurm_cpu: str | None = _engine(
        "options of Slurm jobs without a GPU: evaluation and the summary", metavar="KEY=VALUE,..."
    )

    def values(self) -> dict[str, Any]:
        """The keys of a plan file with what this plan says for each."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        settings, options = own.pop("settings"), own.pop("options")
        return {
            **own,
            **{each.name: getattr(settings, each.name) for each in fields(settings)},
            "batch_size": str(settings.batch_size),
            **{name: getattr(options, name) for name in TASK_KEYS},
        }


def feature_options() -> tuple[Declared, ...]:
    return tuple(each for each in options_of(Options) if each.name not in IMAGE_KEYS)


def plan_options() -> tuple[Declared, ...]:
    """Every option of a plan: its keys beside datasets, encoders and results, and the flags of `run`."""
    tasks = {each.name: each for each in options_of(Options)}
    found = [*options_of(Plan), *options_of(Settings), *(tasks[name] for name in TASK_KEYS)]
    return tuple(replace(each, default=SETTINGS_OF_PLANS.get(each.name, each.default)) for each in found)
