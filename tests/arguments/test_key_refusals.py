"""Arguments that cannot be part of a key: calls run as written, `key` and `bind` name the argument,
also after hits, and the next other call hits.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable
from types import MethodType
from typing import Any, NamedTuple

import pytest
import torch

from tests.arguments.key_cases import (
    EVERY_OPTION,
    META,
    Args,
    Pair,
    Point,
    T,
    Tagged,
    call,
    closing,
    defaulted,
    fake,
    fake_on,
    host,
    made,
)
from tzero import ConstExpr, events, measure
from tzero.errors import InvalidArgument


class Refusal(NamedTuple):
    """A good call, one much like it that has no key, and what the error names."""

    good: Args
    bad: Args
    argument: str | None
    words: str


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)
ENDLESS_DICT: dict[str, Any] = {}
ENDLESS_DICT["a"] = ENDLESS_DICT


@dataclasses.dataclass
class Later:
    when: Any = dataclasses.field(default_factory=int)


def unset() -> Later:
    later = Later()
    del later.when
    return later


ELSEWHERE = fake_on("cuda:0", 4, 8)
PARAMETER = torch.nn.Parameter(T)

REFUSED: dict[str, Refusal] = {
    "set": Refusal((T, 1), (T, {1}), "y", "a set"),
    "set first": Refusal((1, T), ({1}, T), "x", "a set"),
    "object": Refusal((T, None), (T, object()), "y", "an object"),
    "set in a list": Refusal((T, [1]), (T, [{1}]), "y", "a set"),
    "set in a dict": Refusal((T, {"a": 1}), (T, {"a": {1}}), "y", "a set"),
    "set in a namedtuple": Refusal((Pair(1, 2), T), (Pair(1, {2}), T), "x", "a set"),
    "set in a dataclass": Refusal((T, Point(1, 2)), (T, Point(1, {2})), "y", "a set"),
    "set in a closure": Refusal((T, closing(1)), (T, closing({1})), "y", "a set"),
    "set as a default": Refusal((T, defaulted(1)), (T, defaulted({1})), "y", "a set"),
    "set as a constant": Refusal((T, ConstExpr(1)), (T, ConstExpr({1})), "y", "a set"),
    "list in itself": Refusal(
        (T, [1]), (T, ENDLESS), "y", "a list that holds itself.*does not hold itself"
    ),
    "list in itself, constant": Refusal(
        (T, ConstExpr([1])),
        (T, ConstExpr(ENDLESS)),
        "y",
        "a list that holds itself.*does not hold itself",
    ),
    "dict in itself": Refusal((T, {}), (T, ENDLESS_DICT), "y", "a dict that holds itself"),
    "dataclass without a field": Refusal(
        (T, Later()), (T, unset()), "y", "a Later whose field 'when' is not set. Set it"
    ),
    "dataclass without a field, constant": Refusal(
        (T, ConstExpr(Later())), (T, ConstExpr(unset())), "y", "a Later whose field 'when' is not"
    ),
    "OrderedDict": Refusal((T, {}), (T, collections.OrderedDict()), "y", "an OrderedDict"),
    "kernel": Refusal((T, len), (T, made(host(1), "static")), "y", "a Kernel"),
    "method of a kernel": Refusal(
        (T, len), (T, MethodType(made(host(1), "static"), 1)), "y", "a K"
    ),
    "meta tensor's method": Refusal((T, T.add), (T, META.add), "y", "meta tensor"),
    "meta as a default": Refusal((T, defaulted(T)), (T, defaulted(META)), "y", "meta tensor"),
    "meta": Refusal((T, 1), (META, 1), "x", "meta tensor"),
    "meta after": Refusal((T, T), (T, META), "y", "meta tensor"),
    "meta before": Refusal((T, T), (META, T), "x", "meta tensor"),
    "meta twice": Refusal((T, T), (META, META), "x", "meta tensor"),
    "meta parameter": Refusal((T, PARAMETER), (T, torch.nn.Parameter(META)), "y", "meta tensor"),
    "meta subclass": Refusal(
        (T.as_subclass(Tagged), T), (META.as_subclass(Tagged), T), "x", "meta tensor"
    ),
    "meta fake": Refusal((T, fake(T)), (T, fake(META)), "y", "meta tensor"),
    "meta in a list": Refusal((T, [T]), (T, [META]), "y", "meta tensor"),
    "meta in a list alone": Refusal(([T], 1), ([META], 1), "x", "meta tensor"),
    "meta in a list before": Refusal(([T], T), ([META], T), "x", "meta tensor"),
    "meta after a list": Refusal(([T], T), ([T], META), "y", "meta tensor"),
    "meta besides in a list": Refusal(([T, T], 1), ([T, META], 1), "x", "meta tensor"),
    "meta in a dict": Refusal((T, {"a": T}), (T, {"a": META}), "y", "meta tensor"),
    "meta in a dataclass": Refusal((Point(1, T), T), (Point(1, META), T), "x", "meta tensor"),
    "meta in a closure": Refusal((T, closing(T)), (T, closing(META)), "y", "meta tensor"),
    "two devices": Refusal(
        (T, fake(T)), (T, ELSEWHERE), "y", "on cuda:0, but argument 'x' is on cpu"
    ),
    "two devices, fakes": Refusal(
        (fake(T), fake(T)), (fake(T), ELSEWHERE), "y", "is on cuda:0, .* is on cpu"
    ),
    "two devices, fake first": Refusal(
        (fake(T), T), (ELSEWHERE, T), "y", "is on cpu, .* is on cuda:0"
    ),
    "two devices, list first": Refusal(
        ([T], T), ([ELSEWHERE], T), "y", "is on cpu, .* is on cuda:0"
    ),
    "two devices in a list": Refusal(
        ([T, fake(T)], 1), ([T, ELSEWHERE], 1), "x", "cuda:0, but another tensor in it is on cpu"
    ),
    "too many": Refusal((T, T), (T, T, T), None, "too many.* It takes x, y"),
    "too few": Refusal((T, T), (T,), None, "'y'.* It takes x, y"),
    "none": Refusal((T, T), (), None, "'x'.* It takes x, y"),
}


@EVERY_OPTION
@pytest.mark.parametrize("refusal", REFUSED.values(), ids=REFUSED)
def test_a_refusal_after_hits_names_the_argument_and_the_next_good_call_hits(
    refusal: Refusal, under: str
) -> None:
    with pytest.raises(InvalidArgument) as first:
        made(host(2), under).bind(*refusal.bad)
    kernel = made(host(2), under)
    for _ in range(3):
        call(kernel, refusal.good)
    bound, stats = kernel.bind(*refusal.good), kernel.stats()
    ways: list[Callable[[], object]] = [
        lambda: kernel.key(*refusal.bad),
        lambda: kernel.bind(*refusal.bad),
    ]
    for way in ways:
        if refusal.argument is not None:
            call(kernel, refusal.bad)
            assert first.value.problem in kernel.explain(*refusal.bad).refusal
            plain, unkeyed = stats.plain_calls + 1, stats.unkeyed + 1
            stats = stats._replace(calls=stats.calls + 1, plain_calls=plain, unkeyed=unkeyed)
        with pytest.raises(InvalidArgument, match=f"^pair: .*{refusal.words}") as raised:
            way()
        assert raised.value.kernel == "pair"
        assert raised.value.argument == refusal.argument
        if refusal.argument is not None:
            assert str(raised.value).startswith(f"pair: argument {refusal.argument!r} is")
        assert str(raised.value) == str(first.value)  # the same text as without hits
    call(kernel, refusal.good)
    assert kernel.bind(*refusal.good) is bound
    expected = stats._replace(calls=stats.calls + 1, plain_calls=stats.plain_calls + 1)
    # A native fallback goes by the type of such an argument: others of that type count like it.
    assert kernel.stats()._replace(unkeyed=0) == expected._replace(unkeyed=0)


@EVERY_OPTION
def test_an_unknown_name_after_hits_is_refused_and_the_next_good_call_hits(under: str) -> None:
    kernel = made(host(2), under)
    kernel(T, y=1)
    for names in ({"w": 1}, {"y": 1, "w": 1}, {"x": T}):
        with pytest.raises(InvalidArgument, match=r"^pair: .* It takes x, y"):
            kernel(T, **names)
    kernel(T, y=1)
    assert kernel.stats()[:4] == (2, 1, 1, 0)


@EVERY_OPTION
def test_a_key_that_cannot_be_hashed_after_hits_is_refused_and_the_next_good_call_hits(
    under: str,
) -> None:
    def key(x: Any, y: Any) -> Any:
        return {y} if y > 5 else 0

    kernel = made(host(2), under, key)
    kernel(T, 1)
    with pytest.raises(InvalidArgument, match=r"^pair: its key= function returned a set"):
        kernel(T, 6)
    kernel(T, 2)
    assert kernel.stats()[:4] == (2, 1, 1, 0)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_bsr], ids=str)
def test_a_tensor_without_strides_is_refused_by_name_and_the_next_good_call_hits(
    layout: torch.layout,
) -> None:
    blocks = (2, 2) if layout is torch.sparse_bsr else None
    bad = torch.eye(4).to_sparse(layout=layout, blocksize=blocks)
    kernel = made(host(2), "static")
    kernel(T, 1)
    with pytest.raises(InvalidArgument, match=r"^pair: argument 'x' is"):
        kernel.bind(bad, 1)
    assert kernel(bad, 1)[0] is bad
    kernel(T, 2)
    assert kernel.stats()[:4] == (3, 1, 1, 0)


@EVERY_OPTION
@pytest.mark.parametrize("args", [(ELSEWHERE, 1), (1, [ELSEWHERE])], ids=["alone", "in a list"])
def test_a_missing_device_is_named_in_the_error(
    args: Args, under: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = made(host(2), under)
    name = "x" if args[0] is ELSEWHERE else "y"
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "get_device_capability", lambda index: (9, 0))
        call(kernel, args)
        call(kernel, args)

    def missing(index: int) -> None:
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(torch.cuda, "get_device_capability", missing)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=f"^pair: argument {name!r} is on cuda:0, which"):
            kernel.bind(*args)
        call(kernel, args)


def test_a_key_function_may_return_nothing_that_holds_itself() -> None:
    kernel = made(host(2), "static", lambda x, y: ENDLESS)
    with pytest.raises(
        InvalidArgument, match=r"^pair: its key= function returned a list that hold"
    ):
        kernel(T, 1)


def test_exceptions_of_a_key_function_reach_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        made(host(2), "static", lambda x, y: 1 / 0)(T, 1)


@pytest.mark.parametrize("args", [torch.zeros(2), 5, {1: 2}, "ab", None], ids=repr)
@pytest.mark.parametrize("way", ["bind", "key"])
def test_bind_and_key_need_all_arguments(way: str, args: Any) -> None:
    kernel = made(host(2), "static")
    with pytest.raises(InvalidArgument, match=r"^pair: missing a required .* It takes x, y"):
        getattr(kernel, way)(args)
    with pytest.warns(DeprecationWarning, match="^pair.* was given its arguments in a "):
        assert getattr(kernel, way)([T, 1]) == getattr(kernel, way)((T, 1))


WITHOUT_KEY = {name: each for name, each in REFUSED.items() if each.argument is not None}
MISFITS = {name: each for name, each in REFUSED.items() if each.argument is None}


@pytest.mark.parametrize("refusal", WITHOUT_KEY.values(), ids=WITHOUT_KEY)
def test_a_call_without_a_key_is_an_event_once(refusal: Refusal) -> None:
    kernel, seen = made(host(2), "static"), []
    with pytest.raises(InvalidArgument) as raised:
        kernel.bind(*refusal.bad)
    with events.observe(seen.append):
        for measured in (contextlib.nullcontext(), measure.recording()):
            with measured:
                call(kernel, refusal.bad)
    assert [event.kind for event in seen] == ["fallback"]
    assert seen[0].reason == f"not replayed: argument {raised.value.argument!r} " + (
        raised.value.problem
    )
    assert seen[0].kernel == "pair"


@pytest.mark.parametrize("refusal", MISFITS.values(), ids=MISFITS)
def test_a_call_that_does_not_fit_is_an_event(refusal: Refusal) -> None:
    kernel, seen = made(host(2), "static"), []
    with events.observe(seen.append):
        for measured in (contextlib.nullcontext(), measure.recording()):
            with measured, pytest.raises(InvalidArgument) as raised:
                kernel(*refusal.bad)
    assert [event.kind for event in seen] == ["refusal", "refusal"]
    assert raised.value.problem in seen[0].reason and seen[0].kernel == "pair"
