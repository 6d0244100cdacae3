"""What each instruction does with marked integers.

Enters: an instruction that is about to run, its operands and their marks. Leaves: the marks of what
it pushes, and formulas, conditions and pins. It must not know which frames are followed, nor what
calls mean.
"""

from __future__ import annotations

import dis
import functools
import operator
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from tzero.adapters.python_frames import EMPTY, Instruction, arity, call_in, decoded, handlers
from tzero.reading import integers_containers as containers
from tzero.reading.instructions import Passed, moved_before
from tzero.reading.integers_calls import called
from tzero.reading.integers_containers import Step
from tzero.reading.integers_marks import SEQUENCES, Lost, Mark, Offer, is_context, is_plain_key

if TYPE_CHECKING:
    from tzero.reading.integers import Integers, Shadow

__all__ = ["HANDLERS", "MOVE_NOTHING", "Handler", "Moves", "moves"]

Run = Callable[[Step], list[Mark]]


class Handler(NamedTuple):
    """How many values an instruction takes from the stack, and what it does with them."""

    takes: int | Callable[[Instruction], int]
    run: Run


# -- arithmetic ------------------------------------------------------------------------------------


def _binary(step: Step) -> list[Mark]:
    """BINARY_OP"""
    integers, shadow, at, values, marks = step
    name = at.text.removesuffix("=")
    if any(issubclass(type(value), torch.Tensor) for value in values):
        function = _OPERATORS.get(name, operator.matmul)
        integers.make_offer(shadow, Offer(function, list(values), (), marks))
        return [None]
    if marks == [None, None]:
        _joined(integers, shadow, name, values)
        return [None]
    left, right = map(integers.formula, values, marks)
    if left is None or right is None or name not in _OPERATORS:
        integers.pin_values(values, marks)
        return [None]
    if name == "/":
        return [integers.ratio(left, right)]
    return [integers.applied(name, left, right)]


def _joined(integers: Integers, shadow: Shadow, name: str, values: Sequence[Any]) -> None:
    """Sequences are joined or repeated."""
    left, right = values
    if not any(map(integers.holds_marks, values)):
        return
    if name == "+" and type(left) in SEQUENCES and type(right) in SEQUENCES:
        containers.holding(integers, shadow, integers.each(left) + integers.each(right))
    elif name == "*" and type(left) in SEQUENCES and type(right) is int:
        containers.holding(integers, shadow, integers.each(left) * right)
    else:
        integers.pin_values(values)


def _unary(step: Step) -> list[Mark]:
    """UNARY_NEGATIVE, UNARY_INVERT, UNARY_POSITIVE"""
    integers, at, values, marks = step.integers, step.at, step.values, step.marks
    (mark,) = marks
    if type(mark) is not int:
        integers.pin_read(values, marks)
        return [None]
    if at.name == "UNARY_POSITIVE":
        return [mark]
    operation = {"UNARY_NEGATIVE": "negative", "UNARY_INVERT": "invert"}[at.name]
    return [integers.applied(operation, mark)]


def _compared(step: Step) -> list[Mark]:
    """COMPARE_OP"""
    integers, shadow, at, values, marks = step
    name = at.text.removeprefix("bool(").rstrip(")")
    if any(issubclass(type(value), torch.Tensor) for value in values):
        integers.make_offer(shadow, Offer(_COMPARED[name], list(values), (), marks))
        return [None]
    if marks == [None, None]:
        if any(map(integers.holds_marks, values)) and not _same_items(integers, name, values):
            integers.pin_values(values)
        return [None]
    left, right = map(integers.formula, values, marks)
    if left is None or right is None:
        integers.pin_values(values, marks)
    else:
        integers.formulas.compare(name, left, right)
    return [None]


def _same_items(integers: Integers, name: str, values: Sequence[Any]) -> bool:
    """Compare sequences of integers item by item, as `==` does; whether that was possible."""
    left, right = values
    if name not in ("==", "!=") or any(type(value) not in SEQUENCES for value in values):
        return False
    if (type(left) is list) != (type(right) is list) or len(left) != len(right):
        return True
    pairs = [list(map(integers.formula, each, integers.each(each))) for each in values]
    if any(None in each for each in pairs):
        return False
    for one, other in zip(*pairs, strict=True):
        if not integers.formulas.compare("==", one, other):
            break
    return True


