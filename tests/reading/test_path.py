"""Following calls: which instructions are known, and what a followed call may do."""

from __future__ import annotations

import collections
import dis
import functools
import logging
import os
import sys
import threading
from types import CodeType, FrameType
from typing import Any

import pytest
import torch

import tzero
from tests.plans.hosts import scaled
from tzero.adapters import python_frames
from tzero.events import observe
from tzero.reading import path, steps
from tzero.reading.path import BUSY

pytestmark = pytest.mark.skipif(
    not python_frames.is_supported(), reason="frames cannot be read with this Python"
)


# -- instructions ----------------------------------------------------------------------------------


def test_every_instruction_is_known_once():
    known = {*steps._HANDLERS, *steps._HARMLESS, "CALL"}
    assert not set(steps._HANDLERS) & steps._HARMLESS
    pseudo = {"SETUP_FINALLY", "SETUP_CLEANUP", "SETUP_WITH", "POP_BLOCK", "JUMP", "RESERVED"}
    pseudo |= {"JUMP_NO_INTERRUPT", "LOAD_SUPER_METHOD", "LOAD_ZERO_SUPER_METHOD", "LOAD_METHOD"}
    pseudo |= {"LOAD_ZERO_SUPER_ATTR", "INTERPRETER_EXIT", "ENTER_EXECUTOR", "EXIT_INIT_CHECK"}
    refused = {"ASYNC_GEN_WRAP", "CHECK_EG_MATCH", "END_ASYNC_FOR", "PREP_RERAISE_STAR"}
    refused |= {"PRINT_EXPR", "BUILD_TEMPLATE", "BUILD_INTERPOLATION"}
    pseudo |= {"ANNOTATIONS_PLACEHOLDER", "JUMP_IF_FALSE", "JUMP_IF_TRUE"}
    known |= set(python_frames._OLDER_NAMES)
    quickened = set(getattr(dis, "_specialized_opmap", ()))
    names = {name for name in dis.opname if not name.startswith(("<", "INSTRUMENTED_"))} - quickened
    assert names - known - pseudo - refused == set()


def codes_in(code: CodeType) -> list[CodeType]:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return [code, *(each for one in inner for each in codes_in(one))]


def test_the_depth_of_the_stack_follows_from_the_code():
    found = 0
    for module in (collections, functools, logging, threading, torch.nn.modules.module):
        for value in list(vars(module).values()):
            code = getattr(value, "__code__", None)
            for each in codes_in(code) if isinstance(code, CodeType) else []:
                depths = [at.depth for at in python_frames.decoded(each).values()]
                assert all(0 <= depth <= each.co_stacksize for depth in depths), each
                found += 1
    assert found > 100


