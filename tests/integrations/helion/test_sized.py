# mypy: allow-untyped-decorators
"""Helion kernels with dynamic shapes have plans over sizes: a call with a size never seen is
replayed natively, if Helion would call the same function for it, and only then."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import helion
import helion.language as hl
import pytest
import sympy
import torch
from packaging.version import Version
from torch import Tensor
from torch.utils._sympy.functions import FloorDiv

from tests.integrations.helion import kernels_calls
from tests.integrations.helion.calls import again, is_replayed, wrapped
from tests.plans.tiers import verifying
from tzero.integrations.helion import choice, compat, planner
from tzero.integrations.helion.choice import read_choice, require_choice
from tzero.plans.sizes import Sizes
from tzero.plans.slots import Slots
from tzero.symbolic.formulas import Formulas, Source, computed, holds

pytestmark = pytest.mark.skipif(verifying(), reason="no call is replayed then")


def dynamic(**config: Any) -> Callable[[Callable[..., Any]], Any]:
    return helion.kernel(config=helion.Config(num_warps=4, **config), static_shapes=False)


@dynamic(block_sizes=[16])
def added(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + y[tile]
    return out


@dynamic(block_sizes=[16])
def scaled(x: Tensor, by: int) -> Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * by
    return out


@dynamic(block_sizes=[16, 16, 16])
def product(x: Tensor, y: Tensor) -> Tensor:
    m, k = x.size()
    k2, n = y.size()
    assert k == k2, "the inner sizes differ"
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([m, n]):
        total = hl.zeros([rows, columns], dtype=torch.float32)
        for inner in hl.tile(k):
            total = torch.addmm(total, x[rows, inner], y[inner, columns])
        out[rows, columns] = total
    return out


@dynamic(block_sizes=[4])
def softmax(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    for rows in hl.tile(x.size(0)):
        out[rows, :] = torch.softmax(x[rows, :], dim=1)
    return out


@dynamic(block_sizes=[4, 8])
def broadcast(x: Tensor, y: Tensor) -> Tensor:
    x, y = torch.broadcast_tensors(x, y)
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + y[tile]
    return out


@dynamic(block_sizes=[4])
def first(x: Tensor) -> Tensor:
    out = torch.empty([4], dtype=x.dtype, device=x.device)
    for tile in hl.tile(4):
        out[tile] = x[tile]
    return out


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel, its arguments for a number, and its result; `since` is the oldest version of Helion
    that computes it: 1.4 calls one function for sizes of one and for others, and is wrong then."""

    kernel: Any
    inputs: Callable[[int], tuple[Any, ...]]
    wanted: Callable[..., Tensor]
    since: str = "1.4"


def some(*sizes: int) -> Tensor:
    return torch.randn(sizes)


CASES = {
    "a vector": Case(added, lambda n: (some(n), some(n)), torch.add),
    "a number beside": Case(scaled, lambda n: (some(n), n + 1), torch.mul),
    "a product": Case(product, lambda n: (some(n, n + 9), some(n + 9, 2 * n)), torch.matmul),
    "a constant by size": Case(softmax, lambda n: (some(n, 3 * n),), lambda x: x.softmax(1)),
    "broadcast, one row": Case(broadcast, lambda n: (some(n, n + 1), some(1, n + 1)), torch.add),
    "broadcast, a vector": Case(broadcast, lambda n: (some(n, n + 1), some(n + 1)), torch.add),
    "broadcast, a column": Case(broadcast, lambda n: (some(n, n + 1), some(n, 1)), torch.add),
    "broadcast, nothing": Case(broadcast, lambda n: (some(n, n + 1), some(n, n + 1)), torch.add),
    "strides": Case(added, lambda n: (some(n), some(2 * n)[::2]), torch.add),
}


