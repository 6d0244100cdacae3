"""Which sizes of a kernel's calls vary: the first is exact, a second one makes what varied free.

    call ── all but its sizes ──► calls alike ── sizes seen so far ──► what another call may change

Enters: the arguments of calls that are about to be recorded. Leaves: the sizes, strides and
integers that their plans should not assume. It must not know how a call is recorded.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from tzero.adapters import torch_modes
from tzero.adapters.torch_internals import dynamic_dims, static_dims
from tzero.arguments.key import constant
from tzero.arguments.scalars import NUMBERS
from tzero.arguments.situation import TENSORS, alike, leaves
from tzero.errors import UnsupportedType
from tzero.plans.plan import Plan
from tzero.plans.sized import is_variant
from tzero.plans.sizes import sources
from tzero.plans.table import Planned
from tzero.symbolic.formulas import Source

__all__ = ["Free", "Sighted", "Varied"]

Free = Literal["nothing", "what varies", "everything"]
"""What plans leave open: ``static_shapes=True``, by default, and ``static_shapes=False``."""

_MOST_KINDS = 256
_MOST_PLANS = 32
_MOST_VARIANTS = 64
_MOST_IN_VAIN = 3
"""How often a call is recorded for other sizes in vain before that is given up."""

_MOST_INTERRUPTED = 16
"""How often in a row something else may interrupt such a recording before it is given up."""


class _Kept(NamedTuple):
    """A plan over sizes; the sizes, strides and integers that it does not leave open; the other
    numbers that it is for, by leaf; and the addresses modulo 16 of the tensors."""

    planned: Planned
    fixed: dict[Source, int]
    numbers: dict[int, Hashable]
    addresses: tuple[int, ...]


class Sighted(NamedTuple):
    """One call: what it has in common with others whose sizes are compared with its own, None if
    plans over sizes do not support it; its leaves; its sizes, strides and integers; and the
    addresses modulo 16 of its tensors, which are the same in all calls of a plan."""

    kind: tuple[Hashable, ...] | None
    every: Sequence[Any]
    now: Mapping[Source, int]
    addresses: tuple[int, ...]


class _Seen:
    """What is known of calls that are alike."""

    __slots__ = ("first", "in_vain", "interrupted", "is_recorded", "plans", "varied", "why")

    def __init__(self, first: Mapping[Source, int]) -> None:
        self.first = first
        self.varied: set[Source] = set()
        self.is_recorded = False  # whether a call has a plan
        self.in_vain = self.interrupted = 0
        self.why = ""
        self.plans: list[_Kept] = []


class Varied:
    """The sizes of one kernel's calls.

    >>> varied = Varied("everything", ("by", "n"))
    >>> varied.free(varied.sighted((2.5, 8)))
    frozenset({Source(what='number', leaf=1, dim=0)})
    """

    def __init__(self, free: Free, parameters: Sequence[str], why_not: str = "") -> None:
        self._free: Free = free
        self._parameters = parameters
        self._seen: dict[Hashable, _Seen] = {}
        self.why_not = "" if free != "nothing" else why_not or "static_shapes=True"
        """Why no plan is for several sizes; empty if they may be."""

    def disable(self, why: str) -> None:
        """Record each size by itself from now on."""
        self.why_not, self._seen = self.why_not or why, {}

    def reset(self) -> None:
        """Forget all sizes."""
        self.why_not = "" if self._free != "nothing" else self.why_not
        self._seen = {}

    def sighted(self, args: tuple[Any, ...], apart: Hashable = None) -> Sighted:
        """A call that is about to be made. Calls that differ in `apart` have different plans."""
        return _UNSIGHTED if self.why_not else _sighted(args, self._parameters, apart)

    def free(self, call: Sighted) -> frozenset[Source]:
        """What a plan of this call should not assume; empty if it is to be for these sizes."""
        if call.kind is None:
            return frozenset()
        kind, every, now, _ = call
        seen = self._seen.get(kind)
        if seen is None:
            while len(self._seen) >= _MOST_KINDS:
                self._seen.pop(next(iter(self._seen)), None)
            seen = self._seen[kind] = _Seen(now)
        seen.varied.update(source for source, n in now.items() if n != seen.first[source])
        if seen.in_vain >= _MOST_IN_VAIN:
            return frozenset()
        if self._free == "what varies" and not seen.is_recorded and seen.varied:
            return frozenset()  # such calls are not replayed
        asked, fixed = _marked(every)
        free = seen.varied | {source for source in asked if now[source] > 1}
        if self._free == "everything":
            free |= {source for source, n in now.items() if n not in (0, 1)}
        huge = {source for source, n in now.items() if not -(1 << 63) <= n < 1 << 63}
        return frozenset(free - fixed - huge)

    def hashed(self, call: Sighted) -> int:
        """The same for calls that one plan over sizes is likely to serve."""
        kind = call.kind and call.kind[:2]  # without `apart`
        return hash((kind, *((n == 0, n == 1, n % 16 == 0) for n in call.now.values())))

    def note(self, call: Sighted, planned: Planned) -> Planned:
        """A call was recorded. Returns its plan, if it is one over sizes with the binaries of
        earlier plans that do the same; those end."""
        if self.why_not:
            return planned._replace(plan=dataclasses.replace(planned.plan, unsized=self.why_not))
        seen = self._seen.get(call.kind)
        if seen is None:
            return planned
        plan, seen.is_recorded = planned.plan, True
        if plan.sizing is None:
            seen.in_vain, seen.why = seen.in_vain + bool(plan.unsized), plan.unsized or seen.why
            return planned._replace(plan=dataclasses.replace(plan, unsized=seen.why))
        seen.in_vain = seen.interrupted = 0
        free = set(plan.sizing.free)
        fixed = {
            source: n
            for source, n in call.now.items()
            if source not in free and (source.what != "number" or source.leaf in plan.by_value)
        }
        numbers = _numbers(call.every, plan.by_value)
        for kept in seen.plans:
            other = kept.planned
            if kept[1:] == (fixed, numbers, call.addresses) and is_variant(plan, other.plan):
                planned = planned._replace(variants=_joined(planned, other))
                seen.plans = [each for each in seen.plans if each is not kept]
                other.bound.plans.forget(other)
        alive = [each for each in seen.plans if _is_alive(each.planned)]
        seen.plans = [*alive[1 - _MOST_PLANS :], _Kept(planned, fixed, numbers, call.addresses)]
        return planned

    def note_interruption(self, call: Sighted, why: str) -> None:
        """Something else interrupted the recording of a call, as compilers may."""
        seen = self._seen.get(call.kind)
        if seen is None:
            return
        seen.interrupted += 1
        if seen.interrupted >= _MOST_INTERRUPTED:
            seen.in_vain, seen.why = _MOST_IN_VAIN, why

    def find(self, args: tuple[Any, ...], apart: Hashable = None) -> Planned | None:
        """A plan over sizes that serves a call, the latest; None if there is none. Its guards may
        not hold."""
        if not self._seen:
            return None
        kind, every, now, addresses = _sighted(args, self._parameters, apart)
        seen = self._seen.get(kind)
        for kept in reversed([] if seen is None else seen.plans):
            planned: Planned = kept.planned
            sizing = planned.plan.sizing
            same = _is_alive(planned) and kept.addresses == addresses
            same = same and all(now[source] == n for source, n in kept.fixed.items())
            same = same and _numbers(every, planned.plan.by_value) == kept.numbers
            if same and sizing is not None and sizing.at(every) is not None:
                return planned
        return None


def _is_alive(planned: Planned) -> bool:
    return planned.bound.makes_calls() and planned.bound.plans.has(planned)


_UNSIGHTED = Sighted(None, (), MappingProxyType({}), ())


def _sighted(args: tuple[Any, ...], parameters: Sequence[str], apart: Hashable) -> Sighted:
    try:
        kind = torch_modes.now(), alike(args), apart
        every = [value for _, value in leaves(args, parameters)]
        now = {s: n for k, value in enumerate(every) for s, n in sources(k, value)}
        addresses = tuple(each.data_ptr() & 15 for each in every if type(each) in TENSORS)
    except (UnsupportedType, RuntimeError):  # torch raises it for tensors without sizes or memory
        return _UNSIGHTED
    return Sighted(kind, every, now, addresses)


def _numbers(every: Sequence[Any], by_value: frozenset[int]) -> dict[int, Hashable]:
    """The numbers among the leaves that are no integers, and that a plan is for."""
    return {
        k: constant(value)
        for k, value in enumerate(every)
        if k in by_value and type(value) in NUMBERS and type(value) is not int
    }


def _joined(planned: Planned, other: Planned) -> tuple[Plan, ...]:
    """The plans with other binaries that do the same as a plan, the latest first."""
    return (*planned.variants, other.plan, *other.variants)[:_MOST_VARIANTS]


def _marked(values: Sequence[Any]) -> tuple[set[Source], set[Source]]:
    """What `torch._dynamo.mark_dynamic` and `mark_static` say of sizes and strides."""
    asked: set[Source] = set()
    fixed: set[Source] = set()
    for k, value in enumerate(values):
        if type(value) not in TENSORS:
            continue
        dynamic = dynamic_dims(value)
        asked |= {Source("size", k, dim) for dim in dynamic}
        asked |= {Source("stride", k, dim) for dim in range(value.dim()) if dynamic}
        fixed |= {Source("size", k, dim) for dim in static_dims(value)}
    return asked, fixed