def _contained(step: Step) -> list[Mark]:
    """CONTAINS_OP"""
    integers, values, marks = step.integers, step.values, step.marks
    key, container = values
    if type(container) is dict and marks[0] is None and all(map(is_plain_key, [key, *container])):
        return [None]
    wanted = integers.formula(key, marks[0])
    if type(container) in SEQUENCES and wanted is not None:
        found = list(map(integers.formula, container, integers.each(container)))
    elif type(container) in (set, frozenset) and wanted is not None:
        found = [integers.formula(each, None) for each in container]
    else:
        integers.pin_read(values, marks)
        return [None]
    if None in found:
        integers.pin_read(values, marks)
        return [None]
    for each in found:
        if integers.formulas.compare("==", wanted, each):  # type: ignore[arg-type]
            break
    return [None]


def _identical(step: Step) -> list[Mark]:
    """IS_OP: an integer is never `None`, whatever its value."""
    integers, values, marks = step.integers, step.values, step.marks
    if not any(value is None for value in values):
        integers.pin_values((), marks)
    return [None]


def _asked(step: Step) -> list[Mark]:
    """An instruction that asks for the truth of a value, and may jump."""
    integers, shadow, at, marks = step.integers, step.shadow, step.at, step.marks
    (mark,) = marks
    if type(mark) is int:
        integers.formulas.compare("!=", mark, integers.formulas.constant(0))
    else:
        integers.pin_values((), marks)
    if at.name.endswith("OR_POP"):  # it stays there if it jumps
        shadow.is_open = True
        return [mark]
    return [None] if at.name in ("UNARY_NOT", "TO_BOOL") else []


# -- attributes, calls and functions ---------------------------------------------------------------


def _attribute(step: Step) -> list[Mark]:
    """LOAD_ATTR, LOAD_METHOD"""
    integers, shadow, at, values, marks = step
    (value,) = values
    if at.name == "LOAD_METHOD" or (sys.version_info >= (3, 12) and at.arg & 1):
        return [None, marks[0]]
    if issubclass(type(value), torch.Tensor) and at.value == "shape":
        sizes = integers.geometry.sizes(value)
        integers.reading = value
        if sizes is not None:
            containers.holding(integers, shadow, list(sizes))
    elif type(value) is slice:
        integers.pin(value)
    elif is_context(value):
        return [integers.attributes_of(value).get(at.value)]
    integers.pin_values((), marks)
    return [None]


def _put_attribute(step: Step) -> list[Mark]:
    """STORE_ATTR"""
    integers, (value, owner), (mark, _) = step.integers, step.values, step.marks
    if not is_context(owner):
        return _pin(step)
    if not integers.is_unchangeable(value):
        integers.pin(value)
    integers.attributes_of(owner)[step.at.value] = integers.whole(mark)
    return []


def _drop_attribute(step: Step) -> list[Mark]:
    """DELETE_ATTR"""
    (owner,) = step.values
    if is_context(owner):
        step.integers.attributes_of(owner).pop(step.at.value, None)
    return _pin(step)


def _called(step: Step) -> list[Mark]:
    """PRECALL (3.11), CALL, CALL_KW"""
    integers, shadow, at, values, marks = step
    names, shadow.names = shadow.names, ()
    if at.name == "CALL_KW":
        names, values, marks = values[-1], values[:-1], marks[:-1]
    function, args = call_in(values)
    marks = marks[len(marks) - len(args) :]
    return called(integers, shadow, Offer(function, args, names, marks))


def _called_with_all(step: Step) -> list[Mark]:
    """CALL_FUNCTION_EX"""
    integers, shadow, values, marks = step.integers, step.shadow, step.values, step.marks
    function, args, *rest = (each for each in values if each is not EMPTY)
    named: Any = rest[0] if rest else {}
    if type(args) not in SEQUENCES or type(named) is not dict:
        integers.pin_values(values, marks)
        return [None]
    held = integers.items_of(named) or {}
    every = [*integers.each(args), *(held.get(name) for name in named)]  # type: ignore[union-attr]
    offer = Offer(function, [*args, *named.values()], tuple(named), every)
    return called(integers, shadow, offer)