def held(case: Case, kernel: Any, n: int) -> None:
    args = case.inputs(n)
    torch.testing.assert_close(kernel(*args), case.wanted(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_size_never_seen_is_replayed_natively(case: Case) -> None:
    kernel = wrapped(again(case.kernel))
    for n in (3, 5, 16, 17, 32, 48, 33, 80, 81, 96):  # Triton compiles for multiples of 16
        held(case, kernel, n)
    before = kernel.stats()
    for n in (18, 19, 20, 21, 22, 25, 35, 37):
        held(case, kernel, n)
    after = kernel.stats()
    assert after.native_replays - before.native_replays == 8
    assert kernel.explain(*case.inputs(24)).plan.sizing is not None


def test_static_shapes_are_recorded_for_each_size() -> None:
    case = CASES["a vector"]
    kernel = wrapped(again(case.kernel, static_shapes=True))
    for n in (3, 5, 7, 9) * 2:
        held(case, kernel, n)
    assert kernel.planner.recorded == 4
    assert kernel.explain(*case.inputs(5)).plan.sizing is None
    assert not is_replayed(kernel, *case.inputs(11))


# -- Helion's choice -------------------------------------------------------------------------------


def compiled_guard(kernel: Any, *args: Any) -> Any:
    """The guard on what Helion compiled of a call's plan."""
    guards = kernel.explain(*args).plan.guards
    (found,) = [each for each in guards if each.text == "what Helion compiled"]
    return found


def drawn(case: Case, of: random.Random) -> Iterator[tuple[Any, ...]]:
    """Arguments with sizes of which many are 0, 1 or equal."""
    for _ in range(60):
        yield case.inputs(of.choice((0, 1, 1, 2, 3, 16, 17, 32)))


ANY = {
    "vectors": Case(added, lambda n: (some(17), some(random.choice((1, 17)))), torch.add, "1.5"),
    "vectors of any size": Case(added, lambda n: (some(n), some(n)), torch.add),
    "rows": Case(softmax, lambda n: (some(random.choice((1, 4, 5)), max(n, 1)),),
                 lambda x: x.softmax(1), "1.5"),
    "broadcast": Case(broadcast, lambda n: (some(random.choice((1, n)), n),
                                            some(random.choice((1, n)), random.choice((1, n)))),
                      torch.add, "1.5"),
    "products": Case(product, lambda n: (some(random.choice((1, 5)), n), some(n, n)),
                     torch.matmul),
}  # fmt: skip


@pytest.mark.parametrize("case", ANY.values(), ids=ANY)
def test_a_replay_stands_for_the_function_that_helion_would_call(case: Case) -> None:
    if Version(version("helion")) < Version(case.since):
        pytest.skip(f"needs Helion {case.since}")
    of = random.Random(18)
    random.seed(18)
    plain, kernel = again(case.kernel), wrapped(again(case.kernel))
    replayed = 0
    for args in drawn(case, of):
        before = kernel.stats().native_replays
        guard = compiled_guard(kernel, *args) if is_replayed(kernel, *args) else None
        result, wanted = kernel(*args), plain(*args)
        torch.testing.assert_close(result, wanted)
        if guard is not None:
            assert guard.where is vars(kernel.helion.bind(args))
            replayed += kernel.stats().native_replays - before
    assert replayed > 20


def settle(kernel: Any, *calls: tuple[Any, ...]) -> None:
    for args in calls * 2:
        kernel(*args)


def with_one() -> tuple[Any, ...]:
    """Arguments of `added` for which Helion compiles another function than for equal sizes."""
    return some(19), some(1)


def test_a_size_of_one_is_of_another_function() -> None:
    kernel = wrapped(again(added))
    settle(kernel, (some(5), some(5)), (some(7), some(7)), (some(18), some(18)))
    assert is_replayed(kernel, some(19), some(19))
    assert not is_replayed(kernel, *with_one())
    if hasattr(kernel.helion, "_specialization_generation"):  # 1.4 has one function for both
        for _ in range(4):
            x, y = with_one()
            torch.testing.assert_close(kernel(x, y), x + y)
        run = kernel.helion.bind((some(19), some(19)))._run
        assert kernel.helion.bind(with_one())._run is not run


def test_without_helions_conditions_another_function_would_be_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tests above can fail."""
    monkeypatch.setattr(planner, "require_choice", lambda *args: None)
    kernel = wrapped(again(added))
    settle(kernel, (some(5), some(5)), (some(7), some(7)), (some(18), some(18)))
    assert is_replayed(kernel, *with_one())


def test_a_tensor_with_64_bit_indices_is_of_another_function() -> None:
    kernel = wrapped(again(first))
    one = torch.ones(1)
    settle(kernel, (one.expand(100),), (one.expand(200),))
    most = torch.iinfo(torch.int32).max
    assert is_replayed(kernel, one.expand(most))
    assert not is_replayed(kernel, one.expand(most + 1))
    keys = [again(first).specialization_key((one.expand(n),)) for n in (most, most + 1)]
    assert keys[0] != keys[1]


def test_a_size_that_helion_specializes_is_fixed_and_others_are_open() -> None:
    kernel = wrapped(again(kernels_calls.specialized.kernel))
    settle(kernel, (some(5, 8),), (some(6, 8),))
    assert is_replayed(kernel, some(7, 8)) and not is_replayed(kernel, some(7, 9))
    for columns in (8, 9, 8, 9):
        x = some(11, columns)
        torch.testing.assert_close(kernel(x), x.sum(1))
    assert is_replayed(kernel, some(12, 8)) and is_replayed(kernel, some(12, 9))


def test_a_number_that_helion_specializes_counts_in_full() -> None:
    kernel = wrapped(again(kernels_calls.specialized_number.kernel, static_shapes=False))
    for n in (3, 5, 3, 5, 3, 5):
        x = some(20 + n)
        torch.testing.assert_close(kernel(x, n), x * n)
    assert is_replayed(kernel, some(77), 3) and is_replayed(kernel, some(77), 5)
    assert not is_replayed(kernel, some(77), 4)


def test_a_config_is_in_force_in_the_next_call_of_any_size() -> None:
    kernel = wrapped(again(added))
    settle(kernel, (some(50), some(50)), (some(60), some(60)))
    assert is_replayed(kernel, some(100), some(100))
    kernel.helion.bind((some(70), some(70))).set_config(helion.Config(block_sizes=[64]))
    assert not is_replayed(kernel, some(100), some(100))
    settle(kernel, (some(50), some(50)), (some(60), some(60)))
    plan = kernel.explain(some(129), some(129)).plan
    assert plan.sizing is not None and "64" in str(plan)


def test_a_reset_forgets_all_sizes() -> None:
    kernel = wrapped(again(added))
    settle(kernel, (some(50), some(50)))
    before = kernel.helion.bind((some(70), some(70)))
    kernel.helion.reset()
    settle(kernel, (some(51), some(51)))
    after = kernel.helion.bind((some(70), some(70)))
    assert after is not before and compiled_guard(kernel, some(70), some(70)).where is vars(after)


def test_functions_and_keys_have_plans_over_sizes_of_their_own() -> None:
    with_function = wrapped(again(kernels_calls.takes_function.kernel, static_shapes=False))
    keyed = wrapped(again(kernels_calls.keyed.kernel, static_shapes=False))
    for n in (3, 5, 7, 3, 5, 7):
        x = some(n)
        torch.testing.assert_close(with_function(x, kernels_calls.halved), x * 0.5)
        torch.testing.assert_close(with_function(x, lambda x: x * 3), x * 3)
        torch.testing.assert_close(keyed(x, n), x * n)
    assert is_replayed(with_function, some(9), kernels_calls.halved)
    assert is_replayed(keyed, some(9), 5) and not is_replayed(keyed, some(9), 4)


def test_pooled_outputs_have_the_size_of_their_call() -> None:
    case = CASES["a vector"]
    kernel = wrapped(again(case.kernel), pool=True)
    for n in (3, 5, 7, 9, 3, 11, 13, 3, 5, 17, 19):
        held(case, kernel, n)
    assert is_replayed(kernel, *case.inputs(23))


# -- parts of Helion's key -------------------------------------------------------------------------


def test_what_a_part_of_the_key_reads_is_seen() -> None:
    x, y = some(2, 3, 4), some(5)
    parts = [
        lambda args: (args[0].size(-1), args[0].stride(0), args[0].ndim, args[0].dtype),
        lambda args: args[1].shape,
    ]
    found = read_choice(parts, (x, y), True)
    assert [(each is y, *what) for each, *what in found.reads] == [
        *((False, "size", 2), (False, "stride", 0)),
        *((True, "size", 0),),
    ]
    assert not found.obstacle and not found.relations


@pytest.mark.parametrize(
    "part",
    [
        lambda args: args[0].data_ptr() % 16,
        lambda args: args[0].storage_offset(),
        lambda args: args[0].tolist(),
        lambda args: args[0].is_contiguous(),
    ],
    ids=["an address", "an offset", "values", "contiguity"],
)
def test_a_part_of_the_key_that_reads_something_else_is_an_obstacle(
    part: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = wrapped(again(added))
    found = compat.compiled
    monkeypatch.setattr(
        compat, "compiled", lambda *args: (now := found(*args)) and now._replace(extractors=(part,))
    )
    settle(kernel, (some(5), some(5)))
    refusal = kernel.explain(some(5), some(5)).refusal
    assert not is_replayed(kernel, some(5), some(5)), refusal


A, B = sympy.symbols("a b", integer=True)


@pytest.mark.parametrize(
    ("left", "right", "of_block", "same", "other"),
    [
        (A, B, False, (6, 6), (6, 7)),
        (A + 2, B, False, (6, 8), (6, 7)),
        (2 * A - B, sympy.Integer(4), False, (6, 8), (6, 7)),
        (FloorDiv(A, 2), B, False, (7, 3), (8, 3)),
        (sympy.Mod(A, 3), B, False, (7, 1), (9, 1)),
        (sympy.Max(A, B), sympy.Integer(9), False, (9, 4), (9, 10)),
        (A, sympy.Integer(8), True, (5, 1), (9, 1)),
        (A, sympy.Integer(1), True, (0, 1), (2, 1)),
    ],
)
def test_a_relation_of_sizes_is_a_condition(
    left: Any, right: Any, of_block: bool, same: tuple[int, int], other: tuple[int, int]
) -> None:
    for recorded, apart in ((same, other), (other, same)):
        formulas, conditions = related(left, right, of_block, recorded)
        assert holds(conditions, values_at(formulas, recorded))
        assert not holds(conditions, values_at(formulas, apart))


def test_a_relation_that_formulas_cannot_express_pins_its_sizes() -> None:
    formulas, conditions = related(sympy.factorial(A), B, False, (3, 6))
    assert holds(conditions, values_at(formulas, (3, 6)))
    assert not holds(conditions, values_at(formulas, (4, 6)))


def related(left: Any, right: Any, of_block: bool, at: tuple[int, int]) -> tuple[Formulas, Any]:
    """The conditions of a relation between the sizes of a tensor."""
    x = torch.empty(at)
    free = frozenset([Source("size", 0, 0), Source("size", 0, 1)])
    sizes = Sizes(Slots(), [("x", x)], free, lambda: 0)
    symbols = {A: (x, "size", 0), B: (x, "size", 1)}
    relation = compat.Relation(left, right, of_block, symbols)
    these = choice._Inputs(sizes, [x])
    choice._require_relation(sizes.formulas, these, relation)
    return sizes.formulas, list(sizes.formulas.conditions)


def values_at(formulas: Formulas, at: tuple[int, int]) -> list[int]:
    return computed(formulas.nodes, lambda source: at[source.dim])


def test_sizes_are_kept_in_their_buckets() -> None:
    for recorded, same, others in ((5, 6, (0, 1)), (1, 1, (0, 2)), (0, 0, (1, 2))):
        x = torch.empty(recorded)
        sizes = Sizes(Slots(), [("x", x)], frozenset([Source("size", 0, 0)]), lambda: 0)
        require_choice(read_choice((), (x,), True), [x], sizes)
        for n in (same, *others):
            met = holds(list(sizes.formulas.conditions), values_at(sizes.formulas, (n, 0)))
            assert met == (n == same)
