"""A plan finishes, goes on where it stopped, and survives an encoder that cannot be built."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import histobench as hb
from builders import MEAN_ENCODER
from histobench.cli import extract
from histobench.cli.main import main
from histobench.core.errors import HistobenchError
from histobench.roi.comparison.tidy_rows import read_rows
from histobench.roi.data.demo import write_demo_dataset
from histobench.roi.plan.plan_file import plan_from
from histobench.roi.plan.plan_run import load_datasets
from histobench.roi.plan.planner import tasks_for


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_demo_dataset(folder, name="tiles", train_per_class=4, test_per_class=2, size=64)
    return folder


Run = Callable[..., str]


@pytest.fixture
def run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """`histobench run` on the tiles, into the folder r; gives what was printed."""
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))

    def call(*flags: str, code: int = 0) -> str:
        common = ["--data", str(data / "tiles.csv"), "--results", str(tmp_path / "r"), "--compile", "off"]
        assert main(["run", *common, *flags]) == code
        out, err = capsys.readouterr()
        return err + out

    return call


@pytest.mark.slow
def test_a_failing_encoder_does_not_stop_the_others_and_nothing_is_done_twice(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "bench.yaml").write_text(
        f"datasets: [{{source: {data / 'tiles.csv'}, class2id: {data / 'tiles.txt'}}}]\n"
        "encoders: [tiny-vl, uni_v1]\ntasks: [KNN, Proto]\nn_neighbors: 3\nn_bootstrap: 50\ncompile: 'off'\n"
    )
    command = ["run", str(tmp_path / "bench.yaml")]
    assert main(command) == 2
    assert "1 of 2 encoders cannot be used" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()
    command.append("--skip-failed")
    assert main(command) == 2
    said = capsys.readouterr().out
    assert "FAILED: tiles x uni_v1: features" in said
    assert "2 tasks done, 0 done before, 1 failed" in said
    results = tmp_path / "results"
    assert "tiny-vl" in (results / "summary.md").read_text()
    assert '"n_bootstrap": 50' in (results / "bootstrap_ci_summary.json").read_text()
    rows = read_rows(results / "tiles" / "tiny-vl" / "uni" / "results.parquet")
    assert {row["task"] for row in rows} == {"KNN", "Proto"}

    assert main(command) == 2
    assert "0 tasks done, 2 done before, 1 failed" in capsys.readouterr().out
    assert read_rows(results / "tiles" / "tiny-vl" / "uni" / "results.parquet") == rows


EXITS = """

class Exits(Mean):
    def forward(self, images):
        raise SystemExit(0)
