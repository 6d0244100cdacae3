"""Host functions with ``*rest`` and ``**more`` are called natively, whatever these take."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import tzero
from tests.calls.test_fallback import frames_of_tzero
from tests.plans.hosts import scaled

pytestmark = pytest.mark.usefixtures("native_calls")


def rest(x, *rest):
    return scaled(x, 1.0 + sum((k + 1) * each for k, each in enumerate(rest)))


def more(x, **more):
    return scaled(x, 1.0 + sum(len(name) * each for name, each in more.items()))


def both(x, by=2.0, *rest, also=3.0, **more):
    total = sum(rest) + 10 * sum(more.values())
    return scaled(x, by + 100 * also + total)


def all_of_it(*args, **named):
    return scaled(args[0], float(len(args)) + sum(named.values()))


def only_by_position(x, by, /, **more):
    return scaled(x, by + more.get("by", 0.0))


def values(x, *rest):
    return float(scaled(x, 1.0 + len(rest)).sum())  # after the launch, so that it is a fallback


CALLS: dict[str, tuple[Callable[..., Any], list[tuple[tuple[Any, ...], dict[str, Any]]]]] = {
    "rest": (rest, [((), {}), ((1,), {}), ((1, 2), {}), ((2, 1), {}), ((1.0, 2), {})]),
    "more": (more, [((), {}), ((), {"a": 1}), ((), {"a": 2}), ((), {"bb": 1}), ((), {"*rest": 1})]),
    "both": (
        both,
        [
            *(((), {}), ((1.0,), {}), ((1.0, 2.0), {}), ((1.0, 2.0, 5.0), {"also": 1.0})),
            *(((), {"by": 4.0, "c": 1.0}), ((1.0, 2.0), {"c": 1.0, "also": 2.0, "d": 3.0})),
        ],
    ),
    "all of it": (all_of_it, [((), {}), ((1,), {}), ((1, 2), {"a": 4}), ((), {"self": 1})]),
    "by position": (only_by_position, [((1.0,), {}), ((1.0,), {"by": 3.0}), ((2.0,), {"c": 1})]),
    "fallback": (values, [((), {}), ((1,), {}), ((1, 2), {})]),
}


@pytest.mark.parametrize("name", CALLS)
def test_variadic_calls_are_right_and_enter_no_python_of_tzeros(name: str) -> None:
    host, calls = CALLS[name]
    kernel, x = tzero.kernel(host), torch.arange(4.0)
    for turn in range(4):
        for args, named in calls:
            found, expected = kernel(x, *args, **named), host(x, *args, **named)
            assert torch.equal(torch.as_tensor(found), torch.as_tensor(expected)), (args, named)
            if turn == 3:
                assert frames_of_tzero(lambda a=args, n=named: kernel(x, *a, **n)) == []


def test_tensors_in_rest_are_each_calls_own() -> None:
    def host(*rest, **more):
        return scaled(rest[1], 2.0), scaled(more["y"], 3.0)

    kernel = tzero.kernel(host)
    for k in range(4):
        x, y = torch.arange(4.0) + k, torch.arange(6.0) - k
        ours, theirs = kernel(1, x, y=y), host(1, x, y=y)
        assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_what_is_missing_or_too_much_raises_as_without_tzero() -> None:
    def host(x, *, by, **more):
        return scaled(x, by)

    kernel, x = tzero.kernel(host), torch.arange(4.0)
    for _ in range(3):
        with pytest.raises(TypeError):
            kernel(x)
        with pytest.raises(TypeError):
            kernel(x, 2.0, by=3.0)
        assert torch.equal(kernel(x, by=3.0, c=1), x * 3)


def test_a_variadic_call_keeps_nothing_alive() -> None:
    kernel = tzero.kernel(rest)
    x = torch.arange(4.0)
    for _ in range(4):
        kernel(x, 1, 2)
    seen = weakref.ref(x)
    del x
    gc.collect()
    assert seen() is None
