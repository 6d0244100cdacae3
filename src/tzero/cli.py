"""The ``tzero`` command.

Enters: command line arguments and the environment. Leaves: text or JSON, and an exit code:

====  =============================================================================
code  meaning
====  =============================================================================
0     done
1     done, but: damaged entries, files that could not be removed, no kernel called
2     the command line or a ``TZERO_`` variable is invalid; the program of a bundle failed
3     the cache or a bundle is not private or cannot be read; nothing was done
====  =============================================================================

It must not do any work itself: it calls other modules and prints their results.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tzero import settings
from tzero.cache import stores
from tzero.cache.bundle import Bundle
from tzero.cache.disk import Disk, Verdict
from tzero.cache.entry import Damaged
from tzero.cache.store import location
from tzero.errors import BundleRefused, CacheRefused, InvalidSetting, TzeroError

__all__ = ["app", "main"]

app = typer.Typer(
    help="Time kernels with and without tzero, and manage the cache of compiled kernels.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
cache = typer.Typer(help="Manage the cache of compiled kernels.", no_args_is_help=True)
app.add_typer(cache, name="cache")
bundle = typer.Typer(help="Build and check bundles of compiled kernels.", no_args_is_help=True)
app.add_typer(bundle, name="bundle")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BundlePath = Annotated[str, typer.Argument(help="A bundle.")]
Remove = Annotated[bool, typer.Option("--remove", help="Remove damaged entries.")]


def main() -> None:
    """Run the command line.

    ::

        $ tzero cache stats
    """
    app()


@app.callback()
def _root() -> None:
    """Time kernels with and without tzero, and manage the cache of compiled kernels."""


# Everything after the script belongs to the script, options included.
@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def bench(
    script: Annotated[str, typer.Argument(help="A Python program that calls kernels.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a program, then time each kernel it called with and without tzero."""
    # Imported here: this command alone needs torch.
    from tzero.calls.compare import compare, watch

    _check_program(script)
    seen = watch(script, arguments or [])
    rows = compare(seen)
    if as_json:
        print(json.dumps([{**asdict(row), "times": row.times} for row in rows]))
        return
    if not rows:
        print(
            "The program called no kernel of tzero. Put @tzero.kernel on a function that launches\n"
            "kernels, replace @triton.jit by @tzero.jit, or call tzero.helion.install() before\n"
            "Helion kernels are called."
        )
        raise typer.Exit(1)
    table = Table("kernel", "calls", "without", "with tzero", "times", "how", title="µs a call")
    for row in rows:
        calls = "" if row.calls is None else str(row.calls)
        numbers = (
            "" if each is None else f"{each:.1f}" for each in (row.before, row.after, row.times)
        )
        table.add_row(Text(row.kernel), calls, *numbers, Text(row.how))
    Console().print(table)


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    target: Annotated[str, typer.Argument(help="A Python program, or a module after -m.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="Its arguments.")] = None,
    is_module: Annotated[bool, typer.Option("-m", help="TARGET is a module's name.")] = False,
) -> None:
    """Run a program whose Triton and Helion kernels tzero launches; then say how, on stderr."""
    from tzero.api.install import install, installed
    from tzero.calls import program

    if not is_module:
        _check_program(target)
    install()
    try:
        program.run(target, arguments or [], is_module=is_module)
    finally:
        if not settings.current().quiet:
            print(installed(), file=sys.stderr)


def _check_program(script: str) -> None:
    path = Path(script)
    if not (path.is_file() or (path / "__main__.py").is_file()):
        _fail(f"there is no program {script!r}. Give the path of a Python file.", 2)


@cache.command()
def stats(as_json: AsJson = False) -> None:
    """Show the location, size and limit of the cache."""
    with _exit_on_errors():
        now = settings.now()
        layers = stores(now)
        facts: dict[str, Any] = {
            "location": location(now),
            "on": now.cache,
            "limit": now.cache_limit << 20,
        }
        if layers.disk is not None:
            usage = layers.disk.usage()
            for name in ("entries", "bytes", "oldest", "newest", "temporary"):
                facts[name] = getattr(usage, name)
        if layers.remote is not None:
            remote = layers.remote
            facts["remote"] = {
                "url": remote.shown,
                "authenticated": remote.authenticated,
                "problem": remote.probe(),
            }
    _print(facts, as_json, _stats_table)


@cache.command()
def clear(as_json: AsJson = False) -> None:
    """Remove every entry on disk. A shared cache is not changed."""
    with _exit_on_errors():
        store = Disk(location(settings.now()))
        removed = store.clear()
    facts = {
        "location": store.root,
        "entries": removed.entries,
        "bytes": removed.bytes,
        "problems": list(removed.problems),
    }
    _print(facts, as_json, _clear_table)
    raise typer.Exit(1 if removed.problems else 0)


@cache.command()
def verify(as_json: AsJson = False, remove: Remove = False) -> None:
    """Verify every entry on disk, and list the damaged ones."""
    with _exit_on_errors():
        store = Disk(location(settings.now()))
        verdicts: list[Verdict] = list(store.verify(remove))
    damaged = [each for each in verdicts if each.problem is not None]
    facts = {
        "location": store.root,
        "entries": len(verdicts),
        "damaged": [{"digest": each.digest, "problem": each.problem} for each in damaged],
        "removed": remove,
    }
    _print(facts, as_json, _verify_table)
    raise typer.Exit(1 if damaged else 0)


# Everything after -- belongs to the program.
@bundle.command()
def build(
    out: Annotated[str, typer.Option("-o", "--out", help="The bundle to write.")],
    command: Annotated[
        list[str] | None, typer.Argument(help="A program to run, after --, such as python app.py.")
    ] = None,
    coverage: Annotated[
        str | None, typer.Option(help="A file of tzero.coverage().save, in place of a program.")
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="With --coverage: compile for this, such as cuda:90.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a program and bundle the kernels and configs that it uses, or bundle a coverage."""
    if (coverage is None) == (not command) or (target is not None and coverage is None):
        _fail("give a program after --, or --coverage FILE, with or without --target.", 2)
    # Imported here: this command alone needs torch.
    from tzero.api import bundles
    from tzero.calls.coverage import Coverage

    with _exit_on_errors():
        try:
            if coverage is not None:
                chosen = None if target is None else bundles.target_of(target)
                made = bundles.build_from_coverage(out, Coverage.read(coverage), chosen)
            else:
                made = bundles.build_from_program(out, command or [])
        except subprocess.CalledProcessError as error:
            _fail(f"no bundle is written: the program ended with code {error.returncode}.", 2)
        except TzeroError as error:
            _fail(error, 3 if isinstance(error, BundleRefused) else 2)
    _print(asdict(made), as_json, _built_table)
    raise typer.Exit(0 if made.kernels else 1)


@bundle.command()
def inspect(path: BundlePath, as_json: AsJson = False) -> None:
    """List the entries of a bundle: for which target, hardware and versions each is."""
    with _exit_on_errors(), Bundle(path, settings.now().cache_key) as opened:
        rows = [
            {"kind": each.kind, "name": each.name, "bytes": each.size, "digest": each.digest}
            | {"facts": dict(each.facts)}
            for each in opened
        ]
        facts = {"path": opened.path, "authenticated": opened.authenticated, "entries": rows}
    _print(facts, as_json, _inspect_table)


@bundle.command("verify")
def verify_bundle(path: BundlePath, as_json: AsJson = False) -> None:
    """Verify every entry of a bundle, and list the damaged ones."""
    damaged = []
    with _exit_on_errors(), Bundle(path, settings.now().cache_key) as opened:
        for each in opened:
            try:
                opened.read(each)
            except Damaged as damage:
                damaged.append({"name": each.name, "digest": each.digest, "problem": str(damage)})
        facts = {"path": opened.path, "entries": len(opened), "damaged": damaged}
    _print(facts, as_json, _verify_bundle_table)
    raise typer.Exit(1 if damaged else 0)


@contextmanager
def _exit_on_errors() -> Iterator[None]:
    """Print expected errors without a traceback, and exit."""
    try:
        yield
    except InvalidSetting as error:
        _fail(error, 2)
    except (BundleRefused, CacheRefused, OSError) as error:
        _fail(error, 3)


def _fail(error: Exception | str, code: int) -> NoReturn:
    print(f"tzero: {error}", file=sys.stderr)
    raise typer.Exit(code) from (error if isinstance(error, Exception) else None)


def _print(facts: dict[str, Any], as_json: bool, show: Callable[[dict[str, Any]], Table]) -> None:
    if as_json:
        print(json.dumps(facts, sort_keys=True))
    else:
        # Without a terminal, rows are not wrapped, so that they can be searched.
        console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
        console.print(show(facts))


def _rows(rows: list[tuple[str, str]]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(name, _plain(value))
    return table


def _plain(text: str) -> Text:
    return Text(text)  # a path may contain what rich would read as markup


def _stats_table(facts: dict[str, Any]) -> Table:
    rows = [("location", facts["location"])]
    if not facts["on"]:
        rows.append(("on", "no (TZERO_CACHE=0)"))
    else:
        share = f"{facts['bytes'] / facts['limit']:.1%}"
        rows += [
            ("entries", f"{facts['entries']:,}"),
            ("size", f"{_size(facts['bytes'])} of {_size(facts['limit'])} ({share})"),
            ("last used", f"{_day(facts['oldest'])} to {_day(facts['newest'])}"),
            ("temporary files", str(facts["temporary"])),
        ]
    if "remote" in facts:
        remote = facts["remote"]
        trust = (
            "authenticated"
            if remote["authenticated"]
            else "NOT authenticated: TZERO_CACHE_KEY is not set"
        )
        rows.append(("shared", f"{remote['url']} ({trust})"))
        rows.append(("replies", "yes" if remote["problem"] is None else remote["problem"]))
    return _rows(rows)


def _clear_table(facts: dict[str, Any]) -> Table:
    removed = f"{facts['entries']:,} entries, {_size(facts['bytes'])}"
    rows = [("location", facts["location"]), ("removed", removed)]
    return _rows(rows + [("not removed", each) for each in facts["problems"]])


def _verify_table(facts: dict[str, Any]) -> Table:
    rows = [("location", facts["location"]), ("entries", f"{facts['entries']:,}")]
    after = " (removed)" if facts["removed"] else ""
    rows.append(("damaged", f"{len(facts['damaged']):,}{after}"))
    return _rows(rows + [(each["digest"][:12], each["problem"]) for each in facts["damaged"]])


def _built_table(facts: dict[str, Any]) -> Table:
    rows = [("bundle", facts["path"]), ("kernels", f"{facts['kernels']:,}")]
    rows.append(("configs", f"{facts['configs']:,}"))
    return _rows(rows + [("left out", f"{k}: {why}") for k, why in facts["refused"].items()])


def _inspect_table(facts: dict[str, Any]) -> Table:
    table = Table("kind", "name", "size", "for", title=Text(facts["path"]), title_justify="left")
    for each in facts["entries"]:
        words = ", ".join(f"{name} {value}" for name, value in each["facts"].items())
        table.add_row(each["kind"], _plain(each["name"]), _size(each["bytes"]), _plain(words))
    return table


def _verify_bundle_table(facts: dict[str, Any]) -> Table:
    rows = [("bundle", facts["path"]), ("entries", f"{facts['entries']:,}")]
    rows.append(("damaged", f"{len(facts['damaged']):,}"))
    return _rows(rows + [(each["name"], each["problem"]) for each in facts["damaged"]])


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _day(seconds: float | None) -> str:
    if seconds is None:
        return "never"
    return datetime.fromtimestamp(seconds, UTC).astimezone().strftime("%Y-%m-%d %H:%M")
