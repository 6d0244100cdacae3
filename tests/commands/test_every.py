"""What holds for every command: help, JSON, colours, completion, and a place in the docs."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.commands.conftest import Command
from tzero.cli import app

PAGE = Path(__file__).parents[2] / "docs" / "command-line.md"
RUN = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'tzero'; from tzero.cli import main; main()",
]


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    found = getattr(group, "commands", None)
    if found is None:
        yield path, group
        return
    for name, command in found.items():
        yield from commands(command, (*path, name))


EVERY = dict(commands(typer.main.get_command(app)))
every = pytest.mark.parametrize("path", EVERY, ids=" ".join)


@every
def test_a_command_has_help(tzero_command: Command, path: tuple[str, ...]) -> None:
    for flag in ("-h", "--help"):
        text = tzero_command(*path, flag).stdout
        assert "Usage:" in text and "--json" in text


@every
def test_a_command_and_its_options_are_in_the_docs(path: tuple[str, ...]) -> None:
    text = PAGE.read_text()
    part = text.partition(f"## tzero {' '.join(path)}\n")[2].partition("\n## ")[0]
    assert part, f"docs/command-line.md has no section about {' '.join(path)}: run `make docs`"
    for one in EVERY[path].params:
        if one.param_type_name == "option" and "--help" not in one.opts:
            assert f"`{one.opts[-1]}`" in part


@every
def test_an_unknown_option_has_exit_code_2(tzero_command: Command, path: tuple[str, ...]) -> None:
    if path not in (("run",), ("bench",), ("trace",), ("report",)):  # it may be the program's
        tzero_command(*path, "--nonsense", code=2)


def test_without_a_command_help_is_printed(tzero_command: Command) -> None:
    assert "doctor" in tzero_command(code=2).output


def on_a_terminal(*words: str, **variables: str) -> str:
    """What a command prints on a terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", **variables}
    with subprocess.Popen([*RUN, *words], stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        found = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            found += piece
    os.close(ours)
    assert process.returncode == 0, found
    return found.decode()


def test_no_color_is_heeded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TZERO_CACHE_DIR", str(tmp_path / "cache"))
    colours = ("\x1b[32m", "\x1b[33m", "\x1b[36m", "\x1b[1;36m", "\x1b[1;33m")
    coloured = on_a_terminal("cache", "stats", "-h")
    assert any(each in coloured for each in colours)
    plain = on_a_terminal("cache", "stats", "-h", NO_COLOR="1")
    assert "Show the location" in plain and not any(each in plain for each in colours)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("tzero ", {"doctor", "report", "trace", "cache"}),
        ("tzero cache ", {"ls", "stats", "prune", "verify", "clear"}),
        ("tzero rep", {"report"}),
    ],
)
def test_bash_completes_commands(typed: str, found: set[str]) -> None:
    words = typed.split()
    number = len(words) if typed.endswith(" ") else len(words) - 1
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(number), "_TZERO_COMPLETE": "complete_bash"}
    environment = {**os.environ, **asked}
    done = subprocess.run(RUN, env=environment, capture_output=True, text=True, check=True)
    assert found <= set(done.stdout.split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_learn_to_complete(shell: str) -> None:
    environment = {**os.environ, "_TZERO_COMPLETE": f"source_{shell}"}
    done = subprocess.run(RUN, env=environment, capture_output=True, text=True, check=True)
    assert "_TZERO_COMPLETE=complete_" in done.stdout
