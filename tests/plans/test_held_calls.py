# mypy: allow-untyped-defs
"""Torch functions in plans: changed results, versions, containers, interruptions."""

from __future__ import annotations

import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

import tzero
from tests.plans.hosts import scaled
from tests.plans.tiers import of_tier

# -- results that differ from the recorded ones ---------------------------------------------------

NOW: dict[str, Any] = {"do": torch.clone}
_library = torch.library.Library("tzero_held", "DEF")
_library.define("other(Tensor x) -> Tensor")
_library.define("pair(Tensor x) -> (Tensor, Tensor)")
_library.define("count(Tensor x) -> (Tensor, int)")


def _other(x):
    return NOW["do"](x)


_library.impl("other", _other, "CPU")
_library.impl("pair", _other, "CPU")
_library.impl("count", _other, "CPU")
# Fake kernels, right or wrong.
_like = torch.empty_like
torch.library.register_fake("tzero_held::other", _like, lib=_library)
torch.library.register_fake("tzero_held::pair", lambda x: (_like(x), _like(x)), lib=_library)
torch.library.register_fake("tzero_held::count", lambda x: (_like(x), 2), lib=_library)


@pytest.fixture(autouse=True)
def as_ever() -> Iterator[None]:
    yield
    NOW["do"] = torch.clone


def by_an_operator(x):
    return scaled(torch.ops.tzero_held.other(x), 2.0)


def by_its_result_alone(x):
    return scaled(x, 2.0), torch.ops.tzero_held.other(x)


OTHERWISE = {
    "another dtype": lambda x: x.double(),
    "another size": lambda x: x[1:].clone(),
    "other strides": lambda x: x.repeat_interleave(2)[::2],
    "its argument": lambda x: x,
}


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("host", [by_an_operator, by_its_result_alone])
@pytest.mark.parametrize("how", OTHERWISE)
def test_an_operator_that_returns_something_else_is_an_error(
    how: str, host: Any, tier: int
) -> None:
    kernel, x = of_tier(tier, host), torch.arange(4.0)
    for _ in range(3):
        kernel(x)
    NOW["do"] = OTHERWISE[how]
    with pytest.raises(tzero.PlanDrift, match=r"the result of .*other.* is not what the plan has"):
        kernel(x)
    # The plan has ended: the host function runs and is recorded again.
    for _ in range(3):
        found, expected = kernel(x), host(x)
        assert repr(found) == repr(expected)


def by_two(x):
    one, other = torch.ops.tzero_held.pair(x)
    return scaled(one, 2.0), other


@pytest.mark.usefixtures("replaying")
def test_an_operator_that_returns_one_tensor_twice_is_an_error(tier: int) -> None:
    kernel, x = of_tier(tier, by_two), torch.arange(4.0)
    NOW["do"] = lambda x: (x.clone(), x.clone())
    for _ in range(3):
        kernel(x)
    NOW["do"] = lambda x: (x.clone(),) * 2
    with pytest.raises(tzero.PlanDrift, match="pair"):
        kernel(x)


def by_a_count(x):
    one, count = torch.ops.tzero_held.count(x)
    return scaled(one, float(count))


@pytest.mark.usefixtures("replaying")
def test_a_number_returned_beside_a_tensor_must_not_change(tier: int) -> None:
    kernel, x = of_tier(tier, by_a_count), torch.arange(4.0)
    NOW["do"] = lambda x: (x.clone(), 2)
    for _ in range(3):
        assert kernel(x).tolist() == [0.0, 2.0, 4.0, 6.0]
    NOW["do"] = lambda x: (x.clone(), 3)
    with pytest.raises(tzero.PlanDrift, match="count"):
        kernel(x)


_library.define("above(Tensor x) -> Tensor")
_library.impl("above", lambda x: x[x > 0].clone(), "CPU")


@torch.library.register_fake("tzero_held::above", lib=_library)
def _above(x):
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


def by_what_is_above(x):
    return scaled(torch.ops.tzero_held.above(x), 2.0)


def test_an_operator_whose_output_size_depends_on_values_is_no_step(pair: Any) -> None:
    found = pair(by_what_is_above)
    values = iter([torch.tensor([1.0, -1.0]), torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 0.0])])
    found.refuses(lambda: (next(values),), "depends on values")