"""


@pytest.mark.slow
def test_an_encoder_that_exits_is_a_failed_unit_and_the_others_go_on(run: Run, tmp_path: Path) -> None:
    (tmp_path / "exits.py").write_text(MEAN_ENCODER + EXITS)
    models = ",".join(f"{tmp_path}/exits.py:{name}" for name in ("Exits", "Mean"))
    said = run("--models", models, "--tasks", "Proto", code=2)
    assert "Exits fails on a batch of shape" in said
    assert "SystemExit: 0" in said
    assert "1 task done, 0 done before, 1 failed" in said


@pytest.mark.slow
def test_damaged_results_are_named_by_compare_and_computed_again_by_run(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / "r"
    flags = ("--models", "tiny-vl", "--tasks", "KNN,Proto")
    run(*flags)
    detailed = next(results.rglob("KNN_detailed_results.csv"))
    before = detailed.read_bytes()
    detailed.write_bytes(before[:300])
    for path in (*results.rglob("results.parquet"), next(results.rglob("Proto/.run.json"))):
        path.write_bytes(path.read_bytes()[:10])
    assert main(["compare", str(results), "--task", "Proto"]) == 2
    assert f"damaged or removed: {detailed}" in "".join(capsys.readouterr())
    assert "1 task done, 1 done before, 0 failed" in run(*flags)
    assert detailed.read_bytes() == before
    assert {row["task"] for row in read_rows(results / "results.parquet")} == {"KNN", "Proto"}
    assert main(["compare", str(results), "--task", "Proto"]) == 0


@pytest.mark.slow
def test_splits_are_evaluated_on_the_same_features_and_are_in_the_summary(run: Run, tmp_path: Path) -> None:
    flags = ("--models", "tiny-vl", "--tasks", "Proto", "--splits")
    assert "5 tasks done" in run(*flags, "2x2")
    assert "over splits 2x2" in (tmp_path / "r" / "summary.md").read_text()
    assert len(list((tmp_path / "r").rglob("*.pt"))) == 2  # training and test features, extracted once
    assert "0 tasks done, 5 done before" in run(*flags, "2x2")
    assert "repeats x folds such as 5x2" in run(*flags, "two", code=2)


@pytest.mark.slow
def test_a_dataset_without_test_images_is_refused_before_the_work(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    image = next(path for path in data.rglob("*") if path.suffix in (".png", ".jpg"))
    (tmp_path / "only.csv").write_text(f"image_path,label,split\n{image},0,train\n")
    command = ["run", "--data", str(tmp_path / "only.csv"), "--models", "tiny-vl"]
    assert main([*command, "--results", str(tmp_path / "r")]) == 2
    assert "only has no test images: mark some as test in" in capsys.readouterr().err
    assert not list((tmp_path / "r").rglob("*.pt"))


def test_a_dry_run_shows_the_cost_and_writes_nothing(run: Run, tmp_path: Path) -> None:
    said = run("--models", "gigapath,uni_v1", "--dry-run")
    assert "54" in said
    assert "gigapath" in said
    rows = {line.split()[-3]: line.split()[-2:] for line in said.splitlines() if len(line.split()) > 2}
    assert rows["all"] == ["36", "18"]  # training and test images
    assert rows["slides)"] == ["1", "1"]  # groups
    assert said.splitlines()[-1] == "Next: repeat the command without --dry-run"
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_a_dry_run_measures_an_encoder_that_the_zoo_does_not_know(run: Run, tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "import time, torch\n"
        "from histobench.roi.encoders.base import BasePatchEncoder\n"
        "class Slow(BasePatchEncoder):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.embed_dim = 3\n"
        "        self.eval_transforms = lambda image: torch.zeros(3, 8, 8)\n"
        "    def forward(self, images):\n"
        "        time.sleep(0.05 * len(images))\n"
        "        return images.mean((2, 3))\n"
    )
    said = run("--models", f"{own}:Slow", "--device", "cpu", "--tasks", "KNN", "--dry-run")
    (line,) = [line for line in said.splitlines() if line.startswith("total: about")]
    features = int(line.partition("features ")[2].partition(" s")[0])
    assert 2 <= features <= 6  # 54 images of 0.05 s


def test_the_line_of_three_encoders_fits_into_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    monkeypatch.setattr(extract, "open_terminal", lambda **_: console)
    bar = extract.Bar()
    bar.begin("synthetic-crc x efficientnet-lite0, tiny-vl, random-vit", 4500)
    bar.advance(1500)
    bar.end()
    assert re.search(
        r"1500/4500 \S+ images/s left [-\d]:[-\d]{2}:[-\d]{2}\n", _plain(console.file.getvalue())
    )  # type: ignore[attr-defined]


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_no_models_is_a_clear_error(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--data", str(data)]) == 2
    assert "--encoders is missing" in capsys.readouterr().err


@pytest.mark.slow
def test_two_encoder_classes_of_one_name_are_refused_or_have_one_spelling_each_everywhere(
    run: Run, tmp_path: Path
) -> None:
    for name, what in (("one", "mean"), ("other", "amax")):
        (tmp_path / f"{name}.py").write_text(MEAN_ENCODER.replace("images.mean", f"images.{what}"))
    first, second = (f"{tmp_path}/{name}.py:Mean" for name in ("one", "other"))
    flags = ("--tasks", "Proto", "--num_workers", "0", "--no-cache", "--models")
    assert "would both be called Mean" in run(*flags, f"{first},{second}", code=2)
    run(*flags, f"{first},largest={second}")
    assert {path.name for path in (tmp_path / "r" / "tiles").iterdir()} == {"Mean", "largest"}
    for name in ("Mean", "largest"):
        rows = read_rows(tmp_path / "r" / "tiles" / name / "uni" / "results.parquet")
        assert {row["encoder"] for row in rows} == {name}
        assert list((tmp_path / "r" / "features").glob(f"*Model_[[]{name}[]]*_test.pt"))
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


@pytest.mark.parametrize("verb", ["run", "dry", "extract"])
def test_what_cannot_be_found_is_told_at_once_and_all_together(
    verb: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HISTOBENCH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "own.py").write_text("class MyEncoder: pass\n")
    names = f"random-vit,efficientnet-lite,{tmp_path}/own.py:MyEncodr,{tmp_path}/gone.py:X"
    table = str(data / "tiles.csv")
    command = ["run", "--data", table, "--models", names, "--results", str(tmp_path / "r")]
    if verb == "extract":
        command = ["extract", "--dataset_split_csv", table, "--model_name", names]
        command += ["--save_dir", str(tmp_path / "r")]
    assert main([*command, *(["--dry-run"] if verb == "dry" else [])]) == 2
    said = capsys.readouterr().err
    assert "3 of 4 encoders cannot be used" in said
    assert "unknown encoder 'efficientnet-lite'; did you mean efficientnet-lite0" in said
    assert "has no 'MyEncodr'; did you mean MyEncoder?" in said
    assert "gone.py does not exist" in said
    assert "Nothing was computed; --skip-failed runs the others." in said
    assert not (tmp_path / "r").exists()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--prompts", "no.txt"], "--prompts no.txt does not exist"),
        (["--class2id", "no.txt"], "--classes no.txt does not exist"),
        (["--features", "no.h5"], "--features no.h5 does not exist"),
        (["--tasks", "KNNN"], "unknown task 'KNNN'; did you mean KNN?"),
        (["--data", "images,other/images"], "two datasets are called 'images'; give each its own name"),
    ],
)
def test_a_message_names_flags_and_parameters_and_not_the_plan_that_is_made_of_them(
    flags: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for folder in ("images/a", "images/b", "other/images"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert main(["run", "--data", "images", "--models", "random-vit", *flags]) == 2
    assert capsys.readouterr().err == f"histobench run: error: {message}\n"
    given = dict(zip(("data", flags[0][2:]), ("images", flags[1]), strict=True))
    given["data"] = given["data"].split(",")
    if flags[0] in ("--prompts", "--class2id"):  # of a dataset, which load_dataset makes
        return
    with pytest.raises(hb.HistobenchError) as caught:
        hb.run(encoders="random-vit", **given)
    assert str(caught.value) == message.replace(flags[0], f"`{flags[0][2:]}`")


def test_a_dry_run_can_go_on_without_what_is_missing(run: Run) -> None:
    said = run("--models", "efficientnet-lite,random-vit", "--dry-run", "--skip-failed", code=2)
    assert "left out: efficientnet-lite: unknown encoder" in said
    assert "random-vit" in said


@pytest.mark.parametrize("dry", [True, False])
def test_a_prompt_file_is_read_before_any_work(dry: bool, run: Run, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one line for many classes\n")
    flags = ["--models", "tiny-vl", "--prompts", str(tmp_path / "prompts.txt")]
    assert "prompts.txt has 1 prompts for" in run(*flags, *(["--dry-run"] if dry else []), code=2)
    assert not (tmp_path / "r").exists()


def test_test_images_alone_are_for_tasks_that_need_no_training(tmp_path: Path) -> None:
    def tasks(table: str, **more: str) -> tuple[str, ...]:
        (tmp_path / "only.csv").write_text(table)
        values = {"datasets": ["only.csv"], "encoders": ["tiny-vl"], **more}
        plan = plan_from(values, where="x", base=tmp_path)
        return tasks_for(plan, load_datasets(plan)["only"])

    rows = [f"{number}.png,{'ab'[number % 2]},test" for number in range(4)]
    plain = "\n".join(["image_path,label,split", *rows])
    with_sites = "\n".join(["image_path,label,split,site", *(f"{row},s{row[0]}" for row in rows)])
    assert tasks(with_sites) == ("Zero-shot", "Robustness")
    assert tasks(plain, tasks="Zero-shot") == ("Zero-shot",)
    for table, more in ((plain, {}), (with_sites, {"tasks": "KNN"}), (with_sites, {"splits": "5x2"})):
        with pytest.raises(
            HistobenchError, match=r"no train images.*without training images the tasks are Zero-shot, Robu"
        ):
            tasks(table, **more)
