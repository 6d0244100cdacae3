"""Candidates are timed until they are settled, hopeless or out of time; copies are as the
originals; wrong results are told with where they differ."""

from __future__ import annotations

import enum
import math
import random
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import cycle, repeat
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tzero.errors import UnsupportedType
from tzero.tune import timing
from tzero.tune.copying import Copies
from tzero.tune.timing import CpuClock, CudaClock, Timing, copies, interval, measure, same

# -- a clock that is told how long calls take -----------------------------------------------------


@dataclass
class Told:
    """A clock and a call: each call takes the next of the durations, a flush takes its own."""

    durations: Iterator[float]
    flush: float = 0.0
    shortest: float = 0.0
    time: float = 100.0
    asked: list[tuple[int, int]] = field(default_factory=list)
    order: list[str] = field(default_factory=list)

    def call(self) -> None:
        self.order.append("call")
        self.time += next(self.durations)

    def now(self) -> float:
        return self.time

    def samples(
        self, call: Callable[[], object], calls: int, count: int, before: Any
    ) -> list[float]:
        self.asked.append((calls, count))
        found = []
        for _ in range(count):
            if before is not None:
                before()
            self.time += self.flush
            self.order.append("flush")
            start = self.time
            for _ in range(calls):
                call()
            found.append(self.time - start)
        return found


def measured(clock: Told, **options: Any) -> Timing:
    return measure(clock.call, device="cpu", clock=clock, **{"budget": 1e9, **options})


def test_a_steady_candidate_is_settled_by_its_fewest_samples() -> None:
    clock = Told(repeat(0.5))
    found = measured(clock)
    assert (found.ended, found.median, found.low, found.high) == ("settled", 0.5, 0.5, 0.5)
    assert timing.FEWEST <= found.samples <= timing.FEWEST + timing.BATCH


def test_the_first_call_is_not_in_the_timing() -> None:
    found = measured(Told(iter([1000.0, *repeat(1.0, 100)])))
    assert found.high == 1.0


def test_the_median_is_not_moved_by_a_long_tail() -> None:
    found = measured(Told(cycle([1.0] * 9 + [500.0])))
    assert found.median == 1.0


def test_a_restless_candidate_ends_with_the_most_samples() -> None:
    source = random.Random(1)
    found = measured(Told(iter(lambda: source.uniform(1, 3), None)))
    assert (found.ended, found.samples) == ("samples", timing.MOST)
    assert found.low < 2 < found.high


def test_a_sample_is_as_long_as_the_clock_needs() -> None:
    clock = Told(repeat(1e-6), shortest=1e-3)
    found = measured(clock)
    assert found.calls * 1e-6 >= 1e-3
    assert found.calls < 10_000
    assert found.median == pytest.approx(1e-6)
    assert {calls for calls, _ in clock.asked[-2:]} == {found.calls}


def test_a_first_sample_that_was_long_by_accident_does_not_settle_the_calls() -> None:
    found = measured(Told(iter([1.0, 1.0, *repeat(1e-6, 1_000_000)]), shortest=1e-3))
    assert found.calls * 1e-6 >= 0.5e-3
    assert found.high == pytest.approx(1e-6)


def test_calls_that_take_no_time_come_to_an_end() -> None:
    found = measured(Told(repeat(0.0), shortest=1e-3))
    assert (found.calls, found.median) == (timing.CALLS, 0.0)


def test_a_far_slower_candidate_is_given_up_at_a_glance() -> None:
    found = measured(Told(repeat(10.0)), best=1.0)
    assert found.hopeless
    assert found.samples == timing.GLANCE


def test_a_slower_candidate_is_given_up_once_its_interval_is_above_the_best() -> None:
    found = measured(Told(cycle([1.2, 1.3, 1.25])), best=1.0)
    assert found.hopeless
    assert found.samples == timing.SURE
    assert found.low > 1.0


def test_a_candidate_as_fast_as_the_best_is_not_given_up() -> None:
    assert measured(Told(repeat(1.0)), best=1.0).ended == "settled"


def test_a_slow_start_does_not_give_up_what_is_fast() -> None:
    found = measured(Told(iter([9.0, 9.0, *repeat(1.0, 500)])), best=2.0)
    assert not found.hopeless
    assert found.median == 1.0


def test_the_budget_is_kept_with_what_flushing_costs() -> None:
    clock = Told(cycle([1.0, 2.0, 3.0]), flush=5.0)
    start = clock.time
    found = measured(clock, budget=100.0)
    assert found.ended == "budget"
    assert clock.time - start < 100.0 + 8.0


