"""Generates the reference pages of the docs from the source: settings, errors, public names, the
command line, and what to change in fallbacks.

Enters: the fields of `Settings`, the classes of `tzero.errors`, the names that `tzero` offers, the
commands, and the table of `tzero.cures`. Leaves: pages in docs/, and a table in docs/fallbacks.md.
It must not know what any of them means: that is said in the source.

    python -m tests.unit.reference            rewrite the pages
"""

from __future__ import annotations

import ast
import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import typer

import tzero
from bench.pages import with_tables
from tests.unit.public import PUBLIC
from tzero import cli, errors, moved, settings
from tzero.cures import CURES

__all__ = ["FALLBACKS", "PAGES", "ROOT", "fallbacks_page", "main"]

ROOT = Path(__file__).parents[2]
_WRITTEN = "<!-- Written by `make docs` from the source. -->"

_SETTINGS = """
Each setting is an environment variable, and a field of `tzero.settings.Settings` with which a
program changes it for a block: `with tzero.settings.override(cpu_check=True): ...`. An empty
variable counts as not set. A wrong value raises `InvalidSetting`, which says what is allowed. Most
are read once, at the first use; those of compiling and caching are read for each compile.
"""
_ERRORS = """
Every error that tzero raises on purpose derives from `tzero.TzeroError`, and is a name of `tzero`.
Most derive from the built-in exception that fits, too. The message says what happened, where, and
what to do; the facts are attributes.
"""


# -- settings --------------------------------------------------------------------------------------