_library.define("silent(Tensor x) -> Tensor")
_library.impl("silent", lambda x: x[x > 0].clone(), "CPU")


def by_one_that_says_nothing(x):
    return scaled(torch.ops.tzero_held.silent(x), 2.0)


def test_an_operator_without_a_fake_kernel_is_no_step(pair: Any) -> None:
    found = pair(by_one_that_says_nothing)
    values = iter([torch.tensor([1.0, -1.0]), torch.tensor([1.0, 2.0]), torch.tensor([-1.0, 0.0])])
    found.refuses(lambda: (next(values),), "register a fake kernel")


_library.define("as_large(Tensor x) -> Tensor")
_library.impl("as_large", torch.clone, "CPU")
torch.library.register_fake("tzero_held::as_large", torch.empty_like, lib=_library)


def by_one_that_is_as_large(x):
    return scaled(torch.ops.tzero_held.as_large(x), 2.0)


def test_an_operator_whose_output_size_depends_on_its_arguments_is_a_step(pair: Any) -> None:
    pair(by_one_that_is_as_large).replays(lambda: (torch.ones(3),))


# -- versions -------------------------------------------------------------------------------------


def zeros(x):
    return scaled(x, 2.0), torch.zeros(3)


def large_zeros(x):
    return scaled(x, 2.0), torch.zeros(1 << 19)


def full_between_functions(x):
    y = x + 1
    return scaled(y, 2.0), torch.full((3,), 2.5), y.sum()


def filled(x):
    return scaled(x, 2.0), torch.empty(3).fill_(2.0)


def filled_twice(x):
    out = torch.zeros(3)
    out.fill_(1.0)
    return scaled(x, 2.0), out.zero_()


def large_filled(x):
    return scaled(x, 2.0), torch.empty(1 << 19).zero_()


def filled_without_elements(x):
    return scaled(x, 2.0), torch.empty(0).zero_()


def filled_without_gradients(x):
    out = torch.empty(3)
    with torch.no_grad():
        out.zero_()
    return scaled(x, 2.0), out


FILLING = [
    zeros,
    large_zeros,
    full_between_functions,
    filled,
    filled_twice,
    large_filled,
    filled_without_elements,
    filled_without_gradients,
]


@pytest.mark.parametrize("pool", [False, True])
@pytest.mark.parametrize("host", FILLING)
def test_the_version_of_a_result_is_what_the_host_function_leaves(
    host: Any, pool: bool, tier: int
) -> None:
    kernel, x = of_tier(tier, host, pool=pool), torch.ones(3)
    expected = host(x)
    for _ in range(8):
        found = kernel(x)
        assert [each._version for each in found] == [each._version for each in expected]
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("host", FILLING)
def test_tensors_of_inference_mode_are_filled_too(host: Any, tier: int) -> None:
    kernel, x = of_tier(tier, host, pool=True), torch.ones(3)
    with torch.inference_mode():
        expected = host(x)
        for _ in range(6):
            found = kernel(x)
            assert all(map(torch.equal, found, expected))
            assert [each.is_inference() for each in found] == [True] * len(found)


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("host", [zeros, large_zeros, filled, filled_twice, large_filled])
def test_filled_outputs_are_reused(host: Any, tier: int) -> None:
    if tier == 1 and host not in (zeros, large_zeros):
        pytest.skip("Python's rings take none that was changed in place")
    kernel, x = of_tier(tier, host, pool=True), torch.ones(3)
    for _ in range(4):
        kernel(x)
    before = tzero.pool.stats()
    for _ in range(10):
        kernel(x)
    after = tzero.pool.stats()
    assert after.made == before.made and after.reused == before.reused + 20


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("host", [zeros, filled, large_filled])
def test_changed_outputs_are_not_reused(host: Any, tier: int) -> None:
    kernel, x = of_tier(tier, host, pool=True), torch.ones(3)
    expected = host(x)[1]
    for _ in range(12):
        found = kernel(x)[1]
        assert found._version == expected._version and torch.equal(found, expected)
        found.add_(1)
        del found


