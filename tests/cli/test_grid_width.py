"""Tables on a terminal of 80 columns: names and numbers stay readable."""

from __future__ import annotations

import argparse
import io

import pytest
from rich.console import Console

from histobench.cli import consult
from histobench.cli.compare import columns_that_fit, print_grid
from histobench.cli.consult import asked_for
from histobench.roi.comparison.grids import Grid

VALUE = "0.884 [0.845, 0.912]"
GRID = Grid(
    "tissue: robustness by scanner",
    ("encoder", "index", "margin", "site AUROC", "new site", "worst site"),
    (("efficientnet-lite0", *[VALUE] * 5), ("tiny-vl", *[VALUE] * 5)),
)


def printed(width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_grid(GRID, console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_columns_that_do_not_fit_stand_in_a_further_table_with_the_names() -> None:
    lines = printed(80)
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert text.count("efficientnet-lite0") == len(columns_that_fit(GRID, 80)) == 3
    assert text.count(VALUE) == 10
    assert all(heading in text for heading in GRID.header)


@pytest.mark.parametrize("width", range(72, 130))
def test_nothing_is_cut_at_any_width(width: int) -> None:
    """Two signs stand between two columns: a name of seven letters does not fit into six."""
    values = ("0.000 [0.000, 0.000]", "-", "0.994 [0.989, 0.999]", "-", "-")
    for heading in ("encoder", "change"):
        grid = Grid("t", (heading, *GRID.header[1:]), (("tiny-vl", *values), ("x", *values)))
        console = Console(file=io.StringIO(), width=width)
        print_grid(grid, console)
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert "tiny-vl" in text
        assert f"{heading} " in text
        assert text.count(values[0]) == 2
        assert text.count(values[2]) == 2


def test_a_wide_terminal_has_one_table() -> None:
    text = "\n".join(printed(160))
    assert text.count("efficientnet-lite0") == 1
    assert text.count(VALUE) == 10


def test_a_grammar_that_is_asked_for_reaches_the_agent_of_consult() -> None:
    parser = argparse.ArgumentParser()
    consult.run_flags(parser)
    plain, bound = (
        asked_for(parser.parse_args(["study", "--agent", "local:", *flags])).sampling
        for flags in ([], ["--constrain"])
    )
    assert plain.grammar is None
    assert bound.grammar
    assert bound.last_grammar
