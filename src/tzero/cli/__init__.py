"""The ``tzero`` command.

Enters: command line arguments and the environment. Leaves: text or JSON, and an exit code:

====  =============================================================================
code  meaning
====  =============================================================================
0     done
1     done, but: damaged entries, files that could not be removed, no kernel called,
      something that the doctor found broken, an error of what ``explain`` called
n     ``bench``, ``run``, ``trace``, ``report``: the program ended with this status
2     the command line or a ``TZERO_`` variable is invalid; the program of a bundle failed
3     a file, the cache or a bundle cannot be read or written, or the cache is not
      private; the queue cannot be reached
====  =============================================================================

It must not do any work itself: it calls other modules and prints their results.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tzero import versions
from tzero.cli import bundle, cache, here, programs, worker
from tzero.cli.help import Command, Group

__all__ = ["app", "main"]

_SHORT: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
app = typer.Typer(
    cls=Group, no_args_is_help=True, pretty_exceptions_enable=False, context_settings=_SHORT
)


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
            "--version", "-V", help="Print tzero's version.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Make calls of Triton and Helion kernels cheap, and see what that does."""


app.command(cls=Command)(here.doctor)
app.command(cls=Command)(here.explain)
app.command(cls=Command, context_settings=programs.OWN_ARGUMENTS)(programs.run)
app.command(cls=Command, context_settings=programs.OWN_ARGUMENTS)(programs.bench)
app.command(cls=Command, context_settings=programs.OWN_ARGUMENTS)(programs.trace)
app.command(cls=Command, context_settings=programs.OWN_ARGUMENTS)(programs.report)
app.add_typer(cache.app, name="cache")
app.add_typer(bundle.app, name="bundle")
app.command(cls=Command)(worker.worker)
