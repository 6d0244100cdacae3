"""Shows verdicts: a table by project, reasons with their counts, and the page docs/corpus.md.

Enters: a `Record`. Leaves: Markdown. It must not know how cases are judged.

    python -m tests.corpus.table            rewrite docs/corpus.md from status.json
    python -m tests.corpus.table --check    exit with 1 if the page is out of date
"""

from __future__ import annotations

import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.corpus.record import Entry, Record, read

__all__ = ["PAGE", "kind", "main", "page", "projects", "reasons"]

PAGE = Path(__file__).parents[2] / "docs" / "corpus.md"
BEGIN = "<!-- begin: python -m tests.corpus.table -->"
END = "<!-- end -->"

REPLAYED = ("native", "python")
SLOW = 0.97
TITLES = {
    "liger": "Liger Kernel",
    "fla": "flash-linear-attention",
    "tutorials": "in the manner of Triton's tutorials",
    "helion": "in the manner of Helion's examples",
}
HEAD = (
    *("", "cases", "right", "native", "Python", "fallback", "raises", "skipped"),
    *("speed, all", "replayed", f"below {SLOW}"),
)
RULES = (
    (r"^\w+: .*parameter \S+ is (keyword-only|variadic keyword).*", r"a parameter is \1"),
    (
        r"^\w+: .*the annotation '.*' of '.*' cannot be resolved.*",
        "an annotation is not resolvable",
    ),
    (r", at (torch/[\w/.]+):\d+$", r", in \1"),
    (r", at [\w/.-]+:\d+$", ""),
    (r"'[^']*'", "'...'"),
    (r"triton\.runtime\.driver\.active\.[\w.]+", "triton.runtime.driver.active..."),
)


def kind(reason: str) -> str:
    """A reason without the names and places in which cases differ.

    >>> kind("it reads the global 'x', and tzero cannot see changes of a set, at a/b.py:7")
    "it reads the global '...', and tzero cannot see changes of a set"
    """
    for pattern, replacement in RULES:
        reason = re.sub(pattern, replacement, reason)
    return reason


def mean(speeds: Iterable[float | None]) -> str:
    """The geometric mean of the speeds that are known."""
    known = [each for each in speeds if each is not None]
    return f"{statistics.geometric_mean(known):.2f}" if known else ""


def project_of(name: str) -> str:
    return name.partition("/")[0]


def row(title: str, entries: Sequence[Entry]) -> list[str]:
    """One row of the table by project."""
    counts = {
        status: sum(each.status == status for each in entries)
        for status in ("native", "python", "fallback", "raises", "skipped", "wrong")
    }
    right = len(entries) - counts["skipped"] - counts["wrong"] - counts["raises"]
    speeds = [each.speed for each in entries]
    slow = sum(each is not None and each < SLOW for each in speeds)
    return [
        title,
        str(len(entries)),
        str(right),
        *(str(counts[each]) for each in ("native", "python", "fallback", "raises", "skipped")),
        mean(speeds),
        mean(each.speed for each in entries if each.status in REPLAYED),
        str(slow),
    ]


def projects(record: Record) -> list[list[str]]:
    """The table by project: its head, a row for each, and one for all."""
    by_project: dict[str, list[Entry]] = {}
    for name, entry in record.entries.items():
        by_project.setdefault(project_of(name), []).append(entry)
    rows = [row(TITLES[each], by_project[each]) for each in TITLES if each in by_project]
    return [list(HEAD), *rows, row("all", list(record.entries.values()))]


def reasons(record: Record, *statuses: str) -> list[tuple[int, str, list[str]]]:
    """How many cases have a kind of reason, the kind, and their ids; the most common first."""
    found: dict[str, list[str]] = {}
    for name, entry in sorted(record.entries.items()):
        if entry.status in statuses:
            found.setdefault(kind(entry.reason), []).append(name)
    return sorted(
        ((len(names), reason, names) for reason, names in found.items()),
        key=lambda each: (-each[0], each[1]),
    )


# -- the page -------------------------------------------------------------------------------------


def markdown(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    head, *others = rows
    yield f"| {' | '.join(head)} |"
    yield f"|---|{'--:|' * (len(head) - 1)}"
    for each in others:
        yield f"| {' | '.join(each)} |"


def reason_rows(record: Record, *statuses: str) -> Iterator[str]:
    yield "| cases | reason | such as |"
    yield "|--:|---|---|"
    for count, reason, names in reasons(record, *statuses):
        shown = ", ".join(f"`{name}`" for name in names[:4])
        yield f"| {count} | {reason.replace('|', '/')} | {shown}{', ...' if count > 4 else ''} |"


def lines(record: Record) -> Iterator[str]:
    """The generated part of the page."""
    made: Mapping[str, str] = record.versions
    yield f"Measured on {record.machine}, with Python {made['python']}, torch {made['torch']},"
    yield f"Triton {made['triton']}, Helion {made['helion']}, liger-kernel {made['liger-kernel']}"
    yield f"and fla-core {made['fla-core']}."
    yield ""
    yield from markdown(projects(record))
    sections = (
        ("Why calls fall back", ("fallback",)),
        ("Where Python code runs in a replay", ("python",)),
        ("What raises with tzero alone", ("raises",)),
        ("What cannot run on the CPU", ("skipped",)),
    )
    for title, statuses in sections:
        yield ""
        yield f"### {title}"
        yield ""
        if any(each.status in statuses for each in record.entries.values()):
            yield from reason_rows(record, *statuses)
        else:
            yield "Nothing."
    yield ""
    yield "### Every case"
    yield ""
    yield "| case | status | speed |"
    yield "|---|---|--:|"
    for name, entry in sorted(record.entries.items()):
        yield f"| `{name}` | {entry.status} | {mean([entry.speed])} |"


def page(text: str, record: Record) -> str:
    """The page's text with the part between the markers replaced."""
    before, found, rest = text.partition(BEGIN)
    _, closed, after = rest.partition(END)
    assert found and closed, f"{PAGE} has lost its markers {BEGIN} and {END}"
    made = "\n".join(lines(record))
    return f"{before}{BEGIN}\n\n{made}\n\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    """Write the page, or compare it."""
    old = PAGE.read_text()
    new = page(old, read())
    if "--check" not in arguments:
        PAGE.write_text(new)
        return 0
    return int(old != new)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