def _made_function(step: Step) -> list[Mark]:
    """MAKE_FUNCTION (with what 3.13 sets by SET_FUNCTION_ATTRIBUTE)"""
    integers, shadow, at, values = step.integers, step.shadow, step.at, step.values
    *parts, code = values
    if at.arg & _CLOSURE and parts:
        integers.share(shadow, code.co_freevars, parts.pop())
    integers.pin_values(parts)
    return [None]


def _set_attribute(step: Step) -> list[Mark]:
    """SET_FUNCTION_ATTRIBUTE"""
    integers, shadow, at, values = step.integers, step.shadow, step.at, step.values
    value, function = values
    if at.arg & _CLOSURE:
        integers.share(shadow, function.__code__.co_freevars, value)
    else:
        integers.pin(value)
    return [None]


_CLOSURE = 8


def _returned(step: Step) -> list[Mark]:
    """RETURN_VALUE"""
    integers, shadow, values, marks = step.integers, step.shadow, step.values, step.marks
    integers.returning(shadow, values[0], marks[0])
    return []


# -- variables and the stack -----------------------------------------------------------------------


def _load(step: Step) -> list[Mark]:
    """LOAD_FAST and the like"""
    integers, shadow, at = step.integers, step.shadow, step.at
    return [_variable(integers, shadow, name) for name in _names(at)]


def _variable(integers: Integers, shadow: Shadow, name: str) -> Mark:
    code = shadow.frame.f_code
    is_cell = name in code.co_cellvars or name in code.co_freevars
    if is_cell:
        return None
    items = shadow.packed.pop(name, None)
    if items is not None:
        containers.holding(integers, shadow, items)
    return shadow.local.get(name)


def _names(at: Instruction) -> tuple[str, ...]:
    return at.value if isinstance(at.value, tuple) else (at.value,)


def _load_two(step: Step) -> list[Mark]:
    """LOAD_FAST_LOAD_FAST"""
    integers, shadow, at = step.integers, step.shadow, step.at
    first, second = _names(at)
    if first in shadow.packed:
        raise Lost(f"{first!r} is loaded together with another variable")
    return [_variable(integers, shadow, first), _variable(integers, shadow, second)]


def _store(step: Step) -> list[Mark]:
    """STORE_FAST and the like; with two names the first one gets the top of the stack."""
    shadow, at, marks = step.shadow, step.at, step.marks
    for name, mark in zip(_names(at), reversed(marks), strict=True):
        _set(shadow, name, mark)
    return []


def _set(shadow: Shadow, name: str, mark: Mark) -> None:
    if name in shadow.boxes:
        raise Lost(f"the cell of {name!r} is replaced")
    shadow.packed.pop(name, None)
    shadow.local[name] = mark


def _store_load(step: Step) -> list[Mark]:
    """STORE_FAST_LOAD_FAST"""
    integers, shadow, at, marks = step.integers, step.shadow, step.at, step.marks
    first, second = _names(at)
    _set(shadow, first, marks[0])
    return [_variable(integers, shadow, second)]


def _load_and_clear(step: Step) -> list[Mark]:
    """LOAD_FAST_AND_CLEAR, before a comprehension that is part of its function"""
    shadow, at = step.shadow, step.at
    if at.value in shadow.frame.f_code.co_cellvars or at.value in shadow.boxes:
        raise Lost(f"the cell of {at.value!r} is put aside")
    if at.value in shadow.packed:
        raise Lost(f"{at.value!r} is put aside")
    return [shadow.local.pop(at.value, None)]


def _load_cell(step: Step) -> list[Mark]:
    """LOAD_DEREF"""
    integers, shadow, at = step.integers, step.shadow, step.at
    return [integers.box(shadow, at.value).mark]


def _store_cell(step: Step) -> list[Mark]:
    """STORE_DEREF"""
    integers, shadow, at, marks = step.integers, step.shadow, step.at, step.marks
    integers.box(shadow, at.value).mark = marks[0]
    return []