def test_a_call_longer_than_the_budget_is_called_once() -> None:
    clock = Told(repeat(50.0))
    found = measured(clock, budget=10.0)
    assert (found.median, found.low, found.high) == (50.0, 0.0, math.inf)
    assert (found.samples, found.ended, clock.order.count("call")) == (1, "budget", 1)


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan])
def test_a_budget_of_nothing_is_refused(budget: float) -> None:
    with pytest.raises(ValueError, match="must be more than 0"):
        measured(Told(repeat(1.0)), budget=budget)


def test_what_is_to_be_put_back_is_so_before_each_sample_and_outside_its_time() -> None:
    clock = Told(repeat(1.0))

    def restore() -> None:
        clock.order.append("restore")
        clock.time += 7.0

    found = measured(clock, before=restore)
    assert found.high == 1.0
    assert clock.order == ["restore", "flush", "call"] * (len(clock.order) // 3)


def test_what_a_call_raises_is_the_callers() -> None:
    def fail() -> None:
        raise RuntimeError("out of resources")

    with pytest.raises(RuntimeError, match="out of resources"):
        measure(fail, device="cpu", budget=1.0, clock=Told(repeat(1.0)))


@given(st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=60), st.floats(1.0, 1e4))
def test_any_durations_give_an_ordered_timing_within_the_budget(
    durations: list[float], budget: float
) -> None:
    clock = Told(cycle(durations), flush=0.5, shortest=1e-3)
    start = clock.time
    found = measured(clock, budget=budget, best=durations[0])
    assert found.low <= found.median <= found.high
    assert min(durations) * 0.99 - 1e-9 <= found.median <= max(durations) * 1.01 + 1e-9
    # One batch may be slower than the one before it was.
    over = timing.BATCH * (found.calls * max(durations) + 0.5)
    assert clock.time - start <= budget + 10 * over


# -- intervals ------------------------------------------------------------------------------------


def test_intervals_are_those_of_the_tables() -> None:
    ranks = {n: interval([float(k) for k in range(1, n + 1)]) for n in (5, 6, 9, 10, 20, 100)}
    assert ranks == {
        5: (0.0, math.inf),
        6: (1.0, 6.0),
        9: (2.0, 8.0),
        10: (2.0, 9.0),
        20: (6.0, 15.0),
        100: (40.0, 61.0),
    }


@given(st.integers(1, 300), st.sampled_from([0.5, 0.9, 0.95, 0.99]))
def test_an_interval_covers_as_often_as_it_says_and_is_the_narrowest(
    count: int, confidence: float
) -> None:
    low, _ = interval([float(k) for k in range(1, count + 1)], confidence)
    rank = int(low)  # the samples are their own ranks, and 0 stands for none

    def missed(k: int) -> float:
        return 2 * sum(comb(count, i) for i in range(k)) / 2**count

    assert missed(rank) <= 1 - confidence + 1e-12
    assert missed(rank + 1) > 1 - confidence - 1e-12


def test_a_timing_says_itself_in_units_that_fit() -> None:
    found = Timing.of([2.5e-6] * 10, calls=1, ended="settled")
    assert str(found) == "2.5 µs (2.5 µs to 2.5 µs; 10 samples, settled)"
    few = Timing.of([0.25], calls=1, ended="budget")
    assert str(few) == "250 ms (0 s to any time; 1 samples, budget)"


# -- clocks ---------------------------------------------------------------------------------------


def test_the_wall_clock_times_calls_alone() -> None:
    now = [0.0]
    clock = CpuClock(cache=64, counter=lambda: now[0])

    def step(seconds: float) -> None:
        now[0] += seconds

    assert clock.samples(lambda: step(2.0), 3, 2, lambda: step(50.0)) == [6.0, 6.0]
    assert clock.now() == 112.0


class Listening(TorchDispatchMode):
    """Counts the operators that run."""

    ran = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ran += 1
        return func(*args, **(kwargs or {}))


def test_torch_does_nothing_ahead_of_a_sample_since_its_threads_would_go_on_spinning() -> None:
    clock, held = CpuClock(cache=1 << 20), Copies([torch.ones(1 << 16)])
    [x] = held.taken()
    x.zero_()
    with Listening() as listening:
        clock.samples(lambda: None, calls=1, count=3, before=held.restore)
    assert listening.ran == 0
    assert torch.equal(x, torch.ones(1 << 16))