def meanings() -> dict[str, str]:
    """What each field of `Settings` means: the string below it."""
    tree = ast.parse(inspect.getsource(settings))
    (found,) = (
        each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == "Settings"
    )
    said = {}
    for field, text in zip(found.body, found.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            assert isinstance(field.target, ast.Name) and isinstance(text.value, ast.Constant)
            said[field.target.id] = " ".join(text.value.value.split())
    return said


def settings_page() -> Iterator[str]:
    yield "# Settings"
    yield _WRITTEN
    yield _SETTINGS.strip()
    rows = ["| variable, field | what it does | values | not set |", "|---|---|---|---|"]
    said = meanings()
    for each in settings._VARIABLES:
        names = ", else ".join(f"`{name}`" for name in each.names)
        values = "; ".join(each.kind.texts)
        meaning = said[each.field].replace("``", "`")
        rows.append(f"| {names}<br>`{each.field}` | {meaning} | {values} | {each.empty} |")
    yield "\n".join(rows)


# -- errors ----------------------------------------------------------------------------------------


def errors_page() -> Iterator[str]:
    yield "# Errors"
    yield _WRITTEN
    yield _ERRORS.strip()
    for name in errors.__all__:
        kind = getattr(errors, name)
        yield f"## {name}"
        yield _paragraph(kind)
        others = [f"`{base.__name__}`" for base in kind.__bases__ if base.__module__ == "builtins"]
        if others and kind is not errors.TzeroError:
            yield f"Also a {' and a '.join(others)}."
        message = _example(kind)
        if message:
            yield f"```text\n{message}\n```"


def _paragraph(kind: type) -> str:
    text = inspect.getdoc(kind) or ""
    return text.split("\n\n")[0].replace("``", "`")


def _example(kind: type) -> str:
    """The message that the example in the docstring prints."""
    for example in doctest.DocTestParser().get_examples(inspect.getdoc(kind) or ""):
        if example.source.startswith("print("):
            return example.want.rstrip()
    return ""


# -- public names ----------------------------------------------------------------------------------

_GROUPS = {
    "Kernels": ("kernel", "jit", "multi_kernel", "Kernel", "BoundKernel", "JitKernel"),
    "Whole programs": ("install", "uninstall", "installed"),
    "What counts in a key": ("ConstExpr", "specialize", "constant"),
    "Configs and tuning": (
        *("Config", "Space", "ship", "pretuned", "pause_tuning", "wait_for_tuning"),
    ),
    "Before traffic": (
        *("Spec", "Range", "precompile", "Precompiled", "warmup", "Warmed"),
        *("seal", "unseal", "coverage", "build_bundle", "load_bundle", "unload_bundle"),
    ),
    "Many processes": ("fleet",),
}


def api_page() -> Iterator[str]:
    yield "# API"
    yield _WRITTEN
    yield "Every public name. The errors have [a page of their own](errors.md)."
    listed = [name for names in _GROUPS.values() for name in names]
    public = {each for each in PUBLIC[tzero] if each not in errors.__all__ and each[0] != "_"}
    assert set(listed) == public, f"in no group: {public - set(listed)}"
    for title, names in _GROUPS.items():
        yield f"## {title}"
        yield from (f"::: tzero.{name}" for name in names)
    yield "## Modules"
    for module, names in PUBLIC.items():
        if module not in (tzero, errors):
            yield f"### {public_name(module)}"
            yield _first_sentence(module)
            yield from (_member(module, name) for name in names)


def public_name(module: ModuleType) -> str:
    """The name by which users import a module."""
    short = {f"tzero.{place}": f"tzero.{name}" for name, place in moved.PUBLIC.items()}
    return short.get(module.__name__, module.__name__)


def _first_sentence(module: ModuleType) -> str:
    text = (module.__doc__ or "").split("\n\n")[0]
    return " ".join(text.split()).replace("``", "`").removesuffix(" ::")


def _member(module: ModuleType, name: str) -> str:
    """What mkdocstrings makes the entry of a name from: its own place, and the name for users. An
    error is on a page of its own."""
    if name in errors.__all__:
        return f"`{public_name(module)}.{name}`: [{name}](errors.md#{name.lower()})."
    place = module.__name__
    if place == "tzero.compile" and name in ("Queue", "queue"):
        place = "tzero.compile.redis_queue"  # brought in when it is asked for
    named = f"{public_name(module)}.{name}"
    options = f"{{heading: '{named}', toc_label: '{named}', heading_level: 4}}"
    return f"::: {place}.{name}\n    options: {options}"


# -- the command line ------------------------------------------------------------------------------

_COMMANDS = """
`tzero`, or `python -m tzero`. `-h` says what a command takes, as `tzero help` and its name do;
`--version` which tzero it is. With `--json` every command prints JSON on stdout and nothing else:
what a program prints goes to stderr then. Colours are left out where `NO_COLOR` is set, and where
stdout is no terminal. `tzero --install-completion` teaches your shell to complete commands and
options.
"""
_EXIT = """
| code | meaning |
|---|---|
"""


def command_line_page() -> Iterator[str]:
    yield "# Command line"
    yield _WRITTEN
    yield _COMMANDS.strip()
    yield "## Exit codes"
    yield _EXIT.strip() + "\n" + "\n".join(_exit_codes())
    for path, command in _commands(typer.main.get_command(cli.app)):
        yield f"## {path}"
        yield (command.help or "").replace("``", "`")
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        words = [_argument(each) for each in arguments]
        yield f"    {' '.join([path, '[options]', *words])}"
        rows = [
            f"| `{name}` | {_help(each)} |" for each, name in zip(arguments, words, strict=True)
        ]
        rows += [
            f"| {_names(each)} | {_help(each)} |" for each in command.params if _is_shown(each)
        ]
        yield "\n".join(["| | |", "|---|---|", *rows])


def _exit_codes() -> Iterator[str]:
    """The rows of the table in the docstring."""
    table = (cli.__doc__ or "").split(f"{'=' * 4}  {'=' * 77}\n")[2]
    rows: list[list[str]] = []
    for line in table.splitlines():
        if line[:1].strip():
            rows.append(line.split(None, 1))
        else:
            rows[-1][1] += f" {line.strip()}"
    yield from (f"| {code} | {words.replace('``', '`')} |" for code, words in rows)


def _commands(group: Any, path: str = "tzero") -> Iterator[tuple[str, Any]]:
    for name, each in getattr(group, "commands", {}).items():
        if hasattr(each, "commands"):
            yield from _commands(each, f"{path} {name}")
        else:
            yield f"{path} {name}", each


def _argument(argument: Any) -> str:
    return f"{(argument.name or '').upper()}{'...' if argument.nargs == -1 else ''}"


def _names(option: Any) -> str:
    return ", ".join(f"`{each}`" for each in option.opts)


def _help(parameter: Any) -> str:
    words = (parameter.help or "").replace("|", "\\|")
    default = parameter.default
    if default in (None, False, "") or callable(default) or parameter.required:
        return words
    return f"{words} Default: `{default}`."


def _is_shown(option: Any) -> bool:
    return option.param_type_name == "option" and "--help" not in option.opts


# -- fallbacks -------------------------------------------------------------------------------------

FALLBACKS = ROOT / "docs" / "fallbacks.md"


def fallbacks_page() -> str:
    """The page with its table of reasons."""
    rows = ["| what falls back | why | what to change |", "|---|---|---|"]
    for each in CURES:
        passes = " (it passes)" if each.passes else ""
        rows.append(f"| {each.kind}{passes} | {each.why} | {each.change} |")
    return with_tables(FALLBACKS.read_text(), "tests.unit.reference", "\n".join(rows))


# -- writing ---------------------------------------------------------------------------------------

PAGES = {
    "settings": settings_page,
    "errors": errors_page,
    "api": api_page,
    "command-line": command_line_page,
}


def text_of(name: str) -> str:
    return "\n\n".join(PAGES[name]()) + "\n"


def path_of(name: str) -> Path:
    return ROOT / "docs" / f"{name}.md"


def main() -> None:
    for each in PAGES:
        path_of(each).write_text(text_of(each))
    FALLBACKS.write_text(fallbacks_page())


if __name__ == "__main__":
    main()