def _forget(step: Step) -> list[Mark]:
    """DELETE_FAST"""
    shadow, at = step.shadow, step.at
    shadow.local.pop(at.value, None)
    shadow.packed.pop(at.value, None)
    return []


def _copy(step: Step) -> list[Mark]:
    """COPY"""
    marks = step.marks
    return [*marks, marks[0]]


def _swap(step: Step) -> list[Mark]:
    """SWAP"""
    marks = step.marks
    first, *between, last = marks
    return [last, *between, first]


def _push(step: Step) -> list[Mark]:
    """An instruction that pushes values which do not depend on sizes."""
    return [None] * _effect(step.at.name, step.at.arg)


@functools.lru_cache(1024)
def _effect(name: str, arg: int) -> int:
    opcode = dis.opmap[name]
    return dis.stack_effect(opcode, arg if opcode >= dis.HAVE_ARGUMENT else None)


def _keywords(step: Step) -> list[Mark]:
    """KW_NAMES"""
    shadow, at = step.shadow, step.at
    shadow.names = shadow.frame.f_code.co_consts[at.arg]
    return []


# -- tables ----------------------------------------------------------------------------------------


def _pin(step: Step) -> list[Mark]:
    """An instruction that is given values, and pushes as many as it says."""
    integers, at, values, marks = step.integers, step.at, step.values, step.marks
    integers.pin_values(values, marks)
    return [None] * (len(values) + _effect(at.name, at.arg))


def _drop(step: Step) -> list[Mark]:
    """POP_TOP"""
    return []


