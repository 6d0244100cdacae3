"""`tzero worker`: compiles and tunes for programs elsewhere.

Enters: a queue and limits. Leaves: how much was done. It must not do the work.
"""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tzero import settings
from tzero.cli.printing import AsJson, exit_on_errors, fail

__all__ = ["worker"]


def worker(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="The queue, such as redis://host:6379/0.")
    ],
    compiles: Annotated[bool, typer.Option("--compile", help="Compile requests.")] = False,
    tunes: Annotated[bool, typer.Option("--tune", help="Time configs on this device.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when the queue is empty.")] = False,
    idle: Annotated[
        float | None, typer.Option(min=0, help="End when nothing came for so many seconds.")
    ] = None,
    lease: Annotated[
        float, typer.Option(min=1, help="Seconds after which others take over from a lost worker.")
    ] = 30.0,
    as_json: AsJson = False,
) -> None:
    """Compile and tune for programs that use tzero.compile.queue(URL), until SIGTERM."""
    from tzero.compile.serving import serve

    if not url.startswith(("redis://", "rediss://", "unix://")):
        fail("the queue is given as redis://, rediss:// or unix://", 2)
    if not (compiles or tunes):
        fail("a worker needs something to do: give --compile, --tune or both.", 2)
    with exit_on_errors():
        now = settings.now()
        if tunes and now.cache_key is None:
            words = "--tune runs what clients send. Set TZERO_CACHE_KEY to the secret of the queue."
            fail(words, 2)
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
    if as_json:
        print(json.dumps({"compiled": served.compiled, "tuned": served.searched}))
    else:
        print(f"{served.compiled} compiled, {served.searched} tuned")