def test_torchs_default_device_has_no_say() -> None:
    with torch.device("meta"):
        clock = CpuClock(cache=1 << 12)
        found = same([1.5, torch.ones(2, device="cpu")], [2.5, torch.ones(2, device="cpu")])
        other = same(torch.ones(2, device="cpu"), torch.zeros(2, device="cpu"))
        made = copies(torch.ones(3, device="cpu", requires_grad=True) * 2)
    assert clock._buffer.device.type == made.device.type == "cpu"
    assert "1.5" in found.words and "at (0,)" in other.words


def test_a_call_that_has_become_slow_is_not_called_as_often_as_before() -> None:
    clock = Told(repeat(1.0), shortest=1e-3)
    measured(clock, calls=1000, budget=5.0)
    assert clock.time - 100.0 < 12.0


def test_contents_of_another_size_are_not_copied() -> None:
    x = torch.ones(4)
    held = Copies([x])
    x.resize_(400)
    with pytest.raises(RuntimeError, match="size does not match"):
        held.restore()


def test_the_number_of_calls_in_a_sample_is_tried_first_where_it_is_known() -> None:
    clock = Told(repeat(1e-6), shortest=1e-3)
    calls = measured(clock).calls
    again = Told(repeat(1e-6), shortest=1e-3)
    assert measured(again, calls=calls).calls == calls
    assert {each for each, _ in again.asked[1:]} == {calls}  # the first one is not timed
    assert len(again.asked) < len(clock.asked)


def test_the_flush_is_as_large_as_the_largest_cache(tmp_path: Path) -> None:
    for k, size in enumerate(["48K", "2048K", "8M"]):
        (tmp_path / f"index{k}").mkdir()
        (tmp_path / f"index{k}" / "size").write_text(size + "\n")
    assert timing.cpu_cache(str(tmp_path)) == 8 << 20
    (tmp_path / "index2" / "size").write_text("266240K")
    assert timing.cpu_cache(str(tmp_path)) == 16 << 20
    assert timing.cpu_cache(str(tmp_path / "nowhere")) == 16 << 20


@pytest.mark.parametrize("text", ["", "K", "many", "4X", "0"])
def test_a_cache_of_unknown_size_counts_as_large(tmp_path: Path, text: str) -> None:
    (tmp_path / "index0").mkdir()
    (tmp_path / "index0" / "size").write_text(text)
    assert timing.cpu_cache(str(tmp_path)) == 16 << 20


def test_a_device_without_a_clock_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="CPUs and CUDA devices"):
        timing.clock_of("meta")


@pytest.mark.gpu
def test_device_events_time_what_runs_on_the_device() -> None:
    a = torch.randn(2048, 2048, device="cuda")
    clock = CudaClock(torch.device("cuda"))
    one = measure(lambda: a @ a, device="cuda", budget=2.0, clock=clock)
    four = measure(lambda: a @ a @ a @ a @ a, device="cuda", budget=2.0, clock=clock)
    assert 2 < four.median / one.median < 8


# -- copies ---------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Frozen:
    weight: torch.Tensor
    name: str = "w"


def facts(tensor: torch.Tensor) -> tuple[Any, ...]:
    place = (tensor.stride(), tensor.storage_offset(), tensor.data_ptr() % 16)
    return (tensor.dtype, tensor.shape, *place, tensor.untyped_storage().nbytes())


def test_copies_hold_equal_values_and_no_memory_of_the_originals() -> None:
    args = ([torch.arange(4.0)], {"b": torch.ones(2)}, Pair(torch.zeros(3), 1), 5, "x", None)
    made = copies(args)
    assert same(made, args)
    made[0][0].zero_()
    made[1]["b"].zero_()
    made[2].left.fill_(1)
    assert args[0][0].tolist() == [0, 1, 2, 3]
    assert args[1]["b"].tolist() == [1, 1]
    assert args[2].left.tolist() == [0, 0, 0]


def test_types_of_collections_are_kept() -> None:
    args = [OrderedDict(a=torch.ones(1)), Pair(1, torch.ones(1)), Frozen(torch.ones(2)), (1, 2)]
    made = copies(args)
    assert [type(each) for each in made] == [OrderedDict, Pair, Frozen, tuple]
    assert made[2].weight is not args[2].weight
    assert made[3] is args[3]


def test_what_shares_memory_shares_it_in_the_copies() -> None:
    x = torch.arange(12.0).reshape(3, 4)
    whole, row, turned, other = copies((x, x[1], x.t(), torch.zeros(12)))
    row.fill_(-1)
    assert whole[1].tolist() == [-1] * 4
    assert turned[0, 1] == -1
    assert other.sum() == 0
    assert x.min() == 0


