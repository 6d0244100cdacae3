"""Generates the map and the layers in CONTRIBUTING.md from the tree.

Enters: the docstrings of packages and modules, the first comments of C and C++ files, and `LAYERS`
of `test_layers.py`. Leaves: the text between the page's two pairs of markers. It must not know what
any file is for: that is said in the file.

    python -m tests.unit.map            rewrite CONTRIBUTING.md
    python -m tests.unit.map --check    exit with 1, and print a diff, if it is out of date
"""

from __future__ import annotations

import ast
import difflib
import itertools
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.unit.test_layers import LAYERS

__all__ = ["PAGE", "ROOT", "first_sentence", "layers", "main", "map_lines", "page"]

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "CONTRIBUTING.md"
MARKERS = "<!-- begin {}: python -m tests.unit.map -->", "<!-- end {} -->"
WIDTH, COLUMN = 100, 27
_SHORTEST = 30  # a sentence is not cut to fewer characters than this


# -- what a file says of itself --------------------------------------------------------------------


def said(path: Path) -> str:
    """A module's docstring or a C file's first comment, up to the first empty line."""
    text = path.read_text()
    if path.suffix in (".py", ".pyi"):
        found = ast.get_docstring(ast.parse(text)) or ""
    elif text.startswith("//"):
        comment = itertools.takewhile(lambda each: each.startswith("//"), text.splitlines())
        found = "\n".join(each.removeprefix("//").strip() for each in comment)
    else:
        block = re.match(r"/\*(.*?)\*/", text, re.S)
        found = re.sub(r"^[ *]+", "", block[1], flags=re.M) if block else ""
    return re.split(r"\n\s*\n", found.strip())[0]


def first_sentence(text: str, width: int) -> str:
    """The first sentence, without its full stop. A longer one than `width` is cut at a colon or a
    semicolon, if what is left still says something."""
    sentence = re.split(r"(?<!\.)\.(?:\s|$)", " ".join(text.split()))[0].removesuffix(":")
    if len(sentence) <= width:
        return sentence
    cuts = [cut.start() for cut in re.finditer(r"[:;] ", sentence)]
    fitting = [cut for cut in cuts if _SHORTEST <= cut <= width]
    return sentence[: fitting[-1]] if fitting else sentence


# -- the map ---------------------------------------------------------------------------------------


def line(depth: int, name: str, text: str) -> str:
    """One entry; what does not fit in a line goes on under its own beginning."""
    assert text, f"{name} does not say what it is: give it a docstring or a first comment"
    head = f"{'  ' * depth}{name}"
    sentence = first_sentence(text, WIDTH - 4 - COLUMN)
    rows = textwrap.wrap(sentence, WIDTH - 4 - COLUMN, break_on_hyphens=False)
    first, *rest = rows
    return "\n".join([f"{head:<{COLUMN - 1}} {first}", *(" " * COLUMN + each for each in rest)])


def modules(folder: Path, depth: int) -> Iterator[str]:
    """A package: its modules, then its packages, in alphabetical order."""
    yield line(depth, f"{folder.name if depth else folder.relative_to(ROOT)}/", _package(folder))
    yield from sources(folder, depth + 1)
    for each in sorted(folder.iterdir()):
        if each.is_dir() and (each / "__init__.py").exists():
            yield from modules(each, depth + 1)
        elif each.is_dir() and each.name == "runtime":
            yield f"{'  ' * (depth + 1)}{each.name}/"
            yield from sources(each, depth + 2)


def sources(folder: Path, depth: int) -> Iterator[str]:
    """The files of a folder. A .cpp that begins with its header stands in the header's line."""
    for path in sorted(folder.iterdir()):
        if path.suffix not in (".py", ".c", ".h", ".cpp") or path.name == "__init__.py":
            continue
        twin = path.with_suffix(".h" if path.suffix == ".cpp" else ".cpp")
        if path.suffix == ".cpp" and twin.exists() and not said(path):
            continue
        both = path.suffix == ".h" and twin.exists() and not said(twin)
        yield line(depth, f"{path.name}, .cpp" if both else path.name, said(path))


def folders(folder: Path, depth: int) -> Iterator[str]:
    """Folders of tests or measurements; files only of the outermost, which the others share."""
    yield line(depth, f"{folder.name}/", _package(folder))
    if depth == 0:
        yield from sources(folder, 1)
    for each in sorted(folder.iterdir()):
        if (each / "__init__.py").exists():
            yield from folders(each, depth + 1)


def _package(folder: Path) -> str:
    found = said(folder / "__init__.py")
    assert found, f"{folder.relative_to(ROOT)}/__init__.py has no docstring, which the map needs"
    return found


def map_lines() -> Iterator[str]:
    """The map of the tree."""
    yield from modules(ROOT / "src" / "tzero", 0)
    yield ""
    yield f"{'native/':<{COLUMN - 1}} the C++17 extension `tzero._native`; DESIGN.md has its rules"
    yield from sources(ROOT / "native", 1)
    for name in ("tests", "bench"):
        yield ""
        yield from folders(ROOT / name, 0)


def layers() -> Iterator[str]:
    """The layers, the lowest first."""
    yield from (", ".join(each.split()) for each in LAYERS)


# -- the page --------------------------------------------------------------------------------------


def page(text: str) -> str:
    """The page's text with both generated parts made anew."""
    for name, made in (("map", map_lines()), ("layers", layers())):
        begin, end = (marker.format(name) for marker in MARKERS)
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        assert found and closed, f"{PAGE} lacks the markers {begin} and {end}"
        block = textwrap.indent("\n".join(made), "    ")
        text = f"{before}{begin}\n\n{block}\n\n{end}{after}"
    return text


def main(arguments: Sequence[str]) -> int:
    """Write the page, or compare it."""
    old = PAGE.read_text()
    new = page(old)
    if "--check" not in arguments:
        PAGE.write_text(new)
        return 0
    lines = difflib.unified_diff(
        old.splitlines(), new.splitlines(), PAGE.name, "the tree", lineterm=""
    )
    sys.stdout.writelines(f"{each}\n" for each in lines)
    return int(old != new)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
