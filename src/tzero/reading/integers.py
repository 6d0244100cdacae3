"""Follows the integers that come from sizes through the instructions of one call.

    x.size(0) ──► a mark on the stack ── BINARY_OP ──► the mark of a formula ──► an argument
                                      └─ COMPARE_OP ──► a condition

Enters: each instruction of a followed frame before it runs, and the geometry of tensors. Leaves:
formulas and conditions in `Formulas`, and for each call which of its arguments are formulas. It
must not know what calls do with them.

An integer has no identity, so its mark has a place: on the stack of a frame, in a variable or a
cell, or in a container. An instruction or a call that is not understood pins the marked integers
that it is given: the plan is then for these values alone. The value of each mark is compared with
the integer that is in its place whenever an instruction uses it.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, FunctionType
from typing import Any

import torch

from tzero.adapters.python_frames import Instruction, function_of, operands
from tzero.reading.instructions import DROPPED, Passed, is_second_half
from tzero.reading.integers_containers import Step
from tzero.reading.integers_launches import as_run, classes_of, is_launching, launched_with
from tzero.reading.integers_marks import Geometry, Lost, Mark, Marks, Offer, Ratio
from tzero.reading.integers_steps import MOVE_NOTHING, Moves, moves
from tzero.symbolic.formulas import Formulas

__all__ = ["Call", "Geometry", "Integers", "Lost", "Mark", "Offer", "Ratio", "Shadow"]


class Box:
    """A variable that inner functions share."""

    __slots__ = ("mark",)

    def __init__(self, mark: Mark = None) -> None:
        self.mark = mark


class Call:
    """A call of a function of the program that is under way."""

    __slots__ = ("function", "is_entered", "offer", "result")

    def __init__(self, offer: Offer, function: FunctionType) -> None:
        self.offer, self.function = offer, function
        self.is_entered = False
        self.result: Mark = None


class Shadow:
    """The marks of one frame."""

    __slots__ = (
        *("after", "aside", "boxes", "call", "frame", "is_answer", "is_host", "is_open"),
        *("last", "local", "moves", "names", "packed", "stack"),
    )

    def __init__(self, frame: FrameType) -> None:
        self.frame = frame
        self.moves = moves(frame.f_code)
        self.last = -1  # the offset of the instruction that was looked at last
        self.stack: list[Mark] = []
        self.local: dict[str, Mark] = {}
        self.packed: dict[
            str, list[Mark] | dict[Any, Mark]
        ] = {}  # the marks in *args and **kwargs, until they are read
        self.boxes: dict[str, Box] = {}
        # What happens when the instruction has run: a place on the stack, counted from the top, and
        # what gets the value there and gives its mark; or what needs no value.
        self.after: tuple[int | None, Callable[[Any], Mark]] | None = None
        self.is_open = False  # whether the next depth depends on where it jumps
        self.call: Call | None = None
        self.names: tuple[str, ...] = ()  # keywords of the next call
        self.is_host = self.is_answer = False
        self.aside: tuple[Offer, Shadow] | None = None  # the call whose offer waits for this frame


class Integers(Marks):
    """Follows the integers of one call."""

    def __init__(self, formulas: Formulas, geometry: Geometry) -> None:
        super().__init__(formulas)
        self.geometry = geometry
        self.arguments: dict[str, Mark] = {}
        """The marks of the host function's arguments, by the name of the parameter."""
        self.offer: Offer | None = None
        """The call that is about to be made, if some of its arguments are marked."""
        self.reading: torch.Tensor | None = None
        """The tensor whose geometry the instruction reads that runs now; its marks are known."""
        self.result: int | None = None
        """The mark of what the host function returned."""
        self.lost = ""
        """Why nothing is followed any more; all inputs are pinned then."""
        self.has_answered = False
        """Whether a function was followed that got a marked container from who took an offer."""
        self._has_begun = False
        self._taken: tuple[Offer, Shadow] | None = None
        self._offering: Shadow | None = None
        self._shadows: dict[int, Shadow] = {}
        self._cells: dict[int, tuple[Any, Box]] = {}
        self._launchers: dict[int, tuple[Any, tuple[Any, Any]]] = {}

    # -- who records ---------------------------------------------------------------------------

    def take(self, offer: Offer) -> None:
        """Take the offer of the call that runs now; its arguments are not pinned."""
        if offer is not self.offer or self._offering is None:
            raise ValueError("this offer is over: take it while its call runs")
        self._taken = offer, self._offering
        self.offer, self.has_answered = None, False

    def mark_items(self, container: Any, items: Sequence[Mark] | Mapping[Any, Mark]) -> None:
        """Mark what a container contains."""
        if not self.lost:
            self._safely(super().mark_items, container, items)

    def finish(self) -> None:
        """The call is over: what was offered last is pinned."""
        self._expire()
        for shadow in list(self._shadows.values()):
            self._abandon(shadow)
            if shadow.aside is not None:
                self._pin_call(shadow.aside[0])
        self._shadows.clear()
        self._taken = self._offering = None  # they hold frames, which refer to who traces them

    # -- frames --------------------------------------------------------------------------------

    def enter(self, frame: FrameType, is_host: bool) -> None:
        """A followed frame begins, or a generator goes on."""
        if not self.lost:
            self._safely(self._enter, frame, is_host)

    def before(
        self,
        frame: FrameType,
        at: Instruction,
        moved: Moves | None = None,
        values: Sequence[Any] | None = None,
    ) -> bool:
        """An instruction is about to run, on these values; those that `passed_over` names need not
        be told of, unless the one before has returned True: that it awaits what comes of it."""
        if self.lost or is_second_half(at):
            return False
        try:  # as `_safely`
            shadow = self._shadows.get(id(frame))
            if shadow is None or shadow.frame is not frame:
                raise Lost("a frame was not seen to begin")
            self._before(shadow, at, moved or shadow.moves[frame.f_lasti], values)
            return self._awaits(shadow)
        except Lost as error:
            self.lose(str(error))
        except Exception as error:
            self.lose(f"{type(error).__name__}: {error}")
        return False

    def leave(self, frame: FrameType) -> None:
        """A followed frame is left, or a generator yields."""
        if not frame.f_code.co_flags & GENERATES:
            shadow = self._shadows.pop(id(frame), None)
            if shadow is not None:
                self._abandon(shadow)
                if shadow.aside is not None:
                    self._expire()
                    self.offer, self._offering = shadow.aside

    def _safely(self, follow: Callable[..., None], *args: Any) -> None:
        """An error of the tracker must not reach the program: the plan is for this call alone."""
        try:
            follow(*args)
        except Lost as error:
            self.lose(str(error))
        except Exception as error:
            self.lose(f"{type(error).__name__}: {error}")

    def lose(self, reason: str) -> None:
        """Follow nothing any more, and pin all inputs."""
        self.lost = self.lost or reason
        self.formulas.pin_inputs()
        self.offer = self.reading = self._taken = None
        for held in (self._shadows, self._items, self._iterators, self._cells, self._launchers):
            held.clear()
        self._attributes.clear()
        self._views.clear()

    def _enter(self, frame: FrameType, is_host: bool) -> None:
        found = self._shadows.get(id(frame))
        if found is not None and found.frame is frame:
            return
        shadow = self._shadows[id(frame)] = Shadow(frame)
        caller = None if frame.f_back is None else self._shadows.get(id(frame.f_back))
        call = None if caller is None else caller.call
        if call is not None and not call.is_entered and function_of(frame) is call.function:
            call.is_entered = True
            _bind(shadow, call.offer)
        elif not self._has_begun:
            if not is_host:
                raise Lost("the host function is not followed")
            self._has_begun = shadow.is_host = True
            shadow.local.update(self.arguments)
        elif self.offer is not None:
            self._ask(shadow, self.offer)
        elif self._taken is not None:
            # Code that is not followed calls it, with what it was given in the call.
            shadow.is_answer = any(
                self.items_of(value) is not None for value in list(frame.f_locals.values())
            )
            self.has_answered |= shadow.is_answer
            if not shadow.is_answer:
                self._pin_call(self._taken[0])

    def _ask(self, shadow: Shadow, offer: Offer) -> None:
        """Code that is not followed calls a function during the call that is offered. Heuristics
        and hooks of a kernel get a dict of its arguments, and what they return is pinned; the offer
        waits until they have returned."""
        frame, marks = shadow.frame, launched_with(offer)
        if marks is None or not is_launching(frame, offer) or frame.f_code.co_flags & GENERATES:
            self._pin_call(offer)
            return
        if any(function_of(frame) is each.run for each in classes_of(offer)):
            self.offer = None  # a class of the program launches: what it does is followed
            _bind(shadow, as_run(offer))
            return
        given = [each for each in list(frame.f_locals.values()) if type(each) is dict]
        if not given:
            self._pin_call(offer)
        for each in given:
            self.mark_items(each, {name: marks.get(name) for name in each})
        assert self._offering is not None
        shadow.aside, self.offer = (offer, self._offering), None

    def returning(self, shadow: Shadow, value: Any, mark: Mark) -> None:
        """A frame is about to return a value."""
        back = shadow.frame.f_back
        caller = None if back is None else self._shadows.get(id(back))
        call = None if caller is None else caller.call
        if call is not None and call.is_entered and call.function is function_of(shadow.frame):
            call.result = mark
        elif shadow.is_host:
            self.result = self.whole(mark)
        elif shadow.is_answer and mark is None:
            return  # who called it asks for the marks of its items
        else:
            self.pin(value, mark)

    # -- instructions --------------------------------------------------------------------------

    def _before(
        self, shadow: Shadow, at: Instruction, moved: Moves, values: Sequence[Any] | None
    ) -> None:
        kept, handler, count, passed, pushes = moved
        stack = shadow.stack
        if passed is not None:
            _catch_up(shadow, at, passed)
        shadow.last = at.place
        if self._awaits(shadow) or kept is not None:  # else the instruction before left nothing
            self._settle(shadow, at, kept)
        elif len(stack) != at.depth:
            raise Lost(f"{at.name} finds {at.depth} values and not {len(stack)}")
        if pushes is not None:
            stack += [None] * pushes
        elif handler is None:
            if at.name not in MOVE_NOTHING:
                self._unknown(shadow, at)
        elif not count:
            stack += handler.run(Step(self, shadow, at, (), []))
        else:
            if values is None:
                values = operands(shadow.frame, at, count)
            elif len(values) != count:
                values = values[-count:]
            base = len(stack) - count
            marks = stack[base:]
            for mark, value in zip(marks, values, strict=True):
                if mark is not None:
                    self.checked(mark, value)
            del stack[base:]
            stack += handler.run(Step(self, shadow, at, values, marks))

    def _awaits(self, shadow: Shadow) -> bool:
        """Whether something happens once the instruction that was looked at has run."""
        return (
            shadow.after is not None
            or shadow.call is not None
            or shadow.is_open
            or self.offer is not None
            or self.reading is not None
            or self._taken is not None
        )

    def _settle(self, shadow: Shadow, at: Instruction, kept: int | None) -> None:
        """The instruction before has run: mark its result, and agree on the depth. `kept` is not
        None where only exceptions lead: how many values are below them."""
        stack, after, call = shadow.stack, shadow.after, shadow.call
        self._expire(shadow)
        if kept is not None:  # an exception was raised
            self._abandon(shadow)
            if len(stack) < kept:
                raise Lost(f"{kept} values are below an exception, and not {len(stack)}")
            stack[kept:] = [None] * (at.depth - kept)
        elif len(stack) == at.depth:
            if call is not None:
                if not call.is_entered:
                    self._pin_call(call.offer)
                stack[-1] = call.result
            elif after is not None and after[0] is None:
                after[1](None)
            elif after is not None and after[0] is not None:
                place = after[0] + 1
                stack[-place] = after[1](operands(shadow.frame, at, place)[0])
        elif shadow.is_open:
            del stack[at.depth :]
        if len(stack) != at.depth:
            raise Lost(f"{at.name} finds {at.depth} values and not {len(stack)}")
        shadow.after = shadow.call = None
        shadow.is_open = False

    def _expire(self, shadow: Shadow | None = None) -> None:
        """An instruction comes next: an offer that was not taken is over."""
        offer, self.offer, self.reading = self.offer, None, None
        if offer is not None:
            self._pin_call(offer)
        if self._taken is not None and shadow is self._taken[1]:
            self._taken = None

    def _abandon(self, shadow: Shadow) -> None:
        """A frame is left, or an exception was raised in it."""
        if shadow.call is not None and not shadow.call.is_entered:
            self._pin_call(shadow.call.offer)
        shadow.call = shadow.after = None

    def _unknown(self, shadow: Shadow, at: Instruction) -> None:
        """An instruction that is not understood may use all that is on the stack."""
        self.pin_values(operands(shadow.frame, at, at.depth), shadow.stack)
        shadow.stack[:] = [None] * len(shadow.stack)
        opcode = dis.opmap[at.name]
        arg = at.arg if opcode >= dis.HAVE_ARGUMENT else None
        effect = dis.stack_effect(opcode, arg, jump=False)
        shadow.is_open = opcode in dis.hasjrel or opcode in dis.hasjabs
        if effect < 0:
            del shadow.stack[effect:]
        shadow.stack += [None] * effect

    # -- variables -----------------------------------------------------------------------------

    def box(self, shadow: Shadow, name: str) -> Box:
        """The box of a variable that inner functions share."""
        box = shadow.boxes.get(name)
        if box is not None:
            return box
        code = shadow.frame.f_code
        if name in code.co_freevars:
            closure = function_of(shadow.frame).__closure__
            cell = closure[code.co_freevars.index(name)]
            found = self._cells.get(id(cell))
            if found is None or found[0] is not cell:
                found = self._cells[id(cell)] = cell, Box()
            box = found[1]
        else:
            packed = shadow.packed.pop(name, [])
            for mark in packed.values() if isinstance(packed, dict) else packed:
                self.pin(None, mark)
            box = Box(shadow.local.pop(name, None))
        shadow.boxes[name] = box
        return box

    def share(self, shadow: Shadow, names: tuple[str, ...], cells: tuple[Any, ...]) -> None:
        """A function is made that has these cells of a frame's variables."""
        for name, cell in zip(names, cells, strict=True):
            self._cells[id(cell)] = cell, self.box(shadow, name)

    # -- calls ---------------------------------------------------------------------------------

    def follow(self, shadow: Shadow, offer: Offer, function: FunctionType) -> None:
        """A function of the program is called: its frame comes next, and its result may be
        marked."""
        shadow.call = Call(offer, function)

    def make_offer(self, shadow: Shadow, offer: Offer) -> None:
        """Offer a call to who understands it, if it has anything marked."""
        values = (offer.function, *offer.args, offer.subscript)
        marks: list[Mark] = [None if mark is None else self.whole(mark) for mark in offer.marks]
        if any(mark is not None for mark in marks) or any(map(self.holds_marks, values)):
            if marks != offer.marks:
                offer = offer._replace(marks=marks)
            self.offer, self._offering = offer, shadow
        else:
            self.pin_values(values)  # it may hold a list, and see what is put into it later

    def _pin_call(self, offer: Offer) -> None:
        self.pin_values((offer.function, *offer.args, offer.subscript), offer.marks)

    def launcher(self, made: Any, kernel: Any, grid: Any) -> None:
        """A kernel was given its grid."""
        self._launchers[id(made)] = made, (kernel, grid)

    def subscript_of(self, function: Any) -> tuple[Any, Any] | None:
        """The kernel and the grid of a function that launches; None for others."""
        found = self._launchers.get(id(function))
        return found[1] if found is not None and found[0] is function else None


