"""Generates the tables of docs/cpu.md from the tests.

Enters: the collected tests of this folder with `covers` and `unsupported` markers. Leaves: the
text between the page's two markers. Only a test that is collected and not marked skip or xfail
counts; `needs_triton` and `until_triton` show in the cell. It must not know what the backend
supports, only what is tested.

    python -m tests.cpu.table            rewrite docs/cpu.md
    python -m tests.cpu.table --check    exit with 1, and print a diff, if it is out of date
"""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cpu.cases import COLUMNS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "cpu.md"
BEGIN = "<!-- begin: python -m tests.cpu.table -->"
END = "<!-- end -->"

TITLES = {
    "test_elementwise": "Operators and elementwise functions",
    "test_casts": "Conversions",
    "test_integers": "Integer properties",
    "test_math": "Math",
    "test_semantics": "Semantics",
    "test_reduce": "Reductions",
    "test_scan_sort": "Scans, sorting, gather, histogram",
    "test_shapes": "Shapes, load and store",
    "test_dot": "Matrix products",
    "test_dot_scaled": "Scaled matrix products",
    "test_map_elementwise": "Mapped scalar functions",
    "test_random": "Random numbers",
    "test_hints": "Hints and program structure",
    "test_libdevice": "libdevice",
}


@dataclass(slots=True)
class Section:
    """One test module: its rows in the order of the tests, a cell per dtype."""

    module: str
    cells: dict[str, dict[str, set[str]]] = field(default_factory=dict)

    @property
    def title(self) -> str:
        named = self.module.removeprefix("test_").replace("_", " ").capitalize()
        return TITLES.get(self.module, named)


class Claims:
    """What the markers of the collected tests of this folder say."""

    def __init__(self, items: Iterable[pytest.Item]) -> None:
        self.sections: dict[str, Section] = {}
        self.unsupported: dict[str, str] = {}
        for item in items:
            if item.path.parent == HERE and promised(item):
                self._add(item)

    def _add(self, item: pytest.Item) -> None:
        module = item.path.stem
        for marker in item.iter_markers("covers"):
            op, *dtypes = marker.args
            rows = self.sections.setdefault(module, Section(module)).cells
            row = rows.setdefault(op, {})
            for dtype in dtypes:
                assert dtype in COLUMNS, f"{item.nodeid} covers {dtype}, which is not a dtype"
                row.setdefault(dtype, set()).add(versions(item))
        for marker in item.iter_markers("unsupported"):
            self.unsupported[marker.args[0]] = marker.args[1]


class Collector:
    """A pytest plugin that keeps the collected tests."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.items = list(items)


def promised(item: pytest.Item) -> bool:
    """Whether the item will run on the Tritons it is for."""
    if item.get_closest_marker("skip") or item.get_closest_marker("xfail"):
        return False
    return item.get_closest_marker("skipif") is None or versions(item) != ""


def versions(item: pytest.Item) -> str:
    """'' for all Tritons, '≥3.9' or '<3.9' for some."""
    needs, until = item.get_closest_marker("needs_triton"), item.get_closest_marker("until_triton")
    return (f"≥{needs.args[0]}" if needs else "") + (f"<{until.args[0]}" if until else "")


def collect() -> Claims:
    """Collect the tests of this folder without running them."""
    collector = Collector()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        arguments = ["--collect-only", "-qq", "-p", "no:cacheprovider", str(HERE)]
        status = pytest.main(arguments, plugins=[collector])
    if status != pytest.ExitCode.OK:
        raise SystemExit(f"the tests could not be collected:\n{output.getvalue()}")
    return Claims(collector.items)


# -- markdown -------------------------------------------------------------------------------------


def short(dtype: str) -> str:
    """A dtype's short name for the table head: u8 for uint8."""
    return dtype.replace("uint", "u").replace("int", "i").replace("fp8", "f8 ")


def cell(ranges: Iterable[str]) -> str:
    found = set(ranges)
    if not found:
        return ""
    return "✓" if "" in found else ", ".join(sorted(found))


def code(op: str) -> str:
    """An operation as code; a description of several stays plain text."""
    return f"`{op}`" if "tl." in op or re.match(r"[^a-z]|x ", op) else op


def merged(section: Section) -> list[tuple[str, dict[str, set[str]]]]:
    """The rows; libdevice's functions with the same cells share one."""
    if section.module != "test_libdevice":
        return [(code(op), row) for op, row in section.cells.items()]
    groups: dict[str, tuple[list[str], dict[str, set[str]]]] = {}
    for op, row in section.cells.items():
        key = repr(sorted((dtype, sorted(ranges)) for dtype, ranges in row.items()))
        names, _ = groups.setdefault(key, ([], row))
        names.append(f"`{op.removeprefix('libdevice.')}`")
    return [(" ".join(sorted(names)), row) for names, row in groups.values()]


def table(section: Section) -> list[str]:
    columns = [c for c in COLUMNS if any(c in row for row in section.cells.values())]
    lines = [f"### {section.title}", ""]
    lines.append("| | " + " | ".join(short(c) for c in columns) + " |")
    lines.append("|---" + "|:-:" * len(columns) + "|")
    for name, row in merged(section):
        safe = name.replace("|", "\\|")
        lines.append(f"| {safe} | " + " | ".join(cell(row.get(c, ())) for c in columns) + " |")
    return [*lines, ""]


def generated(claims: Claims) -> str:
    known = [m for m in TITLES if m in claims.sections]
    others = sorted(m for m in claims.sections if m not in TITLES)
    lines = [""]
    for module in [*known, *others]:
        lines += table(claims.sections[module])
    lines += ["### Not supported", ""]
    lines += [f"- `{op}`: {reason}" for op, reason in sorted(claims.unsupported.items())]
    return "\n".join([*lines, ""])


def page(claims: Claims, text: str) -> str:
    """The page's text with the part between the markers replaced."""
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    assert found and closed, f"{PAGE} lacks the markers {BEGIN} and {END}"
    return f"{before}{BEGIN}\n{generated(claims)}{END}{after}"


def difference(claims: Claims) -> str:
    """A diff from the page to what the tests say; empty if they agree."""
    old = PAGE.read_text()
    new = page(claims, old)
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), str(PAGE.name), "the tests", lineterm=""
    )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    claims = collect()
    if "--check" not in arguments:
        PAGE.write_text(page(claims, PAGE.read_text()))
        return 0
    found = difference(claims)
    print(found, end="\n" if found else "")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