def test_what_was_one_object_is_one_again() -> None:
    x, box = torch.ones(2), [torch.ones(1)]
    a, b, c, d = copies((x, x, box, box))
    assert a is b and c is d
    assert a is not x and c is not box


def test_a_list_that_holds_itself_is_copied() -> None:
    box: list[Any] = [torch.ones(1)]
    box.append(box)
    made = copies(box)
    assert made[1] is made
    assert made[0] is not box[0]


def test_memory_shared_by_dlpack_is_shared_again() -> None:
    x = torch.arange(8.0)
    y = torch.from_dlpack(x[3:6])
    a, b = copies((x, y))
    b.fill_(-1)
    assert a.tolist() == [0, 1, 2, -1, -1, -1, 6, 7]
    assert (facts(a), facts(b)) == (facts(x), facts(y))


@settings(deadline=None)
@given(
    st.integers(0, 40),
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.lists(st.integers(0, 7), min_size=3, max_size=3),
    st.integers(0, 9),
    st.sampled_from([torch.uint8, torch.float16, torch.float32, torch.int64, torch.complex64]),
)
def test_strides_offsets_and_alignment_are_kept(
    ahead: int, sizes: list[int], strides: list[int], offset: int, dtype: torch.dtype
) -> None:
    raw = torch.from_dlpack(torch.arange(2048).to(torch.uint8)[ahead * 8 :])
    storage = raw.untyped_storage()
    x = torch.empty(0, dtype=dtype).set_(storage, offset, sizes, strides[: len(sizes)])
    y = copies(x)
    assert facts(y) == facts(x)
    assert same(y, x)
    assert y.numel() == 0 or y.data_ptr() != x.data_ptr()


def test_an_alignment_that_no_allocator_gives_is_kept() -> None:
    base = torch.zeros(1024, dtype=torch.uint8)
    for shift in (1, 4, 8, 12, 16, 20):
        x = torch.from_dlpack(base[shift:])
        assert copies(x).data_ptr() % 512 == x.data_ptr() % 512


def test_parameters_grads_marks_and_lazy_signs_are_kept() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    leaf = torch.ones(2, requires_grad=True)
    marked = torch.ones(2, 3)
    torch._dynamo.mark_static(marked, 0)
    conj = torch.tensor([1 + 2j]).conj()
    a, b, c, d, e = copies((weight, leaf, marked, conj, conj.imag))
    assert type(a) is torch.nn.Parameter and a.requires_grad
    assert b.requires_grad and b.is_leaf
    assert c._dynamo_static_indices == marked._dynamo_static_indices
    assert d.is_conj() and d.tolist() == [1 - 2j]
    assert e.is_neg() and e.tolist() == [-2]


def test_what_was_computed_with_gradients_may_be_written_to_as_there() -> None:
    leaf = torch.ones(3, requires_grad=True)
    plain, turned = leaf * 2, (torch.tensor([1 + 2j]).requires_grad_() * 1).conj()
    mine, other = copies((plain, turned))
    assert mine.requires_grad and not mine.is_leaf and not mine._is_view()
    assert other.requires_grad and not other.is_leaf and other.is_conj()
    mine.mul_(3)
    other.mul_(2)
    mine.sum().backward()  # what it was computed from is not there
    assert (mine.tolist(), plain.tolist()) == ([6.0] * 3, [2.0] * 3)
    assert (other.tolist(), turned.tolist()) == ([2 - 4j], [1 - 2j])
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        copies(leaf).mul_(3)


def test_tensors_without_memory_are_copied() -> None:
    empty, meta = torch.empty(0, 3), torch.empty(5, device="meta")
    a, b = copies((empty, meta))
    assert a is not empty and a.shape == (0, 3)
    assert b is not meta and b.device.type == "meta" and b.shape == (5,)


def test_tensors_that_cannot_be_copied_are_refused() -> None:
    with pytest.raises(UnsupportedType, match="sparse"):
        copies([torch.ones(2).to_sparse()])


