"""Compares a host function at a tier with tier 0, call by call.

Enters: host functions, and functions that build arguments. Leaves: a `Pair`, which checks that
every call does what tier 0 does with a copy of the arguments, and reports which calls ran the host
function. A call counts as replayed if the host function did not run. Which tiers there are is in
`tests.tiers`.
"""

from __future__ import annotations

import copy
import cProfile
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

import torch

from tests.tiers import can_replay as available
from tests.tiers import of_tier
from tzero import events, settings

__all__ = [
    "NotReplayed",
    "Pair",
    "Raised",
    "assert_same",
    "available",
    "counted",
    "described",
    "logged",
    "of_tier",
    "outcome",
    "verifying",
]

Build = Callable[[], tuple[Any, ...]]


def verifying() -> bool:
    """Whether verify mode is on, in which the host function runs in every call."""
    return settings.current().verify


@contextmanager
def counted(host: Callable[..., Any]) -> Iterator[list[int]]:
    """Count how often a host function starts in this thread: yields `[count]`, set at the end.

    It uses the interpreter's profiler, so neither the function nor native code is changed.
    """
    found, outer = [0], sys.getprofile()
    if sys.version_info >= (3, 12) or outer is not None:
        with _counted_in_python(host.__code__, found):
            yield found
        return
    # Before 3.12 cProfile profiles this thread alone. It runs no Python code, which takes a third
    # of the time of tests that record.
    profile = cProfile.Profile(subcalls=False, builtins=False)
    profile.enable()
    try:
        yield found
    finally:
        profile.disable()
        found[0] = sum(each.callcount for each in profile.getstats() if each.code is host.__code__)


@contextmanager
def _counted_in_python(code: CodeType, found: list[int]) -> Iterator[None]:
    outer = sys.getprofile()

    def look(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is code:
            found[0] += 1

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(outer)


@contextmanager
def logged(see: events.Observer) -> Iterator[None]:
    """Pass events that are logged as warnings, such as fallbacks, to a function. A real observer
    would get events of every call, and native code leaves observed calls to Python."""
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: see(record.args[0])  # type: ignore[method-assign, assignment, index, arg-type]
    logger = logging.getLogger("tzero")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class NotReplayed(AssertionError):
    """A call that should have been replayed ran the host function."""


class Pair:
    """A host function at a tier, and at tier 0."""

    def __init__(self, tier: int, host: Callable[..., Any], **options: Any) -> None:
        self.host = host
        self.kernel = of_tier(tier, host, **options)
        self.plain = of_tier(0, host, **options)
        self.seen: list[events.Event] = []
        self._watched = False
        self.found: Any = None  # the outcome of the latest call

    def __call__(self, *args: Any, **kwargs: Any) -> bool:
        """Make a call at both tiers, compare the outcomes; returns whether the host function
        ran."""
        ours, theirs = copy.deepcopy((args, kwargs)), copy.deepcopy((args, kwargs))
        state = torch.get_rng_state()
        expected = outcome(lambda: self.plain(*theirs[0], **theirs[1]))
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        seeing = events.observe(self._see) if self._watched else logged(self._see)
        with seeing, counted(self.host) as runs:
            self.found = outcome(lambda: self.kernel(*ours[0], **ours[1]))
        assert_same((ours, self.found), (theirs, expected))
        assert torch.equal(torch.get_rng_state(), after), "random numbers were drawn otherwise"
        return runs[0] > 0

    def _see(self, event: events.Event) -> None:
        if event.kernel == self.kernel.name:
            self.seen.append(event)

    def replays(self, build: Build, *, recorded: int = 1, times: int = 3) -> None:
        """Demand that calls are right, and replayed after the first `recorded` ones."""
        for k in range(times):
            ran = self(*build())
            assert not isinstance(self.found, Raised), self.found.words
            if k >= recorded and ran and not verifying():
                raise NotReplayed(f"call {k} of {self.kernel.name} ran: {self.reasons()}")

    def reasons(self) -> list[str]:
        """Why calls were not replayed."""
        return [event.reason for event in self.seen if event.kind == "fallback"]

    def refuses(self, build: Build, words: str, *, times: int = 3) -> str:
        """Demand that calls are right, that each runs the host function, and that one event gives
        the reason; returns it."""
        self._watched = True
        for k in range(times):
            assert self(*build()), f"call {k} of {self.kernel.name} was replayed"
        reasons = [reason for reason in self.reasons() if words in reason]
        assert len(reasons) == 1, f"{words!r} is said {len(reasons)} times: {self.reasons()}"
        return reasons[0]


# -- outcomes ------------------------------------------------------------------------------------


class Raised:
    """An exception that a call raised."""

    def __init__(self, error: BaseException) -> None:
        self.words = (type(error), str(error))

    def __repr__(self) -> str:
        return f"Raised{self.words}"


def outcome(call: Callable[[], Any]) -> Any:
    """What a call returns or raises."""
    try:
        return call()
    except Exception as error:
        return Raised(error)


def assert_same(one: Any, other: Any) -> None:
    """Demand that two outcomes are equal: types, values, geometry, and which tensors are identical
    or share memory."""
    ours, theirs = list(_walked(one)), list(_walked(other))
    assert [path for path, _ in ours] == [path for path, _ in theirs], (one, other)
    for (path, mine), (_, its) in zip(ours, theirs, strict=True):
        if isinstance(its, torch.Tensor):
            assert described(mine) == described(its), path
            assert _bits(mine) == _bits(its), f"{path}: {mine} is not {its}"
        elif isinstance(its, Raised):
            assert mine.words == its.words, path
        elif isinstance(its, torch.Size) or not isinstance(its, (list, tuple, dict)):
            assert type(mine) is type(its) and repr(mine) == repr(its), path
    assert _sharing(ours) == _sharing(theirs), "not the same things are one, or share memory"


def _walked(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in an outcome, containers included, with its path."""
    kind = type(value)
    yield f"{path}: {kind.__name__} {getattr(kind, '_fields', '')}", value
    if isinstance(value, (list, tuple)) and kind is not torch.Size:
        for k, item in enumerate(value):
            yield from _walked(item, f"{path}[{k}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walked(item, f"{path}[{key!r}]")


def described(tensor: torch.Tensor) -> tuple[Any, ...]:
    """All facts of a tensor except its values."""
    return (
        *(type(tensor), tensor.dtype, tensor.device, tensor.size(), tensor.stride()),
        *(tensor.storage_offset(), tensor.is_conj(), tensor.is_neg(), tensor.is_inference()),
        *(tensor.requires_grad, tensor.is_leaf, type(tensor.grad_fn)),
    )


def _bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().resolve_conj().resolve_neg().cpu().numpy().tobytes()


def _sharing(found: list[tuple[str, Any]]) -> list[tuple[int, int]]:
    """For each list, dict and tensor: where the object, and where its memory, first occurs."""
    objects: dict[int, int] = {}
    memory: dict[int, int] = {}
    shared = []
    for k, (_, value) in enumerate(found):
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            place = memory.setdefault(storage._cdata, k) if storage.nbytes() else k
            shared.append((objects.setdefault(id(value), k), place))
        elif isinstance(value, (list, dict)):
            shared.append((objects.setdefault(id(value), k), k))
    return shared
