"""Generates the lists of docs/helion.md from the rows.

Enters: the rows of this folder. Leaves: the text between the page's two markers. It must not know
what works, only which rows there are and which are marked as failing.

    python -m tests.integrations.helion.table            rewrite docs/helion.md
    python -m tests.integrations.helion.table --check    exit with 1 and a diff if out of date
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.integrations.helion.row import Row
from tests.integrations.helion.rows import LIMITS, SECTIONS

__all__ = ["PAGE", "main", "page"]

PAGE = Path(__file__).parents[3] / "docs" / "helion.md"
BEGIN = "<!-- begin: python -m tests.integrations.helion.table -->"
END = "<!-- end -->"


def shown(row: Row) -> str:
    """A row's feature, and the oldest Helion that has it."""
    return f"{row.feature} (Helion {row.since} on)" if row.since else row.feature


def lines() -> Iterator[str]:
    """The generated part of the page."""
    for title, rows in SECTIONS.items():
        yield f"### {title}"
        yield ""
        yield from (f"- {shown(row)}" for row in rows)
        yield ""
    yield "### What does not run"
    yield ""
    yield "| | it fails with | because |"
    yield "|---|---|---|"
    yield from (f"| {shown(row)} | `{row.error}` | {row.why} |" for row in LIMITS)
    yield ""


def page(text: str) -> str:
    """The page's text with the part between the markers replaced."""
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    assert found and closed, f"{PAGE} has lost its markers {BEGIN} and {END}"
    made = "\n".join(lines())
    return f"{before}{BEGIN}\n\n{made}\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Write the page, or compare it."""
    old = PAGE.read_text()
    new = page(old)
    if "--check" not in arguments:
        PAGE.write_text(new)
        return 0
    differences = difflib.unified_diff(
        old.splitlines(), new.splitlines(), str(PAGE.name), "the rows", lineterm=""
    )
    sys.stdout.writelines(f"{line}\n" for line in differences)
    return int(old != new)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