# -- right or wrong -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "other", "words"),
    [
        (torch.ones(2), torch.ones(3), "result has shape (2,), and the reference (3,)"),
        (torch.ones(2), torch.ones(2).half(), "result has dtype torch.float32"),
        (torch.ones(2), torch.ones(2, device="meta"), "result has device cpu"),
        (torch.ones(2), None, "result is of type Tensor, and the reference NoneType"),
        ([torch.ones(2)], [torch.ones(2)] * 2, "result has 1 items, and the reference 2"),
        ({"a": 1}, {"b": 1}, "result has the keys ['a'], and the reference ['b']"),
        ({"a": [1, 2]}, {"a": [1, 3]}, "result['a'][1] is 2, and the reference 3"),
        (Pair(1, 2.0), Pair(1, 2.1), "result[1] is 2.0, and the reference 2.1"),
        (Frozen(torch.zeros(1)), Frozen(torch.ones(1)), "result.weight is 0.0 at (0,)"),
        (1, True, "result is of type int, and the reference bool"),
        (
            torch.tensor([[1, 2], [3, 5]]),
            torch.tensor([[1, 2], [3, 4]]),
            "result is 5 at (1, 1), and the reference 4; 1 of 4 elements differ",
        ),
        (torch.tensor(3), torch.tensor(4), "result is 3 at (), and the reference 4; 1 of 1"),
        (torch.tensor([math.nan]), torch.tensor([0.0]), "result is nan at (0,)"),
        (torch.tensor([math.inf]), torch.tensor([-math.inf]), "result is inf at (0,)"),
        (torch.tensor([math.inf, 1]), torch.tensor([1e38, 1]), "result is inf at (0,)"),
        (torch.tensor([2**40 + 1]), torch.tensor([2**40]), "result is 1099511627777 at (0,)"),
        (torch.tensor([1 + 1j]), torch.tensor([1 - 1j]), "result is (1+1j) at (0,)"),
    ],
)
def test_a_difference_is_told_with_where_it_is(mine: Any, other: Any, words: str) -> None:
    found = same(mine, other)
    assert not found
    assert found.words.startswith(words)


NUMBERS = [*timing.TOLERANCES, torch.int8, torch.uint16, torch.uint32, torch.uint64, torch.bool]


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_every_dtype_is_equal_to_itself_and_not_to_another_value(dtype: torch.dtype) -> None:
    one = torch.tensor([0, 1, 1, 0]).to(dtype)
    two = torch.tensor([0, 1, 0, 0]).to(dtype)
    assert same(one, one.clone())
    assert "at (2,)" in same(one, two).words
    assert "1 of 4 elements" in same(one, two).words


def test_nan_and_infinities_are_equal_to_themselves() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float8_e5m2, torch.complex64):
        x = torch.tensor([math.nan, math.inf, -math.inf, 1.0]).to(dtype)
        assert same(x, x.clone())
    assert same(math.nan, math.nan)


def test_layout_does_not_count() -> None:
    x = torch.randn(3, 4)
    assert same(x.t().contiguous().t(), x)


def test_a_sum_in_another_order_is_right() -> None:
    source = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 4096, generator=source) for _ in range(2))
    whole = a @ b.t()
    parts = sum(a[:, k : k + 32] @ b[:, k : k + 32].t() for k in range(0, 4096, 32))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert same(parts.to(dtype), whole.to(dtype))


def test_a_sum_that_left_something_out_is_wrong() -> None:
    source = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 4096, generator=source) for _ in range(2))
    whole, short = a @ b.t(), a[:, :-16] @ b[:, :-16].t()
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert not same(short.to(dtype), whole.to(dtype))


def test_a_tolerance_can_be_given() -> None:
    one, two = torch.tensor([1.0]), torch.tensor([1.05])
    assert not same(one, two)
    assert same(one, two, tolerance=0.1)
    assert not same(one, one + 1e-6, tolerance=0.0)


def test_many_elements_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "_CHUNK", 7)
    x = torch.arange(100.0).reshape(10, 10)
    y = x.clone()
    y[9, 3] = -1
    assert same(x.clone(), x)
    assert same(y, x).words.startswith("result is -1.0 at (9, 3), and the reference 93.0")


class Opaque:
    """Equal to itself alone."""


class Kind(enum.Enum):
    ONE = 1
    TWO = 2


def test_what_only_its_identity_tells_apart_counts_as_the_same() -> None:
    assert same(Opaque(), Opaque())
    assert not same(Kind.ONE, Kind.TWO)
    assert not same(torch.float32, torch.float16)


def test_arrays_are_compared_as_tensors_are() -> None:
    one = np.array([1.0, 2.0], dtype=np.float32)
    assert same([one], [one + np.float32(1e-5)])
    assert "1 of 2 elements differ" in same(one, np.array([1.0, 3.0], dtype=np.float32)).words
