"""The ``tzero`` command.

Enters: command line arguments and the environment. Leaves: text or JSON, and an exit code:

====  =============================================================================
code  meaning
====  =============================================================================
0     done
1     done, but: damaged entries, files that could not be removed, no kernel called,
      something that the doctor found broken
n     ``bench`` and ``run``: the program ended with this status
2     the command line or a ``TZERO_`` variable is invalid; the program of a bundle failed
3     the cache or a bundle is not private or cannot be read; the queue cannot be reached
====  =============================================================================

It must not do any work itself: it calls other modules and prints their results.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tzero import settings, versions
from tzero.cache import stores
from tzero.cache.bundle import Bundle
from tzero.cache.disk import Disk, Removed, Verdict
from tzero.cache.entry import Damaged
from tzero.cache.store import location
from tzero.errors import BundleRefused, CacheRefused, InvalidArgument, InvalidSetting, TzeroError

if TYPE_CHECKING:
    from tzero.api.bench import Measured

__all__ = ["app", "main"]

_SHORT = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, context_settings={**_SHORT})
cache = typer.Typer(
    help="Manage the cache of compiled kernels.", no_args_is_help=True, context_settings={**_SHORT}
)
app.add_typer(cache, name="cache")
bundle = typer.Typer(help="Build and check bundles of compiled kernels.", no_args_is_help=True)
app.add_typer(bundle, name="bundle")

Program = Annotated[str, typer.Argument(help="A Python program, or a module after -m.")]
Arguments = Annotated[list[str] | None, typer.Argument(help="Its arguments.")]
IsModule = Annotated[bool, typer.Option("-m", help="TARGET is a module's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
BundlePath = Annotated[str, typer.Argument(help="A bundle.")]
INTERRUPTED = 130  # as shells report it

Remove = Annotated[bool, typer.Option("--remove", help="Remove damaged entries.")]


def main() -> None:
    """Run the command line.

    ::

        $ tzero cache stats
    """
    app()


def _show_version(is_asked: bool) -> None:
    if is_asked:
        print(f"tzero {versions.TZERO}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print tzero's version.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Make calls of Triton and Helion kernels cheap, and see what that does."""


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say whether tzero works here, and what would make it faster."""
    from tzero.commands.doctor import examine

    findings = list(examine())
    if as_json:
        print(json.dumps([asdict(each) for each in findings]))
    else:
        table = Table(box=None, show_header=False, pad_edge=False)
        for each in findings:
            sign, style = _SIGNS[each.state]
            table.add_row(Text(sign, style), Text(each.subject, "bold"), Text(each.found))
            if each.cure:
                table.add_row("", "", Text(f"→ {each.cure}", style))
        console = Console(width=None if sys.stdout.isatty() else 10_000, highlight=False)
        console.print(table)
        console.print(_diagnosis([each.state for each in findings]))
    raise typer.Exit(1 if any(each.state == "broken" for each in findings) else 0)


_SIGNS = {
    "ok": ("✓", "green"),
    "note": ("·", "dim"),
    "slow": ("!", "yellow"),
    "broken": ("✗", "red"),
}


def _diagnosis(states: list[str]) -> str:
    broken, slow = states.count("broken"), states.count("slow")
    if broken:
        return f"tzero does not work here: {broken} of {len(states)} findings must be mended."
    if slow:
        return f"tzero works, and could be faster: see {slow} of the {len(states)} findings."
    return "tzero works, at full speed."


@app.command()
def explain(
    place: Annotated[str, typer.Argument(help="module:function, or file.py:function.")],
    call: Annotated[str, typer.Option("--call", help="The arguments of a call, as Python code.")],
    as_json: AsJson = False,
) -> None:
    """Call a function that launches kernels, and explain how tzero makes its calls."""
    from tzero.commands.explaining import explain as explained

    with _exit_on_errors():
        found = explained(place, call)
    if as_json:
        how, why = found.replay or ("", found.refusal)
        facts = {"kernel": found.kernel, "hit": found.hit, "tier": found.tier, "replayed": how}
        print(json.dumps({**facts, "why": why, "stages": dict(found.stages)}))
    else:
        print(found)


# Everything after the script belongs to the script, options included.
@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def bench(
    target: Program,
    arguments: Arguments = None,
    is_module: IsModule = False,
    runs: Annotated[int | None, typer.Option(min=1, help="Runs of each kind to count.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a program several times, without and with tzero; then say what it gains."""
    # Imported here: these commands alone need torch.
    from tzero.api import bench as measuring

    if not is_module:
        _check_program(target)
    program = measuring.Program(target, arguments or [], is_module)
    tell = _tell if sys.stderr.isatty() else _ignore
    try:
        found = measuring.measure(program, tell, output=2 if as_json else 1, runs=runs)
    except measuring.Failed as failed:
        tell("")
        print(failed.errors, end="", file=sys.stderr)
        _fail(failed, failed.status)
    except KeyboardInterrupt:
        tell("")
        _fail("interrupted; nothing is reported", INTERRUPTED)
    tell("")
    if as_json:
        print(json.dumps(found.facts()))
    elif found.rows:
        _show_bench(found)
    else:
        print("The program launched no Triton kernel, and called no kernel of tzero.")
    raise typer.Exit(0 if found.rows else 1)


def _tell(line: str) -> None:
    """Replace the line about progress, which stays if it ends with a newline."""
    print(f"\r\x1b[K{line and f'tzero: {line}'}", end="", file=sys.stderr, flush=True)


def _ignore(line: str) -> None:
    """Do nothing: stderr is no terminal."""


