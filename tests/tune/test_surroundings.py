"""A candidate is judged by all that it returns and writes to, and a search leaves no traces in
globals, in whatever the tensors are kept."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tzero
from tests.tune.trials import OTHER, RIGHT, Host, tried, trying
from tzero import Config, settings
from tzero.tune.surroundings import LARGEST, Surroundings
from tzero.tune.trial import Trial

X = torch.arange(1.0, 101.0)


class Box:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.whole = self  # objects may refer to themselves


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def closed_over(value: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: value


def linear(value: torch.Tensor) -> torch.nn.Module:
    made = torch.nn.Linear(100, 1)
    made.weight = torch.nn.Parameter(value.reshape(1, 100))
    made.bias = torch.nn.Parameter(torch.zeros(1))
    return made


HOLDERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "an object": Box,
    "an object in a list": lambda value: [3, Box({"a": value})],
    "slots": Slotted,
    "a namespace": lambda value: SimpleNamespace(value=value),
    "a deque": lambda value: deque([value]),
    "a mapping": lambda value: MappingProxyType({"value": value}),
    "a module": linear,
    "a closure": closed_over,
    "a partial": lambda value: functools.partial(torch.add, value),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_results_are_compared_in_whatever_they_are_returned(name: str) -> None:
    def host(x: torch.Tensor, config: Config) -> Any:
        return HOLDERS[name](x * (3 if "wrong" in config else 2))

    made = trying(host, X)
    assert tried(made, OTHER).usable
    found = tried(made, Config(wrong=True))
    assert "3.0" in found.problem and "the reference 2.0; 100 of 100" in found.problem


def test_results_in_an_object_are_kept_before_the_next_call_overwrites_them() -> None:
    def host(x: torch.Tensor, config: Config) -> Box:
        return Box(x.mul_(3 if config == OTHER else 2))

    assert not tried(trying(host, X), OTHER).usable


class Only(Box):
    """There is one object of it."""

    def __copy__(self) -> Only:
        return self


def in_array(buffer: torch.Tensor) -> Any:
    return buffer.numpy()


def in_bytes(buffer: torch.Tensor) -> Any:
    KEPT[:] = buffer.numpy().tobytes()
    return KEPT


KEPT = bytearray()
KEEPERS: dict[str, Callable[[torch.Tensor], Any]] = {
    "an array": in_array,
    "bytes": in_bytes,
    "a closure": closed_over,
    "an object that cannot be copied": lambda buffer: Uncopyable(buffer),
    "an object of which there is one": Only,
}


@pytest.mark.parametrize("name", KEEPERS)
def test_results_are_compared_though_each_call_overwrites_the_last_ones(name: str) -> None:
    buffer = torch.zeros(100)
    keeper = KEEPERS[name](buffer)

    def host(x: torch.Tensor, config: Config) -> Any:
        buffer.copy_(x * (3 if "wrong" in config else 2))
        return in_bytes(buffer) if name == "bytes" else keeper

    made = trying(host, X)
    assert tried(made, OTHER).usable
    assert tried(made, Config(wrong=True)).problem.startswith("its results are wrong: result")


def test_a_candidate_whose_calls_overwrite_the_results_of_earlier_ones_is_out() -> None:
    kept: dict[Config, torch.Tensor] = {}

    def host(x: torch.Tensor, config: Config) -> list[torch.Tensor]:
        out = torch.empty_like(x)
        if "wrong" in config:
            out = kept.setdefault(config, out)
        kept["last"] = out  # type: ignore[index]
        return [torch.mul(x, 2, out=out), x]

    made = trying(host, X)
    assert tried(made, OTHER).usable
    found = tried(made, Config(wrong=True)).problem
    assert found.endswith("a call overwrites the results of the one before")


def test_results_that_share_memory_share_it_in_the_reference() -> None:
    def host(x: torch.Tensor, config: Config) -> list[torch.Tensor]:
        pair = torch.cat([x, x]) if "joined" in config else x * 1
        if "joined" in config:
            return [*pair.chunk(2), pair[:50]]
        return [pair, pair if "wrong" in config else pair.clone(), pair[:50]]

    made = trying(host, X)
    assert tried(made, Config(joined=True)).usable
    words = "result[1] shares memory with result[0], and in the reference with no other result"
    assert words in tried(made, Config(wrong=True)).problem


def test_random_numbers_of_numpy_are_the_same_for_each_config_and_then_restored() -> None:
    np.random.seed(7)
    expected = np.random.rand()
    np.random.seed(7)
    made = trying(lambda x, config: x + np.random.rand(), X)
    assert tried(made, OTHER).usable
    assert np.random.rand() == expected


# -- memory that is not fresh ---------------------------------------------------------------------


def double_into(out: torch.Tensor, x: torch.Tensor, config: Config) -> None:
    count = 50 if "wrong" in config else 100
    torch.mul(x[:count], 2, out=out[:count])


PLACES: dict[str, Callable[[torch.Tensor, torch.Tensor, Config], Any]] = {
    "is passed in": lambda x, out, config: double_into(out, x, config),
    "is passed in and returned": lambda x, out, config: (double_into(out, x, config), out)[1],
}


@pytest.mark.parametrize("name", PLACES)
def test_an_output_that_is_right_already_does_not_hide_what_is_unwritten(name: str) -> None:
    out = X * 2
    made = trying(PLACES[name], X, out)
    assert tried(made, OTHER).usable
    assert "unwritten memory" in tried(made, Config(wrong=True)).problem
    assert torch.equal(out, X * 2)


def test_a_sum_in_a_passed_tensor_is_not_an_output() -> None:
    def host(x: torch.Tensor, total: torch.Tensor, config: Config) -> None:
        total.add_(x * (2 if "wrong" in config else 1))

    made = trying(host, X, torch.ones(100))
    assert tried(made, OTHER).usable
    assert not tried(made, Config(wrong=True)).usable


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("how", ["passed", "global"])
def test_integers_that_are_right_already_do_not_hide_what_is_unwritten(
    how: str, dtype: torch.dtype
) -> None:
    x = torch.arange(100) % 2
    x, out = x.to(dtype), x.to(dtype)
    state = around(out) if how == "global" else around()

    def host(x: torch.Tensor, given: torch.Tensor, config: Config) -> None:
        target = out if how == "global" else given
        count = 50 if "wrong" in config else 100
        target[:count] = x[:count]

    given = (x, x.clone())
    call = functools.partial
    made = Trial(lambda config: call(host, config=config), given, X.device, RIGHT, around=state)
    assert made.outcome(OTHER, budget=0.01, best=None).usable
    assert "elements differ" in made.outcome(Config(wrong=True), budget=0.01, best=None).problem
    state.restore()
    assert torch.equal(out, x)


@pytest.mark.parametrize("name", ["a closure", "a partial"])
def test_an_argument_may_be_returned_in_a_function(name: str) -> None:
    def host(x: torch.Tensor, config: Config) -> Any:
        return HOLDERS[name](x.mul_(3 if "wrong" in config else 2))

    made = trying(host, X)
    assert tried(made, OTHER).usable
    assert not tried(made, Config(wrong=True)).usable


def test_integers_that_may_be_indices_are_filled_with_zero_only() -> None:
    seen: list[int] = []

    def host(x: torch.Tensor, at: torch.Tensor, out: torch.Tensor, config: Config) -> None:
        seen.append(int(at.max()))
        out.copy_(x[at])

    made = trying(host, X, torch.arange(100), X.clone())
    assert tried(made, OTHER).usable
    assert set(seen) <= {0, 99}


def around(*tensors: torch.Tensor) -> Surroundings:
    return Surroundings(lambda: tensors)


def trying_around(host: Host, state: Surroundings) -> Trial:
    return Trial(lambda config: lambda x: host(x, config), (X,), X.device, RIGHT, around=state)


def test_a_kept_output_does_not_hide_what_is_unwritten() -> None:
    kept = torch.zeros(100)

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        double_into(kept, x, config)
        return kept

    state = around(kept)
    made = trying_around(host, state)
    assert made.outcome(OTHER, budget=0.01, best=None).usable
    found = made.outcome(Config(wrong=True), budget=0.01, best=None)
    assert "unwritten memory" in found.problem
    state.restore()
    assert not kept.any()


@pytest.mark.parametrize("first", [0.0, 2.0], ids=["is wrong before", "is right already"])
def test_a_global_that_is_the_only_output_is_compared(first: float) -> None:
    kept, weights = X * first, torch.full((100,), 2.0)

    def host(x: torch.Tensor, config: Config) -> None:
        double_into(kept, x * weights / 2, config)
        if "off" in config:
            kept[7] += 1

    state = around(kept, weights)
    made = trying_around(host, state)
    assert made.outcome(OTHER, budget=0.01, best=None).usable
    assert "unwritten memory" in made.outcome(Config(wrong=True), budget=0.01, best=None).problem
    assert "1 of 100" in made.outcome(Config(off=True), budget=0.01, best=None).problem
    state.restore()
    assert torch.equal(kept, X * first)
    assert weights.eq(2).all()


@pytest.mark.parametrize("first", [0.0, 2.0], ids=["is wrong before", "is right already"])
def test_globals_that_are_only_read_are_never_written_to(first: float) -> None:
    weights = torch.full((100,), 2.0)
    seen: set[float] = set()

    def host(x: torch.Tensor, out: torch.Tensor, config: Config) -> None:
        seen.update(weights.tolist())
        torch.mul(x, weights, out=out)

    state, out = around(weights), X * first
    made = Trial(
        lambda config: functools.partial(host, config=config),
        (X, out),
        X.device,
        RIGHT,
        around=state,
    )
    assert made.outcome(OTHER, budget=0.01, best=None).usable
    assert weights.eq(2).all()
    assert seen == {2.0}


def test_a_candidate_that_writes_to_another_global_is_out() -> None:
    other = torch.zeros(3)

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        if "wrong" in config:
            other.fill_(1)
        return x * 2

    made = trying_around(host, around(other))
    assert made.outcome(OTHER, budget=0.01, best=None).usable
    found = made.outcome(Config(wrong=True), budget=0.01, best=None)
    assert found.problem.endswith("it writes to a global tensor, and the reference does not")


def test_a_result_in_the_memory_of_an_argument_is_another_result() -> None:
    made = trying(lambda x, config: x if "wrong" in config else x.clone(), X)
    assert tried(made, OTHER).usable
    words = "result shares memory with args[0], and in the reference with no argument"
    assert words in tried(made, Config(wrong=True)).problem


# -- what a search leaves -------------------------------------------------------------------------

TOTAL = torch.zeros(100)


def count(x: torch.Tensor, config: Config) -> torch.Tensor:
    TOTAL.add_(x)
    return x * 2


@pytest.mark.usefixtures("own_memory")
@pytest.mark.parametrize("isolate", [False, True])
def test_a_search_leaves_globals_as_they_were(isolate: bool) -> None:
    TOTAL.fill_(5)
    kernel = tzero.kernel(configs=[RIGHT, OTHER])(count)
    kernel.autotune(X, isolate=isolate)
    assert TOTAL.eq(5).all()
    with settings.override(tune_isolate=isolate):
        assert torch.equal(kernel(X), X * 2)
    assert torch.equal(TOTAL, 5 + X)


class Uncopyable(Box):
    def __copy__(self) -> Any:
        raise TypeError("it cannot be copied")


def test_objects_around_a_function_are_not_copied() -> None:
    weights = torch.zeros(3)
    state = Surroundings(lambda: [Uncopyable(weights)])
    state.save()
    assert len(state.tensors) == 1


def test_a_result_that_cannot_be_copied_is_compared() -> None:
    made = trying(lambda x, config: Uncopyable(x * (3 if config == OTHER else 2)), X)
    assert "the reference 2.0" in tried(made, OTHER).problem


def test_what_another_thread_changes_between_calls_stays() -> None:
    weights = torch.zeros(3)
    state = around(weights)
    state.save()
    weights.fill_(1)
    with state.watched() as changed:
        pass
    assert changed == []
    state.restore()
    assert weights.eq(1).all()


def test_large_tensors_are_not_saved() -> None:
    large = torch.zeros(LARGEST // 4 + 1)
    state = around(large, large.to_sparse())
    state.save()
    assert not state.tensors
