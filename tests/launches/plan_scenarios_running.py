# mypy: allow-untyped-defs
"""Scenarios about what a replay does: kernels, steps in between, reused outputs."""

from __future__ import annotations

import weakref
from typing import Any

import torch
import triton
import triton.language as tl
from torch.autograd import forward_ad

import tzero
from tests.launches.plan_scenario import NotWarm, X, put_number, raising, same, table, twice, warm
from tests.plans import kernels
from tests.plans.hosts import scaled

SCENARIOS = table()
fails_without = SCENARIOS.add

# -- what the kernels are compiled with ------------------------------------------------------------


@fails_without("plan_knobs")
def a_hook_on_launches_is_called(make):
    kernel, seen = make(twice), []
    warm(kernel, X)
    triton.knobs.runtime.launch_enter_hook.add(seen.append)
    kernel(X)
    assert len(seen) == 1


@fails_without("plan_run_hooks")
def a_hook_on_the_kernel_is_called(make):
    kernel, seen = make(twice), []
    warm(kernel, X)
    kernels.scale.add_pre_run_hook(lambda *args, **kwargs: seen.append(args))
    kernel(X)
    assert len(seen) == 1


@triton.jit
def asserting(out, n):
    tl.device_assert(n < 100, "too much")
    tl.store(out, n)


def asserted(x, n):
    asserting[(1,)](x, n)
    return x.clone()


@fails_without("plan_attributes")
def the_debug_of_the_kernel_chooses_the_binary(make):
    kernel = make(asserted)
    warm(kernel, X.clone(), 200)
    asserting.debug = True
    with raising():
        kernel(X.clone(), 200)


COMPILED_IN = tl.constexpr(2)


@triton.jit
def put_global(out):
    tl.store(out, COMPILED_IN)


def of_a_compiled_global(x):
    put_global[(1,)](x)
    return x.clone()


@fails_without("plan_globals")
def a_global_of_the_kernel_that_changed_is_an_error(make):
    global COMPILED_IN
    kernel = make(of_a_compiled_global)
    warm(kernel, X.clone())
    COMPILED_IN = tl.constexpr(3)
    with raising():
        kernel(X.clone())


@fails_without("plan_cache")
def a_binary_that_triton_has_dropped_is_not_launched(make):
    kernel = make(twice)
    warm(kernel, X)
    kernels.scale.device_caches.clear()
    kernel(X)
    assert kernels.scale.device_caches, "Triton was not asked for another"


# -- what steps lead to ----------------------------------------------------------------------------

NOW: dict[str, Any] = {"do": lambda x: None, "make": torch.clone}
_library = torch.library.Library("tzero_mutated", "DEF")
_library.define("act(Tensor(a!) x) -> ()")
_library.define("make(Tensor x) -> Tensor")
_library.impl("act", lambda x: NOW["do"](x), "CPU")
_library.impl("make", lambda x: NOW["make"](x), "CPU")
torch.library.register_fake("tzero_mutated::make", torch.empty_like, lib=_library)


def acting(x):
    torch.ops.tzero_mutated.act(x)
    return scaled(x, 2.0)


@fails_without("plan_asked_again")
def a_hook_may_come_in_the_middle(make):
    kernel, x, seen = make(acting), X.clone(), []
    warm(kernel, x)
    NOW["do"] = lambda _: kernels.scale.add_pre_run_hook(lambda *args, **kw: seen.append(args))
    kernel(x)
    assert len(seen) == 1


@fails_without("plan_addresses")
def memory_may_be_another_in_the_middle(make):
    kernel, x, old, new = make(acting), X.clone(), [], X + 10

    def move(tensor):
        old.append(tensor.untyped_storage())
        tensor.data = new

    warm(kernel, x)
    NOW["do"] = move
    same(kernel(x), scaled(new, 2.0))


@fails_without("plan_aligned")
def memory_may_be_aligned_otherwise_in_the_middle(make):
    kernel, x, resumed = make(acting), X.clone(), []
    warm(kernel, x)

    def resume(*args):
        resumed.append(args)
        return type(kernel)._resume(kernel, *args)

    kernel._resume = resume
    other = torch.arange(5.0)[1:]

    def move(tensor):
        tensor.data = other

    NOW["do"] = move
    same(kernel(x), scaled(other.clone(), 2.0))
    assert len(resumed) == 1


