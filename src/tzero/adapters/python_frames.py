"""Adapts CPython's frames: the instructions that run, with the values they work on.

    frame ── f_lasti ──► Instruction ── its depth on the stack ──► operands

Enters: a frame at the start of an instruction, as a trace function gets it. Leaves: the
instruction, and the values on top of the frame's stack. It must not know what the values mean.

The depth of the stack at each instruction follows from the code alone: all ways to an instruction
lead there with the same depth. Where the stack lies in memory is in `native/frames.cpp`.
"""

from __future__ import annotations

import dis
import functools
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import CodeType, FrameType
from typing import Any, NamedTuple

from tzero import locks

__all__ = [
    "EMPTY",
    "Answers",
    "Codes",
    "Instruction",
    "Seen",
    "answers",
    "arity",
    "call_in",
    "decoded",
    "follower",
    "function_of",
    "handlers",
    "is_jump",
    "is_supported",
    "operands",
    "seen_by_follower",
    "trace_instructions",
    "traced",
    "untraced",
    "variables_of",
]


EMPTY: Any = object()
"""Stands for a place on the stack that holds no value."""


class Instruction(NamedTuple):
    """An instruction, how many values are on the stack before it runs, its offset, and that of the
    instruction after it. What CPython 3.14 calls otherwise has its older name."""

    name: str
    arg: int
    value: Any
    text: str
    depth: int
    line: int
    place: int
    after: int


_decoded: weakref.WeakKeyDictionary[CodeType, Mapping[int, Instruction]]
_decoded = weakref.WeakKeyDictionary()


def decoded(code: CodeType) -> Mapping[int, Instruction]:
    """The instructions of a code object that can be reached, by offset.

    >>> [each.name for each in decoded((lambda x: x.a).__code__).values()]
    ['RESUME', 'LOAD_FAST', 'LOAD_ATTR', 'RETURN_VALUE']
    """
    found = _decoded.get(code)
    if found is None:
        found = _decoded[code] = _decode(code)
    return found


def _decode(code: CodeType) -> Mapping[int, Instruction]:
    every = list(dis.get_instructions(code))
    place = {each.offset: k for k, each in enumerate(every)}
    depths = _depths(code, every, place)
    line, made = code.co_firstlineno, {}
    for k, each in enumerate(every):
        if each.positions is not None and each.positions.lineno is not None:
            line = each.positions.lineno
        if k in depths:
            after = every[k + 1].offset if k + 1 < len(every) else -1
            words = (_name_of(each), _arg_of(each), each.argval, each.argrepr)
            made[each.offset] = Instruction(*words, depths[k], line, each.offset, after)
    for each in reversed(list(made.values())):
        if each.name == "EXTENDED_ARG":  # traced instead of the instruction that it belongs to
            made[each.place] = made[each.after]
    return made


_OLDER_NAMES = {
    "LOAD_FAST_BORROW": "LOAD_FAST",
    "LOAD_FAST_BORROW_LOAD_FAST_BORROW": "LOAD_FAST_LOAD_FAST",
    "LOAD_SMALL_INT": "LOAD_CONST",
    "LOAD_COMMON_CONSTANT": "LOAD_CONST",
    "NOT_TAKEN": "NOP",
    "POP_ITER": "POP_TOP",
}
"""Instructions of CPython 3.14 that do what an older one did. One that borrows a variable does so
for a time in which it cannot change."""


def _name_of(each: dis.Instruction) -> str:
    if each.opname == "BINARY_OP" and each.argrepr == "[]":
        return "BINARY_SUBSCR"
    return _OLDER_NAMES.get(each.opname, each.opname)


def _arg_of(each: dis.Instruction) -> int:
    if each.opname == "CALL_FUNCTION_EX" and each.arg is None:
        return 1  # since 3.14 there is always a place for keyword arguments
    return each.arg or 0


_handlers: weakref.WeakKeyDictionary[CodeType, Mapping[int, int]]
_handlers = weakref.WeakKeyDictionary()


def handlers(code: CodeType) -> Mapping[int, int]:
    """The offsets of the instructions that exceptions lead to, and nothing else. For each: how many
    values stay on the stack below what the exception adds.

    >>> handlers((lambda x: x.a).__code__)
    {}
    """
    found = _handlers.get(code)
    if found is None:
        table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
        found = _handlers[code] = {entry.target: entry.depth for entry in table}
    return found


