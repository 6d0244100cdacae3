# mypy: allow-untyped-defs
"""Plans over sizes of tuned kernels: a new size is replayed natively, with the config of its key
and of its nearest hint."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import triton

import tzero
from tests.plans.sized_hosts import scale_kernel
from tests.plans.tiers import assert_same
from tests.tiers import of_tier
from tzero import Config
from tzero.tune.by_size import BySize, Origin
from tzero.tune.hints import ByDimension
from tzero.tune.resize import Place
from tzero.tune.select import Hint

pytestmark = pytest.mark.usefixtures("replaying")

SMALL, MIDDLE, LARGE = (Config(BLOCK=block) for block in (16, 64, 256))


def doubled(x, config):
    """Twice a tensor, and the config that was used."""
    out = torch.empty_like(x)
    n = x.numel()
    scale_kernel[(triton.cdiv(n, config.BLOCK),)](x, out, 2.0, n, BLOCK=config.BLOCK)
    return out, config.BLOCK


def of_first(xs, n, config):
    return doubled(xs[0], config)


def of_rows(x, w, config):
    return doubled(x, config)


def specialized(x, n, config):
    tzero.specialize(n)
    return doubled(x, config)


def untouched(x, config):
    """Something whose result does not depend on the elements, which may be too many."""
    out = torch.empty(x.shape[0])
    scale_kernel[(1,)](out, out, 1.0, 0, BLOCK=config.BLOCK)
    return out.shape, config.BLOCK


def compiled(host: Callable[..., Any], *arguments: Sequence[Any]) -> None:
    """Compile what calls launch: compilers may interrupt a call that is followed."""
    for args in arguments:
        for config in (SMALL, MIDDLE, LARGE):
            host(*args, config)


def make(host: Callable[..., Any] = doubled, **options: Any) -> Any:
    options = {"static_shapes": False, "size_hints": [16, 1024], **options}
    return tzero.kernel(configs=[SMALL, MIDDLE, LARGE], **options)(host)


def choosing(*hints: tuple[Config, int]) -> BySize:
    """What chooses a config for one vector, whose result is as large."""
    every = [Hint(config, [(n,)], [(n,)]) for config, n in hints]
    return BySize(every, ((Origin(0, 0),),), ("x",))


THREE = ((SMALL, 16), (MIDDLE, 200), (LARGE, 4096))


@functools.cache
def warmed() -> None:
    compiled(doubled, (torch.randn(7),), (torch.randn(32),), (torch.randn(1),))


@pytest.fixture
def tuned() -> Any:
    """A kernel with a config for each of three sizes, none of which was timed."""
    warmed()
    kernel = make()
    kernel.bind(torch.randn(7)).choose_by_size(choosing(*THREE))
    return kernel


def replayed(kernel: Any, *calls: tuple[Any, ...]) -> tuple[list[int], int]:
    """Make calls; returns the blocks of their configs, and how many were replayed natively."""
    before, blocks = kernel.stats().native_replays, []
    for args in calls:
        out, block = kernel(*args)
        first = args[0][0] if isinstance(args[0], list) else args[0]
        assert_same(out, first * 2)
        blocks.append(block)
    return blocks, kernel.stats().native_replays - before


def vectors(*sizes: int) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(n),) for n in sizes]


# -- the config of the nearest hint ----------------------------------------------------------------


def test_a_new_size_is_replayed_with_the_config_of_its_nearest_hint(tuned: Any) -> None:
    replayed(tuned, *vectors(17, 201, 5001))
    assert replayed(tuned, *vectors(10, 150, 3001, 19, 333, 9001)) == (
        [16, 64, 256, 16, 64, 256],
        6,
    )


def test_configs_are_those_that_python_chooses_for_random_sizes(tuned: Any) -> None:
    chance = random.Random(0)
    by_size = tuned.bind(torch.randn(7)).by_size
    sizes = [chance.randrange(2, 1 << chance.randrange(2, 15)) for _ in range(300)]
    sizes += [55, 56, 57, 58, 903, 904, 905, 906, 907]  # near the middle between two hints
    blocks, native = replayed(tuned, *vectors(*sizes))
    wanted = [by_size((torch.empty(n),)).variant.BLOCK for n in sizes]
    assert blocks == wanted and len(set(blocks)) == 3
    assert native > 290


def test_python_replays_them_too_while_an_observer_sees_each_call(tuned: Any) -> None:
    with tzero.events.observe(lambda event: None):
        blocks, _ = replayed(tuned, *vectors(17, 201, 5001, 10, 150, 3001, 9001, 11))
    assert blocks == [16, 64, 256, 16, 64, 256, 256, 16]
    assert tuned.stats().python_replays == 5


def test_what_is_tuned_by_the_search_is_replayed_for_new_sizes() -> None:
    warmed()
    kernel = make()
    replayed(kernel, *vectors(17, 2001, 18, 2002))
    assert replayed(kernel, *vectors(19, 2003, 20, 2004, 333, 9, 9001))[1] == 7


def test_sizes_of_lists_and_of_other_ranks_than_the_hints_choose_too() -> None:
    compiled(of_first, ([torch.randn(7)], 3))
    kernel = make(of_first)
    xs = [torch.randn(3, 5), torch.randn(3)]
    hints = [Hint(SMALL, [(16, 16), (16,)]), Hint(LARGE, [(64, 1024), (64,)])]
    kernel.bind(xs, 3).choose_by_size(BySize(hints, (), ("xs", "n")))
    by_elements = BySize([Hint(SMALL, [(16,)]), Hint(LARGE, [(1024,)])], (), ("xs", "n"))

    def calls(*sizes: tuple[int, int, int]) -> list[tuple[Any, ...]]:
        return [([torch.randn(m, n), torch.randn(k)], 3) for m, n, k in sizes]

    sizes = ((5, 9, 7), (99, 777, 5), (3, 25, 18), (77, 999, 90))
    replayed(kernel, *calls((3, 5, 3), (99, 1001, 77), (5, 7, 3), (97, 1003, 75)))
    assert replayed(kernel, *calls(*sizes)) == ([16, 256, 16, 256], 4)
    kernel.bind(xs, 3).choose_by_size(by_elements)
    replayed(kernel, *calls((3, 5, 3), (99, 1001, 77)))
    more = ((2, 60, 2), (2, 70, 2))  # 122 and 142 elements; 128 is in the middle
    assert replayed(kernel, *calls(*sizes, *more)) == ([16, 256, 16, 256, 16, 256], 6)


def test_hints_for_named_dimensions_and_integers_choose() -> None:
    compiled(of_rows, (torch.randn(7, 3), torch.randn(3)))
    kernel = make(of_rows, size_hints={"x": {0: [16, 256]}})
    x, w = torch.randn(5, 9), torch.randn(9)
    hints = [Hint(SMALL, [(16,)]), Hint(LARGE, [(256,)])]
    kernel.bind(x, w).choose_by_size(ByDimension(hints, (Place(0, "x", 0),)))

    def calls(*sizes: tuple[int, int]) -> list[tuple[Any, ...]]:
        return [(torch.randn(m, n), torch.randn(n)) for m, n in sizes]

    replayed(kernel, *calls((5, 999), (205, 9), (7, 3)))
    assert replayed(kernel, *calls((9, 1001), (201, 7), (63, 5), (65, 5))) == (
        [16, 256, 16, 256],
        4,
    )


def test_integers_that_choose_the_config_are_open_too() -> None:
    compiled(of_first, ([torch.randn(7)], 3))
    kernel = make(of_first, size_hints={"n": [16, 256]})
    xs = [torch.randn(5)]
    hints = [Hint(SMALL, [(16,)]), Hint(LARGE, [(256,)])]
    kernel.bind(xs, 5).choose_by_size(ByDimension(hints, (Place(1, "n"),)))
    calls = [([torch.randn(k)], n) for k, n in ((5, 9), (7, 999), (9, 1), (11, 7), (13, 300))]
    replayed(kernel, *calls)
    calls = [([torch.randn(k)], n) for k, n in ((25, 10), (27, 900), (29, -4), (21, 3), (23, 301))]
    assert replayed(kernel, *calls) == ([16, 256, 16, 16, 256], 5)


def test_a_config_for_all_sizes_of_a_key_is_used_for_new_sizes() -> None:
    warmed()
    kernel = make(size_hints=None)
    kernel.bind(torch.randn(7)).set_config(MIDDLE)
    replayed(kernel, *vectors(17, 19))
    assert replayed(kernel, *vectors(21, 201, 5001)) == ([64] * 3, 3)


# -- another key, or another decision --------------------------------------------------------------


def test_a_size_of_one_has_the_config_of_its_own_key(tuned: Any) -> None:
    tuned.bind(torch.randn(1)).set_config(LARGE)
    calls = vectors(17, 1, 19, 1, 21, 1, 23)
    assert replayed(tuned, *calls)[0] == [16, 256, 16, 256, 16, 256, 16]
    assert replayed(tuned, *calls) == ([16, 256, 16, 256, 16, 256, 16], 7)


def test_a_stride_of_one_has_the_config_of_its_own_key() -> None:
    compiled(untouched, (torch.randn(3, 4),))
    kernel = make(untouched, size_hints=None)
    plain = torch.randn(6, 4)
    kernel.bind(plain).set_config(SMALL)
    kernel.bind(plain.t()).set_config(LARGE)
    for n in (6, 7, 9, 11):
        x = torch.randn(n, 5)
        assert (kernel(x)[1], kernel(x.t())[1]) == (16, 256)
    assert kernel.stats().native_replays >= 4


def test_tensors_that_need_64_bit_indices_have_the_config_of_their_own_key() -> None:
    one = torch.ones(1, 1)
    compiled(untouched, (one.expand(5, 6),))
    kernel = make(untouched, size_hints=None)
    kernel.bind(one.expand(5, 7)).set_config(SMALL)
    kernel.bind(one.expand(5, 1 << 30)).set_config(LARGE)
    for n in (5, 9, (1 << 30) + 1, 7, (1 << 30) + 3, 1 << 29):
        assert kernel(one.expand(5, n))[1] == (256 if n >= 1 << 29 else 16)
    before = kernel.stats().native_replays
    for n in (21, (1 << 30) + 11, 23, (1 << 30) + 13):
        assert kernel(one.expand(5, n))[1] == (256 if n > 1 << 30 else 16)
    assert kernel.stats().native_replays == before + 4


def test_index_dtype_makes_it_one_key() -> None:
    one = torch.ones(1, 1)
    compiled(untouched, (one.expand(5, 6),))
    kernel = make(untouched, size_hints=None, index_dtype=torch.int64)
    kernel.bind(one.expand(5, 7)).set_config(SMALL)
    for n in (5, 9, (1 << 30) + 1, 7, (1 << 30) + 3):
        assert kernel(one.expand(5, n))[1] == 16
    assert kernel.stats().native_replays >= 3


def marked(n: int, mark: Callable[..., None] = torch._dynamo.mark_static) -> torch.Tensor:
    x = torch.randn(n)
    mark(x, 0)
    return x


def test_a_dim_marked_static_has_the_config_of_its_own_key(tuned: Any) -> None:
    replayed(tuned, *vectors(17, 19, 21))
    tuned.bind(marked(23)).set_config(LARGE)
    assert tuned(marked(23))[1] == 256
    assert tuned(torch.randn(25))[1] == 16
    assert tuned(marked(23))[1] == 256


def test_marks_beside_an_open_dim_are_compared() -> None:
    compiled(of_rows, (torch.randn(7, 3), torch.randn(3)))
    kernel = make(of_rows, size_hints=None)

    def call(n: int, is_marked: bool) -> int:
        w = torch.randn(9)
        if is_marked:
            torch._dynamo.mark_static(w, 0)
        return int(kernel(torch.randn(n, 9), w)[1])

    static, plain = torch.randn(9), torch.randn(9)
    torch._dynamo.mark_static(static, 0)
    kernel.bind(torch.randn(5, 9), plain).set_config(SMALL)
    kernel.bind(torch.randn(5, 9), static).set_config(LARGE)
    for n in (5, 7, 11, 13):
        assert (call(n, False), call(n + 100, True)) == (16, 256)
    before = kernel.stats().native_replays
    for n in (15, 17, 21):
        assert (call(n, False), call(n, True), call(n + 2, True)) == (16, 256, 256)
    assert kernel.stats().native_replays == before + 9


def test_a_dim_marked_dynamic_is_open_in_a_tuned_kernel(tuned: Any) -> None:
    calls = [(marked(n, torch._dynamo.mark_dynamic),) for n in (17, 201, 19, 203, 23)]
    assert replayed(tuned, *calls) == ([16, 64, 16, 64, 16], 3)


def test_another_decision_ends_the_plans_of_the_first(tuned: Any) -> None:
    replayed(tuned, *vectors(17, 201, 5001, 19, 203, 5003))
    bound = tuned.bind(torch.randn(7))
    bound.choose_by_size(choosing((LARGE, 16), (SMALL, 4096)))
    assert replayed(tuned, *vectors(17, 19, 5001, 5003, 21, 5005))[0] == [256, 256, 16, 16, 256, 16]
    bound.set_config(MIDDLE)
    assert replayed(tuned, *vectors(17, 5001, 21, 5005, 23))[0] == [64] * 5
    assert replayed(tuned, *vectors(31, 5011)) == ([64, 64], 2)
    tuned.reset()
    tuned.bind(torch.randn(7)).choose_by_size(choosing(*THREE))
    assert replayed(tuned, *vectors(17, 5001, 21, 5005, 23))[0] == [16, 256, 16, 256, 16]


def test_a_value_that_joins_the_key_has_a_config_of_its_own() -> None:
    warmed()
    kernel = make(specialized, size_hints=None)
    kernel.bind(torch.randn(9), 5).set_config(SMALL)
    kernel(torch.randn(9), 5)  # joins the key
    for n, config in ((5, SMALL), (6, LARGE)):
        kernel.bind(torch.randn(9), n).set_config(config)
    for size in (11, 13, 15):
        assert (kernel(torch.randn(size), 5)[1], kernel(torch.randn(size), 6)[1]) == (16, 256)
    before = kernel.stats().native_replays
    for size in (17, 19):
        assert (kernel(torch.randn(size), 5)[1], kernel(torch.randn(size), 6)[1]) == (16, 256)
    assert kernel.stats().native_replays == before + 4


def by_length(x, config):
    if x.size(0) < 100:
        tzero.specialize(x.size(0))
    return doubled(x, config)


def by_elements(x, config):
    if x.size(0) < 100:
        tzero.specialize(x.numel())
    return doubled(x, config)


@pytest.mark.parametrize("host", [by_length, by_elements])
def test_each_size_that_joins_the_key_has_a_config_of_its_own(host: Any) -> None:
    warmed()
    kernel = make(host, size_hints=None)
    kernel.bind(torch.randn(9)).set_config(SMALL)
    kernel(torch.randn(9))  # joins the key
    configs = {11: SMALL, 13: LARGE, 201: MIDDLE, 203: LARGE}
    for n, config in configs.items():
        kernel.bind(torch.randn(n)).set_config(config)
    for _ in range(3):
        for n, config in configs.items():
            assert replayed(kernel, *vectors(n))[0] == [config.BLOCK]


def test_decisions_on_another_thread_are_in_force_when_they_are_made(tuned: Any) -> None:
    bound = tuned.bind(torch.randn(7))
    up, down = ((SMALL, 16), (LARGE, 4096)), ((LARGE, 16), (SMALL, 4096))
    replayed(tuned, *vectors(17, 19, 5001, 5003))
    done, wrong = threading.Event(), []

    def call() -> None:
        chance = random.Random(2)
        while not done.is_set():
            x = torch.randn(chance.choice([17, 19, 21, 5001, 5003, 5005]))
            if not torch.equal(tuned(x)[0], x * 2):
                wrong.append(x)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for each in threads:
        each.start()
    try:
        for k in range(30):
            bound.choose_by_size(choosing(*(up, down)[k % 2]))
            sizes = (23, 5007) if k % 3 else (25, 5009, 27, 5011)
            wanted = [16, 256] if k % 2 == 0 else [256, 16]
            assert replayed(tuned, *vectors(*sizes))[0] == wanted * (len(sizes) // 2)
    finally:
        done.set()
        for each in threads:
            each.join()
    assert not wrong


def test_verify_mode_finds_no_drift_between_sizes(tuned: Any) -> None:
    with tzero.settings.override(verify=True):
        blocks, _ = replayed(tuned, *vectors(17, 19, 201, 203, 19, 5001, 5003, 17, 203))
    assert blocks == [16, 16, 64, 64, 16, 256, 256, 16, 64]


# -- what else takes part --------------------------------------------------------------------------


def narrow(x):
    return doubled(x, SMALL)


def wide(x):
    return doubled(x, LARGE)


def test_variants_of_a_multi_kernel_are_chosen_by_new_sizes() -> None:
    warmed()
    kernel: Any = tzero.multi_kernel([narrow, wide], static_shapes=False, size_hints=[16, 4096])
    one, other = kernel.configs
    kernel.bind(torch.randn(7)).choose_by_size(choosing((one, 16), (other, 4096)))
    replayed(kernel, *vectors(17, 5001, 19, 5003))
    assert replayed(kernel, *vectors(21, 5005, 23, 5007, 200, 300)) == (
        [16, 256, 16, 256, 16, 256],
        6,
    )


def test_members_of_a_multi_kernel_that_are_tuned_make_it_exact() -> None:
    warmed()
    inner = tzero.kernel(configs=[SMALL, LARGE], static_shapes=False)(doubled)
    kernel: Any = tzero.multi_kernel([narrow, inner], static_shapes=False, size_hints=[16, 4096])
    one, other = kernel.configs
    kernel.bind(torch.randn(7)).choose_by_size(choosing((one, 16), (other, 4096)))
    inner.bind(torch.randn(7)).set_config(LARGE)
    blocks, _ = replayed(kernel, *vectors(17, 5001, 19, 5003, 21, 5005))
    assert blocks == [16, 256] * 3
    assert "the config of doubled, which it calls, may depend on sizes" in str(
        kernel.explain(torch.randn(5003))
    )


def by_key(x):
    return doubled(x, LARGE if x.numel() > 100 else SMALL)


def test_a_key_function_runs_on_each_call_whatever_the_sizes() -> None:
    asked: list[int] = []

    def key(x):
        asked.append(x.numel())
        return x.numel() > 100

    kernel: Any = tzero.kernel(key=key)(by_key)
    sizes = [17, 19, 201, 203, 21, 205, 17, 201]
    assert replayed(kernel, *vectors(*sizes)) == ([16, 16, 256, 256, 16, 256, 16, 256], 0)
    assert asked == sizes
    told = str(kernel.explain(torch.randn(17)))
    assert "sizes: only these: its key= function may return something else for other sizes" in told


def test_a_config_of_one_key_is_not_used_for_another_key() -> None:
    kernel: Any = tzero.kernel(config=SMALL, key=lambda x: x.numel() > 100)(doubled)
    kernel.bind(torch.randn(200)).set_config(LARGE)
    for _ in range(3):
        assert replayed(kernel, *vectors(17, 200, 19, 200))[0] == [16, 256, 16, 256]


def test_without_hints_each_size_has_a_plan_and_explain_says_why() -> None:
    warmed()
    kernel = make(static_shapes=None, size_hints=None)
    for n in (17, 19, 21):
        kernel.bind(torch.randn(n)).set_config(SMALL if n < 20 else LARGE)
        assert replayed(kernel, *vectors(n, n)) == ([16 if n < 20 else 256] * 2, 1)
    told = str(kernel.explain(torch.randn(21)))
    assert "sizes: only these: each size has a config of its own; size_hints= tunes" in told


def test_explain_shows_the_hints_of_a_plan(tuned: Any) -> None:
    replayed(tuned, *vectors(201, 203, 205))
    told = str(tuned.explain(torch.randn(207)))
    assert "assumes the nearest of 3 size hints: (200,) → (200,)" in told
    assert "replayed natively" in told


# -- pooled outputs --------------------------------------------------------------------------------


def test_pooled_outputs_of_a_tuned_kernel_have_the_sizes_of_their_call() -> None:
    warmed()
    kernel: Any = of_tier(
        2, doubled, configs=[SMALL, LARGE], static_shapes=False, size_hints=[16, 1024], pool=True
    )
    kernel.bind(torch.randn(7)).choose_by_size(choosing((SMALL, 16), (LARGE, 1024)))
    chance, held = random.Random(1), []
    replayed(kernel, *vectors(17, 2001, 32, 2048))
    before = tzero.pool.stats().reused
    for _ in range(200):
        n = chance.choice([5, 17, 18, 32, 33, 2001, 2002, 2048])
        x = torch.randn(n)
        out, _ = kernel(x)
        assert out.shape == x.shape and out.stride() == x.stride()
        held = [*held[-3:], (x, out)] if chance.random() < 0.5 else held[-3:]
        del out
        for given, made in held:
            assert_same(made, given * 2)
    assert kernel.stats().native_replays >= 200
    assert tzero.pool.stats().reused > before
