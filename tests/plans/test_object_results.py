# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call,no-any-return,misc"
"""Results of a step that are objects: each call makes one anew, or the function runs as written."""

from __future__ import annotations

import collections
import dataclasses
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.plans.caches import Cache, kernel
from tests.plans.tiers import verifying
from tests.steps import stand_in
from tzero.launches.tiers import tier

pytestmark = pytest.mark.skipif(tier() < 2, reason="steps are replayed by native code")


@pytest.fixture(autouse=True)
def stand(monkeypatch: pytest.MonkeyPatch) -> Any:
    with torch.no_grad():
        yield stand_in(monkeypatch)


class Output(collections.OrderedDict[str, Any]):
    """Its items are its attributes, too."""

    def __init__(self, **items: Any) -> None:
        super().__init__()
        for name, value in items.items():
            self[name] = value
            self.__dict__[name] = value


@dataclasses.dataclass
class Pair:
    logits: Tensor
    rest: Any = None


class Table(dict[str, Any]):
    pass


def table(x: Tensor, cache: Any) -> Table:
    made = Table()
    made["logits"], made["cache"] = x, cache
    return made


class Named:
    def __init__(self, logits: Tensor, rest: Any) -> None:
        self.logits, self.rest = logits, rest


RESULTS: dict[str, Callable[[Tensor, Any], Any]] = {
    "a dict with attributes": lambda x, cache: Output(logits=x, cache=cache, parts=(x, [x])),
    "a dataclass": lambda x, cache: Pair(x, {"cache": cache, "n": 3}),
    "objects in objects": lambda x, cache: Pair(x, Output(inner=Pair(x * 2, None))),
    "a class of dicts": table,
    "a list of objects": lambda x, cache: [Named(x, 1), Named(x + 1, cache)],
    "the argument": lambda x, cache: cache,
    "the argument twice": lambda x, cache: (cache, x, cache),
    "no attributes": lambda x, cache: (Table(), x),
}


def described(value: Any, known: dict[int, int]) -> Any:
    """What a value is and holds, with tensors as numbers, and which parts are the same object."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    if isinstance(value, Cache):
        return id(value)
    place = known.setdefault(id(value), len(known))
    if isinstance(value, Tensor):
        return place, value.tolist()
    parts: list[Any] = [type(value), place]
    if isinstance(value, (list, tuple)):
        parts += [described(each, known) for each in value]
    if isinstance(value, dict):
        parts += [(key, described(each, known)) for key, each in value.items()]
    own = getattr(value, "__dict__", {})
    return parts + [(key, described(each, known)) for key, each in own.items()]


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_of_its_class_and_holds_the_same(name: str) -> None:
    def made(x: Tensor, cache: Cache) -> Any:
        return RESULTS[name](x * cache.shift, cache)

    taken, cache, kept = kernel(made), Cache(), []
    for k in range(6):
        x = torch.full((2,), float(k))
        kept.append(taken(x, cache))
        assert described(kept[-1], {}) == described(made(x, cache), {})
    assert verifying() or taken.stats().native_replays == 4, taken.explain(x, cache).refusal
    if name != "the argument":
        assert len({id(each) for each in kept}) == len(kept)


class Fixed:
    __slots__ = ("logits",)

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


class Registered:
    def __init__(self, logits: Tensor) -> None:
        self.logits = logits
        SEEN.append(weakref.ref(self))


SEEN: list[Any] = []


class Items(list[Any]):
    pass


def locally(x: Tensor, cache: Cache) -> Any:
    kind = type("Local", (), {})
    made = kind()
    made.logits = x
    return made


def twice(x: Tensor, cache: Cache) -> Any:
    made = Named(x, 1)
    return [made, made]


REFUSED: dict[str, Callable[[Tensor, Any], Any]] = {
    "slots": lambda x, cache: Fixed(x),
    "registered": lambda x, cache: Registered(x),
    "a list": lambda x, cache: Items([x]),
    "a class of the call": locally,
    "an object twice": twice,
    "a part of an argument": lambda x, cache: [x, cache.layers[0]],
    "a container of an argument": lambda x, cache: Named(x, cache.layers),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_result_that_cannot_be_made_anew_is_the_function_s_own(name: str) -> None:
    def made(x: Tensor, cache: Cache) -> Any:
        return REFUSED[name](x * cache.shift, cache)

    taken, cache = kernel(made), Cache()
    before = len(SEEN)
    found = [taken(torch.ones(2), cache) for _ in range(6)]
    assert taken.stats().native_replays == 0
    assert taken.explain(torch.ones(2), cache).refusal
    assert len(SEEN) - before == (6 if name == "registered" else 0)
    assert name != "a class of the call" or len({type(each) for each in found}) == 6