GENERATES = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
"""Flags of functions whose frames are left and go on."""


def _catch_up(shadow: Shadow, at: Instruction, passed: Passed) -> None:
    """Move what the instructions have moved that were passed over before this one."""
    start, moved = passed
    if not start <= shadow.last < at.place:
        return  # a jump has led here
    stack, local = shadow.stack, shadow.local
    for place, what in moved:
        if place <= shadow.last:
            continue
        if what is DROPPED:
            stack.pop()
        else:
            stack.append(None if what is None else local.get(what))


def _bind(shadow: Shadow, offer: Offer) -> None:
    """Give the parameters of a function the marks of its arguments."""
    code, names = shadow.frame.f_code, offer.names
    count, most = len(offer.args) - len(names), code.co_argcount
    every = code.co_varnames[: most + code.co_kwonlyargcount]
    rest: list[Mark] = []
    named: dict[Any, Mark] = {}
    for k, mark in enumerate(offer.marks):
        if k < count and k < most:
            shadow.local[every[k]] = mark
        elif k < count:
            rest.append(mark)
        elif names[k - count] in every[code.co_posonlyargcount :]:
            shadow.local[names[k - count]] = mark
        else:
            named[names[k - count]] = mark
    further = list(code.co_varnames[len(every) :])
    if code.co_flags & inspect.CO_VARARGS:
        shadow.packed[further.pop(0)] = rest
    if code.co_flags & inspect.CO_VARKEYWORDS:
        shadow.packed[further.pop(0)] = named
