"""Which instructions of a followed frame need a look, and which are passed over.

    a call, a jump, a global, a store ──► always looked at
    a load of a variable or a constant ──► only if the instruction before it awaits its result

Enters: a code object. Leaves: the instructions that may be passed over, and for each other one what
those before it have moved. It must not know what a look does.

An instruction is passed over only if it does nothing but move values of its own frame, and if all
that matters of it is known at the next look. For integers that are followed, that is what it pushes
or drops: so no instruction is passed over to which a jump or an exception leads, or which comes
after a jump. Those that were passed over before an instruction are then the ones above it in the
code. A store is always looked at: an exception may come after it, in whose handler the variable is
read.
"""

from __future__ import annotations

import dis
import inspect
import weakref
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import NamedTuple

from tzero.adapters.python_frames import Instruction, decoded, handlers, is_jump

__all__ = ["DROPPED", "Moved", "Passed", "is_second_half", "moved_before", "passed_over"]

DROPPED = "-"
"""Stands for a value that is dropped; it is no name."""

_CONSTANT = frozenset(["LOAD_CONST", "PUSH_NULL"])
_GENERATES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Moved(NamedTuple):
    """What an instruction that may be passed over moves: the name of the variable that it pushes,
    None for what is no variable, or `DROPPED`."""

    place: int
    what: str | None


Passed = tuple[int, tuple[Moved, ...]]
"""The offset of the instruction before those that may be passed over, -1 for the beginning of a
frame, and these."""

_passed: weakref.WeakKeyDictionary[CodeType, Mapping[int, str | None]]
_passed = weakref.WeakKeyDictionary()


def passed_over(code: CodeType) -> Mapping[int, str | None]:
    """The offsets of the instructions that may be passed over, with what each moves.

    >>> passed_over((lambda x: (x, x)).__code__)
    {2: 'x', 4: 'x'}
    """
    found = _passed.get(code)
    if found is None:
        found = _passed[code] = {} if code.co_flags & _GENERATES else _find(code)
    return found


def _find(code: CodeType) -> dict[int, str | None]:
    every = decoded(code)
    prefixed = {at.place for place, at in every.items() if at.place != place}
    jumps = [at for at in every.values() if is_jump(at)]
    looked_at = {*prefixed, *handlers(code), *(at.after for at in jumps)}
    looked_at.update(at.value for at in jumps if type(at.value) is int)
    looked_at.update(_after_loops(every))
    count = code.co_argcount + code.co_kwonlyargcount
    packed = code.co_varnames[count : count + bool(code.co_flags & inspect.CO_VARARGS)]
    if code.co_flags & inspect.CO_VARKEYWORDS:
        packed += code.co_varnames[count + len(packed) :][:1]
    found: dict[int, str | None] = {}
    for place, at in every.items():
        if place == at.place and place not in looked_at and _is_move(at):
            if at.name != "LOAD_FAST":
                found[place] = DROPPED if at.name == "POP_TOP" else None
            elif at.value not in packed:
                found[place] = None if at.value in code.co_cellvars else at.value
    return found


def _after_loops(every: Mapping[int, Instruction]) -> Iterator[int]:
    """Where a loop ends: FOR_ITER jumps to END_FOR, and skips it; in CPython 3.13 also the POP_TOP
    after it."""
    for at in every.values():
        if at.name == "END_FOR":
            yield at.after
            then = every.get(at.after)
            if then is not None and then.name == "POP_TOP":
                yield then.after


def _is_move(at: Instruction) -> bool:
    return at.name in _CONSTANT or at.name in ("LOAD_FAST", "POP_TOP")


def moved_before(code: CodeType) -> Mapping[int, Passed]:
    """For each instruction after some that may be passed over: those, and the offset of the one
    before them.

    >>> moved_before((lambda x: (x, x)).__code__)[6]
    (-1, (Moved(place=2, what='x'), Moved(place=4, what='x')))
    """
    passed = passed_over(code)
    found: dict[int, Passed] = {}
    start = -1
    moved: list[Moved] = []
    for place, at in decoded(code).items():
        if moved:
            found[place] = start, tuple(moved)
        if place in passed:
            moved.append(Moved(place, passed[place]))
        elif is_second_half(at):  # which is not looked at
            moved = []
        else:  # a frame begins with RESUME, or after it
            is_first = at.name == "RESUME" and not found
            start, moved = -1 if is_first else at.place, []
    return found


_IN_HALVES = "PRECALL" in dis.opmap


def is_second_half(at: Instruction) -> bool:
    """Whether an instruction is the second half of a call, in CPython 3.11."""
    return at.name == "CALL" and _IN_HALVES
