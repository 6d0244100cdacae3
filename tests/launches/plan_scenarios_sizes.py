# mypy: allow-untyped-defs
"""Scenarios about plans over sizes: which calls they are for, and what they compute anew."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

import tzero
from tests.launches.plan_scenario import NotWarm, same, table, twice
from tests.plans.hosts import scaled
from tzero import Config
from tzero.arguments.key import Options
from tzero.tune.by_size import BySize
from tzero.tune.select import Hint
from tzero.tune.space import Space

SCENARIOS = table()
fails_without = SCENARIOS.add


def numbers(n):
    return torch.arange(float(n))


def over_sizes(make, host, *sizes, **options):
    """A kernel, called until native code replays it for the last size, which it has not seen."""
    kernel = make(host, free="what varies", **options)
    for n in sizes[:-1]:
        for _ in range(2):
            kernel(numbers(n))
    if not kernel._look(2, numbers(sizes[-1])):
        raise NotWarm(kernel.explain(numbers(sizes[-1])).refusal)
    return kernel


@fails_without("plan_others_fixed")
def other_sizes_do_not_excuse_another_dtype(make):
    kernel = over_sizes(make, twice, 5, 6, 7)
    same(kernel(numbers(9).double()), twice(numbers(9).double()))


@fails_without("plan_other_sizes")
def the_values_of_the_latest_call_are_for_its_sizes(make):
    kernel = over_sizes(make, twice, 5, 6, 7)
    kernel(numbers(7))
    same(kernel(numbers(9)), twice(numbers(9)))


def by_size(x):
    return scaled(x, 2.0) if x.shape[0] <= 10 else scaled(x, 3.0)


@fails_without("plan_conditions")
def a_host_function_may_branch_on_a_size(make):
    kernel = over_sizes(make, by_size, 5, 6, 7)
    same(kernel(numbers(20 + 1)), by_size(numbers(20 + 1)))


@triton.jit
def put_block(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n), mask=at < n)


def in_one_block(x):
    out = torch.zeros_like(x)
    put_block[(1,)](x, out, x.shape[0], BLOCK=triton.next_power_of_2(x.shape[0]))
    return out


@fails_without("plan_variants")
def a_size_may_need_another_binary(make):
    kernel = over_sizes(make, in_one_block, 5, 6, 7)
    same(kernel(numbers(20 + 1)), in_one_block(numbers(20 + 1)))


def copied(x):
    out = torch.empty(x.shape)
    out.copy_(x)
    return scaled(out, 2.0)


@fails_without("plan_copy_gaps")
def a_tensor_may_have_gaps_in_another_call(make):
    kernel = make(copied, options=Options(static_shapes=False), free="everything")
    for n in (5, 6, 7):
        for _ in range(2):
            kernel(torch.rand(n, 3))
    x = torch.rand(9, 4)[:, :3]
    if not kernel._look(2, x):
        raise NotWarm(kernel.explain(x).refusal)
    same(kernel(x), copied(x))


@fails_without("pool_geometry")
def an_output_of_other_sizes_is_not_used(make):
    kernel = over_sizes(make, twice, 9, 8, 7, pool=True)
    before = tzero.pool.stats().reused
    for n in (9, 9):
        kernel(numbers(n))
    if tzero.pool.stats().reused == before:
        raise NotWarm("nothing is used again")
    same(kernel(numbers(5)), twice(numbers(5)))


ONE, OTHER = (Config(BLOCK=block) for block in (64, 128))


def configured(x, config):
    return scaled(x, 2.0), config.BLOCK


def tuned(make):
    """A kernel with two configs, and several sizes for each key."""
    options, space = Options(static_shapes=False), Space.of([ONE, OTHER])
    return make(configured, config=ONE, space=space, options=options, free="everything")


def warm_at(kernel, *sizes):
    for n in sizes:
        kernel(numbers(n))
    if not kernel._look(2, numbers(sizes[-1] + 2)):
        raise NotWarm(kernel.explain(numbers(sizes[-1] + 2)).refusal)


@fails_without("plan_choice")
def a_size_may_be_nearer_to_another_hint(make):
    kernel = tuned(make)
    hints = [Hint(ONE, [(16,)]), Hint(OTHER, [(64,)])]
    by_size = BySize(hints, (), ("x",))
    by_size.selector.native = kernel.native.Nearest(tuple(each.shapes for each in hints))
    kernel.bind(numbers(5)).choose_by_size(by_size)
    warm_at(kernel, 5, 7, 9)
    same(kernel(numbers(61)), configured(numbers(61), OTHER))


@fails_without("plan_marks")
def a_tensor_with_a_dim_marked_static_has_another_key(make):
    kernel, marked = tuned(make), numbers(9)
    torch._dynamo.mark_static(marked, 0)
    kernel.bind(numbers(5)).set_config(ONE)
    kernel.bind(marked).set_config(OTHER)
    warm_at(kernel, 5, 7)
    same(kernel(marked), configured(marked, OTHER))
