"""`tzero bundle`: builds and checks bundles of compiled kernels and tuned configs.

Enters: a program, a coverage or a bundle. Leaves: a bundle, text or JSON, and an exit code. It must
not do the work.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from tzero import settings
from tzero.cache.bundle import Bundle
from tzero.cache.entry import Damaged
from tzero.cli.help import Command, Group
from tzero.cli.printing import (
    AsJson,
    Facts,
    amount,
    check_place,
    exit_on_errors,
    fail,
    listing,
    output_on_stderr,
    pairs,
    plain,
    print_facts,
)
from tzero.errors import BundleRefused, TzeroError

__all__ = ["app"]

app = typer.Typer(
    cls=Group, help="Build and check bundles of compiled kernels.", no_args_is_help=True
)

BundlePath = Annotated[str, typer.Argument(metavar="PATH", help="A bundle.")]


# Everything after -- belongs to the program.
@app.command(cls=Command)
def build(
    out: Annotated[str, typer.Option("-o", "--out", help="The bundle to write.")],
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND", help="A program to run, after --, such as python app.py."
        ),
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
        fail("give a program after --, or --coverage FILE, with or without --target.", 2)
    check_place(out, "-o")
    # Imported here: this command alone needs torch.
    from tzero.api import bundles

    with exit_on_errors(), output_on_stderr() if as_json else nullcontext():
        try:
            if coverage is not None:
                made = bundles.build_bundle(out, coverage, target=target)
            else:
                made = bundles.build_from_program(out, command or [])
        except subprocess.CalledProcessError as error:
            fail(f"no bundle is written: the program ended with code {error.returncode}.", 2)
        except TzeroError as error:
            fail(error, 3 if isinstance(error, BundleRefused) else 2)
    print_facts(asdict(made), as_json, _built_table)
    if not made.kernels:
        print(f"tzero: {_nothing(made.refused, coverage)}", file=sys.stderr)
    raise typer.Exit(0 if made.kernels else 1)


def _nothing(refused: dict[str, str], coverage: str | None) -> str:
    """Why a bundle has no kernel, and what to do."""
    if refused:
        return "the bundle has no kernel: none of those that are used can be in one."
    if coverage is not None:
        return "the bundle has no kernel: the coverage names none. Save it after the calls."
    return (
        "the bundle has no kernel: the program launched no Triton kernel in a Python that has "
        "tzero. Run it with the Python that tzero is installed for, let it make the calls that are "
        "to be in the bundle, and pass its environment on to the processes that it starts. Where "
        "TRITON_BACKENDS_IN_TREE or TRITON_DEFAULT_BACKEND is set, Triton does not ask tzero: "
        "unset it, or give `-- python -m tzero run app.py`."
    )


@app.command(cls=Command)
def inspect(path: BundlePath, as_json: AsJson = False) -> None:
    """List the entries of a bundle: for which target, hardware and versions each is."""
    with exit_on_errors(), Bundle(path, settings.now().cache_key) as opened:
        rows = [
            {"kind": each.kind, "name": each.name, "bytes": each.size, "digest": each.digest}
            | {"facts": dict(each.facts)}
            for each in opened
        ]
        facts = {"path": opened.path, "authenticated": opened.authenticated, "entries": rows}
    print_facts(facts, as_json, _inspect_table)


@app.command("verify", cls=Command)
def verify_bundle(path: BundlePath, as_json: AsJson = False) -> None:
    """Verify every entry of a bundle, and list the damaged ones."""
    damaged = []
    with exit_on_errors(), Bundle(path, settings.now().cache_key) as opened:
        for each in opened:
            try:
                opened.read(each)
            except Damaged as damage:
                damaged.append({"name": each.name, "digest": each.digest, "problem": str(damage)})
        facts = {"path": opened.path, "entries": len(opened), "damaged": damaged}
    print_facts(facts, as_json, _verify_bundle_table)
    raise typer.Exit(1 if damaged else 0)


def _built_table(facts: Facts) -> Table:
    rows = [("bundle", facts["path"]), ("kernels", f"{facts['kernels']:,}")]
    rows.append(("configs", f"{facts['configs']:,}"))
    return pairs(rows + [("left out", f"{k}: {why}") for k, why in facts["refused"].items()])


def _inspect_table(facts: Facts) -> Table:
    table = listing("kind", "name", "size", "for", title=facts["path"])
    for each in facts["entries"]:
        words = ", ".join(f"{name} {value}" for name, value in each["facts"].items())
        table.add_row(each["kind"], plain(each["name"]), amount(each["bytes"]), plain(words))
    return table


def _verify_bundle_table(facts: Facts) -> Table:
    rows = [("bundle", facts["path"]), ("entries", f"{facts['entries']:,}")]
    rows.append(("damaged", f"{len(facts['damaged']):,}"))
    return pairs(rows + [(each["name"], each["problem"]) for each in facts["damaged"]])