WEAK = {
    "the tensor": lambda tensor: torch._C._WeakTensorRef(tensor),
    "its storage": lambda tensor: StorageWeakRef(tensor.untyped_storage()),
}


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("what", WEAK)
def test_outputs_with_weak_references_in_torch_are_not_reused(what: str, tier: int) -> None:
    kernel, x = of_tier(tier, zeros, pool=True), torch.ones(3)
    for _ in range(4):
        kernel(x)
    held, known = [], set()
    for _ in range(6):
        found = kernel(x)[1]
        assert found.data_ptr() not in known
        held.append(WEAK[what](found))
        known.add(found.data_ptr())
        del found
        tzero.pool.stats()  # the rings hold them, so that no address recurs by chance
        if len(known) == 3:
            break
    held.clear()
    reused = tzero.pool.stats().reused
    for _ in range(6):
        kernel(x)
    assert tzero.pool.stats().reused > reused


# -- containers that are the same object -----------------------------------------------------------


def by_two_containers(x, one, other):
    return scaled(x, 3.0 if one is other else 2.0)


def by_a_container_in_another(x, one, other):
    return scaled(x, 3.0 if one[0] is other else 2.0)


def by_what_a_change_shows(x, one, other):
    one.append(0)
    size = len(other)
    one.pop()
    return scaled(x, float(size))


def two_of(make: Any) -> tuple[Any, Any]:
    one = make()
    return (one, one), (make(), make())


def one_in_another() -> tuple[Any, Any]:
    one, other = [1, 2], [1, 2]
    return ([one], one), ([other], one)


CONTAINERS = {
    "lists": (by_two_containers, two_of(lambda: [1, 2])),
    "empty lists": (by_two_containers, two_of(list)),
    "tuples": (by_two_containers, two_of(lambda: tuple(range(2)))),
    "dicts": (by_two_containers, two_of(lambda: {"a": 1})),
    "a list in a list": (by_a_container_in_another, one_in_another()),
    "a list that is changed": (by_what_a_change_shows, two_of(lambda: [1])),
}


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("which", CONTAINERS)
def test_one_container_given_twice_is_not_two_that_are_equal(which: str, tier: int) -> None:
    host, calls = CONTAINERS[which]
    for order in (calls, calls[::-1]):
        kernel, x = of_tier(tier, host), torch.ones(3)
        for given in (*order, *order, *order):
            assert torch.equal(kernel(x, *given), host(x, *given))


IN_A_LIST: list[Any] = [1, [2]]
IN_A_DICT: dict[str, Any] = {"a": 1}
IN_A_TUPLE = (1, 2)


def by_a_list_of_the_world(x, given):
    return scaled(x, 3.0 if given is IN_A_LIST else float(IN_A_LIST[0]))


def by_a_list_in_a_list_of_the_world(x, given):
    return scaled(x, 3.0 if given is IN_A_LIST[1] else float(IN_A_LIST[0]))


def by_a_dict_of_the_world(x, given):
    return scaled(x, 3.0 if given is IN_A_DICT else float(IN_A_DICT["a"]))


def by_a_tuple_of_the_world(x, given):
    return scaled(x, 3.0 if given[0] is IN_A_TUPLE else float(IN_A_TUPLE[0]))


OF_THE_WORLD = {
    "a list": (by_a_list_of_the_world, IN_A_LIST, [1, [2]]),
    "a list in a list": (by_a_list_in_a_list_of_the_world, IN_A_LIST[1], [2]),
    "a dict": (by_a_dict_of_the_world, IN_A_DICT, {"a": 1}),
    "a tuple in a list": (by_a_tuple_of_the_world, [IN_A_TUPLE], [tuple(range(1, 3))]),
}


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("which", OF_THE_WORLD)
def test_a_container_of_a_global_is_not_one_that_is_equal(which: str, tier: int) -> None:
    host, one, other = OF_THE_WORLD[which]
    for order in ((one, other), (other, one)):
        kernel, x = of_tier(tier, host), torch.ones(3)
        for given in (*order, *order, *order):
            assert torch.equal(kernel(x, given), host(x, given))
        plan = kernel.explain(x, other).plan
        assert plan is not None, kernel.explain(x, other).refusal