_ENDS = frozenset(
    [
        *("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"),
        *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
    ]
)
"""Instructions after which the next one does not run."""


def _depths(
    code: CodeType, every: list[dis.Instruction], place: Mapping[int, int]
) -> dict[int, int]:
    """The depth before each instruction that can be reached, by its place."""
    depths: dict[int, int] = {}
    todo = [(0, 0)]
    handlers = [
        (entry.target, entry.depth + 1 + entry.lasti)
        for entry in dis._parse_exception_table(code)  # type: ignore[attr-defined]
    ]
    todo += [(place[target], depth) for target, depth in handlers]
    while todo:
        k, depth = todo.pop()
        if k in depths or k >= len(every):
            continue
        depths[k] = depth
        each = every[k]
        arg = each.arg if each.opcode >= dis.HAVE_ARGUMENT else None
        if each.opcode in dis.hasjrel or each.opcode in dis.hasjabs:
            after = depth + dis.stack_effect(each.opcode, arg, jump=True)
            todo.append((place[each.argval], after))
        if each.opname not in _ENDS:
            effect = dis.stack_effect(each.opcode, arg, jump=False)
            if each.opname == "RETURN_GENERATOR":
                effect = 1  # when it is resumed, with the value that was sent
            todo.append((k + 1, depth + effect))
    return depths


def is_jump(instruction: Instruction) -> bool:
    """Whether another instruction than the next one may follow, without an exception."""
    opcode = dis.opmap.get(instruction.name, -1)
    return opcode in dis.hasjrel or opcode in dis.hasjabs or instruction.name in _ENDS


def operands(frame: FrameType, instruction: Instruction, count: int) -> tuple[Any, ...]:
    """The upper values on a frame's stack, the top last; `EMPTY` where there is none."""
    found: tuple[Any, ...] = _native().frame_operands(frame, instruction.depth, count, EMPTY)
    return found


@functools.cache
def _native() -> Any:
    """The native module, imported only where it is built."""
    from tzero import _native

    return _native


def arity(instruction: Instruction) -> int:
    """How many values an instruction takes from the stack, if that depends on its argument."""
    if instruction.name == "FORMAT_VALUE":  # with a format there is one more
        return 2 if instruction.arg & 4 else 1
    if instruction.name == "RAISE_VARARGS":
        return instruction.arg
    if instruction.name == "CALL_FUNCTION_EX":
        return 2 + (instruction.arg & 1) + _FUNCTION_FIRST
    return instruction.arg + 2 + (instruction.name == "CALL_KW")


