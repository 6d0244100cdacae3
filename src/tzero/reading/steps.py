"""What each instruction on the path reads, stores or calls.

Enters: an instruction that is about to run, and its frame. Leaves: guards in a `World`, or
`Unreplayable`. It must not know which frames are followed.
"""

from __future__ import annotations

import collections
import enum
import importlib.util
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from tzero.adapters.python_frames import (
    EMPTY,
    Instruction,
    arity,
    call_in,
    decoded,
    function_of,
    operands,
)
from tzero.adapters.triton_launch import JITFunction
from tzero.reading.attributes import INTROSPECTION, own_dict
from tzero.reading.bytecode import implied
from tzero.reading.called import Judge, looks_at_result
from tzero.reading.contents import BY_METHODS
from tzero.reading.findings import Unreplayable
from tzero.reading.imports import read_import
from tzero.reading.instructions import is_second_half
from tzero.reading.kinds import CACHED, EQUAL, KERNELS
from tzero.reading.known import is_a, is_program_class
from tzero.reading.modules import follow_operators, is_told_apart
from tzero.reading.purity import is_library
from tzero.reading.special import Callee
from tzero.reading.world import Pending, World

__all__ = ["Ready", "Steps", "ready"]


class Steps:
    """Handles the instructions of one call. `cells` are the ids of cells that were there before."""

    def __init__(self, world: World, judge: Judge, cells: set[int]) -> None:
        self.world, self.judge, self._cells = world, judge, cells
        self.operands: tuple[Any, ...] = ()
        """The values that the instruction works on which is about to run."""
        self.frames = 0  # how many frames of the program were followed so far
        self.cached: Any = None
        """The function behind a cache that the instruction calls which is about to run."""
        self.fills_cache = False
        """Whether that function runs now, or did in the instruction before. Later calls find its
        result in the cache, which is guarded, and do not run it."""
        # By frame: what gives the value that comes next, and where the next instruction is.
        self._awaited: dict[int, tuple[Awaited, int]] = {}
        self._after = 0  # where the result is there of the call that is about to be made
        self._names: dict[int, tuple[str, ...]] = {}  # by frame: keywords of the next call

    def take(self, frame: FrameType, ready: Ready, values: tuple[Any, ...]) -> bool:
        """An instruction is about to run, on the last of these values; the result of the call
        before it is on the stack. Returns whether it awaits what comes of this one."""
        self.judge.show()
        at, count, handle, self._after = ready
        awaited, place = self._awaited.pop(id(frame), _NOTHING) if self._awaited else _NOTHING
        if self.fills_cache and (not _is_of_cache(awaited) or frame.f_lasti != place):
            name = self.cached.__qualname__
            raise Unreplayable(f"{name}, whose results are cached, raises an exception", "", 0)
        self.cached, self.fills_cache = None, False
        if awaited is not None:
            self._came(awaited, frame, at, raised=frame.f_lasti != place)
        if handle is None:
            return False
        self.operands = values if count == len(values) else values[len(values) - count :]
        handle(self, frame, at, self.operands)
        return id(frame) in self._awaited

    def _came(self, awaited: Awaited, frame: FrameType, at: Instruction, raised: bool) -> None:
        """What the instruction before this one gave, or whether it raised."""
        if isinstance(awaited, Pending):
            if raised:
                raise Unreplayable(f"it reads {awaited.text}, which raises an exception", "", 0)
            below, result = operands(frame, at, 2) if at.depth > 1 else operands(frame, at, 1) * 2
            self.world.settle(awaited, below if result is EMPTY else result)  # for a call: 3.13
        elif not raised:
            (result,) = operands(frame, at, 1)
            ran_program = self.frames != awaited.before
            self.judge.returned(awaited.callee, result, ran_program, awaited.pending)
        elif awaited.pending is not None:
            raise Unreplayable(f"it reads {awaited.pending.text}, which raises an exception", "", 0)

    def global_(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """LOAD_GLOBAL"""
        self.world.global_(at.value, frame.f_globals, frame.f_builtins)

    def cell(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """LOAD_DEREF"""
        cell = self._cell_of(frame, at.value)
        if cell is not None:
            self.world.cell(at.value, cell)

    def _cell_of(self, frame: FrameType, name: str) -> CellType | None:
        """The cell of a closure variable, if it was there before the call."""
        code = frame.f_code
        if name not in code.co_freevars:
            return None
        function = function_of(frame)
        cell: CellType = function.__closure__[code.co_freevars.index(name)]
        return cell if id(cell) in self._cells else None

    def attribute(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """LOAD_ATTR, LOAD_METHOD"""
        if at.value in INTROSPECTION and not _shows(values[0], at.value):
            raise _hidden(at.value)
        found = self.world.attribute(values[0], at.value)
        if isinstance(found, Pending):
            self._awaited[id(frame)] = found, at.after

    def super_attribute(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """LOAD_SUPER_ATTR; in a class method the object is a class."""
        _, after, owner = values
        if at.value in INTROSPECTION and at.value != "__getattribute__":
            raise _hidden(at.value)
        is_class = issubclass(type(owner), type) and after in owner.__mro__
        self.world.of_classes(owner if is_class else type(owner), at.value, after=after)

    def item(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """BINARY_SUBSCR"""
        if type(values[0]) is JITFunction and type(values[1]) in _GRIDS and is_library(JITFunction):
            return  # a plain kernel is given its grid, and reads nothing
        self._dunders(at, values)
        self.world.item(*values)
        self.judge.subscripted(values[0])

    def contents(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """An instruction that iterates over its operands, or asks for their truth or length."""
        self._dunders(at, values)
        for value in values:
            self.world.contents(value)
            self.asked_for(value, ("__bool__", "__len__", "__iter__", "__getitem__"))

    def compared(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """COMPARE_OP, FORMAT_VALUE: an instruction that reads contents in depth."""
        self._dunders(at, values)
        for value in values:
            self.world.contents(value, deep=True)

    def contained(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """CONTAINS_OP"""
        self._dunders(at, values)
        key, container = values
        if type(container) is dict and type(key) is str:
            self.world.item(container, key)
        else:
            self.asked_for(container, ("__iter__", "__getitem__"))
            for each in values:
                inside = each if type(each) is set else (each,)
                if not all(is_told_apart(self.world, one) for one in inside):
                    self.world.contents(each, deep=not is_a(each, BY_METHODS))
                elif type(each) is set:  # of modules, or empty
                    self.world.contents(each)

    def binary(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """BINARY_OP"""
        if at.text.endswith("=") and self.world.is_mutable(values[0]):
            raise Unreplayable(f"it changes {self.world.name(values[0])}", "", 0)
        self.compared(frame, at, values)

    def _dunders(self, at: Instruction, values: Any) -> None:
        """Guard the methods that an operator calls on objects of the program and on tensors."""
        for method in implied(at.name, at.value if at.name == "COMPARE_OP" else at.text):
            for value in values:
                if is_a(value, torch.Tensor):
                    self.world.operator_of_tensor(value, method)
                else:
                    self.asked_for(value, (method, "__eq__") if method == "__ne__" else (method,))

    def asked_for(self, value: Any, names: Sequence[str]) -> None:
        """Guard methods that an instruction looks for in the class of an object. One of a library,
        which the class inherits, reads what the call does not show."""
        kind = type(value)
        follow_operators(self.world, value, names)
        for name in names if self.world.is_of_program(kind) else ():
            if self.judge.follows(self.world.of_classes(kind, name), kind):
                continue
            owner = next((each for each in kind.__mro__ if name in vars(each)), object)
            if self.world.has(value) and is_library(owner) and not _shows_all(owner):
                raise self.world.unwatchable(value)

    def entered_block(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """BEFORE_WITH"""
        for name in ("__enter__", "__exit__"):
            self.world.attribute(values[0], name)
        self.judge.entered(values[0])

    def special(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """LOAD_SPECIAL: one of the two methods of a block, which the next instructions call."""
        self.world.attribute(values[0], at.text)
        if at.text == "__enter__":
            self.judge.entered(values[0])

    # -- stores --------------------------------------------------------------------------------

    def store_cell(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """STORE_DEREF, DELETE_DEREF"""
        if self._cell_of(frame, at.value) is not None:
            raise Unreplayable(f"it assigns the nonlocal {at.value!r}", "", 0)

    def store_attribute(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """STORE_ATTR, DELETE_ATTR"""
        target = values[-1]
        if is_a(target, torch.Tensor) or not self.judge.is_new(target):
            raise Unreplayable(f"it assigns the attribute {at.value!r}", "", 0)
        self.world.of_classes(type(target), at.value)
        self.world.of_classes(type(target), "__setattr__")

    def store_item(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """STORE_SUBSCR, DELETE_SUBSCR"""
        target = values[-2]
        self._dunders(at, values[-2:-1])
        if not is_a(target, torch.Tensor) and not self.judge.is_new(target):
            raise Unreplayable(f"it changes {self.world.name(target)}", "", 0)

    # -- calls ---------------------------------------------------------------------------------

    def keywords(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """KW_NAMES"""
        self._names[id(frame)] = frame.f_code.co_consts[at.arg]

    def called(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """PRECALL (3.11), CALL (3.12), CALL_KW (3.13)"""
        names = self._names.pop(id(frame), ())
        if at.name == "CALL_KW":
            *values, names = values
        function, args = call_in(values)
        self.judge.opened(function)
        self._called(frame, at, Callee.of(function, args, names))

    def called_with_all(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """CALL_FUNCTION_EX"""
        *called, args = values[: len(values) - (at.arg & 1)]
        function, _ = call_in(called)
        has_named = at.arg & 1 and values[-1] is not EMPTY
        named: Mapping[str, Any] = values[-1] if has_named else {}
        self.judge.opened(function)
        for each in (args, named):
            self.world.contents(each)
        if type(args) in _SPREAD:
            self._called(frame, at, Callee.of(function, [*args, *named.values()], tuple(named)))
            return
        self.asked_for(args, ("__iter__", "__getitem__", "__len__"))
        callee = Callee.of(function, [*named.values()], tuple(named))
        if not _is_followed(callee.function):
            # To look at the arguments would take them from an iterator, or run code.
            name = self.world.name(callee.function)
            raise Unreplayable(f"it spreads a {type(args).__name__} in a call of {name}", "", 0)
        self._called(frame, at, callee)

    def _called(self, frame: FrameType, at: Instruction, callee: Callee) -> None:
        self.operands = (callee.function, *callee.args)
        pending = self.judge.call(callee)
        if is_a(callee.function, CACHED):
            self.cached = callee.function.__wrapped__
        if pending is not None or looks_at_result(callee.function):
            self._awaited[id(frame)] = Result(callee, self.frames, pending), self._after

    def refused(self, frame: FrameType, at: Instruction, values: Any) -> None:
        """Instructions that are not followed."""
        words = {"MATCH_CLASS": "it uses a class pattern, which reads attributes by place"}
        raise Unreplayable(words.get(at.name, f"it executes {at.name}"), "", 0)


def _hidden(name: str) -> Unreplayable:
    return Unreplayable(f"it reads {name}, which gives access to hidden state", "", 0)


def _shows(value: Any, name: str) -> bool:
    """Whether an attribute that gives access to anything shows what is read with it: the dict of an
    object, whose items are guarded, and ``super().__getattribute__``, which is called with a
    name."""
    if name == "__getattribute__":
        return value is object or is_a(value, super)
    return (
        name == "__dict__"
        and not is_a(value, (*_WITHOUT_OWN, super))
        and own_dict(value) is not None
    )


_WITHOUT_OWN = (ModuleType, type, FunctionType, torch.Tensor)
"""Objects of which `__dict__` is more than their own attributes, or is not that dict."""


class Result(NamedTuple):
    """The result of a call: how many frames were followed before it, and the attribute that the
    call reads, if it is `getattr` or `hasattr`."""

    callee: Callee
    before: int
    pending: Pending | None


Awaited = Result | Pending
_NOTHING: tuple[Awaited | None, int] = (None, 0)


def _is_of_cache(awaited: Awaited | None) -> bool:
    return isinstance(awaited, Result) and is_a(awaited.callee.function, CACHED)


_STEADY = (object, tuple, str, bytes, int, float, complex, frozenset, type, BaseException)


def _shows_all(kind: type) -> bool:
    """Whether methods of a library class read nothing that can change unseen."""
    return kind in _STEADY or issubclass(kind, (enum.Enum, *KERNELS))


def _identity(steps: Steps, frame: FrameType, at: Instruction, values: Any) -> None:
    """IS_OP: of numbers and texts, guards compare values only."""
    if type(values[0]) in EQUAL and type(values[0]) is type(values[1]):
        kind = type(values[0]).__name__
        raise Unreplayable(f"it compares two objects of type {kind} by `is`", "", 0)


def _matched(steps: Steps, frame: FrameType, at: Instruction, values: Any) -> None:
    """CHECK_EXC_MATCH"""
    steps.judge.checked(type(values[0]), values[1])


def _raised(steps: Steps, frame: FrameType, at: Instruction, values: Any) -> None:
    """RAISE_VARARGS: a class is called."""
    for value in values:
        if is_a(value, type) and is_program_class(value):
            for name in ("__new__", "__init__"):
                steps.world.of_classes(value, name)


def _truth(steps: Steps, frame: FrameType, at: Instruction, values: Any) -> None:
    """A jump, or `not`. An object is true if its class, of a library, says nothing about it."""
    (value,) = values
    kind = type(value)
    steps.asked_for(value, ("__bool__", "__len__"))
    if hasattr(kind, "__bool__") or hasattr(kind, "__len__"):
        steps.world.contents(value)


def _imported(steps: Steps, frame: FrameType, at: Instruction, values: Any) -> None:
    """IMPORT_NAME"""
    importing = steps.world.own("the builtin '__import__'", frame.f_builtins, "__import__")
    if not is_a(importing, BuiltinFunctionType):
        raise Unreplayable("the program has replaced __import__", "", 0)
    level, _ = values
    package = frame.f_globals.get("__package__") or frame.f_globals.get("__name__", "")
    read_import(steps.world, importlib.util.resolve_name("." * level + at.value, package))


def _store_global(steps: Steps, frame: FrameType, at: Instruction, values: Any) -> None:
    """STORE_GLOBAL, DELETE_GLOBAL"""
    raise Unreplayable(f"it assigns the global {at.value!r}", "", 0)


def _next_item(steps: Steps, frame: FrameType, at: Instruction, values: Any) -> None:
    """FOR_ITER"""
    if steps.world.has(values[0]):
        raise Unreplayable(f"it advances {steps.world.name(values[0])}", "", 0)


_GRIDS = (tuple, FunctionType)
_SPREAD: tuple[type, ...] = (
    *(list, tuple, dict, set, frozenset, range, str, collections.deque),
    *(type({}.keys()), type({}.values()), type({}.items()), torch.Size),
)
"""Types that can be iterated over again and again, without running code of the program."""


def _is_followed(function: Any) -> bool:
    """Whether what a function reads of its arguments is seen."""
    if is_a(function, torch.nn.Module):
        return True
    return is_a(function, (FunctionType, type)) and not is_library(function)


def _intrinsic(steps: Steps, frame: FrameType, at: Instruction, values: Any) -> None:
    """CALL_INTRINSIC_1: of these, only some are part of ordinary expressions."""
    if at.text.removeprefix("INTRINSIC_") not in ("LIST_TO_TUPLE", "UNARY_POSITIVE"):
        steps.refused(frame, at, values)
    steps.contents(frame, at, values)


_CALLS = "PRECALL" if sys.version_info < (3, 12) else "CALL"
Handle = Callable[[Steps, FrameType, Instruction, Any], None]
_HANDLERS: dict[str, tuple[int, Handle]] = {
    **dict.fromkeys(["LOAD_GLOBAL", "LOAD_NAME"], (0, Steps.global_)),
    **dict.fromkeys(["LOAD_DEREF", "LOAD_CLASSDEREF"], (0, Steps.cell)),
    **dict.fromkeys(["LOAD_ATTR", "LOAD_METHOD"], (1, Steps.attribute)),
    "LOAD_SUPER_ATTR": (3, Steps.super_attribute),
    "BINARY_SUBSCR": (2, Steps.item),
    "BINARY_SLICE": (3, Steps.contents),
    **dict.fromkeys(
        [
            *("GET_ITER", "UNPACK_SEQUENCE", "UNPACK_EX", "LIST_EXTEND", "SET_UPDATE", "GET_LEN"),
            *("DICT_UPDATE", "DICT_MERGE", "UNARY_NEGATIVE", "UNARY_INVERT", "UNARY_POSITIVE"),
            *("GET_YIELD_FROM_ITER", "MATCH_KEYS", "MATCH_MAPPING", "MATCH_SEQUENCE"),
        ],
        (1, Steps.contents),
    ),
    **dict.fromkeys(
        [
            *("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_IF_TRUE"),
            *("POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE"),
            *("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "UNARY_NOT", "TO_BOOL"),
        ],
        (1, _truth),
    ),
    "COMPARE_OP": (2, Steps.compared),
    "IS_OP": (2, _identity),
    "FORMAT_VALUE": (-1, Steps.compared),
    **dict.fromkeys(["FORMAT_SIMPLE", "CONVERT_VALUE"], (1, Steps.compared)),
    "FORMAT_WITH_SPEC": (2, Steps.compared),
    "CHECK_EXC_MATCH": (2, _matched),
    "RAISE_VARARGS": (-1, _raised),
    "CONTAINS_OP": (2, Steps.contained),
    "BINARY_OP": (2, Steps.binary),
    "FOR_ITER": (1, _next_item),
    "SEND": (2, Steps.contents),
    "BEFORE_WITH": (1, Steps.entered_block),
    "LOAD_SPECIAL": (1, Steps.special),
    **dict.fromkeys(["STORE_GLOBAL", "DELETE_GLOBAL"], (0, _store_global)),
    **dict.fromkeys(["STORE_DEREF", "DELETE_DEREF"], (0, Steps.store_cell)),
    "STORE_ATTR": (2, Steps.store_attribute),
    "DELETE_ATTR": (1, Steps.store_attribute),
    "STORE_SUBSCR": (3, Steps.store_item),
    "DELETE_SUBSCR": (2, Steps.store_item),
    "IMPORT_NAME": (2, _imported),
    "IMPORT_FROM": (1, Steps.attribute),
    "KW_NAMES": (0, Steps.keywords),
    **dict.fromkeys([_CALLS, "CALL_KW"], (-1, Steps.called)),
    "CALL_FUNCTION_EX": (-1, Steps.called_with_all),
    "CALL_INTRINSIC_1": (1, _intrinsic),
    **dict.fromkeys(
        [
            *("MATCH_CLASS", "IMPORT_STAR", "LOAD_BUILD_CLASS", "STORE_SLICE", "STORE_NAME"),
            *("DELETE_NAME", "LOAD_LOCALS", "LOAD_FROM_DICT_OR_GLOBALS", "CALL_INTRINSIC_2"),
            *("LOAD_FROM_DICT_OR_DEREF", "GET_AWAITABLE", "GET_AITER", "GET_ANEXT"),
            *("BEFORE_ASYNC_WITH", "SETUP_ANNOTATIONS"),
        ],
        (0, Steps.refused),
    ),
}
"""How many operands each instruction has that reads, stores or calls, and what it does."""

_HARMLESS = frozenset(
    [
        # move values
        *("CACHE", "COPY", "COPY_FREE_VARS", "DELETE_FAST", "EXTENDED_ARG", "LOAD_CLOSURE"),
        *("LOAD_CONST", "LOAD_FAST", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_CHECK", "NOP", "POP_TOP"),
        *("PUSH_NULL", "RESUME", "STORE_FAST", "STORE_FAST_MAYBE_NULL", "SWAP"),
        *("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"),
        # make new ones
        *("BUILD_CONST_KEY_MAP", "BUILD_LIST", "BUILD_MAP", "BUILD_SET", "BUILD_SLICE"),
        *("BUILD_STRING", "BUILD_TUPLE", "LIST_APPEND", "LIST_TO_TUPLE", "MAKE_CELL"),
        *("MAKE_FUNCTION", "MAP_ADD", "SET_ADD", "SET_FUNCTION_ATTRIBUTE"),
        # jump
        *("JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD"),
        *("POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE"),
        *("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE"),
        *("POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE"),
        # begin and end functions, loops and blocks
        *("CLEANUP_THROW", "END_FOR", "END_SEND", "RETURN_CONST", "RETURN_GENERATOR"),
        *("RETURN_VALUE", "YIELD_VALUE"),
        # catch exceptions
        *("LOAD_ASSERTION_ERROR", "POP_EXCEPT", "PUSH_EXC_INFO", "RERAISE", "WITH_EXCEPT_START"),
    ]
)
"""Instructions that neither read nor change anything that was there before the call. An instruction
that is in neither table is not followed."""


class Ready(NamedTuple):
    """An instruction; how many operands it has; what handles it, None for a harmless one; and the
    offset of the instruction after it, or after the second half of a call."""

    at: Instruction
    takes: int
    handle: Handle | None
    after: int


_ready: weakref.WeakKeyDictionary[CodeType, Mapping[int, Ready | None]]
_ready = weakref.WeakKeyDictionary()


def ready(code: CodeType) -> Mapping[int, Ready | None]:
    """The instructions of a code object by offset, with what handles each; None for the second half
    of a call."""
    found = _ready.get(code)
    if found is None:
        every = decoded(code)
        found = _ready[code] = {place: _made_ready(at, every) for place, at in every.items()}
    return found


def _made_ready(at: Instruction, every: Mapping[int, Instruction]) -> Ready | None:
    if is_second_half(at):
        return None
    if at.name in _HARMLESS:
        return Ready(at, 0, None, at.after)
    count, handle = _HANDLERS.get(at.name, (0, Steps.refused))
    after = every[at.after].after if at.name == "PRECALL" else at.after
    return Ready(at, count if count >= 0 else arity(at), handle, after)
