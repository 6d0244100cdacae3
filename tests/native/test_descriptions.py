"""Native code reads descriptions by the names of their fields, and names a field that is wrong."""
# ruff: noqa: F401, F811 (fixtures are imported, and go by their names as parameters)

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.native.native_plans import (
    N,
    add_kernel,
    launch,
    native,
    plan,
    scale_kernel,
    slot,
)
from tzero.launches.native import CudaDescription, ParameterDescription
from tzero.plans.describe import PlanDescription, describe
from tzero.plans.plan import Allocate, Call, Constant, Fill, Nest, Scalar, Tensor, View
from tzero.reading.guards import Equal
from tzero.tune import select

Path = tuple[str | int, ...]


class Kept(native.Dispatching):  # type: ignore[misc, name-defined]
    """A kernel whose first call hands over a description."""

    def __init__(self, description: Any, parameters: Any = None) -> None:
        self.description = description
        names = ("x", "y", "by")
        self._prepare(parameters or tuple(map(ParameterDescription, names)), (False,) * 3, 10)

    def __call__(self, *args: Any) -> Any:
        raise AssertionError("the call goes to _missed")

    def _missed(self, args: Any, kwargs: Any) -> Any:
        return "missed", ("bound", self.description, None, (False,) * 3, self._generation())


native.enable_calls(Kept)

GLOBALS = {"SCALE": 2}


def hand_over(description: Any) -> int:
    """Give native code a description; how many plans it then has."""
    kernel = Kept(description)
    assert kernel(torch.rand(N), torch.rand(N), 2.5) == "missed"
    count: int = kernel._count()
    return count


@pytest.fixture(scope="module")
def whole(add_kernel: Any, scale_kernel: Any) -> PlanDescription:
    """The description of a plan that has every kind of step, value and parameter."""
    for _ in range(2):  # the first launch of a process finds Triton without a driver
        launch(add_kernel, 0, 1, 2, Constant(N), None)
    sort = Call(
        torch.sort, "sort", (Tensor(2),), (("descending", Constant(True)),),
        Nest(torch.return_types.sort, (Tensor(5), Tensor(6))), 1,
    )  # fmt: skip
    view = Call(torch.Tensor.view, "Tensor.view", (Tensor(2),), (), Tensor(3), 1)
    steps = (
        Allocate(2, 1),
        Fill(2, 1.5, 1),
        View(3, 2, 0, view, 1),
        Allocate(4, 1),
        launch(add_kernel, 0, 1, 3, Constant(N), None),
        launch(scale_kernel, 0, 4, Constant(N), Scalar(2), None),
    )
    slots = (slot("x", 0), slot("y", 1), slot("a"), slot("v"), slot("b"))
    guard = Equal("SCALE", GLOBALS, "SCALE", 2)
    result = Nest(dict, (Tensor(2), Scalar(2)), ("out", "by"))
    made = describe(native, plan(steps, slots, result, ("x", "y", "by"), (guard,)))
    assert made is not None
    # A call is described apart: beside one, fills and views are calls of torch too.
    more = (Allocate(2, 1), sort)
    called = describe(
        native,
        plan(
            more,
            (*slots[:3], slot("u"), slot("w"), slot("s"), slot("i", dtype=torch.int64)),
            result,
            ("x", "y", "by"),
        ),
    )
    assert called is not None
    slots_too = (*made.slots, *called.slots[5:])
    return made._replace(slots=slots_too, steps=(*made.steps, called.steps[1]._replace(number=6)))


def names_of(value: Any) -> tuple[str, ...]:
    """The fields of a description."""
    return value._fields  # type: ignore[no-any-return]


def changed(value: Any, **fields: Any) -> Any:
    """A description with other values in some fields."""
    return value._replace(**fields)


