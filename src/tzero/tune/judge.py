"""Judges the results of candidates by those of the reference.

::

    reference: filled with A ── again with A ──► varies by ── with B, C, D ──► which elements count
                                    └─ too much: it is nondeterministic           │
    candidate: filled with A, B, C, D, and as later calls run ── verdict ◄────────┘

Enters: the results of calls, and the arguments after them. Leaves: empty words for a candidate that
is right, or where it differs. It must not know configs, or how calls are made.

A to D are the patterns of `tzero.tune.fresh`. What changes with them in the reference's results
was never written, or comes from memory that was not. So it does not count.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from tzero.adapters.torch_internals import storage_id
from tzero.tune import source
from tzero.tune.closeness import EXACT, Leeway
from tzero.tune.compare import changed, parts, same, spread
from tzero.tune.copying import attributes, bytes_of, tensors_in, walk
from tzero.tune.fresh import PATTERNS, Pattern, holding

__all__ = ["DEFAULT", "Check", "Judge", "Reference", "unfit_option"]

Check = Callable[[Any, Any], object]
"""Compares the results of a candidate with those of the reference. Where they are wrong, it raises
AssertionError, or returns False or a text."""

_RESULT, _ARGS = "result", "after the call args"

_RULES = 4
"""Incremented when results are compared in another way. Older verdicts then do not count."""


@dataclass(frozen=True, slots=True)
class Judge:
    """How results are compared: the options `tolerance` and `check` of a kernel.

    >>> Judge(tolerance=0.01).text
    'rules 4, tolerance 0.01'
    """

    tolerance: float | None = None
    check: Check | None = None

    @property
    def text(self) -> str:
        """It as a part of the key under which outcomes are remembered."""
        words = f"rules {_RULES}"
        if self.tolerance is not None:
            words += f", tolerance {self.tolerance!r}"
        return words if self.check is None else f"{words}, check {_digest(self.check)}"

    def problem(self, found: Any, expected: Any) -> str:
        """What `check` says about results; empty where it accepts them.

        >>> Judge(check=lambda found, expected: found < expected).problem(3, 2)
        'check returned False'
        """
        assert self.check is not None
        try:
            answer = self.check(found, expected)
            right = answer is None or bool(answer) != isinstance(answer, str)
        except AssertionError as error:
            return f"check says: {str(error).strip() or 'AssertionError'}"
        except Exception as error:  # it is the user's, and may raise anything
            return f"check raised {type(error).__name__}: {error}"
        return "" if right else f"check returned {answer!r}"


DEFAULT = Judge()
"""Compares by the tolerance of each dtype."""


def unfit_option(tolerance: Any, check: Any) -> tuple[str, str, str] | None:
    """Which of these options is not valid, the problem, and what to do; None where both are.

    >>> unfit_option(-1, None)[:2], unfit_option(None, abs)
    (('tolerance', 'is -1'), None)
    """
    number = type(tolerance) in (int, float) and 0 <= tolerance < math.inf
    if tolerance is not None and not number:
        advice = "Pass a number from 0 on: tolerance=0.01 allows for errors of 1 %."
        return "tolerance", f"is {tolerance!r}", advice
    if check is not None and not callable(check):
        advice = "Pass a function of two results: check=torch.testing.assert_close."
        return "check", f"is {check!r}", advice
    return None


def _digest(check: Any) -> str:
    """What a check does, as text: its source, and the state that it reads."""
    plain = hasattr(check, "__code__") or hasattr(check, "__func__")
    call = check if plain or isinstance(check, functools.partial) else type(check).__call__
    name = getattr(check, "__qualname__", type(check).__qualname__)
    state = [_state(each) for each in source.reached(call)]
    if not isinstance(check, FunctionType):  # but an object, a method or a partial
        state.append(_state(check))
    found = hashlib.sha256("\0".join(state).encode("utf-8", "replace")).hexdigest()[:16]
    return f"{name} {source.digest(call)} {found}"


def _state(value: Any, deep: int = 8) -> str:
    """What an object holds, as text; of what is nested deeper, the type."""
    kind = type(value).__qualname__
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        contents = bytes_of(value.detach().cpu().clone().untyped_storage())
        value = [value.dtype, tuple(value.shape), value.stride(), contents.numpy().tobytes()]
    elif hasattr(value, "tobytes") and hasattr(value, "dtype"):  # an array of numpy
        value = [str(value.dtype), value.shape, value.tobytes()]
    if isinstance(value, str | bytes | int | float | complex | type | torch.dtype | None):
        return repr(value)
    if not deep:
        return kind
    if isinstance(value, FunctionType):
        return source.digest(value)
    if isinstance(value, BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, dict):
        items = [f"{_state(k, deep - 1)}: {_state(v, deep - 1)}" for k, v in value.items()]
    elif isinstance(value, list | tuple | set | frozenset):
        items = [_state(each, deep - 1) for each in value]
        items = sorted(items) if isinstance(value, set | frozenset) else items
    else:
        items = [f"{k}: {_state(v, deep - 1)}" for k, v in attributes(value).items()]
    return f"{kind}({', '.join(items)})"


@dataclass(frozen=True, slots=True)
class Reference:
    """What the reference returned and did to its arguments, and how far others may differ.

    >>> reference = Reference(torch.ones(2), (), Judge())
    >>> reference.verdict(torch.tensor([1.0, 2.0]), ())
    'result is 2.0 at (1,), and the reference 1.0; 1 of 2 elements differ'
    """

    results: Any
    args: tuple[Any, ...]
    judge: Judge
    leeways: Mapping[str, Leeway] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict, repr=False, compare=False)
    """The scales of the parts that were compared so far."""
    shadows: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Copies of the results that are still in the memory that a call returned, because they are in
    objects that cannot be copied."""

    sharing: tuple[Mapping[str, str], Mapping[str, str]] = ({}, {})
    """Which results share memory with arguments, and with each other."""

    @staticmethod
    def of(live: tuple[Any, tuple[Any, ...]], kept: Any, judge: Judge) -> Reference:
        """A reference from the results and arguments of a call, and what was kept of them."""
        results, args = kept
        memory = {at: _interval(each) for at, each in parts(live[0], _RESULT).items()}
        found = parts(results, _RESULT).items()
        shadows = {at: each.clone() for at, each in found if memory.get(at) == _interval(each)}
        sharing = (_shared(*live), _overlapping(*live))
        return Reference(results, args, judge, shadows=shadows, sharing=sharing)

    def repeated(self, results: Any, args: tuple[Any, ...]) -> tuple[Reference, str]:
        """The reference, with what is learnt from the same run again; and why it cannot be one, if
        it varies too much."""
        if words := self._shadowed(results):
            return self, f"it is nondeterministic: {words}"
        leeways: Mapping[str, Leeway] = {**self.leeways, **self._checked_args()}
        for named, mine, other in self._compared(results, args):
            found, leeways = spread(
                mine, other, tolerance=self.judge.tolerance, named=named, leeways=leeways
            )
            if not found:
                return self, f"it is nondeterministic: {found.words}"
        return replace(self, leeways=leeways), ""

    def refilled(
        self, results: Any, args: tuple[Any, ...], pattern: Pattern = PATTERNS[1]
    ) -> tuple[Reference, str]:
        """The reference, with what is learnt from a run with another pattern: what changes does not
        count. And why it cannot be one, if its results have another form then, or `check` rejects
        them."""
        leeways: Mapping[str, Leeway] = self.leeways
        for named, mine, other in self._compared(results, args):
            found, leeways = changed(
                mine, other, tolerance=self.judge.tolerance, named=named, leeways=leeways
            )
            if not found:
                return self, f"it depends on unwritten memory: {found.words}"
        if self.judge.check is None:
            return replace(self, leeways=leeways), ""
        if pattern is PATTERNS[1]:  # in every dtype another than the first
            leeways = {**leeways, **self._held(results, args)}
        made = replace(self, leeways=leeways)
        words = made._checked(results, args)
        return made, words and f"it is nondeterministic: {words}"

    def verdict(self, results: Any, args: tuple[Any, ...], pattern: Pattern | None = None) -> str:
        """Where a candidate differs; empty where it is right. `pattern` is what fresh memory was
        filled with in its run."""
        words = self._shadowed(results, pattern) or self._checked(results, args)
        if words:
            return words
        for named, mine, other in self._compared(results, args):
            found = same(
                mine,
                other,
                tolerance=self.judge.tolerance,
                named=named,
                leeways=self.leeways,
                pattern=pattern,
                scales=self.scales,
            )
            if not found:
                return found.words
        return "" if self.judge.check is not None else self._other_memory(results, args)

    def _shadowed(self, results: Any, pattern: Pattern | None = None) -> str:
        """Where results differ from the shadows."""
        mine = parts(results, _RESULT) if self.shadows else {}
        for at, shadow in self.shadows.items():
            if at in mine:
                found = same(
                    mine[at], shadow, tolerance=self.judge.tolerance, named=at, pattern=pattern
                )
                if not found:
                    return found.words
        return ""

    def _other_memory(self, results: Any, args: tuple[Any, ...]) -> str:
        """Which result is in the memory of an argument or another result, and in that of the
        reference is not."""
        none = ("no argument", "no other result")
        mines = (_shared(results, args), _overlapping(results, args))
        for mine, others, nothing in zip(mines, self.sharing, none, strict=True):
            for at in {**mine, **others}:
                if mine.get(at) != others.get(at):
                    its, wanted = (each.get(at, nothing) for each in (mine, others))
                    return f"{at} shares memory with {its}, and in the reference with {wanted}"
        return ""

    # -- with `check` ----------------------------------------------------------------------------

    def _compared(self, results: Any, args: tuple[Any, ...]) -> Iterator[tuple[str, Any, Any]]:
        """What is compared by tolerance: all that `check` does not get."""
        if self.judge.check is None:
            yield _RESULT, results, self.results
        if self.judge.check is None or self.results is not None:
            yield _ARGS, args, self.args

    def _checked(self, results: Any, args: tuple[Any, ...]) -> str:
        if self.judge.check is None:
            return ""
        named, mine, other = self._for_check(results, args)
        found, expected = (_cloned(each, named, self.leeways) for each in (mine, other))
        return self.judge.problem(found, expected)

    def _checked_args(self) -> dict[str, Leeway]:
        """The arguments that do not count, because they are among the results that `check` gets."""
        if self.judge.check is None:
            return {}
        strided = [each for each in tensors_in(self.results) if each.layout is torch.strided]
        returned = {storage_id(each) for each in strided}
        every = torch.ones((), dtype=torch.bool, device="cpu")
        after = parts(self.args, _ARGS)
        return {at: Leeway(every) for at in after if storage_id(after[at]) in returned}

    def _for_check(self, results: Any, args: tuple[Any, ...]) -> tuple[str, Any, Any]:
        """What `check` gets: the results, or the arguments of a function that returns nothing."""
        if self.results is None and results is None:
            return _ARGS, args, self.args
        return _RESULT, results, self.results

    def _held(self, results: Any, args: tuple[Any, ...]) -> dict[str, Leeway]:
        """The elements that held the first pattern, and now hold the second."""
        named, mine, other = self._for_check(results, args)
        after = parts(mine, named)
        found = {}
        for at, tensor in parts(other, named).items():
            if at in after and after[at].shape == tensor.shape:
                held = holding(tensor, PATTERNS[0]) & holding(after[at], PATTERNS[1])
                if bool(held.any()):
                    found[at] = replace(self.leeways.get(at, EXACT), ignored=held)
        return found


