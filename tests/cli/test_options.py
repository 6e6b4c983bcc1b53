"""Options are declared once, in records; one word for one thing, and earlier spellings still work."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import histobench as hb
from histobench.cli.cache import CACHE_COMMANDS
from histobench.cli.consult import CONSULT_COMMANDS
from histobench.cli.data import DATA_COMMANDS
from histobench.cli.entry import Command, Parser
from histobench.cli.extract import FEATURES_COMMANDS
from histobench.cli.main import COMMANDS
from histobench.cli.mint import MINT_COMMANDS
from histobench.core.records import spelled_as_declared
from histobench.core.renamed import warn_renamed

NESTED = {
    "mint": MINT_COMMANDS,
    "consult": CONSULT_COMMANDS,
    "data": DATA_COMMANDS,
    "cache": CACHE_COMMANDS,
    "features": FEATURES_COMMANDS,
}


def every_command() -> Iterator[tuple[str, Command]]:
    for name, command in COMMANDS.items():
        below = NESTED.get(name, {})
        yield from ((f"{name} {job}", each) for job, each in below.items()) if below else [(name, command)]


def parsed(line: str) -> dict[str, object]:
    """What a command line gives, as the command would see it."""
    name, *words = shlex.split(line)
    parser = Parser(prog=name)
    COMMANDS[name].add_flags(parser)
    given = vars(parser.parse_args(spelled_as_declared(parser, words)))
    return {key: value for key, value in given.items() if value is not None}


@pytest.mark.parametrize(
    ("earlier", "now"),
    [
        ("run --data d --models a,b --keep-going", "run --data d --encoders a,b --skip-failed"),
        ("run --data d --class2id_txt c --resize-size 9", "run --data d --classes c --size 9"),
        (
            "extract --dataset_split_csv d --model_name a,b --save_dir o --dataset_name n --class2id_txt c "
            "--resize_size 448 --batch_size 8 --num_workers 2",
            "extract --data d --encoders a,b --out o --name n --classes c --size 448 --batch-size 8 "
            "--num-workers 2",
        ),
        (
            "evaluate --TASK KNN,Proto --train_feature_file a --test_feature_file b --val_feature_file v "
            "--log_dir r --log_description d --class2id_txt c",
            "evaluate --tasks KNN,Proto --train a --test b --val v --results r --description d --classes c",
        ),
        ("bootstrap --results_dir r --random_state 1", "bootstrap r --seed 1"),
        ("power r --encoders a,b --random_state 3", "power --results r --encoders a,b --seed 3"),
        ("compare r --output o -v", "compare --results r --out o --verbose"),
        ("choose r --licence commercial -o f", "choose r --license commercial --out f"),
        ("robustness f g --column a --column b -o r", "robustness f g --columns a,b --results r"),
        ("robustness --stress --data d --models a", "robustness --stress --data d --encoders a"),
        ("report r --output s --images a --images X=b", "report r --out s --images a,X=b"),
        ("doctor --models a,b", "doctor --encoders a,b"),
        ("mint run --output r", "mint run --results r"),
        ("data check d --class2id_txt c", "data check --data d --classes c"),
        ("data ls --licence CC0", "data list --license CC0"),
        ("demo --output o", "demo --out o"),
    ],
)  # fmt: skip
def test_an_earlier_spelling_means_the_same(earlier: str, now: str) -> None:
    assert parsed(earlier) == parsed(now)


@pytest.mark.parametrize(("name", "command"), [pytest.param(*each, id=each[0]) for each in every_command()])
def test_help_is_in_order_and_shows_no_earlier_spelling(
    name: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser = Parser(prog=f"histobench {name}")
    command.add_flags(parser)
    text = parser.format_help()
    shown = re.findall(r"(?<![\w-])--[A-Za-z][\w-]*", text)
    assert not [flag for flag in shown if "_" in flag], name
    assert max(map(len, text.splitlines())) <= 80
    assert not {"--models", "--TASK", "--output", "--licence", "--keep-going", "--random-state"} & set(shown)
    usage, what, *_ = text.split("\n\n")
    assert usage.startswith(f"usage: histobench {name}")
    assert len(what.splitlines()) <= 3
    titles = re.findall(r"^[a-z][^\n]*:$", text, re.MULTILINE)
    assert titles[:1] == ["main options:"] or not parser._optionals._group_actions
    assert "examples:" not in titles or titles.index("examples:") == 1


SCRIPTS = {
    "extract": "dataset_split_csv class2id_txt dataset_name model_name resize_size batch_size num_workers "
    "device save_dir",
    "evaluate": "TASK class2id_txt train_feature_file test_feature_file val_feature_file log_dir "
    "log_description device max_iteration use_sklearn n_neighbors n_iter use_all_way n_way n_shot "
    "zeroshot_model_name zeroshot_prompt_file zeroshot_batch_size num_workers",
    "bootstrap": "results_dir n_bootstrap random_state",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_show_their_own_spelling(name: str) -> None:
    parser = Parser(prog=name)
    COMMANDS[name]._replace(as_script=True).add_flags(parser)
    shown = set(re.findall(r"--([A-Za-z][\w-]*)", parser.format_help().partition("examples:")[0]))
    shown |= {flag[2:] for action in parser._actions for flag in action.option_strings if flag[:2] == "--"}
    assert set(SCRIPTS[name].split()) <= shown
    assert not {"data", "encoders", "tasks", "results", "out", "seed-"} & shown


@pytest.mark.parametrize(
    ("command", "words", "message"),
    [
        ("power", ["--power", "1"], "above 0 and below 1"),
        ("evaluate", [], "required: --tasks, --train, --test"),
    ],
)
def test_a_wrong_flag_is_one_line(
    capsys: pytest.CaptureFixture[str], command: str, words: list[str], message: str
) -> None:
    parser = Parser(prog=f"histobench {command}")
    COMMANDS[command].add_flags(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.slow
def test_a_run_takes_models_of_this_process(tmp_path: Path) -> None:
    class Mean(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(dim=(2, 3))

    data = hb.demo_dataset(tmp_path / "tiles", train_per_class=2, test_per_class=2, size=64)
    own = hb.create_encoder(Mean(), label="own", device="cpu")
    bench = hb.run(data, [Mean(), own], tasks="Proto", results=tmp_path / "results", device="cpu")
    assert set(bench.encoders) == {"Mean", "own"}


def test_earlier_python_names_warn_once_and_work() -> None:
    y = np.arange(40) % 2
    X = np.random.default_rng(0).normal(size=(40, 4)) + 3 * y[:, None]
    bench = hb.evaluate(X[:20], X[20:], y[:20], y[20:], tasks="Proto", encoder="mine")
    warn_renamed.cache_clear()
    with pytest.warns(FutureWarning, match="Benchmark.table is now Benchmark.to_frame") as found:
        assert bench.table().equals(bench.table())
    assert len(found) == 1
    with pytest.warns(FutureWarning):
        assert (bench.left_out, bench.one("mine", "Proto")) == (bench.skipped, bench.get_run("mine", "Proto"))
    assert not {"table", "one", "left_out"} & set(dir(bench)), "tab completion offers present names"
    assert {"to_frame", "get_run", "skipped", "runs", "folder"} <= set(dir(bench))
    assert bench.get_run() is bench.get_run("mine", "Proto"), "there is one encoder and one task"
    with pytest.warns(FutureWarning, match="load_features"):
        assert hb.features is hb.load_features


def test_a_path_of_images_may_have_a_comma() -> None:
    parser = Parser(prog="histobench")
    COMMANDS["report"].add_flags(parser)
    given = parser.parse_args(["results", "--images", "a, b.csv", "--images", "CRC=c"])
    assert given.images == ("a, b.csv", "CRC=c")
