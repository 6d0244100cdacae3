# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call,no-any-return,misc"
"""Objects among the arguments of a step, such as a cache: they count by identity, and what is
read of them is guarded."""

from __future__ import annotations

import abc
import argparse
import collections
import copy
import dataclasses
import gc
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tzero
from tests.plans.caches import Cache, Layer, Steps, kernel
from tests.plans.tiers import verifying
from tests.steps import stand_in
from tzero import settings
from tzero.launches.tiers import tier
from tzero.plans import describe
from tzero.reading import guards

pytestmark = pytest.mark.skipif(tier() < 2, reason="steps are replayed by native code")


@pytest.fixture(autouse=True)
def stand(monkeypatch: pytest.MonkeyPatch) -> Any:
    with torch.no_grad():
        yield stand_in(monkeypatch)


def test_a_step_with_a_cache_is_replayed_from_the_third_call_on(stand: Any) -> None:
    steps = Steps()
    steps.make(5)
    assert steps.kernel.stats().recordings == 1
    assert verifying() or stand.count == 3


def test_a_call_that_is_not_repeated_says_why_it_is_not_recorded() -> None:
    steps = Steps()
    with tzero.events.observe((seen := []).append):
        steps.make(1)
    assert "recorded when it is repeated" in " ".join(map(str, seen))


# -- what changes between two calls ----------------------------------------------------------------


Change = Callable[[Any, pytest.MonkeyPatch], object]
CHANGES: dict[str, Change] = {}


def change(function: Change) -> Change:
    CHANGES[function.__name__] = function
    return function


@change
def tensor_in_place(cache: Any, patch: Any) -> None:
    cache.layers[0].keys.add_(1)


@change
def tensor_replaced(cache: Any, patch: Any) -> None:
    cache.layers[1].keys = cache.layers[1].keys * 2


@change
def tensor_of_another_size(cache: Any, patch: Any) -> None:
    cache.layers[0].keys = torch.ones(8, 6)[:, :4]


@change
def tensor_resized(cache: Any, patch: Any) -> None:
    cache.layers[0].keys.resize_(16, 4)[8:] = 0


@change
def tensor_moved(cache: Any, patch: Any) -> None:
    cache.layers[0].keys.data = cache.layers[0].keys.data * 3


@change
def number_replaced(cache: Any, patch: Any) -> None:
    cache.shift = 7.25


@change
def number_of_a_part_replaced(cache: Any, patch: Any) -> None:
    cache.layers[1].scale = -1.0


@change
def attribute_of_the_class_hidden(cache: Any, patch: Any) -> None:
    cache.factor = -2.0


@change
def attribute_of_the_class_replaced(cache: Any, patch: Any) -> None:
    patch.setattr(Cache, "factor", 11.0)


@change
def method_hidden(cache: Any, patch: Any) -> None:
    cache.summed = lambda x, at: x * 17


@change
def method_replaced(cache: Any, patch: Any) -> None:
    patch.setattr(Layer, "update", lambda self, x, at: self.keys * 2)


@change
def layer_replaced(cache: Any, patch: Any) -> None:
    cache.layers[0] = copy.deepcopy(cache.layers[0])
    cache.layers[0].keys += 1


@change
def layer_removed(cache: Any, patch: Any) -> None:
    del cache.layers[0]


@change
def layers_swapped(cache: Any, patch: Any) -> None:
    cache.layers.reverse()


@change
def layers_replaced(cache: Any, patch: Any) -> None:
    cache.layers = copy.deepcopy(cache.layers[:1])


@change
def dict_replaced(cache: Any, patch: Any) -> None:
    cache.__dict__ = {**vars(cache), "shift": -4.0}


class Doubled(Cache):
    def summed(self, x: Tensor, at: Tensor) -> Tensor:
        return super().summed(x, at) * 2


@change
def class_replaced(cache: Any, patch: Any) -> None:
    cache.__class__ = Doubled


