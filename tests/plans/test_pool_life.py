"""The lifetime of pooled outputs: several in a plan, modes, counts, and their end."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from tests.plans.hosts import added, scaled
from tests.plans.pooled import KEPT, SIZE, Pooled, assert_as_new, doubled
from tests.plans.tiers import of_tier
from tzero import settings
from tzero.plans import outputs

pytestmark = pytest.mark.usefixtures("replaying")


def full(value: float) -> torch.Tensor:
    return torch.full((SIZE,), value)


# -- what a plan allocates -------------------------------------------------------------------------


def three(x):
    return scaled(x, 2.0), {"a": [scaled(x, 3.0)]}, (scaled(x, 4.0),)


def parts(result: Any) -> list[torch.Tensor]:
    one, two, three = result
    return [one, two["a"][0], three[0]]


@pytest.mark.parametrize("held", range(3))
def test_of_several_outputs_those_in_use_are_not_reused(held: int, tier: int) -> None:
    pooled = Pooled(tier, three)
    mine = parts(pooled(1.0))[held]
    for k in range(2 * KEPT):
        found = parts(pooled(float(k)))
        assert mine.data_ptr() not in [out.data_ptr() for out in found]
        for by, out in zip((2.0, 3.0, 4.0), found, strict=True):
            assert torch.equal(out, full(k * by))
        del found, out
    assert torch.equal(mine, full((2.0, 3.0, 4.0)[held]))
    # Each of the others was made once, and this one twice.
    assert pooled.made == 4 + 3 and pooled.reused >= 6 * KEPT - 1


def through_another(x):
    return scaled(scaled(x, 4.0), 0.5)


def test_temporaries_are_reused_while_the_output_is_in_use(tier: int) -> None:
    pooled = Pooled(tier, through_another)
    reused, outs = pooled.reused, []
    for k in range(2 * KEPT):
        outs.append(pooled(float(k)))
    assert pooled.reused == reused + 2 * KEPT - 1  # the first call allocated
    assert all(torch.equal(out, full(2.0 * k)) for k, out in enumerate(outs))


def only_views(x):
    out = scaled(x, 2.0)
    return out.view(2, 4).t(), out[4:]


@pytest.mark.parametrize("held", range(2))
def test_an_output_of_which_only_views_are_returned_is_held_by_each(held: int, tier: int) -> None:
    pooled = Pooled(tier, only_views)
    mine = pooled(1.0)[held]
    storage = mine.data_ptr() - 4 * mine.storage_offset()
    for k in range(2 * KEPT):
        assert pooled(float(k + 5))[0].data_ptr() != storage
    assert torch.equal(mine, torch.full(mine.shape, 2.0))
    reused = pooled.reused
    others = [pooled(3.0) for _ in range(KEPT - 1)]
    assert pooled.reused == reused + 1
    del mine
    back, _ = pooled(6.0)
    assert (back.data_ptr(), pooled.reused) == (storage, reused + 2)
    assert torch.equal(back, torch.full((4, 2), 12.0)) and len(others) == KEPT - 1


def the_same_twice(x):
    out = scaled(x, 2.0)
    return [out, out], x


def test_an_output_that_is_returned_twice_is_held_by_each(tier: int) -> None:
    pooled = Pooled(tier, the_same_twice)
    both, _ = pooled(1.0)
    address = both.pop().data_ptr()
    for k in range(2 * KEPT):
        assert pooled(float(k))[0][0].data_ptr() != address
    assert torch.equal(both[0], full(2.0))
    both.clear()
    assert address in [out[0][0].data_ptr() for out in [pooled(1.0) for _ in range(KEPT)]]


def test_an_output_may_be_the_next_calls_argument(tier: int) -> None:
    pooled = Pooled(tier)
    out = full(1.0)
    for _ in range(10):
        out = pooled.kernel(out)
    assert torch.equal(out, full(1024.0))
    assert pooled.made == 1 + 2 and pooled.reused >= 8


@torch.library.custom_op("tzero_pool::again", mutates_args=())
def again(x: torch.Tensor) -> torch.Tensor:
    return AGAIN[0](x) if AGAIN else x.clone()


again.register_fake(torch.empty_like)


AGAIN: list[Any] = []


def around_itself(x):
    one = scaled(x, 2.0)
    two = torch.ops.tzero_pool.again(x)
    return added(one, two), two


def test_a_call_within_a_call_has_other_outputs(tier: int) -> None:
    pooled = Pooled(tier, around_itself)
    expected = 1.0

    def inner(x: torch.Tensor) -> torch.Tensor:
        AGAIN.clear()  # once only
        total, _ = pooled.kernel(x + 1)
        return total.clone()

    for _ in range(4):
        AGAIN.append(inner)
        total, two = pooled(expected)
        assert torch.equal(two, full(3 * (expected + 1)))
        assert torch.equal(total, full(2 * expected + 3 * (expected + 1)))
    assert pooled.reused > 4


# -- modes -----------------------------------------------------------------------------------------


def test_outputs_of_inference_mode_stay_in_it(tier: int) -> None:
    pooled = Pooled(tier)
    with torch.inference_mode():
        pooled(1.0)
    for k in range(12):
        with torch.inference_mode(k % 2 == 0):
            assert_as_new(pooled(float(k)), float(k))
    rings: set[Any] = set(outputs._all())
    with torch.inference_mode():
        # Writing to it left no trace, so it is like a new, uninitialized one.
        for k in range(4):
            pooled(float(k)).add_(1)
            assert_as_new(pooled(float(k)), float(k))
        held = pooled(9.0)
        view = held[2:]
        address = held.data_ptr()
        del held
        assert address not in [pooled(float(k)).data_ptr() for k in range(2 * KEPT)]
        assert torch.equal(view, torch.full((SIZE - 2,), 18.0))
    assert set(outputs._all()) == rings and sum(ring.reused for ring in rings) >= 12


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_outputs_are_as_the_gradient_mode_makes_them(mode: Any, tier: int) -> None:
    pooled = Pooled(tier)
    for k in range(8):
        with mode():
            assert_as_new(pooled(float(k)), float(k))
        assert_as_new(pooled(float(k)), float(k))


# -- their end -------------------------------------------------------------------------------------


def held_by_rings() -> int:
    gc.collect()
    return outputs.stats().tensors


def test_a_kernel_that_is_reset_lets_go_of_its_outputs(tier: int) -> None:
    before = held_by_rings()
    kernel = of_tier(tier, doubled, pool=True)
    outs = [kernel(full(float(k))) for k in range(KEPT)]
    held = outs.pop()
    rings = [weakref.ref(ring) for ring in outputs._all() if ring.made]
    assert held_by_rings() > before
    kernel.reset()
    outs.clear()
    assert held_by_rings() == before
    assert torch.equal(held, full(2.0 * (KEPT - 1)))
    assert any(ring() is None for ring in rings)
    for k in range(3):
        assert torch.equal(kernel(full(float(k))), full(2.0 * k))


def test_a_kernel_that_is_dropped_lets_go_of_its_outputs(tier: int) -> None:
    before, rings = held_by_rings(), set(map(id, outputs._all()))
    kernel = of_tier(tier, doubled, pool=True)
    outs = [kernel(full(float(k))) for k in range(KEPT)]
    mine = [weakref.ref(ring) for ring in outputs._all() if id(ring) not in rings]
    assert held_by_rings() == before + KEPT - 1  # the first call was recorded
    del kernel
    assert held_by_rings() == before
    assert [ring() for ring in mine] == [None] * len(mine) and mine
    assert [out[0].item() for out in outs] == [2.0 * k for k in range(KEPT)]


def test_outputs_in_use_outlive_the_clearing_of_pools(tier: int) -> None:
    pooled = Pooled(tier)
    outs = [pooled(float(k)) for k in range(KEPT)]
    outputs.clear()
    assert outputs.stats().tensors == 0 and outputs.stats().bytes == 0
    addresses = {out.data_ptr() for out in outs}
    for k in range(2 * KEPT):
        assert pooled(float(k)).data_ptr() not in addresses
    assert [out[0].item() for out in outs] == [2.0 * k for k in range(KEPT)]
    assert pooled.reused == 1 + 2 * KEPT - 1


def test_clearing_frees_what_nobody_holds(tier: int) -> None:
    pooled = Pooled(tier)
    gone = weakref.ref(pooled(1.0).untyped_storage())
    assert pooled.tensors() == 1
    outputs.clear()
    assert pooled.tensors() == 0 and gone() is None


# -- settings, and counts --------------------------------------------------------------------------


@pytest.mark.parametrize("asked", [None, False, True])
@pytest.mark.parametrize("default", [False, True])
def test_the_setting_is_for_kernels_that_do_not_say(default: bool, asked: Any, tier: int) -> None:
    before = set(outputs._all())
    with settings.override(output_pool=default):
        kernel = of_tier(tier, doubled) if asked is None else of_tier(tier, doubled, pool=asked)
    pooled = default if asked is None else asked
    for k in range(4):
        assert torch.equal(kernel(full(float(k))), full(2.0 * k))
    rings = [ring for ring in outputs._all() if ring not in before]
    assert kernel.pool is pooled
    assert sum(ring.reused for ring in rings) == (2 if pooled else 0)
    assert sum(ring.made for ring in rings) == (1 if pooled else 0)


def test_stats_count(tier: int) -> None:
    outputs.clear()
    gc.collect()
    pooled = Pooled(tier)
    start = outputs.stats()
    held = [pooled(float(k)) for k in range(3)]
    for k in range(5):
        pooled(float(k))
    end = outputs.stats()
    assert (end.made - start.made, end.reused - start.reused) == (4, 4)
    assert (end.tensors - start.tensors, end.bytes - start.bytes) == (4, 4 * 4 * SIZE)
    held.clear()
    # Reading the counts changes nothing.
    for k in range(8):
        pooled(float(k))
        outputs.stats()
    assert outputs.stats().made == end.made and outputs.stats().reused == end.reused + 8