def _show_bench(found: Measured) -> None:
    seconds = statistics.median(found.without)
    title = "µs a call, without and with tzero"
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("kernel", overflow="fold")
    for name in ("calls", "without", "with", "times", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("how", overflow="fold")
    for row in found.rows:
        numbers = ["" if n is None else f"{n:.1f}" for n in (row.before, row.after, row.times)]
        calls = "" if row.calls is None else f"{row.calls:,}"
        share = row.share(seconds)
        part = "" if share is None else f"{share:.0%}"
        table.add_row(Text(row.kernel), calls, *numbers, part, Text(row.how))
    console = Console(highlight=False)
    console.print(table)
    console.print(_whole(found))


def _whole(found: Measured) -> str:
    """What the program gains, and how that was measured."""

    def span(seconds: list[float]) -> str:
        return f"{_seconds(min(seconds))} to {_seconds(max(seconds))}"

    one, other = statistics.median(found.without), statistics.median(found.with_tzero)
    runs = len(found.without)
    each = "One run of each"
    if runs > 1:
        each = f"Medians of {runs} runs of each, alternating (without {span(found.without)}, with "
        each += f"{span(found.with_tzero)})"
    return (
        f"The whole program: {_seconds(one)} without tzero, {_seconds(other)} with it, "
        f"{found.times:.2f} times as fast.\n"
        f"{each}; the first run of each is not counted. The clock starts at the program's first "
        "line, after torch, Triton and tzero were imported. µs are those of a call alone, with the "
        "arguments of the first one; share is calls x µs without tzero, of the whole run."
    )


def _seconds(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    target: Program,
    arguments: Arguments = None,
    is_module: IsModule = False,
) -> None:
    """Run a program whose Triton and Helion kernels tzero launches; then say how, on stderr."""
    from tzero.api.install import install, installed
    from tzero.calls import program

    if not is_module:
        _check_program(target)
    install()
    own = os.getpid()
    try:
        program.run(target, arguments or [], is_module=is_module)
    finally:
        if not settings.current().quiet and os.getpid() == own:  # no child of the program
            print(installed(), file=sys.stderr)


def _check_program(script: str) -> None:
    path = Path(script)
    if not (path.is_file() or (path / "__main__.py").is_file()):
        _fail(f"there is no program {script!r}. Give the path of a Python file.", 2)


@app.command()
def worker(
    url: Annotated[str, typer.Argument(help="The queue, such as redis://host:6379/0.")],
    compiles: Annotated[bool, typer.Option("--compile", help="Compile requests.")] = False,
    tunes: Annotated[bool, typer.Option("--tune", help="Time configs on this device.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when the queue is empty.")] = False,
    idle: Annotated[
        float | None, typer.Option(min=0, help="End when nothing came for so many seconds.")
    ] = None,
    lease: Annotated[
        float, typer.Option(min=1, help="Seconds after which others take over from a lost worker.")
    ] = 30.0,
) -> None:
    """Compile and tune for programs that use tzero.compile.queue(URL), until SIGTERM."""
    from tzero.compile.serving import serve

    if url.partition("://")[0] not in ("redis", "rediss", "unix"):
        _fail("the queue is given as redis://, rediss:// or unix://", 2)
    if not (compiles or tunes):
        _fail("a worker needs something to do: give --compile, --tune or both.", 2)
    with _exit_on_errors():
        now = settings.now()
        if tunes and now.cache_key is None:
            words = "--tune runs what clients send. Set TZERO_CACHE_KEY to the secret of the queue."
            _fail(words, 2)
        search = None
        if tunes:
            # Imported here: compiling needs no torch.
            from tzero.tune.elsewhere import search_there, this_queue

            search = this_queue(), search_there
        with settings.override(remote_cache=now.remote_cache or url):
            served = serve(
                url,
                key=now.cache_key,
                compiles=compiles,
                search=search,
                lease=lease,
                idle=0.0 if once else idle,
            )
    print(f"{served.compiled} compiled, {served.searched} tuned")


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


@cache.command("ls")
def listed(as_json: AsJson = False) -> None:
    """List the entries on disk, the one used last first."""
    from tzero.commands.listing import entries

    with _exit_on_errors():
        store = Disk(location(settings.now()))
        found = list(entries(store))
    if as_json:
        print(json.dumps([asdict(each) for each in found]))
        return
    table = Table("kernel", "for", "size", "last used", "digest", box=None, pad_edge=False)
    for each in found:
        row = (each.kernel, each.target, _size(each.bytes), _day(each.used), each.digest[:12])
        table.add_row(*map(_plain, row))
    Console(width=None if sys.stdout.isatty() else 10_000, highlight=False).print(table)


@cache.command()
def prune(
    days: Annotated[
        float | None, typer.Option(min=0, help="Remove what was not used for that many days.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(min=0, help="Keep at most that many MiB, the latest used.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove old entries on disk. A shared cache is not changed."""
    if days is None and size is None:
        _fail("say what to remove: --days 30, --size 1024, or both.", 2)
    with _exit_on_errors():
        store = Disk(location(settings.now()))
        before = None if days is None else datetime.now(UTC).timestamp() - days * 86400
        removed = store.prune(before, None if size is None else size << 20)
    _print_removed(store, removed, as_json)


@cache.command()
def clear(as_json: AsJson = False) -> None:
    """Remove every entry on disk. A shared cache is not changed."""
    with _exit_on_errors():
        store = Disk(location(settings.now()))
        removed = store.clear()
    _print_removed(store, removed, as_json)


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


def _print_removed(store: Disk, removed: Removed, as_json: bool) -> NoReturn:
    facts = {
        "location": store.root,
        "entries": removed.entries,
        "bytes": removed.bytes,
        "problems": list(removed.problems),
    }
    _print(facts, as_json, _clear_table)
    raise typer.Exit(1 if removed.problems else 0)


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
    except (InvalidSetting, InvalidArgument) as error:
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