@change
def getattr_added(cache: Any, patch: Any) -> None:
    patch.setattr(Cache, "__getattr__", lambda self, name: 5.0, raising=False)
    if "factor" in vars(Cache):
        patch.delattr(Cache, "factor")


def _halved(self: Any, name: str) -> Any:
    found = object.__getattribute__(self, name)
    return found / 2 if name == "shift" else found


@change
def getattribute_added(cache: Any, patch: Any) -> None:
    patch.setattr(Cache, "__getattribute__", _halved, raising=False)


@change
def property_added(cache: Any, patch: Any) -> None:
    patch.setattr(Cache, "shift", property(lambda self: 9.0), raising=False)


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_an_object_is_seen(name: str, at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with settings.override(tier=at):
        steps = Steps()
        steps.make(5)
        assert verifying() or steps.kernel.stats().python_replays == (3 if at == 1 else 0)
        for cache in steps.caches:
            CHANGES[name](cache, monkeypatch)
        steps.make(5)


def test_a_changed_object_is_recorded_in_the_next_call() -> None:
    caches, taken = (Cache(), Cache()), kernel(lambda x, n, cache: x * n * cache.shift)
    for k in range(6):
        if k == 4:
            caches[0].shift = caches[1].shift = 2.5
        x = torch.randn(1, 4)
        assert torch.equal(taken(x, 3, caches[1]), x * 3 * caches[0].shift)
        assert verifying() or taken.stats().recordings == (0 if k == 0 else 1 if k < 4 else 2)


def test_another_object_has_another_plan() -> None:
    steps = Steps()
    steps.replays()
    steps.caches = Cache(), Cache()
    for cache in steps.caches:
        cache.shift = -8.0
    steps.replays()
    assert steps.kernel.stats().recordings == 2


def test_objects_take_turns_without_recording_again() -> None:
    steps, others = Steps(), (Cache(3), Cache(3))
    every = [steps.caches, others]
    for caches in every * 4:
        steps.caches = caches
        steps.make(2)
    assert verifying() or steps.kernel.stats().recordings == 2


def test_another_object_at_the_address_of_one_that_is_gone_has_no_plan_of_it() -> None:
    steps = Steps()
    for shift in range(5):
        steps.caches[0].shift = steps.caches[1].shift = float(shift)
        steps.replays()
        plain, address = steps.caches[0], id(steps.caches[1])
        steps.caches = plain, None
        others = []
        while id(made := Cache.__new__(Cache)) != address:
            others.append(made)
            assert len(others) < 10_000
        made.__init__()
        for one, other in zip(made.layers, plain.layers, strict=True):
            one.keys = other.keys.clone()
        steps.caches = plain, made


def test_an_object_that_comes_back_to_life_is_right() -> None:
    kept: list[Any] = []

    class Returning(Cache):
        def __del__(self) -> None:
            kept.append(self)

    steps = Steps(Returning)
    steps.replays()
    shift = steps.caches[0].shift
    steps.caches = Cache(), Cache()
    gc.collect()
    assert len(kept) == 2
    for cache in kept:
        cache.shift = shift + 1
    steps.caches = kept[0], kept[1]
    kept[0].layers = copy.deepcopy(kept[1].layers)
    steps.make(5)
    kept.clear()


def test_two_objects_are_told_apart() -> None:
    def both(x: Tensor, at: Tensor, one: Cache, other: Cache) -> Tensor:
        return one.summed(x, at) - other.shift + (100 if one is other else 0)

    taken = kernel(both)
    first, second = Cache(), Cache()
    second.shift = 5.0
    x, at = torch.ones(1, 4), torch.tensor([0])
    for one, other in [(first, second), (second, first), (first, first)] * 4:
        expected = both(x, at, copy.deepcopy(one), other) + (100 if one is other else 0)
        assert torch.equal(taken(x, at, one, other), expected)


def held_in_python(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guards.Held, "holds", lambda self: True)


def held_natively(patch: pytest.MonkeyPatch) -> None:
    described = describe._Describer._guard

    def describing(self: Any, guard: Any) -> Any:
        held = isinstance(guard, guards.Held)
        return described(self, guards.Absent(guard.text, {}, "nothing") if held else guard)

    patch.setattr(describe._Describer, "_guard", describing)


@pytest.mark.parametrize(
    ("name", "at", "mutate"),
    [
        ("dict_replaced", 1, held_in_python),  # the key has the class there
        ("dict_replaced", 2, held_natively),
        ("class_replaced", 2, held_natively),
    ],
)
def test_a_step_goes_wrong_without_the_guard_on_its_object(
    name: str, at: int, mutate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if verifying():
        pytest.skip("verify mode does not need guards")

    def run() -> None:
        with settings.override(tier=at):
            steps = Steps()
            steps.make(4)
            for cache in steps.caches:
                CHANGES[name](cache, monkeypatch)
            steps.make(2)
            assert steps.kernel.tier == at

    run()
    mutate(monkeypatch)
    with pytest.raises(AssertionError):
        run()


# -- classes of objects ----------------------------------------------------------------------------


class Lying(Cache):
    """Equal to everything, with one hash for all."""

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class Raising(Cache):
    def __eq__(self, other: object) -> bool:
        raise AssertionError("it was compared")

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass
class Data:
    layers: list[Layer] = dataclasses.field(default_factory=lambda: [Layer()])
    shift: float = 1.0

    def summed(self, x: Tensor, at: Tensor) -> Tensor:
        return self.layers[0].update(x, at).sum(0, keepdim=True) + self.shift


class Abstract(abc.ABC):
    @abc.abstractmethod
    def summed(self, x: Tensor, at: Tensor) -> Tensor: ...


class Concrete(Abstract, Cache):  # type: ignore[misc]
    summed = Cache.summed


class Slotted:
    __slots__ = ("__weakref__", "layers", "shift")

    def __init__(self) -> None:
        self.layers, self.shift = [Layer()], 1.0

    summed = Data.summed


class Delegating:
    def __init__(self) -> None:
        self.inner = Cache()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Observing(Cache):
    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        return found + 1 if name == "shift" else found


class Computing(Cache):
    @property
    def factor(self) -> float:  # type: ignore[override]
        return self.shift * 2


class Module(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers, self.shift = [Layer()], 1.0

    summed = Data.summed


class Typed(Cache):
    """It pretends to be a list."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        return list


KINDS = [Lying, Raising, Data, Concrete, Slotted, Delegating, Observing, Computing, Module]


@pytest.mark.parametrize("kind", [*KINDS, Typed], ids=lambda each: each.__name__)
def test_objects_of_many_classes_are_right(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = Steps(kind)
    steps.make(5)
    for cache in steps.caches:
        cache.shift = 6.5
    steps.make(4)
    for cache in steps.caches:
        cache.layers[0].keys = cache.layers[0].keys * 2
    steps.make(4)


@pytest.mark.parametrize("kind", KINDS, ids=lambda each: each.__name__)
def test_objects_of_these_classes_are_replayed(kind: Any) -> None:
    Steps(kind).replays()


def test_modules_of_torch_are_objects_too() -> None:
    def through(x: Tensor, module: nn.Module) -> Tensor:
        return module(x) * 2

    module, taken = nn.Linear(4, 4), kernel(through)
    for k in range(8):
        if k == 5:
            module.weight = nn.Parameter(module.weight * 3)
        x = torch.randn(1, 4)
        assert torch.equal(taken(x, module), through(x, module))
    assert verifying() or taken.stats().native_replays == 5


@pytest.mark.parametrize(
    ("hold", "take"),
    [
        (lambda cache: [cache], lambda held: held[0]),
        (lambda cache: (1, cache), lambda held: held[1]),
        (lambda cache: {"cache": cache}, lambda held: held["cache"]),
    ],
)
def test_objects_in_containers_are_objects(hold: Any, take: Any) -> None:
    caches, taken = (Cache(), Cache()), kernel(lambda x, at, held: take(held).summed(x, at))
    for k in range(8):
        if k == 5:
            caches[0].shift = caches[1].shift = 33.0
        x, at = torch.randn(1, 4), torch.tensor([k])
        assert torch.equal(taken(x, at, hold(caches[1])), caches[0].summed(x, at))
    assert verifying() or taken.stats().native_replays == 5


def test_objects_given_by_name_are_objects() -> None:
    caches, taken = (
        (Cache(), Cache()),
        kernel(lambda x, **rest: rest["cache"].summed(x, rest["at"])),
    )
    for k in range(6):
        x, at = torch.randn(1, 4), torch.tensor([k])
        assert torch.equal(taken(x, cache=caches[1], at=at), caches[0].summed(x, at))
    assert verifying() or taken.stats().native_replays == 4


# -- what is refused -------------------------------------------------------------------------------


def counting(x: Tensor, at: Tensor, cache: Any) -> Tensor:
    cache.seen = getattr(cache, "seen", 0) + 1
    return cache.summed(x, at) * cache.seen


def growing(x: Tensor, at: Tensor, cache: Any) -> Tensor:
    cache.layers[0].keys = torch.cat([cache.layers[0].keys, x])
    return cache.layers[0].keys.sum(0, keepdim=True)


def noting(x: Tensor, at: Tensor, cache: Any) -> Tensor:
    cache.layers[0].notes.append(1)
    return x * len(cache.layers[0].notes)


def noted() -> Cache:
    made = Cache()
    made.layers[0].notes = []  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    ("make", "function", "reason"),
    [
        (Cache, counting, "it assigns the attribute 'seen'"),
        (Cache, growing, "it assigns the attribute 'keys'"),
        (noted, noting, "which may change it"),
    ],
)
def test_what_a_call_changes_of_an_object_is_changed(make: Any, function: Any, reason: str) -> None:
    steps = Steps(make, function)
    steps.make(6)
    assert reason in steps.why()
    assert vars(steps.caches[0]).get("seen") == vars(steps.caches[1]).get("seen")


class Bare:
    __slots__ = ("layers", "shift")

    def __init__(self) -> None:
        self.layers, self.shift = [Layer()], 1.0

    summed = Data.summed


def namespace() -> Any:
    made = argparse.Namespace(layers=[Layer()], shift=1.0)
    made.summed = types.MethodType(Data.summed, made)
    return made


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Bare, "argument 'cache' is or holds a"),
        (namespace, "argument 'cache' is a Namespace, which plans do not support"),
        (lambda: collections.UserDict(a=1), "which plans do not support"),
        (lambda: types.SimpleNamespace(), "argument 'cache' is or holds a"),
    ],
)
def test_other_objects_are_refused_with_a_reason(make: Any, reason: str) -> None:
    def used(x: Tensor, at: Tensor, cache: Any) -> Tensor:
        return cache.summed(x, at) if hasattr(cache, "summed") else x * 2

    taken, one, other = kernel(used), make(), make()
    for k in range(6):
        x, at = torch.randn(1, 4), torch.tensor([k])
        assert torch.equal(taken(x, at, one), used(x, at, other))
    assert reason in taken.explain(x, at, one).refusal


def test_a_tensor_that_is_an_argument_and_in_an_object_is_refused() -> None:
    def added(x: Tensor, cache: Cache) -> Tensor:
        cache.layers[0].keys.add_(1)
        return x + cache.layers[0].keys

    cache, taken = Cache(), kernel(added)
    x = torch.zeros(8, 4)
    for _ in range(4):
        taken(x, cache)
    before = cache.layers[0].keys.clone()
    assert torch.equal(taken(cache.layers[0].keys, cache), 2 * (before + 1))
