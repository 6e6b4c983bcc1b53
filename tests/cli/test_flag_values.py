"""Values of flags that cannot be meant are refused by name."""

from __future__ import annotations

import pytest

from histobench.cli.main import main


@pytest.mark.parametrize(
    "arguments",
    [
        ["data", "check", "x", "--seed", "-1"],
        ["extract", "--dataset_split_csv", "x", "--model_name", "y", "--seed", "-1"],
        ["evaluate", "--TASK", "x", "--train_feature_file", "x", "--test_feature_file", "x", "--seed", ""],
        ["run", "--data", "x", "--models", "y", "--seed", "-1"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_seed_is_a_whole_number_from_0_up(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "expected a whole number of at least 0" in capsys.readouterr().err
