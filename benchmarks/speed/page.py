"""The page `docs/benchmarks.md`: each benchmark writes its own section and leaves the others alone."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"


def write_section(name: str, text: str, page: Path = PAGE) -> None:
    """Replace what stands between the marks of section `name`, or add the section at the end."""
    start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    content = page.read_text(encoding="utf-8") if page.exists() else "# Speed\n"
    before, found, rest = content.partition(start)
    after = rest.partition(end)[2] if found else "\n"
    page.write_text(f"{before.rstrip()}\n\n{start}\n{text.strip()}\n{end}{after}", encoding="utf-8")
