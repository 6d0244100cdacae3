"""Launches with marked integers: through autotuners, heuristics, and classes that extend them.

    kernel[grid](x, n) ──► heuristics ── a dict of the arguments ──► a function of the program
                       └─► a `run` of the program ── super().run(x, n, grid=grid) ──► the kernel

Enters: the offer of a launch, and a frame that begins while it runs. Leaves: the marks of what the
frame is given. It must not know what a launch does on the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FrameType, FunctionType
from typing import Any

from tzero.adapters import triton_wrappers
from tzero.reading.integers_marks import Mark, Offer
from tzero.reading.purity import is_library

__all__ = ["as_launch", "as_run", "classes_of", "is_launching", "launched_with"]


def as_launch(offer: Offer) -> Offer:
    """A call of the `run` of Triton's classes, as the launch that it is."""
    count = len(offer.args) - len(offer.names)
    if "grid" not in offer.names or count < 1 or not triton_wrappers.is_run(offer.function):
        return offer
    kernel, *args = offer.args[:count]
    named = dict(zip(offer.names, offer.args[count:], strict=True))
    marks = dict(zip(offer.names, offer.marks[count:], strict=True))
    grid = named.pop("grid")
    if named.pop("warmup", False) is not False or marks["grid"] is not None:
        return offer
    every = [*offer.marks[1:count], *(marks[name] for name in named)]
    return Offer(offer.function, [*args, *named.values()], tuple(named), every, (kernel, grid))


def as_run(offer: Offer) -> Offer:
    """A launch as the call of a kernel's `run`."""
    assert offer.subscript is not None
    args, names = [*offer.subscript[:1], *offer.args], offer.names
    values = [*args, offer.subscript[1], False]
    return Offer(
        offer.function, values, (*names, "grid", "warmup"), [None, *offer.marks, None, None]
    )


def launched_with(offer: Offer) -> dict[str, Mark] | None:
    """The marks of the arguments of a launch by name. None for other calls, where heuristics
    replace an argument, and where a function gets the arguments that cannot be followed."""
    if offer.subscript is None:
        return None
    outer = offer.subscript[0]
    kernel = triton_wrappers.innermost(outer)
    if kernel is None or not all(map(_is_seen, triton_wrappers.called_with_arguments(outer))):
        return None
    count = len(offer.args) - len(offer.names)
    names = (*kernel.arg_names[:count], *offer.names)
    if triton_wrappers.computed_by(outer) & set(names):
        return None
    return dict(zip(names, offer.marks, strict=False))


def _is_seen(function: Any) -> bool:
    return isinstance(function, FunctionType) and not is_library(function)


def is_launching(frame: FrameType, offer: Offer) -> bool:
    """Whether a frame begins because Triton's own code launches: it has passed the arguments on."""
    caller = None if frame.f_back is None else frame.f_back.f_code
    code = getattr(offer.function, "__code__", None)
    return caller is not None and (caller is code or triton_wrappers.is_code_of_run(caller))


def classes_of(offer: Offer) -> Iterator[Any]:
    """The classes of a kernel and of what is around it."""
    assert offer.subscript is not None
    return (type(each) for each in triton_wrappers.layers(offer.subscript[0]))
