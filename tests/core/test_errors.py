"""Suggestions in error messages."""

from histobench.core.errors import did_you_mean


def test_the_nearest_names_come_first() -> None:
    assert did_you_mean("unni_v1", ["uni_v1", "phikon"]) == "did you mean uni_v1?"


def test_a_long_list_is_cut() -> None:
    assert did_you_mean("zzz", [f"name{i:02}" for i in range(30)]).endswith("(30 in all)")