def call_in(values: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The function and the arguments of a call, whose values are on the stack. Beside the function
    is the object of a method, or nothing. From CPython 3.13 on the function is below it."""
    first, *rest = values
    if not rest:
        return first, []
    second, *args = rest
    if _FUNCTION_FIRST:
        return first, args if second is EMPTY else [second, *args]
    return (second, args) if first is EMPTY else (first, [second, *args])


_FUNCTION_FIRST = sys.version_info >= (3, 13)


def traced(function: Callable[..., Any]) -> AbstractContextManager[bool]:
    """A block in which a function is called for each frame that this thread enters, and for each
    instruction if the frame's `f_trace_opcodes` is set; CPython 3.12 looks for that attribute only
    if some frame had it set before. A `follower` is called by native code, without copies of each
    frame's variables. No garbage collection begins in the block by itself: the first threshold is
    0. It is entered with False, and nothing is traced, if that is not safe now."""
    native = _native()
    if sys.version_info[:2] == (3, 12) and type(function) is not native.Follower:
        sys._getframe().f_trace_opcodes = True
    made: AbstractContextManager[bool] = native.Traced(function, ONE_THREAD_TRACES)
    return made


ONE_THREAD_TRACES = sys.version_info[:2] == (3, 12)
"""Whether at most one thread may trace: CPython 3.12 crashes when one starts to while another one
runs traced code, whose instructions it exchanges then."""


def _forget_other_threads() -> None:
    if _native.cache_info().currsize:
        _native().forget_traced()


locks.after_fork(_forget_other_threads)


class Codes:
    """Code objects by identity: to hash one costs as much as to read it.

    >>> def f(): ...
    >>> codes = Codes([f.__code__])
    >>> f.__code__ in codes, f.__code__.replace() in codes
    (True, False)
    """

    __slots__ = ("by_id",)

    def __init__(self, codes: Iterable[CodeType] = ()) -> None:
        self.by_id: dict[int, CodeType] = {}
        self.update(codes)

    def update(self, codes: Iterable[CodeType]) -> None:
        """Add several."""
        self.by_id.update((id(code), code) for code in codes)

    def __contains__(self, code: object) -> bool:
        return id(code) in self.by_id


class Seen(NamedTuple):
    """An instruction as a follower sees it: when `step` is called for it (a name in
    `_native.LOOKS`), how many values are on the stack before it, how many of them `step` is given,
    and with what."""

    look: str
    depth: int
    takes: int
    entry: Any


def seen_by_follower(code: CodeType, by_place: Mapping[int, Seen]) -> Any:
    """What a follower sees of the frames that run a code object, by the offset of each instruction.
    An instruction that is not among them is shown with None."""
    native = _native()
    unknown = Seen("unknown", 0, 0, None)
    every = [by_place.get(place, unknown) for place in range(0, len(code.co_code), _UNIT)]
    looks, depths, counts, entries = zip(*every, strict=True)
    return native.Instructions(tuple(map(native.LOOKS.get, looks)), depths, counts, entries)


_UNIT = 2  # bytes of code


class Answers(NamedTuple):
    """What `step` answers to a follower, added up: to trace the frame further, to show the next
    instruction in any case, and to show frames of libraries too."""

    goes_on: int
    awaits: int
    sees_libraries: int


@functools.cache
def answers() -> Answers:
    """The answers that a follower understands."""
    native = _native()
    return Answers(native.GOES_ON, native.AWAITS, native.SEES_LIBRARIES)


def follower(
    begin: Callable[[FrameType], Any],
    step: Callable[[FrameType, Any, tuple[Any, ...]], int],
    leave: Callable[[FrameType], None],
    modules: dict[str, bool],
    among: Sequence[Codes] = (),
) -> Any:
    """What `traced` is given to follow frames. `begin` is called with each new frame, and returns
    `seen_by_follower` of its code if it is to be followed; then `step` is called before the
    instructions that are shown, and `leave` when the frame is left. Frames of `modules` that are
    libraries are not shown, unless they run code `among` these, or the last `step` asked for
    them."""
    shown = tuple(codes.by_id for codes in among)
    return _native().Follower(begin, step, leave, modules, shown, EMPTY)


def trace_instructions(frame: FrameType, function: Any) -> Any:
    """Trace each instruction of a frame, and no lines, by a function, which is returned. CPython
    3.13 looks whether a frame is traced when the attribute is set, and not later."""
    frame.f_trace_lines = False
    frame.f_trace = function
    frame.f_trace_opcodes = True
    return function


def untraced() -> AbstractContextManager[None]:
    """A block whose frames no trace function sees, which costs less than to ignore them there. It
    can be used again and again."""
    made: AbstractContextManager[None] = _native().Untraced()
    return made


def variables_of(environment: Any) -> dict[Any, Any]:
    """The dict behind `os.environ`, which native code watches; not to be written to."""
    held: dict[Any, Any] = environment._data
    return held


def function_of(frame: FrameType) -> Any:
    """The function that a frame runs; None for a module or a class body."""
    return _native().frame_function(frame)


def is_supported() -> bool:
    """Whether the values of frames can be read with this Python.

    >>> is_supported() in (True, False)
    True
    """
    global _supported
    if _supported is None:
        with _trying:
            _supported = _try()
    return _supported


_supported: bool | None = None
_trying = locks.lock()  # nobody else traces before one thread has tried


def _try() -> bool:
    """Whether a traced attribute load shows its operand."""
    marker = type("_Marker", (), {"name": 3})()
    seen: list[Any] = []

    def probe(value: Any) -> Any:
        return value.name

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not probe.__code__:
            return None
        if event == "call":
            return trace_instructions(frame, look)
        if event == "opcode":
            instruction = decoded(frame.f_code).get(frame.f_lasti)
            if instruction is not None and instruction.name == "LOAD_ATTR":
                seen.append(operands(frame, instruction, 1)[0] is marker)
                seen.append(function_of(frame) is probe)
        return look

    if sys.gettrace() is not None:
        return False
    with traced(look):
        try:
            probe(marker)
        except (ImportError, SystemError, ValueError):
            return False
    return seen == [True, True]
