"""Pages and examples use public names of tzero only, and command lines that its parser takes."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.unit.public import PUBLIC
from tests.unit.reference import public_name
from tzero.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "examples" / "README.md"])
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOK = ROOT / "examples" / "kernels.ipynb"
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)

MODULES = {public_name(module): set(names) for module, names in PUBLIC.items()}
PACKAGES = {"tzero.tune", "tzero.backends"}


# -- names -----------------------------------------------------------------------------------------


def used(source: str) -> Iterator[str]:
    """The dotted names that begin with tzero, as code uses or imports them."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tzero":
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name.startswith("tzero."))
        elif isinstance(node, ast.Attribute) and re.fullmatch(r"tzero(\.\w+)+", ast.unparse(node)):
            yield ast.unparse(node)


def is_public(name: str) -> bool:
    """Whether a dotted name is a public module, or begins with a public name of one."""
    words = name.split(".")
    for end in range(1, len(words) + 1):
        module = ".".join(words[:end])
        if module in MODULES and words[end : end + 1] and words[end] in MODULES[module]:
            return True
    return name in MODULES or name in PACKAGES


def sources() -> Iterator[tuple[str, str]]:
    """Code of the pages, also that of blocks that are not run because they need a GPU, a cluster or
    another package, and of the examples."""
    for page in PAGES:
        for block in re.findall(r"^```py(?:thon)?\n(.*?)^```$", page.read_text(), re.S | re.M):
            yield page.name, block
    for program in PROGRAMS:
        yield program.name, program.read_text()
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            lines = "".join(cell["source"]).splitlines()
            yield NOTEBOOK.name, "\n".join(each for each in lines if each[:1] not in "%!")


def test_pages_and_examples_use_public_names() -> None:
    found = {(where, name) for where, source in sources() for name in used(source)}
    assert found, "something is read"
    assert sorted(each for each in found if not is_public(each[1])) == []


def test_a_name_that_is_not_public_is_found() -> None:
    assert not is_public("tzero.api.bundles.build_from_coverage")
    assert is_public("tzero.measure.nanoseconds") and is_public("tzero.Kernel.bind")
    assert list(used("from tzero.cache import in_use")) == ["tzero.cache.in_use"]
    assert not is_public("tzero.cache.in_use")


# -- command lines ---------------------------------------------------------------------------------


def lines_of(page: Path) -> Iterator[str]:
    """The command lines of tzero on a page: in blocks of text, sh or yaml, and in backquotes."""
    text = re.sub(r"^```python\n.*?^```$", "", page.read_text(), flags=re.S | re.M)
    for line in text.splitlines():
        if re.match(r"(    |\$ |- run: )", line.lstrip("- ") if "- run:" in line else line):
            yield line.strip().removeprefix("$ ").removeprefix("- run: ")
        yield from re.findall(r"`([^`]*)`", line)


def commands(page: Path) -> Iterator[list[str]]:
    """Those lines as words, without variables before them and without what is said after them."""
    for line in lines_of(page):
        line = re.split(r"\s{2,}|\s#\s", line.strip())[0]
        line = re.sub(r"^(\w+=\S+ )*", "", line)
        line = re.sub(r"^(python3? -m )(?=tzero( |$))", "", line)
        if re.match(r"tzero [a-z-]", line) and "|" not in line:
            yield shlex.split(line.rstrip(":,"))


def parse(words: list[str]) -> None:
    """Parse a command line as `tzero` does, without running it; raises for one that it refuses."""
    command: Any = typer.main.get_command(app)
    rest, context = words[1:], None
    while True:
        name = rest[0] if rest else None
        found = getattr(command, "commands", {}).get(name)
        if found is None:
            break
        command, rest = found, rest[1:]
        context = command.context_class(command, info_name=name, parent=context)
    if hasattr(command, "commands"):
        assert not rest or rest[0].startswith("-"), f"{words}: no command {rest[0]!r}"
        return
    if not rest:
        return  # the name of a command in a sentence
    command.make_context(words[1], list(rest), resilient_parsing=False)


@by_page
def test_the_command_lines_of_a_page_are_parsed(page: Path) -> None:
    if page.name == "command-line.md":
        pytest.skip("written from the parser itself")
    for words in commands(page):
        if "..." in words or {"PLACE", "TARGET", "PATH"} & set(words):
            continue  # a scheme
        try:
            parse(words)
        except typer.Exit:
            pass  # -h, --version
        except Exception as error:
            raise AssertionError(f"{' '.join(words)}: {error!r}") from error


def test_command_lines_are_found_and_wrong_ones_refused() -> None:
    found = [words for page in PAGES for words in commands(page)]
    assert len(found) > 40
    assert {"run", "bench", "report", "trace", "bundle", "cache"} <= {words[1] for words in found}
    for wrong in ("tzero cache prune --hours 3", "tzero polish", "tzero doctor --fast"):
        with pytest.raises(Exception, match=r"hours|polish|fast"):
            parse(wrong.split())
