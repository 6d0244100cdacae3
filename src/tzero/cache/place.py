"""Where the processes of a job agree on who makes what, and which of them this process is.

Enters: a setting, or what the program chooses. Leaves: a place, as text, and a rank. It must not
know what is done there: `fleet` does that, and few programs need it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tzero import settings
from tzero.errors import InvalidSetting
from tzero.settings import Settings

__all__ = ["Job", "fleet", "job", "place_of"]

_place: str | None = None
"""The place that the program has chosen, which comes before TZERO_FLEET."""


def fleet(place: Any = None) -> None:
    """Let the processes of a job compile and tune everything once, from now on in this process.

    ::

        tzero.fleet("c10d")  # the job's own store, as torchrun starts it
        tzero.fleet("redis://host:6379/0")
        tzero.fleet("file:///shared/tzero")
        tzero.fleet(torch.distributed.TCPStore(...))  # or any other c10d store
        tzero.fleet()  # as TZERO_FLEET says, by default none

    One process compiles a kernel, or times its configs; the others wait for it, and take over if it
    gives no sign of life for TZERO_LEASE seconds.

    >>> fleet("carrier pigeons")
    Traceback (most recent call last):
    tzero.errors.InvalidSetting: TZERO_FLEET is 'a str'; allowed: '' (none), 'c10d' (the store of \
torchrun) or a URL of redis or of a directory, such as 'file:///data'. Set it to one of these, or \
unset it.
    """
    global _place
    if place is None or isinstance(place, str):
        if place is not None:
            settings.read({"TZERO_FLEET": place})
        _place = place
        return
    if not all(callable(getattr(place, name, None)) for name in ("compare_set", "clone")):
        allowed = "a text as TZERO_FLEET has it, or a c10d store"
        raise InvalidSetting(name="fleet", value=type(place).__name__, allowed=allowed)
    from tzero.cache import c10d

    _place = c10d.url_of(place)


def place_of(given: Settings) -> str | None:
    """The place of the fleet under these settings; None without one.

    >>> place_of(Settings(fleet="c10d"))
    'c10d'
    """
    return given.fleet if _place is None else _place


class Job(NamedTuple):
    """The place of this process in a distributed job.

    >>> Job(rank=0, world=1, address=None).world
    1
    """

    rank: int
    world: int
    address: tuple[str, int] | None
    """Host and port of the job's c10d store, if there is one."""


def job() -> Job:
    """What torchrun, or else Slurm, says about the job of this process.

    >>> with settings.applied({"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": None}):
    ...     job()
    Job(rank=3, world=8, address=None)
    """
    variables = settings.variables()

    def number(*names: str) -> int | None:
        texts = (variables.get(name, "") for name in names)
        return next((int(text) for text in texts if text.isascii() and text.isdecimal()), None)

    host, port = variables.get("MASTER_ADDR"), number("MASTER_PORT")
    rank, world = number("RANK", "SLURM_PROCID"), number("WORLD_SIZE", "SLURM_NTASKS")
    if rank is None or world is None or rank >= world:
        rank, world = 0, 1
    return Job(rank, world, (host, port) if host and port else None)
