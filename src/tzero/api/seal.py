"""`tzero.seal`: from now on nothing is compiled, tuned or recorded without being noticed.

Enters: a mode. Leaves: a seal in force. It must not know how compiles, tunings and recordings are
made: each of them asks `tzero.sealed`.
"""

from __future__ import annotations

import warnings

from tzero import sealed
from tzero.backends.triton import carried
from tzero.cache.in_use import bundles
from tzero.errors import InvalidArgument
from tzero.sealed import Mode, Seal, unseal

__all__ = ["seal", "unseal"]


def seal(mode: Mode = "error") -> Seal:
    """From now on, a call that needs a compile, a tuning or a recording raises `SealBroken`, or
    with ``"warn"`` emits an event and is made. Both name the kernel, and how the call differs from
    the nearest that was covered.

    ::

        tzero.warmup([(attention, spec)])
        tzero.seal("error")        # before traffic
        with tzero.seal("warn"):   # or for a block
            serve()

    What is loaded from a bundle or a cache is not a compile. Calls that are replayed never ask.
    `unseal` ends all seals; of several in force, the latest counts. A seal before anything was
    called, with no bundle in use, gives a warning, because every first call then breaks it.
    """
    if mode not in ("error", "warn"):
        raise InvalidArgument(
            kernel="tzero.seal",
            problem=f"the mode is {mode!r}",
            advice="Give it 'error' or 'warn'.",
        )
    if not (bundles() or carried.covers_any() or _tuned_any()):
        warnings.warn(
            "tzero.seal: nothing is covered yet, so the first call of each kernel breaks the seal. "
            "Call tzero.warmup, or the kernels themselves, before it.",
            stacklevel=2,
        )
    return sealed.seal(mode)


def _tuned_any() -> bool:
    from tzero.tune import bundled  # here: a process that serves from a bundle tunes nothing

    return bool(bundled.chosen())