def parts(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every description in a description, and how it is reached."""
    if type(value).__name__.endswith("Description"):
        yield path, value
        for name in names_of(value):
            yield from parts(getattr(value, name), (*path, name))
    elif isinstance(value, tuple):
        for k, each in enumerate(value):
            yield from parts(each, (*path, k))


def put(value: Any, path: Path, new: Any) -> Any:
    """A description with another part in the place of one."""
    if not path:
        return new
    at, rest = path[0], path[1:]
    if isinstance(at, int):
        return (*value[:at], put(value[at], rest, new), *value[at + 1 :])
    return changed(value, **{at: put(getattr(value, at), rest, new)})


def without(value: Any, name: str) -> SimpleNamespace:
    names = [each for each in names_of(value) if each != name]
    return SimpleNamespace(**{each: getattr(value, each) for each in names})


def on_cuda(whole: PlanDescription) -> PlanDescription:
    """With a binary that CUDA would launch."""
    path: Path = ("steps", 4, "details", "binary")
    binary = whole.steps[4].details.binary  # type: ignore[union-attr]
    cuda = CudaDescription(128, 0, 1, False, False, 0)
    return put(whole, path, changed(binary, cpu=None, cuda=cuda))  # type: ignore[no-any-return]


# What is read only of some: a number of others, and of a binary what its device needs.
CONDITIONAL = {("ValueDescription", "place"), ("BinaryDescription", "cuda")}


def test_the_whole_description_is_taken(whole: PlanDescription) -> None:
    assert hand_over(whole) == 1
    assert hand_over(on_cuda(whole)) == 1


@pytest.mark.parametrize("make", [lambda whole: whole, on_cuda], ids=["cpu", "cuda"])
def test_every_field_is_read_and_its_absence_named(
    whole: PlanDescription, make: Callable[[PlanDescription], PlanDescription]
) -> None:
    description = make(whole)
    classes = set()
    for path, part in parts(description):
        classes.add(type(part).__name__)
        for name in names_of(part):
            broken = put(description, path, without(part, name))
            if (type(part).__name__, name) in CONDITIONAL:
                continue
            with pytest.raises(TypeError, match=f"has no field {name}, which"):
                hand_over(broken)
    steps = {"Allocate", "Fill", "View", "Call", "Launch", "Pointer", "Scalar", "Binary", "Move"}
    assert {f"{name}Description" for name in steps} <= classes


WRONG: list[tuple[Path, Any, str]] = [
    (("guards",), [], r"PlanDescription\.guards must be a tuple, not \[\]"),
    (("guards", 0, "where"), 1, r"GuardDescription\.where must be a dict or a cell, not 1"),
    (
        ("guards", 0, "kind"),
        len(native.GUARD_KINDS),
        rf"GuardDescription\.kind must be from 0 to {len(native.GUARD_KINDS) - 1}, not",
    ),
    (("guards", 0, "kind"), native.GUARD_KINDS["own_dict"], "must be a dict"),
    (("guards", 0, "kind"), native.GUARD_KINDS["code"], "must be a tuple of four"),
    (("guards", 0, "kind"), native.GUARD_KINDS["files"], "must be paths and times"),
    (("guards", 0, "kind"), native.GUARD_KINDS["kept"], "must be an object in a dict, and a size"),
    (("slots", 0, "leaf"), 3, r"SlotDescription\.leaf must be from 0 to 2, not 3"),
    (("slots", 0, "leaf"), "x", r"SlotDescription\.leaf must be an int, not 'x'"),
    (("slots", 0, "guard"), 1, r"SlotDescription\.guard must be from 0 to 0, not 1"),
    (("slots", 0, "size"), ("4",), "int"),
    (
        ("steps", 0, "kind"),
        len(native.STEP_KINDS),
        rf"StepDescription\.kind must be from 0 to {len(native.STEP_KINDS) - 1}, not",
    ),
    (("steps", 0, "details", "slot"), 99, r"AllocateDescription\.slot must be from 0 to"),
    (("steps", 0, "details", "ring"), 1, r"AllocateDescription\.ring must be None, or a Ring"),
    (("steps", 0, "details", "plain_kwargs"), (), r"plain_kwargs must be a dict, not \(\)"),
    (("steps", 1, "details", "pattern"), "", r"FillDescription\.pattern must be bytes, not ''"),
    (("steps", 1, "details", "bytes"), 3, r"FillDescription\.bytes must be a multiple of the"),
    (("steps", 2, "details", "is_empty"), 1, r"ViewDescription\.is_empty must be a bool, not 1"),
    (("steps", 4, "details", "grid"), (1, 1), r"LaunchDescription\.grid must be three sizes"),
    (("steps", 4, "details", "grid"), (1, 1, -1), r"LaunchDescription\.grid must be three sizes"),
    (("steps", 4, "details", "block"), b"", r"LaunchDescription\.block must be as long as"),
    (("steps", 4, "details", "function"), 2, r"LaunchDescription\.function must be from 0 to 1"),
    (
        ("steps", 4, "details", "binary", "function"),
        -1,
        r"BinaryDescription\.function must be an address, not -1",
    ),
    (
        ("steps", 4, "details", "binary", "block_bytes"),
        1 << 20,
        r"BinaryDescription\.block_bytes must be from 8 to \d+, not 1048576",
    ),
    (
        ("steps", 4, "details", "binary", "moves", 0, "offset"),
        1 << 12,
        r"MoveDescription\.offset must be from 0 to \d+, not 4096",
    ),
    (
        ("steps", 4, "details", "binary", "moves", 0, "type"),
        len(native.PARAMETER_TYPES),
        r"MoveDescription\.type must be from 0 to 14, not 15",
    ),
    (("steps", 6, "details", "keywords"), ("a", "b", "c"), "the names of the last of args"),
    (("result", "kind"), -1, r"ValueDescription\.kind must be from 0 to 8, not -1"),
    (("result", "names"), (), r"ValueDescription\.names must be a tuple with a key for each item"),
]


@pytest.mark.parametrize(("path", "value", "message"), WRONG, ids=lambda each: str(each))
def test_a_wrong_field_is_named(
    whole: PlanDescription, path: Path, value: Any, message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        hand_over(put(whole, path, value))


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        (SimpleNamespace(name="x"), "SimpleNamespace has no field has_default, which"),
        (ParameterDescription("x", constant=None), r"\.constant must be a bool, not None"),  # type: ignore[arg-type]
        (ParameterDescription(3), r"ParameterDescription\.name must be a str, not 3"),  # type: ignore[arg-type]
        (("x", False), "tuple has no field name, which"),
    ],
)
def test_a_wrong_field_of_a_parameter_is_named(parameter: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Kept(None, (parameter,) * 3)


def test_the_limits_of_hints_are_those_of_python() -> None:
    """`tune.select` needs no extension, so it has these numbers too."""
    assert native.MOST_HINTS == select.MOST_HINTS
    assert native.MOST_DIMS == select.MOST_DIMS
    assert native.STEPS_PER_DOUBLING == select._STEPS
