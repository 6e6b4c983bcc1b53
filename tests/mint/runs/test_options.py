"""Every option of a run of agents reaches what it is for, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import histobench as hb
from builders import published_prompts
from histobench.core.records import options_of
from histobench.mint.agents.completion import Sampling
from histobench.mint.feedback.kind import FeedbackKind
from histobench.mint.runs import play as play_module
from histobench.mint.runs.play import agents_of, load_cells, no_display, open_terms
from histobench.mint.runs.run_options import RunOptions

#: Another value of each option, and the parts of the planned run that change by it.
CASES: dict[str, tuple[Any, set[str]]] = {
    "agent": ("openai:other@http://127.0.0.1:9/v1", {"cell", "agent", "prices"}),
    "tasks": ("gsm8k,math", {"cell", "dataset", "tasks"}),
    "data": ("data2", {"checksum", "tasks"}),
    "k": ("2,5", {"cell", "tasks"}),
    "limit": (2, {"tasks"}),
    "calls": ("native", {"cell"}),
    "feedback": ("openai:expert@http://127.0.0.1:9/v1", {"cell", "expert", "prices"}),
    "output": ("elsewhere", {"output", "cache"}),
    "concurrency": (3, {"concurrency"}),
    "max_cost": (2.5, {"costs"}),
    "episode_tokens": (70, {"episode"}),
    "episode_cost": (0.5, {"episode"}),
    "episode_seconds": (7.0, {"episode"}),
    "max_tokens": (7, {"sampling"}),
    "temperature": (0.5, {"sampling"}),
    "top_p": (0.9, {"sampling"}),
    "seed": (7, {"sampling"}),
    "reasoning_effort": ("low", {"sampling"}),
    "reasoning_history": ("all", {"sampling"}),
    "constrain": (True, {"sampling"}),
    "name": ("mine", {"cell"}),
    "rule": ("published", {"rule"}),
    "prompts": ("official", {"prompts"}),
    "feedback_form": ("binary", {"cell", "expert"}),
    "gt": (True, {"cell", "expert"}),
    "cache": ("none", {"cache"}),
    "prices": ("prices.yaml", {"prices", "table"}),
    "attempts": (3, {"retry"}),
    "timeout": (7.0, {"retry"}),
    "rpm": (60.0, {"limits"}),
    "tpm": (900.0, {"limits"}),
}
#: Options whose two values are compared elsewhere, and where.
ELSEWHERE = {
    "repeat": "test_what_the_model_is_asked_follows_the_options",
    "config": "runs/test_configured_runs.py",
    "prompts_dir": "prompts",
    "wikipedia": "tools",
    "sandbox": "sandbox",
}
MODEL = "openai:some@http://127.0.0.1:9/v1"


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """What a run with these options would do, part by part."""
    monkeypatch.chdir(tmp_path)
    for folder, n in (("data", 3), ("data2", 5)):
        for name in ("gsm8k", "math"):
            lines = [json.dumps({"id": i, "prompt": f"{i}?", "reference": str(i)}) for i in range(n)]
            (tmp_path / folder / name).mkdir(parents=True)
            (tmp_path / folder / name / "test_prompts.json").write_text("\n".join(lines) + "\n")
    (tmp_path / "prices.yaml").write_text("some: [1, 2]\nother: [3, 4]\nexpert: [5, 6]\n")
    (tmp_path / "known.yaml").write_text("some: [1, 3]\nother: [3, 4]\nexpert: [5, 6]\n")

    def look(**changes: Any) -> dict[str, str]:
        common = {"agent": MODEL, "tasks": "gsm8k", "data": "data", "output": "out", "prices": "known.yaml"}
        options = RunOptions(**{**common, **changes})
        loaded, output = load_cells(options)
        terms = open_terms(options, output, agents_of(cell for cell, _ in loaded))
        parts: dict[str, Any] = {
            name: sorted({str(getattr(cell, name)) for cell, _ in loaded})
            for name in (each.name for each in fields(loaded[0][0]))
        }
        parts |= {name: getattr(terms, name) for name in ("concurrency", "retry", "limits", "episode")}
        parts |= {
            "tasks": [len(tasks) for _, tasks in loaded],
            "output": output,
            "table": terms.prices["some"],
        }
        parts |= {"cache": terms.cache and terms.cache._path, "costs": terms.costs._max_cost}
        if terms.cache:
            terms.cache.close()
        return {name: str(value) for name, value in parts.items()}

    return look


def test_every_option_of_a_run_has_a_case() -> None:
    assert {each.name for each in options_of(RunOptions)} == CASES.keys() | ELSEWHERE.keys()


@pytest.mark.parametrize("name", CASES)
def test_an_option_of_a_run_reaches_what_it_is_for(name: str, seen: Callable[..., dict[str, str]]) -> None:
    value, expected = CASES[name]
    expert = {"feedback": "openai:expert@http://127.0.0.1:9/v1"} if name in ("gt", "feedback_form") else {}
    one, other = seen(**expert), seen(**expert, **{name: value})
    assert {part for part in one if one[part] != other[part]} == expected


@pytest.mark.parametrize(("of", "requests", "tokens"), [(None, 60.0, 900.0), (4, 15.0, 225.0)])
def test_the_rates_of_a_run_are_divided_over_its_workers(
    of: int | None, requests: float, tokens: float, tmp_path: Path
) -> None:
    kept: list[tuple[float, float]] = []
    others = {
        "spent_before": 4.0,
        "spent_by_others": lambda: (2.0, 1.0),
        "keep_spent": lambda paid, held: kept.append((paid, held)),
    }
    writer: Any = of and SimpleNamespace(part=SimpleNamespace(of=of), **others)
    terms = open_terms(RunOptions(rpm=60.0, tpm=900.0, cache="none", max_cost=10.0), tmp_path, [], writer)
    assert terms.limits == {"requests": requests, "tokens": tokens}
    if of:  # paid before, paid and held back by others, and this make up the limit
        assert terms.costs.hold(3.0, waited=0.0)
        assert not terms.costs.hold(0.5, waited=0.0)
        terms.costs.settle(3.0, 2.5)
        assert (terms.costs.spent, kept[0], kept[-1]) == (6.5, (0.0, 3.0), (2.5, 0.0))


@pytest.mark.usefixtures("seen")
def test_the_code_of_agents_may_read_neither_results_nor_data(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(play_module, "play_cells", lambda *_, **options: given.update(options))
    options = RunOptions(agent=MODEL, tasks="gsm8k", data="data", output="out", cache="none")
    play_module.play(options, no_display)
    assert set(given["withhold"]) == {Path("out"), Path("data")}


@pytest.mark.usefixtures("seen")
def test_what_changes_the_answers_of_a_cell_is_in_its_settings() -> None:
    options = RunOptions(agent=MODEL, tasks="gsm8k", data="data", feedback=MODEL.replace("some", "expert"))
    ((cell, _),) = load_cells(options)[0]
    expert, warm = cell.expert, replace(cell.sampling, temperature=0.7)
    others = [
        replace(cell, **{name: value})
        for name, value in (
            ("agent", replace(cell.agent, target="other")),
            ("sampling", warm),
            ("sampling", replace(cell.sampling, max_tokens=7)),
            ("rule", "published"),
            ("prompts", "official"),
            ("wikipedia", "tape:x"),
            ("checksum", "0" * 64),
            ("cell", replace(cell.cell, calls="native")),
            ("expert", None),
            ("expert", replace(expert, spec=replace(expert.spec, target="other"))),
            ("expert", replace(expert, sampling=warm)),
            ("expert", replace(expert, kind=FeedbackKind(True, "binary"))),
        )
    ]
    assert len({repr(each.settings()) for each in (cell, *others)}) == 1 + len(others)


@pytest.mark.usefixtures("one_sandbox")
@pytest.mark.slow
def test_what_the_model_is_asked_follows_the_options(lab: Any) -> None:
    lab.server.answer = lambda body, number: lab.replies.chat("<solution>-7</solution>")
    data = lab.make_data(3)

    def bodies(name: str, **options: Any) -> list[dict[str, Any]]:
        before = len(lab.server.requests)
        hb.mint.run(f"openai:m@{lab.server.url}", "gsm8k", data=data, results=lab.tmp_path / name, **options)
        return lab.server.requests[before:]

    plain = bodies("plain", limit=2)
    assert len(plain) == 4  # two tasks, two answers each
    assert {(body["temperature"], body["max_tokens"]) for body in plain} == {(0.0, 512)}
    assert not {"top_p", "seed"} & plain[0].keys()
    given = bodies("given", limit=1, repeat=3, temperature=0.5, max_tokens=77, top_p=0.9, seed=7)
    assert len(given) == 6
    for body in given:
        assert {key: body[key] for key in ("temperature", "max_tokens", "top_p", "seed")} == {
            "temperature": 0.5, "max_tokens": 77, "top_p": 0.9, "seed": 7
        }  # fmt: skip


@pytest.mark.usefixtures("one_sandbox")
@pytest.mark.slow
def test_every_message_has_the_words_and_the_articles_that_were_chosen(lab: Any) -> None:
    (lab.tmp_path / "articles").mkdir()
    (lab.tmp_path / "articles" / "Liver.txt").write_text("It is an organ.")
    code, agent = "<execute>print(wikipedia_search('liver'))</execute>", f"openai:m@{lab.server.url}"
    lab.server.answer = lambda body, number: lab.replies.chat(code)
    options = {"data": lab.make_data(1), "results": lab.tmp_path / "out", "feedback": agent, "k": 2}
    options |= {"prompts": "official", "prompts_dir": published_prompts(lab.tmp_path)}
    hb.mint.run(agent, "gsm8k", wikipedia=f"folder:{lab.tmp_path / 'articles'}", **options)
    first, expert, last = (body["messages"] for body in lab.server.requests)
    assert first[0]["content"].startswith("Do 2, 2.\nTools:\n[1] wiki(q)\n")
    assert all("EXAMPLE WITH EXPERT" in asked[0]["content"] for asked in (first, expert))
    assert "Page: Liver\nSummary: It is an organ." in last[-1]["content"]


@pytest.mark.parametrize("name", [each.name for each in fields(Sampling) if each.name != "last_grammar"])
def test_every_way_to_sample_distinguishes_two_requests(name: str) -> None:
    others = {"temperature": 0.5, "max_tokens": 7, "top_p": 0.5, "seed": 0, "stop": ("x",), "must_call": True}
    value = others.get(name, "all" if name == "reasoning_history" else "other")
    assert replace(Sampling(), **{name: value}).as_key() != Sampling().as_key()
