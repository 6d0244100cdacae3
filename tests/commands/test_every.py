"""What holds for every command: help, JSON, colours, completion, and a place in the docs."""

from __future__ import annotations

import os
import pty
import shutil
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
        assert "<bool>" not in text and "{" not in text, "what is a switch takes no value"


@every
def test_help_of_a_command_is_asked_for_in_words_too(
    tzero_command: Command, path: tuple[str, ...]
) -> None:
    assert tzero_command("help", *path).stdout == tzero_command(*path, "-h").stdout


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


def test_help_and_the_version_are_what_people_type_first(tzero_command: Command) -> None:
    assert tzero_command("help").stdout == tzero_command("--help").stdout
    assert tzero_command("-V").stdout == tzero_command("--version").stdout
    assert tzero_command("cache", "help").stdout == tzero_command("cache", "-h").stdout


@pytest.mark.parametrize(
    ("option", "given", "words"),
    [
        ("--days", "x", "'x' is not a number of days from 0 on, such as 30."),
        ("--days", "-1", "'-1' is not a number of days from 0 on"),
        ("--days", "inf", "'inf' is not a number of days from 0 on"),
        ("--size", "1.5", "'1.5' is not a whole number of MiB from 0 on"),
    ],
)
def test_a_number_that_is_none_is_told_plainly(
    tzero_command: Command, option: str, given: str, words: str
) -> None:
    done = tzero_command("cache", "prune", f"{option}={given}", code=2)
    assert words in " ".join(done.stderr.replace("│", " ").split())


def test_an_empty_cache_is_said_to_be_empty(tzero_command: Command, tmp_path: Path) -> None:
    assert tzero_command("cache", "ls").stdout == f"The cache is empty: {tmp_path / 'cache'}\n"


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
        ("tzero cache prune --", {"--days", "--size", "--json", "--help"}),
        ("tzero explain --c", {"--call"}),
        ("tzero bundle build --o", {"--out"}),
    ],
)
def test_bash_completes_commands_and_options(typed: str, found: set[str]) -> None:
    words = typed.split()
    number = len(words) if typed.endswith(" ") else len(words) - 1
    asked = {"COMP_WORDS": typed, "COMP_CWORD": str(number), "_TZERO_COMPLETE": "complete_bash"}
    environment = {**os.environ, **asked}
    done = subprocess.run(RUN, env=environment, capture_output=True, text=True, check=True)
    assert found <= set(done.stdout.split())


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_complete_options(shell: str) -> None:
    asked = {"_TZERO_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    asked["_TYPER_COMPLETE_ARGS"] = "tzero cache prune --d"
    done = subprocess.run(RUN, env={**os.environ, **asked}, capture_output=True, text=True)
    assert done.returncode == 0 and "--days" in done.stdout and "--size" not in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_what_it_is_taught(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed (Debian: {shell})")
    environment = {**os.environ, "_TZERO_COMPLETE": f"source_{shell}"}
    done = subprocess.run(RUN, env=environment, capture_output=True, text=True, check=True)
    script = tmp_path / "completion"
    script.write_text(done.stdout)
    assert subprocess.run([shell, "-n", str(script)]).returncode == 0


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_learn_to_complete(shell: str) -> None:
    environment = {**os.environ, "_TZERO_COMPLETE": f"source_{shell}"}
    done = subprocess.run(RUN, env=environment, capture_output=True, text=True, check=True)
    assert "_TZERO_COMPLETE=complete_" in done.stdout
