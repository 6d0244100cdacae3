"""`explain` and `stats` say what a profile of the calls shows."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests import tiers
from tzero.calls.reports import Replay, Stats

tier = tiers.fixture(1, 2, override=True)


@triton.jit
def scale_kernel(x, out, by, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * by, mask=at < n)


guessing = triton.heuristics({"BLOCK": lambda meta: 16})(scale_kernel)


def scaled(x, by=2.0):
    out = torch.empty_like(x)
    scale_kernel[(1,)](x, out, by, x.numel(), BLOCK=16)
    return out


@dataclass(frozen=True)
class Options:
    by: float = 2.0


class Colour(enum.Enum):
    RED = 2.0


class Pair(NamedTuple):
    by: float
    other: float


class Holder:
    by = 2.0


TABLE = {"by": 2.0, "others": [1, 2]}
OPTIONS = Options()
SPACE = SimpleNamespace(by=2.0, inner=SimpleNamespace(by=3.0))
BUFFER = torch.ones(5)
GAIN = 2.0


@torch.library.custom_op("tzero_explain::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def keyword_only(x, *, by=2.0):
    return scaled(x, by)


def rest(x, *by):
    return [scaled(x, each) for each in by]


def more(x, **by):
    return scaled(x, by["by"])


def of_option(x, option):
    return scaled(x)


def with_global_dict(x):
    return scaled(x, TABLE["by"])


def with_global_dataclass(x):
    return scaled(x, OPTIONS.by)


def with_namespaces(x):
    return scaled(x, SPACE.by + SPACE.inner.by)


def with_global_tensor(x):
    return scaled(BUFFER[: x.numel()], 2.0) + 0 * scaled(x)


def with_views(x):
    return scaled(x[1:].view(2, 2).t().contiguous())


def with_operators(x):
    return torch.relu(scaled(x + 1) @ x)


def with_functional(x):
    return torch.nn.functional.softmax(scaled(x), dim=-1)


def with_method_in_python(x):
    return torch.functional.broadcast_tensors(scaled(x), x)[0]


def with_parts(x):
    return [scaled(each.contiguous()) for each in x.split(3)]


def with_custom_operator(x):
    return scaled(twice(x))


def with_heuristic(x):
    out = torch.empty_like(x)
    guessing[(1,)](x, out, 2.0, x.numel())
    return out


def with_default_dtype(x):
    return scaled(torch.zeros(5)) + scaled(x)


def with_class(x):
    return scaled(x, Holder.by)


def of_values(x):
    out = scaled(x)
    return out if out.sum() > 0 else x


def of_nothing(x):
    return x


X = torch.arange(1.0, 6.0)
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = {
    "positional": (scaled, (X, 3.0), {}),
    "by name": (scaled, (), {"by": 3.0, "x": X}),
    "default": (scaled, (X,), {}),
    "a wrapped constant": (scaled, (X, tzero.ConstExpr(3.0)), {}),
    "keyword-only": (keyword_only, (X,), {"by": 3.0}),
    "rest": (rest, (X, 1.0, 2.0), {}),
    "more": (more, (X,), {"by": 2.0}),
    **{
        f"of {type(each).__name__} {getattr(each, '__name__', each)}": (of_option, (X, each), {})
        for each in (
            *(None, True, 3, 3.5, 1 + 2j, "text", b"bytes", torch.float32, torch.device("cpu")),
            *(torch.strided, torch.contiguous_format, torch.Size([2, 3]), [1, 2], (1, "a")),
            *({"a": 1}, slice(1, 2), range(3), frozenset([1]), Colour.RED, Pair(1.0, 2.0)),
            *(OPTIONS, SPACE, scaled, Options, [X, {"x": X}]),
        )
    },
    "a global dict": (with_global_dict, (X,), {}),
    "a global dataclass": (with_global_dataclass, (X,), {}),
    "namespaces": (with_namespaces, (X,), {}),
    "a global tensor": (with_global_tensor, (X,), {}),
    "views": (with_views, (X,), {}),
    "operators": (with_operators, (X,), {}),
    "functional": (with_functional, (X,), {}),
    "a function in Python": (with_method_in_python, (X,), {}),
    "one of several results": (with_parts, (X,), {}),
    "a custom operator": (with_custom_operator, (X,), {}),
    "a heuristic": (with_heuristic, (X,), {}),
    "the default dtype": (with_default_dtype, (X,), {}),
    "a class": (with_class, (X,), {}),
    "values": (of_values, (X,), {}),
    "no launch": (of_nothing, (X,), {}),
}


def observed(kernel: tzero.Kernel, args: Any, kwargs: Any) -> tuple[str, Stats]:
    """How one call is made, by its profile, and the stats that it adds."""
    before, ran = kernel.stats(), []

    def note(frame, event, arg):
        if event == "call":
            ran.append(frame.f_code)

    sys.setprofile(note)
    try:
        kernel(*args, **kwargs)
    finally:
        sys.setprofile(None)
    after = kernel.stats()
    added = Stats(*(b - a for a, b in zip(before, after, strict=True)))
    if kernel.function.__code__ in ran:
        return "plain", added
    if not ran:
        return "natively", added
    if any("/tzero/calls/" in code.co_filename for code in ran):
        return "in Python", added
    return "partly in Python", added


@pytest.mark.parametrize("name", CALLS)
def test_explain_and_stats_agree_with_the_profile(name: str, tier: int) -> None:
    function, args, kwargs = CALLS[name]
    kernel = tzero.kernel(function)
    for _ in range(3):
        kernel(*args, **kwargs)
    said = kernel.explain(*args, **kwargs)
    seen, added = observed(kernel, args, kwargs)
    how = "plain" if said.replay is None else said.replay.how
    assert how == seen, said
    counted = (added.calls, added.native_replays, added.python_replays, added.plain_calls)
    native = seen in ("natively", "partly in Python")
    assert counted == (1, native, seen == "in Python", seen == "plain")
    first = str(said).splitlines()[0]
    assert ("natively" in first) == (seen == "natively")
    assert ("the host function runs" in first) == (seen == "plain")
    assert bool(said.refusal) == (seen == "plain")


def test_the_table_has_calls_of_each_kind() -> None:
    found = set()
    for function, args, kwargs in CALLS.values():
        kernel = tzero.kernel(function)
        for _ in range(3):
            kernel(*args, **kwargs)
        replay = kernel.explain(*args, **kwargs).replay
        found.add(replay and replay.how)
    assert {"natively", "partly in Python", "in Python", None} >= found >= {"natively", None}


def test_what_native_code_cannot_do_is_named() -> None:
    tiers.can_replay(2)
    kernel = tzero.kernel(with_functional)
    for _ in range(3):
        kernel(X)
    said = kernel.explain(X)
    assert said.replay == Replay("partly in Python", "nn.functional.softmax")
    assert "  partly in Python: nn.functional.softmax" in str(said)
    keyed = tzero.kernel(key=lambda x, by: 0)(scaled)
    for _ in range(3):
        keyed(X)
    words = "its key= function must run on each call"
    assert keyed.explain(X).replay == Replay("in Python", words)
    kernel = tzero.kernel(scaled)
    for _ in range(3):
        kernel(X)
    with tzero.events.observe(lambda event: None):
        assert "an observer" in kernel.explain(X).replay.why
    scale_kernel.add_pre_run_hook(hook := lambda *args, **kwargs: None)
    try:
        assert "a hook" in kernel.explain(X).replay.why
    finally:
        scale_kernel.pre_run_hooks.remove(hook)
    assert kernel.explain(X).replay == Replay("natively")


def test_a_call_that_is_not_recorded_yet_is_to_be_recorded(tier: int) -> None:
    kernel = tzero.kernel(scaled)
    assert "miss, to be recorded" in str(kernel.explain(X))
    kernel.bind(X)
    assert "hit, to be recorded" in str(kernel.explain(X))
    kernel(X)
    assert "hit, replayed" in str(kernel.explain(X))


def test_explain_knows_which_call_hit_last(tier: int) -> None:
    kernel, others = tzero.kernel(static_shapes=True)(scaled), [X[:2], X[:3]]
    for x in others:
        for _ in range(3):
            kernel(x)
    kernel(others[0])
    assert kernel.explain(X).since == "argument 'x' has sizes (5,), not (2,)"


def added(x, y):
    return scaled(x), scaled(y)


@pytest.mark.parametrize("static_shapes", [None, True])
def test_explain_names_no_size_of_the_last_hit_that_may_be_wrong(
    tier: int, static_shapes: bool | None
) -> None:
    kernel = tzero.kernel(static_shapes=static_shapes)(added)
    for n in (2, 3, 3, 5):
        for _ in range(2):
            kernel(X[:n], X[:n])
    kernel(X[:2], X[:2])
    since = kernel.explain(X[:4], X[:4].double()).since
    if tier == 2 and static_shapes is None:
        assert kernel.explain(X[:2], X[:2]).since == kernel.explain(X[:4], X[:4]).since == ""
        assert since == "argument 'y' has dtype torch.float64, not torch.float32"
    else:
        assert since == "argument 'x' has sizes (4,), not (2,)"


def test_a_tensor_that_a_global_holds_too_is_not_replayed_and_explained(tier: int) -> None:
    kernel = tzero.kernel(with_global_tensor)
    for _ in range(3):
        kernel(X)
    assert observed(kernel, (BUFFER,), {})[0] == "plain"
    assert "a global or a closure holds too" in kernel.explain(BUFFER).refusal


def test_every_call_is_counted_once(tier: int) -> None:
    kernel = tzero.kernel(scaled)
    for _ in range(3):
        kernel(X)  # one is recorded
    with torch.device("cpu"):
        kernel(X)
    bound = kernel.bind(X)
    bound(X)
    native = 2 if tier == 2 else 0
    expected = Stats(
        calls=5,
        misses=1,
        entries=1,
        evictions=0,
        bound_ahead=0,
        native_replays=native,
        python_replays=3 - native,
        plain_calls=2,
        recordings=1,
    )
    assert kernel.stats() == expected
    assert kernel.stats() == expected  # asking counts for nothing
    assert str(expected).splitlines()[0] == (
        f"5 calls: {native} replayed natively, {3 - native} replayed in Python, "
        "2 plain (1 of them recorded)"
    )


def test_a_call_without_a_key_is_neither_a_hit_nor_a_miss(tier: int) -> None:
    kernel = tzero.kernel(of_option)
    for _ in range(6):
        kernel(X, {1})
    for _ in range(3):
        kernel(X, 1)
    stats = kernel.stats()
    assert (stats.calls, stats.unkeyed, stats.hits, stats.misses) == (9, 6, 2, 1)
    assert "2 hits, 1 miss, 6 without a key" in str(stats)
    assert str(kernel.explain(X, {1})).splitlines() == [
        f"of_option: no key, the host function runs (tier {tier})",
        "  not replayed: argument 'option' is or holds a set",
        "  what to do: pass what the function reads of it; a dataclass of plain values works",
    ]