def of_what_is_made(x):
    return scaled(torch.ops.tzero_mutated.make(x), 2.0)


def makes_something_else(make, how):
    kernel = make(of_what_is_made)
    warm(kernel, X)
    NOW["make"] = how
    with raising():
        kernel(X)


@fails_without("plan_result")
def a_function_may_return_another_dtype(make):
    makes_something_else(make, lambda x: x.to(torch.int32))


@fails_without("plan_result")
def a_function_may_return_what_it_is_given(make):
    makes_something_else(make, lambda x: x)


# -- copies ----------------------------------------------------------------------------------------


def copied(x, y):
    scaled(x, 2.0)
    y.copy_(x)
    return x.clone()


@fails_without("plan_copy_apart")
def torch_refuses_a_copy_within_one_memory(make):
    kernel, memory = make(copied), torch.arange(16.0)
    warm(kernel, memory[:8], torch.arange(8.0))
    with raising():
        kernel(memory[:8], memory[4:12])


@fails_without("plan_copy_tangents")
def a_copy_has_the_tangent_of_its_source(make):
    kernel = make(copied)
    warm(kernel, X, X.clone())
    with forward_ad.dual_level():
        made = kernel(forward_ad.make_dual(X, torch.ones(4)), X.clone())
        same(forward_ad.unpack_dual(made).tangent, torch.ones(4))


def acting_and_copied(x):
    scaled(x, 2.0)
    torch.ops.tzero_mutated.act(x)
    return x.clone()


@fails_without("plan_copy_changed")
def a_tensor_may_get_other_sizes_before_it_is_copied(make):
    kernel, x = make(acting_and_copied), X.clone()
    warm(kernel, x)

    def grow(tensor):
        tensor.data = torch.arange(6.0)

    NOW["do"] = grow
    with raising():
        kernel(x)


# -- outputs that are used again -------------------------------------------------------------------


def pooled(make):
    kernel = make(twice, pool=True)
    for _ in range(2):
        warm(kernel, X)
    before = tzero.pool.stats().reused
    kernel(X)
    if tzero.pool.stats().reused == before:
        raise NotWarm("nothing is used again")
    return kernel


@fails_without("pool_names")
def an_output_that_is_held_stays(make):
    kernel = pooled(make)
    held = [kernel(X) for _ in range(6)]
    kernel(X + 1)
    assert len({each.data_ptr() for each in held}) == 6
    same(held, [twice(X)] * 6)


@fails_without("pool_uses")
def an_output_that_a_view_looks_at_stays(make):
    kernel = pooled(make)
    held = [kernel(X).data for _ in range(6)]
    kernel(X + 1)
    same(held, [twice(X)] * 6)


@fails_without("pool_words")
def an_output_of_another_geometry_is_not_used(make):
    kernel = pooled(make)
    for _ in range(6):
        found = kernel(X)
        same(found, twice(X))
        found.resize_(2)
        torch._C._autograd._unsafe_set_version_counter((found,), (0,))  # the words alone are other
        del found


@fails_without("pool_version")
def an_output_that_was_changed_is_not_used(make):
    kernel = pooled(make)
    for _ in range(6):
        found = kernel(X)
        assert found._version == 0
        found.add_(1)
        del found


@fails_without("pool_weak")
def an_output_that_someone_waits_for_is_not_used(make):
    kernel = pooled(make)
    known = [weakref.ref(kernel(X)) for _ in range(6)]
    found = kernel(X)
    assert not any(each() is found for each in known)


@fails_without("pool_attributes")
def an_output_with_attributes_is_not_used(make):
    kernel = pooled(make)
    for _ in range(6):
        found = kernel(X)
        assert not hasattr(found, "mine")
        found.mine = True
        del found


def first_only(x):
    out = torch.empty_like(x)
    put_number[(1,)](out, 5)
    return out


@fails_without("pool_deterministic")
def where_torch_is_deterministic_outputs_are_new(make):
    torch.use_deterministic_algorithms(True)
    kernel = make(first_only, pool=True)
    warm(kernel, X)
    for _ in range(6):
        found = kernel(X)
        assert found[1:].isnan().all()
        found.data.fill_(7.0)
        del found