def _shared(results: Any, args: tuple[Any, ...]) -> dict[str, str]:
    """The results that share memory with arguments, by name, and the first such argument."""
    places: dict[int, str] = {}
    for at, tensor in parts(args, "args").items():
        if tensor.numel():
            places.setdefault(storage_id(tensor), at)
    found = parts(results, _RESULT).items()
    return {at: places[storage_id(each)] for at, each in found if storage_id(each) in places}


def _overlapping(results: Any, args: tuple[Any, ...]) -> dict[str, str]:
    """The results that share elements with an earlier one, by name, and the first such result."""
    found: dict[str, str] = {}
    named = [(at, _interval(each)) for at, each in parts(results, _RESULT).items()]
    named = [(at, each) for at, each in named if each[1] < each[2]]
    names = {at: k for k, (at, _) in enumerate(named)}
    open_: list[tuple[str, int]] = []
    device = None
    for at, (where, begin, end) in sorted(named, key=lambda each: (str(each[1][0]), each[1][1])):
        open_ = [each for each in open_ if where == device and each[1] > begin]
        device = where
        for other, _ in open_:
            first, second = sorted((at, other), key=names.__getitem__)
            found[second] = min(found.get(second, first), first, key=names.__getitem__)
        open_.append((at, end))
    return found


def _interval(tensor: torch.Tensor) -> tuple[torch.device, int, int]:
    """A tensor's device, and the addresses in which each byte is its own: all that it spans if it
    has no holes, else its first element; none without memory."""
    begin = tensor.data_ptr()
    if not begin or not tensor.numel():
        return tensor.device, begin, begin
    spans = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    count = tensor.numel() if spans == tensor.numel() else 1
    return tensor.device, begin, begin + count * tensor.element_size()


def _cloned(value: Any, named: str, leeways: Mapping[str, Leeway]) -> Any:
    """A value with copies of its tensors, for code that may modify them. Elements that do not count
    are zero."""
    ignored = {
        id(tensor): leeways[at].ignored
        for at, tensor in parts(value, named).items()
        if at in leeways and leeways[at].ignored is not None
    }

    def visit(tensor: torch.Tensor) -> torch.Tensor:
        copy = tensor.detach().clone()
        mask = ignored.get(id(tensor))
        if mask is None or mask.numel() != tensor.numel():
            return copy
        copy = copy.contiguous()
        # By bytes, because torch cannot index every dtype.
        rows = copy.view(-1).view(torch.uint8).view(mask.numel(), copy.element_size())
        rows[mask] = 0
        return copy

    return walk(value, visit, {})