def test_operands_are_the_values_that_an_instruction_works_on():
    seen: list[tuple[str, Any]] = []

    def host(a, b):
        total = 0
        for k in [a, b]:
            try:
                total += {"x": k}["x"] * 2
            except KeyError:
                total = -1
        return [total, a.real, len((b, b))]

    def look(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code is not host.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            at = python_frames.decoded(frame.f_code)[frame.f_lasti]
            if at.name in ("BINARY_SUBSCR", "BINARY_OP", "LOAD_ATTR"):
                seen.append((at.name, python_frames.operands(frame, at, min(at.depth, 2))))
        return look

    with python_frames.traced(look):
        assert host(3, 5) == [16, 3, 2]
    items = [values for name, values in seen if name == "BINARY_SUBSCR"]
    assert items == [({"x": 3}, "x"), ({"x": 5}, "x")]
    sums = [values for name, values in seen if name == "BINARY_OP"]
    assert sums == [(3, 2), (0, 6), (5, 2), (6, 10)]
    assert [values[-1] for name, values in seen if name == "LOAD_ATTR"] == [3]


# -- what a followed call may do -------------------------------------------------------------------


class Options:
    kind = "double"

    def __init__(self) -> None:
        self.by, self.items = 2.0, [1.0, 2.0]

    @property
    def twice(self) -> float:
        return self.by * 2

    def plus(self, more: float) -> float:
        return self.by + more

    @classmethod
    def of_class(cls) -> float:
        return 3.0 if cls.kind == "double" else 5.0


class Special(Options):
    def plus(self, more: float) -> float:
        return super().plus(more) + 1.0


options, special = Options(), Special()
table = {"a": {"b": 2.0}, 3: 4.0, torch.float32: 5.0}
log = logging.getLogger("tests.reading.path")
lock = threading.Lock()


@functools.cache
def cached(by: float) -> list[float]:
    return [by, options.by]


@functools.lru_cache
def kept() -> dict[str, float]:
    return {"by": options.by}


class Table(dict[str, float]):
    pass


numbers = Table(by=2.0)


class Scaled(torch.autograd.Function):
    """A decorator of torch has made its `forward`."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return scaled(x, options.by)


class Module(torch.nn.Module):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(x, options.by)


class Caller:
    @torch.no_grad()
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return scaled(x, options.by)


class Made:
    @torch.no_grad()
    def __init__(self) -> None:
        self.by = options.by


module, caller = Module(), Caller()


def half_of_autocast(x):
    return scaled(x, 2.0 if torch.get_autocast_dtype("cpu") is torch.bfloat16 else 3.0)


def total(*args: float, plus: float = 0.0) -> float:
    return sum(args) + plus


class Pair:
    def __init__(self, one: float, two: float) -> None:
        self.sum = one + two


class Odd(tuple[float, ...]):
    """A tuple whose iteration is seen."""

    def __iter__(self) -> Any:
        seen.append(1)
        return super().__iter__()


seen: list[int] = []


def entered(x):
    with lock:
        return scaled(x, options.by)


def logged(x):
    log.debug("scaled %s", x.shape)
    return scaled(x, 2.0)


def imported(x):
    from math import sqrt

    return scaled(x, sqrt(options.by * 2))


def beside(x):
    if x.dim() > 3:
        print("never")
    return scaled(x, options.by)


def caught(x):
    try:
        return scaled(x, table["c"])
    except KeyError:
        return scaled(x, options.by)


def formatted(x):
    return scaled(x, {"by 2.0": 6.0}.get(f"by {options.by}", 7.0))


HOSTS = {
    "attribute": lambda x: scaled(x, options.by),
    "keywords": lambda x: scaled(by=options.by, x=x),
    "star": lambda x: scaled(*[x], **dict(by=options.by)),  # noqa: C408
    "keyword of a method": lambda x: scaled(x, options.plus(more=1.0)),
    "method of None": lambda x: scaled(x, options.by if None.__eq__(None) else 1.0),
    "property": lambda x: scaled(x, options.twice),
    "method": lambda x: scaled(x, options.plus(1.0)),
    "super": lambda x: scaled(x, special.plus(1.0)),
    "class method": lambda x: scaled(x, options.of_class()),
    "getattr": lambda x: scaled(x, getattr(options, "by", 9.0)),
    "hasattr": lambda x: scaled(x, 2.0 if hasattr(options, "more") else 3.0),
    "item of a list": lambda x: scaled(x, options.items[-1]),
    "all items": lambda x: scaled(x, sum(options.items)),
    "iterator": lambda x: scaled(x, next(iter(options.items)) + options.by),
    "nested items": lambda x: scaled(x, table["a"]["b"] + options.by),
    "item by a number": lambda x: scaled(x, table[3] + options.by),
    "item by a dtype": lambda x: scaled(x, table[x.dtype] + options.by),
    "variable": lambda x: scaled(x, float(os.environ.get("TZERO_PATH", options.by))),
    "cache": lambda x: scaled(x, cached(3.0)[1]),
    "contents of a cache": lambda x: scaled(x, kept()["by"] + options.by),
    "lock": entered,
    "generator over arguments": lambda x: scaled(x, total(*(k * options.twice for k in (1, 2)))),
    "map over arguments": lambda x: scaled(x, total(*map(float, (options.twice, 2)), plus=1.0)),
    "generator over a class": lambda x: scaled(x, Pair(*(options.twice + k for k in (1, 2))).sum),
    "views over arguments": lambda x: scaled(x, total(*{"a": options.twice}.values(), *x.shape)),
    "decorated forward": lambda x: Scaled.apply(x),
    "decorated module": lambda x: module(x),
    "decorated call": lambda x: caller(x),
    "decorated constructor": lambda x: scaled(x, Made().by),
    "dtype of autocast": half_of_autocast,
    "log": logged,
    "import": imported,
    "branch": beside,
    "exception": caught,
    "text": formatted,
}


def set_by(patch):
    patch.setattr(options, "by", 3.0)


def clear_cache(patch):
    patch.setattr(options, "by", 3.0)
    cached.cache_clear()


CHANGES = {
    **dict.fromkeys(HOSTS, set_by),
    "super": lambda patch: patch.setattr(special, "by", 3.0),
    "class method": lambda patch: patch.setattr(Options, "kind", "other"),
    "hasattr": lambda patch: patch.setattr(options, "more", 1, raising=False),
    "item of a list": lambda patch: options.items.__setitem__(-1, 7.0),
    "all items": lambda patch: options.items.append(7.0),
    "iterator": lambda patch: options.items.__setitem__(0, 7.0),
    "nested items": lambda patch: patch.setitem(table["a"], "b", 7.0),
    "item by a number": lambda patch: patch.setitem(table, 3, 7.0),
    "item by a dtype": lambda patch: patch.setitem(table, torch.float32, 7.0),
    "variable": lambda patch: patch.setenv("TZERO_PATH", "7"),
    "cache": clear_cache,
    "contents of a cache": lambda patch: patch.setitem(kept(), "by", 7.0),
    "log": lambda patch: log.setLevel(logging.DEBUG),
    "exception": lambda patch: patch.setitem(table, "c", 8.0),
    "dtype of autocast": lambda patch: torch.set_autocast_dtype("cpu", torch.float16),
}


@pytest.mark.parametrize("name", HOSTS)
def test_a_call_is_replayed_until_something_on_its_path_changes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.setLevel(logging.NOTSET)
    host, x = HOSTS[name], torch.arange(4.0)
    kernel = tzero.kernel(host)
    for _ in range(3):
        assert torch.equal(kernel(x), host(x))
    assert kernel.explain(x).plan is not None, kernel.explain(x)
    assert not kernel.explain(x).refusal
    CHANGES[name](monkeypatch)
    assert kernel.explain(x).refusal  # a guard fails
    for _ in range(3):
        assert torch.equal(kernel(x), host(x))
    log.setLevel(logging.NOTSET)
    options.items[:] = [1.0, 2.0]
    torch.set_autocast_dtype("cpu", torch.bfloat16)


def test_what_is_spread_over_arguments_is_not_iterated_over_by_the_recorder():
    def host(x):
        return scaled(x, total(*Odd((2.0, options.twice))))

    x = torch.arange(4.0)
    host(x)
    once = len(seen)
    seen.clear()
    tzero.kernel(host)(x)
    assert len(seen) == once


def test_an_iterator_spread_over_a_library_function_is_left_whole():
    def host(x):
        log.debug("so that the call is followed")
        return scaled(x, max(*(k * options.twice for k in (1, 2))))

    kernel, x = tzero.kernel(host), torch.arange(4.0)
    for _ in range(3):
        assert torch.equal(kernel(x), host(x))
    assert "it spreads a generator in a call of the builtin 'max'" in kernel.explain(x).refusal


def test_apply_of_an_autograd_function_is_replayed_until_its_forward_reads_something_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel, x = tzero.kernel(Scaled.apply), torch.arange(4.0)
    for _ in range(3):
        assert torch.equal(kernel(x), x * options.by)
    assert kernel.explain(x).plan is not None, kernel.explain(x)
    monkeypatch.setattr(options, "by", 5.0)
    for _ in range(3):
        assert torch.equal(kernel(x), x * 5)
    monkeypatch.setattr(Scaled, "forward", staticmethod(lambda ctx, x: scaled(x, 7.0)))
    for _ in range(3):
        assert torch.equal(kernel(x), x * 7)


def test_apply_of_an_autograd_function_is_not_replayed_if_there_will_be_a_backward():
    kernel, x = tzero.kernel(Scaled.apply), torch.arange(4.0, requires_grad=True)
    for _ in range(3):
        assert kernel(x).grad_fn is not None
    assert "Scaled.apply with a tensor that requires a gradient" in kernel.explain(x).refusal


def assigns(x):
    options.by = 2.0
    return scaled(x, 2.0)


def appends(x):
    options.items.append(1.0)
    return scaled(x, 2.0)


def grows(x):
    table["new"] = 1.0
    return scaled(x, 2.0)


def advances(x):
    return scaled(x, float(next(counter)))


counter = iter(range(1000))


def maps(x):
    return scaled(x, 2.0 if torch.float16 in map(torch.get_autocast_dtype, ["cpu"]) else 3.0)


def looks_inside(x):
    return scaled(x, getattr(options, "__dict__")["by"])  # noqa: B009


@pytest.mark.parametrize(
    "host, words",
    [
        (assigns, "it assigns the attribute 'by'"),
        (appends, "append, which may change it"),
        (grows, "the global 'table' changes while it runs"),
        (looks_inside, "it reads __dict__, which gives access to hidden state"),
        (advances, "to next, whose reads tzero does not see"),
        (maps, "it uses torch.get_autocast_dtype, which has side effects or is nondeterministic"),
    ],
)
def test_a_side_effect_is_not_replayed(host: Any, words: str) -> None:
    kernel, x = tzero.kernel(host), torch.arange(4.0)
    sizes = len(options.items)
    for _ in range(4):
        kernel(x)
    assert words in kernel.explain(x).refusal
    assert len(options.items) == sizes + 4 * (host is appends)
    table.pop("new", None)


def test_a_container_of_the_programs_class_is_not_replayed():
    def host(x):
        return scaled(x, numbers["by"] * options.twice)

    kernel, x = tzero.kernel(host), torch.arange(4.0)
    for by in (2.0, 3.0, 4.0):
        numbers["by"] = by
        assert torch.equal(kernel(x), host(x)) and torch.equal(kernel(x), host(x))
    assert "tzero cannot see changes of a Table" in kernel.explain(x).refusal


def test_nothing_is_traced_after_a_call():
    kernel, x = tzero.kernel(HOSTS["property"]), torch.arange(4.0)
    kernel(x)
    assert sys.gettrace() is None


def test_a_call_under_a_debugger_runs_as_written():
    kernel, x = tzero.kernel(HOSTS["property"]), torch.arange(4.0)

    def debugger(frame: FrameType, event: str, arg: Any) -> None:
        return None

    sys.settrace(debugger)
    try:
        for _ in range(3):
            assert torch.equal(kernel(x), HOSTS["property"](x))
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(None)
    for _ in range(3):
        kernel(x)
    assert kernel.explain(x).plan is not None


def test_where_one_thread_traces_the_calls_of_others_run_as_written(monkeypatch):
    monkeypatch.setattr(python_frames, "ONE_THREAD_TRACES", True)
    kernel, x = tzero.kernel(HOSTS["property"]), torch.arange(4.0)
    traces, end = threading.Event(), threading.Event()

    def trace() -> None:
        with python_frames.traced(lambda *_: None) as is_traced:
            assert is_traced
            traces.set()
            end.wait()

    other = threading.Thread(target=trace)
    other.start()
    traces.wait()
    reasons: list[str] = []
    try:
        with observe(lambda event: reasons.append(str(event))):
            for _ in range(30):
                assert torch.equal(kernel(x), HOSTS["property"](x))
    finally:
        end.set()
        other.join()
    assert kernel.stats().recordings == 0
    assert any(BUSY in reason for reason in reasons)
    for _ in range(3):
        assert torch.equal(kernel(x), HOSTS["property"](x))
    assert kernel.explain(x).plan is not None


class Base:
    """A class whose subclasses extend class methods."""

    by = 2.0

    @classmethod
    def scale(cls) -> float:
        return cls.by

    def plus(self) -> float:
        return self.by + 1


class Extended(Base):
    """Extends both kinds of methods."""

    @classmethod
    def scale(cls) -> float:
        return super().scale() * 2

    def plus(self) -> float:
        return super().plus() * 2


extended = Extended()


@pytest.mark.parametrize(
    "host",
    [lambda x: scaled(x, Extended.scale()), lambda x: scaled(x, extended.plus())],
    ids=["class method", "method"],
)
def test_methods_of_super_are_replayed_until_they_change(
    host: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, x = tzero.kernel(host), torch.arange(4.0)
    for _ in range(3):
        assert torch.equal(kernel(x), host(x))
    assert kernel.explain(x).plan is not None
    monkeypatch.setattr(Base, "by", 5.0)
    assert torch.equal(kernel(x), host(x))
    monkeypatch.setattr(Base, "scale", classmethod(lambda cls: 7.0))
    monkeypatch.setattr(Base, "plus", lambda self: 7.0)
    assert torch.equal(kernel(x), host(x))


@pytest.mark.parametrize("where", [(steps.Steps, "take"), (path.Path, "_begun")])
def test_an_error_of_the_follower_is_a_refusal(
    where: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise IndexError("no such place")

    kernel, x = tzero.kernel(HOSTS["property"]), torch.arange(4.0)
    monkeypatch.setattr(*where, fails)
    for _ in range(3):
        assert torch.equal(kernel(x), HOSTS["property"](x))
    assert "it cannot be followed: IndexError: no such place" in str(kernel.explain(x))


# -- what tzero itself runs in a call --------------------------------------------------------------


def frame_of(*modules: str) -> FrameType:
    """A frame of the last module, called by the one before it, and so on."""
    found: list[FrameType] = []
    call: Any = lambda: found.append(sys._getframe(1))  # noqa: E731
    for name in reversed(modules):
        names = {"__name__": name, "inner": call}
        exec("def call():\n    inner()", names)
        call = names["call"]
    call()
    return found[0]


@pytest.mark.parametrize(
    ("modules", "serves"),
    [
        (("tzero.compile.pool", "loky.backend.context"), True),
        (("tzero.compile.pool", "loky", "threading", "loky.backend.context"), True),
        (("app", "loky.backend.context"), False),
        (("tzero.compile.pool", "app"), False),
        (("tzero.compile.pool", "app", "loky"), False),
    ],
)
def test_tools_that_tzero_calls_do_not_interrupt_a_call(
    modules: tuple[str, ...], serves: bool
) -> None:
    assert path._serves_tzero(frame_of(*modules)) == serves