_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
_COMPARED: dict[str, Callable[..., Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ARG = operator.attrgetter("arg")
_CALL = "PRECALL" if "PRECALL" in dis.opmap else "CALL"


def _of(names: str, count: int | Callable[[Instruction], int], run: Run) -> dict[str, Handler]:
    return dict.fromkeys(names.split(), Handler(count, run))


HANDLERS: dict[str, Handler] = {
    **_of("BINARY_OP", 2, _binary),
    **_of("UNARY_NEGATIVE UNARY_INVERT UNARY_POSITIVE", 1, _unary),
    **_of("COMPARE_OP", 2, _compared),
    **_of("CONTAINS_OP", 2, _contained),
    **_of("IS_OP", 2, _identical),
    **_of("POP_JUMP_FORWARD_IF_TRUE POP_JUMP_FORWARD_IF_FALSE POP_JUMP_IF_TRUE", 1, _asked),
    **_of("POP_JUMP_BACKWARD_IF_TRUE POP_JUMP_BACKWARD_IF_FALSE", 1, _asked),
    **_of("POP_JUMP_IF_FALSE JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP", 1, _asked),
    **_of("UNARY_NOT TO_BOOL", 1, _asked),
    **_of("POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_IF_NONE", 1, _drop),
    **_of("POP_JUMP_BACKWARD_IF_NONE POP_JUMP_BACKWARD_IF_NOT_NONE", 1, _drop),
    **_of("POP_JUMP_IF_NOT_NONE POP_TOP", 1, _drop),
    **_of("BUILD_TUPLE BUILD_LIST BUILD_SLICE", _ARG, containers.built),
    **_of("BUILD_MAP", lambda at: 2 * at.arg, containers.built_dict),
    **_of("BUILD_CONST_KEY_MAP", lambda at: at.arg + 1, containers.built_with_names),
    **_of("UNPACK_SEQUENCE", 1, containers.unpacked),
    **_of("UNPACK_EX", 1, containers.unpacked_with_rest),
    **_of("BINARY_SUBSCR", 2, containers.item),
    **_of("BINARY_SLICE", 3, containers.sliced),
    **_of("LIST_EXTEND LIST_APPEND", 1, containers.extended),
    **_of("MAP_ADD", 2, containers.entry_added),
    **_of("DICT_MERGE DICT_UPDATE", 1, containers.merged),
    **_of("STORE_SUBSCR", 3, containers.stored),
    **_of("GET_ITER", 1, containers.iterated),
    **_of("FOR_ITER", 1, containers.next),
    **_of("LIST_TO_TUPLE CALL_INTRINSIC_1", 1, containers.intrinsic),
    **_of("LOAD_ATTR LOAD_METHOD", 1, _attribute),
    **_of(f"{_CALL} CALL_KW", arity, _called),
    **_of("CALL_FUNCTION_EX", lambda at: 3 + (at.arg & 1), _called_with_all),
    **_of("MAKE_FUNCTION", lambda at: 1 + (at.arg & 15).bit_count(), _made_function),
    **_of("SET_FUNCTION_ATTRIBUTE", 2, _set_attribute),
    **_of("RETURN_VALUE", 1, _returned),
    **_of("LOAD_FAST LOAD_FAST_CHECK LOAD_CLOSURE", 0, _load),
    **_of("LOAD_FAST_LOAD_FAST", 0, _load_two),
    **_of("LOAD_FAST_AND_CLEAR", 0, _load_and_clear),
    **_of("STORE_FAST STORE_FAST_MAYBE_NULL", 1, _store),
    **_of("STORE_FAST_STORE_FAST", 2, _store),
    **_of("STORE_FAST_LOAD_FAST", 1, _store_load),
    **_of("DELETE_FAST", 0, _forget),
    **_of("LOAD_DEREF", 0, _load_cell),
    **_of("STORE_DEREF", 1, _store_cell),
    **_of("COPY", _ARG, _copy),
    **_of("SWAP", _ARG, _swap),
    **_of("LOAD_CONST LOAD_GLOBAL PUSH_NULL LOAD_ASSERTION_ERROR PUSH_EXC_INFO GET_LEN", 0, _push),
    **_of("IMPORT_FROM", 0, _push),
    **_of("KW_NAMES", 0, _keywords),
    **_of("POP_EXCEPT", 1, _drop),
    **_of("FORMAT_VALUE RAISE_VARARGS", arity, _pin),
    **_of("FORMAT_SIMPLE CONVERT_VALUE SET_ADD SET_UPDATE STORE_GLOBAL", 1, _pin),
    **_of("DELETE_ATTR", 1, _drop_attribute),
    **_of("BEFORE_WITH LOAD_SPECIAL CHECK_EXC_MATCH YIELD_VALUE", 1, _pin),
    **_of("FORMAT_WITH_SPEC DELETE_SUBSCR IMPORT_NAME", 2, _pin),
    **_of("STORE_ATTR", 2, _put_attribute),
    **_of("LOAD_SUPER_ATTR", 3, _pin),
    **_of("BUILD_STRING BUILD_SET", _ARG, _pin),
}
"""What is done for each instruction. One that is neither here nor in `MOVE_NOTHING` pins all that
is on the stack."""

MOVE_NOTHING = frozenset(
    [
        *("RESUME", "NOP", "CACHE", "EXTENDED_ARG", "COPY_FREE_VARS", "RETURN_CONST", "RERAISE"),
        *("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"),
    ]
)
"""Instructions that move no value, or end a frame."""


class Moves(NamedTuple):
    """What an instruction does with the stack: how many values are kept below an exception, if only
    exceptions lead here; its handler, if it has one; how many values it takes; and the instructions
    before it that may have been passed over, if any. `pushes`: how many values it pushes, if it
    does nothing else, and they do not depend on sizes."""

    kept: int | None
    handler: Handler | None
    takes: int
    passed: Passed | None
    pushes: int | None = None


_moves: weakref.WeakKeyDictionary[CodeType, Mapping[int, Moves]]
_moves = weakref.WeakKeyDictionary()


def moves(code: CodeType) -> Mapping[int, Moves]:
    """What each instruction of a code object does with the stack, by its offset."""
    found = _moves.get(code)
    if found is None:
        kept, passed = handlers(code), moved_before(code)
        found = _moves[code] = {
            place: _moved(at, kept.get(place), passed.get(place))
            for place, at in decoded(code).items()
        }
    return found


def _moved(at: Instruction, kept: int | None, passed: Passed | None) -> Moves:
    handler = HANDLERS.get(at.name)
    if handler is None:
        return Moves(kept, None, 0, passed)
    takes = handler.takes if isinstance(handler.takes, int) else handler.takes(at)
    pushes = _effect(at.name, at.arg) if handler.run is _push else None
    return Moves(kept, handler, takes, passed, pushes)