# -- code that interrupts a recording --------------------------------------------------------------


class Late:
    """Draws a random number when it is destroyed."""

    def __del__(self):
        torch.rand(1)


def draw(*_: Any) -> None:
    torch.rand(1)


def launch(*_: Any) -> None:
    scaled(torch.ones(2), 5.0)


HELD: dict[str, Any] = {}


def in_between(x):
    y = x + 1
    for _ in range(3):
        y = y * 1
    return scaled(y, 2.0)


def by_a_finalizer() -> Any:
    return Late()


def by_a_callback(what: Any) -> Any:
    class Plain:
        pass

    thing = Plain()
    HELD["ref"] = weakref.ref(thing, what)
    return thing


def by_finalize() -> Any:
    class Plain:
        pass

    thing = Plain()
    weakref.finalize(thing, torch.rand, 1)
    return thing


class Dropping:
    """Drops an object when the host function first reaches a line, as any statement may."""

    def __init__(self, things: list[Any], host: Any) -> None:
        self.things, self.code = things, host.__code__

    def __call__(self, frame, event, argument):
        if frame.f_code is not self.code:
            return None
        if event == "line" and frame.f_lineno > self.code.co_firstlineno + 2:
            self.things.clear()
        return self


IN_THE_MIDDLE = {
    "a finalizer": by_a_finalizer,
    "a callback": lambda: by_a_callback(draw),
    "a callback that launches": lambda: by_a_callback(launch),
    "weakref.finalize": by_finalize,
}


@pytest.mark.usefixtures("replaying")
@pytest.mark.parametrize("which", IN_THE_MIDDLE)
def test_a_destructor_during_a_recording_is_no_part_of_it(which: str, tier: int) -> None:
    kernel, x = of_tier(tier, in_between), torch.ones(3)
    before = sys.gettrace()
    sys.settrace(Dropping([IN_THE_MIDDLE[which]()], in_between))
    try:
        assert kernel(x).tolist() == [4.0] * 3
    finally:
        sys.settrace(before)
        HELD.clear()
    for _ in range(3):
        state = torch.get_rng_state()
        assert kernel(x).tolist() == [4.0] * 3
        assert torch.equal(torch.get_rng_state(), state), "it draws a number"
    plan = kernel.explain(x).plan
    assert plan is not None and len(plan.steps) == 6, str(plan)


@pytest.mark.usefixtures("replaying")
def test_a_handler_of_a_signal_is_no_part_of_a_recording(tier: int) -> None:
    kernel, x = of_tier(tier, signalled), torch.ones(3)
    before = signal.signal(signal.SIGUSR1, draw)
    try:
        kernel(x)
    finally:
        signal.signal(signal.SIGUSR1, before)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        for _ in range(3):
            state = torch.get_rng_state()
            assert kernel(x).tolist() == [4.0] * 3
            assert torch.equal(torch.get_rng_state(), state), "it draws a number"
    finally:
        signal.signal(signal.SIGUSR1, before)


def signalled(x):
    y = x + 1
    signal.raise_signal(signal.SIGUSR1)
    return scaled(y, 2.0)


@pytest.mark.usefixtures("replaying")
def test_other_threads_are_no_part_of_a_recording(tier: int) -> None:
    done, ready = threading.Event(), threading.Event()

    def busy() -> None:
        while not done.is_set():
            torch.rand(1)
            scaled(torch.ones(2), 5.0)
            ready.set()

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        ready.wait()
        for _ in range(5):
            kernel, x = of_tier(tier, in_between), torch.ones(3)
            kernel(x)
            plan = kernel.explain(x).plan
            assert plan is not None and len(plan.steps) == 6, str(plan)
    finally:
        done.set()
        thread.join()


# -- the tier --------------------------------------------------------------------------------------


def test_plans_are_replayed_natively_with_this_torch() -> None:
    """Otherwise all tests of tier 2 would be skipped unnoticed."""
    native_plan = pytest.importorskip("tzero.calls.native", reason="the extension is not built")
    assert native_plan.available() == ""
