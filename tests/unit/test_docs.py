"""The code in the pages runs, in order, and does what the page says."""

from __future__ import annotations

import linecache
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.briefly import tune_briefly

ROOT = Path(__file__).parents[2]
PAGES = [
    "docs/quickstart.md",
    "docs/tutorial.md",
    "docs/reports.md",
    "docs/performance.md",
    "docs/troubleshooting.md",
    "docs/how-a-call-works.md",
    "docs/sizes.md",
    "docs/steps.md",
    "docs/whole-programs.md",
    "docs/fallbacks.md",
    "docs/launching.md",
    "docs/pytorch.md",
    "docs/cpu.md",
    "docs/testing.md",
    "docs/backends.md",
    "docs/serving.md",
    "docs/caching.md",
    "docs/concurrency.md",
    "docs/scale.md",
    "docs/tuning.md",
    pytest.param(
        "docs/helion.md",
        marks=pytest.mark.skipif(find_spec("helion") is None, reason="Helion is not installed"),
    ),
    "README.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_the_code_of_a_page_runs(
    page: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tune_briefly(monkeypatch)
    text = (ROOT / page).read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.S | re.M))
    assert blocks
    # One file with the page's own line numbers, so that Triton can read its kernels' source and a
    # failure names the line of the page.
    kept = [
        line if any(b.start(1) <= at < b.end(1) for b in blocks) else "\n"
        for at, line in _lines(text)
    ]
    source = "".join(kept)
    name = str(ROOT / page)
    linecache.cache[name] = (len(source), None, kept, name)
    try:
        exec(compile(source, name, "exec"), {"__name__": "page", "__file__": name})
    finally:
        linecache.cache.pop(name, None)


def test_every_page_with_code_is_run() -> None:
    pages = [str(each.values[0]) if hasattr(each, "values") else str(each) for each in PAGES]
    found = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    coded = {str(each.relative_to(ROOT)) for each in found if "```python\n" in each.read_text()}
    assert coded == set(pages)


def _lines(text: str) -> list[tuple[int, str]]:
    found, at = [], 0
    for line in text.splitlines(keepends=True):
        found.append((at, line))
        at += len(line)
    return found
