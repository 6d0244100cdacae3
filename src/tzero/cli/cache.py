"""`tzero cache`: what is in the cache of compiled kernels, and removing it.

Enters: arguments and the settings. Leaves: text or JSON, and an exit code. A shared cache is not
changed.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Annotated, Any, NoReturn

import typer
from rich.table import Table

from tzero import settings
from tzero.cache import stores
from tzero.cache.disk import Disk, Removed, Verdict
from tzero.cache.store import location
from tzero.cli.help import Command, Group
from tzero.cli.printing import (
    AsJson,
    Facts,
    amount,
    console,
    day,
    exit_on_errors,
    fail,
    listing,
    number_of,
    pairs,
    plain,
    print_facts,
)

__all__ = ["app"]

app = typer.Typer(cls=Group, help="Manage the cache of compiled kernels.", no_args_is_help=True)

Remove = Annotated[bool, typer.Option("--remove", help="Remove damaged entries.")]


@app.command(cls=Command)
def stats(as_json: AsJson = False) -> None:
    """Show the location, size and limit of the cache."""
    with exit_on_errors():
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
    print_facts(facts, as_json, _stats_table)


@app.command("ls", cls=Command)
def listed(as_json: AsJson = False) -> None:
    """List the entries on disk, the one used last first."""
    from tzero.commands.listing import entries

    with exit_on_errors():
        store = Disk(location(settings.now()))
        found = list(entries(store))
    if as_json:
        print(json.dumps([asdict(each) for each in found]))
        return
    if not found:
        print(f"The cache is empty: {store.root}")
        return
    table = listing("kernel", "for", "size", "last used", "digest")
    for each in found:
        row = (each.kernel, each.target, amount(each.bytes), day(each.used), each.digest[:12])
        table.add_row(*map(plain, row))
    console().print(table)


@app.command(cls=Command)
def prune(
    days: Annotated[
        float | None,
        typer.Option(
            parser=number_of("days", float),
            metavar="DAYS",
            help="Remove what was not used for that many days.",
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            parser=number_of("MiB", int),
            metavar="MIB",
            help="Keep at most that many MiB, the latest used.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Remove old entries on disk. A shared cache is not changed."""
    if days is None and size is None:
        fail("say what to remove: --days 30, --size 1024, or both.", 2)
    with exit_on_errors():
        store = Disk(location(settings.now()))
        before = None if days is None else datetime.now(UTC).timestamp() - days * 86400
        removed = store.prune(before, None if size is None else size << 20)
    _print_removed(store, removed, as_json)


@app.command(cls=Command)
def clear(as_json: AsJson = False) -> None:
    """Remove every entry on disk. A shared cache is not changed."""
    with exit_on_errors():
        store = Disk(location(settings.now()))
        removed = store.clear()
    _print_removed(store, removed, as_json)


@app.command(cls=Command)
def verify(as_json: AsJson = False, remove: Remove = False) -> None:
    """Verify every entry on disk, and list the damaged ones."""
    with exit_on_errors():
        store = Disk(location(settings.now()))
        verdicts: list[Verdict] = list(store.verify(remove))
    damaged = [each for each in verdicts if each.problem is not None]
    facts = {
        "location": store.root,
        "entries": len(verdicts),
        "damaged": [{"digest": each.digest, "problem": each.problem} for each in damaged],
        "removed": remove,
    }
    print_facts(facts, as_json, _verify_table)
    raise typer.Exit(1 if damaged else 0)


def _print_removed(store: Disk, removed: Removed, as_json: bool) -> NoReturn:
    facts = {
        "location": store.root,
        "entries": removed.entries,
        "bytes": removed.bytes,
        "problems": list(removed.problems),
    }
    print_facts(facts, as_json, _clear_table)
    raise typer.Exit(1 if removed.problems else 0)


def _used(oldest: float | None, newest: float | None) -> str:
    """When entries were last used, in words."""
    return "never" if newest is None else f"{day(oldest)} to {day(newest)}"


def _stats_table(facts: Facts) -> Table:
    rows = [("location", facts["location"])]
    if not facts["on"]:
        rows.append(("on", "no (TZERO_CACHE=0)"))
    else:
        share = f"{facts['bytes'] / facts['limit']:.1%}"
        rows += [
            ("entries", f"{facts['entries']:,}"),
            ("size", f"{amount(facts['bytes'])} of {amount(facts['limit'])} ({share})"),
            ("last used", _used(facts["oldest"], facts["newest"])),
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
    return pairs(rows)


def _clear_table(facts: Facts) -> Table:
    removed = f"{facts['entries']:,} entries, {amount(facts['bytes'])}"
    rows = [("location", facts["location"]), ("removed", removed)]
    return pairs(rows + [("not removed", each) for each in facts["problems"]])


def _verify_table(facts: Facts) -> Table:
    rows = [("location", facts["location"]), ("entries", f"{facts['entries']:,}")]
    after = " (removed)" if facts["removed"] else ""
    rows.append(("damaged", f"{len(facts['damaged']):,}{after}"))
    return pairs(rows + [(each["digest"][:12], each["problem"]) for each in facts["damaged"]])
