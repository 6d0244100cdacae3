"""`warmup`: after it the first call has nothing left to do, for every class that it was given."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tests import warm
from tests.briefly import tune_briefly
from tzero import Range, Spec
from tzero.calls import warming
from tzero.errors import InvalidArgument
from tzero.launches.ranges import MOST, classes


@triton.jit
def double_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def doubled(x):
    out = torch.empty_like(x)
    n = x.numel()
    double_kernel[(1,)](x, out, n, BLOCK=triton.next_power_of_2(n))
    return out


def chunked(x, config):
    out = torch.empty_like(x)
    double_kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, out, x.numel(), **config)
    return out


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZERO_CACHE_DIR", str(tmp_path / "cache"))
    tune_briefly(monkeypatch)
    yield
    tzero.unseal()


def test_every_size_of_a_range_is_replayed_after_it() -> None:
    kernel = tzero.kernel(doubled)
    warmed = kernel.warmup(Spec((Range(1, 70),)))
    assert warmed.classes > 16 and warmed.recorded >= 2 and not warmed.left
    before = kernel.stats().native_replays
    with tzero.seal():
        for n in range(1, 71):
            x = torch.randn(n)
            assert torch.equal(kernel(x), x * 2)
    assert kernel.stats().native_replays == before + 70


def test_the_arguments_themselves_are_not_changed() -> None:
    @tzero.kernel
    def in_place(x):
        double_kernel[(1,)](x, x, x.numel(), BLOCK=64)

    x = torch.arange(40.0)
    in_place.warmup(x)
    assert torch.equal(x, torch.arange(40.0))
    with tzero.seal():
        in_place(x)
    assert torch.equal(x, torch.arange(40.0) * 2)


def test_configs_are_chosen() -> None:
    configs = [tzero.Config(BLOCK=32), tzero.Config(BLOCK=64)]
    kernel = tzero.kernel(configs=configs)(chunked)
    kernel.warmup(Spec((Range(30, 33),)))
    with tzero.seal():
        for n in range(30, 34):
            assert torch.equal(kernel(torch.ones(n)), torch.full((n,), 2.0))
            assert kernel.bind(torch.ones(n)).choice.how in ("tuned", "cached")


def test_an_unaligned_tensor_is_a_class_of_its_own() -> None:
    kernel = tzero.kernel(doubled)
    kernel.warmup(Spec((64,)))
    slice_ = torch.randn(65)[1:]
    with tzero.seal(), pytest.raises(tzero.SealBroken, match="alignment"):
        kernel(slice_)
    kernel.warmup(Spec((64,), aligned=False))
    with tzero.seal():
        assert torch.equal(kernel(slice_), slice_ * 2)
        assert torch.equal(kernel(torch.ones(64)), torch.full((64,), 2.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8])
def test_an_unaligned_tensor_may_have_any_address(dtype: torch.dtype) -> None:
    kernel = tzero.kernel(doubled)
    kernel.warmup(Spec((Range(65, 80),), dtype, aligned=False))
    base = torch.ones(100, dtype=dtype)
    with tzero.seal():
        for offset in range(1, 16 // dtype.itemsize):
            for size in range(65, 81):
                x = base[offset : offset + size]
                assert torch.equal(kernel(x), x * 2)


def test_of_many_unaligned_tensors_those_at_like_addresses_are_covered() -> None:
    @tzero.kernel
    def three(x, y, z):
        return doubled(x), doubled(y), doubled(z)

    three.warmup(*[Spec((64,), aligned=False)] * 3)
    with tzero.seal():
        for offset in (1, 2, 3):
            three(*(torch.ones(70)[offset : offset + 64] for _ in range(3)))


def test_launches_are_compiled_for_each_class_of_an_integer() -> None:
    @tzero.jit
    def kernel(x, out, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

    spec = Spec((64,))
    kernel.warmup(spec, spec, Range(1, 2**40), grid=(1,), BLOCK=64)
    x, out = torch.ones(64), torch.empty(64)
    with tzero.seal():
        for n in (1, 16, 17, 48, 2**31 + 5, 2**35):
            kernel[(1,)](x, out, n, BLOCK=64)
        with pytest.raises(tzero.SealBroken, match="'BLOCK' is the constant 32"):
            kernel[(1,)](x, out, 5, BLOCK=32)
    (warmed,) = tzero.warmup([(kernel, spec, spec, 5, {"BLOCK": 32})])
    assert (warmed.classes, warmed.compiled) == (1, 1)
    with tzero.seal():
        kernel[(1,)](x, out, 5, BLOCK=32)


@tzero.jit
def shift_kernel(x, out, n, BY: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + BY, mask=at < n)


@pytest.mark.parametrize("how", ["all", "one"])
def test_each_value_of_a_range_for_a_constant_of_a_launch_is_compiled(how: str) -> None:
    spec = Spec((64,))
    if how == "all":
        tzero.warmup([(shift_kernel, spec, spec, Range(1, 99), Range(64, 70), {"BLOCK": 64})])
    else:
        shift_kernel.warmup(spec, spec, Range(1, 99), BY=Range(64, 70), BLOCK=64, grid=(1,))
    x, out = torch.ones(64), torch.empty(64)
    with tzero.seal():
        for by in range(64, 71):
            for n in (1, 16, 17, 64):
                shift_kernel[(1,)](x, out, n, by, BLOCK=64)
            assert torch.equal(out, x + by)
    before = tzero.compile.service().stats()
    why = "mean 2,000 classes, .* because each value of 'BY' is one: it is a compile-time constant"
    with pytest.raises(InvalidArgument, match=why):
        shift_kernel.warmup(spec, spec, 5, Range(1, 2000), BLOCK=64, grid=(1,))
    assert tzero.compile.service().stats() == before


def test_each_value_of_a_range_for_an_option_of_a_launch_is_compiled() -> None:
    spec = Spec((64,))
    given = {"BLOCK": 64, "num_stages": Range(1, 3), "grid": (1,)}
    (warmed,) = tzero.warmup([(shift_kernel, spec, spec, 64, 5, given)])
    assert warmed.classes == 3


def test_a_value_of_a_range_that_does_not_compile_is_named() -> None:
    spec = Spec((64,))
    why = (
        r"shift_kernel: it does not compile for BLOCK=17 of Range\(low=16, high=20\), .*power of 2"
    )
    with pytest.raises(InvalidArgument, match=why):
        tzero.warmup([(shift_kernel, spec, spec, 64, 1, {"BLOCK": Range(16, 20)})])


WRONG_SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "a number as shape": ({"shape": 5}, "its shape is 5, which is no tuple"),
    "a negative size": ({"shape": (-1,)}, "-1 is in its shape"),
    "a size that is no integer": ({"shape": (1.5,)}, "1.5 is in its shape"),
    "the name of a dtype": ({"shape": (4,), "dtype": "float32"}, "its dtype is 'float32'"),
    "few strides": ({"shape": (4, 4), "strides": (1,)}, "2 sizes and 1 strides"),
    "a negative stride": ({"shape": (4,), "strides": (-1,)}, "-1 is in its strides"),
    "no device": ({"shape": (4,), "device": "abacus"}, "its device is 'abacus'"),
}


@pytest.mark.parametrize("what", WRONG_SPECS)
def test_a_spec_of_no_tensor_is_refused(what: str) -> None:
    given, why = WRONG_SPECS[what]
    with pytest.raises(InvalidArgument, match=f"tzero.Spec: .*{why}. Give sizes"):
        Spec(**given)


def test_items_that_are_no_calls_are_refused() -> None:
    kernel = tzero.kernel(doubled)
    wrong: tuple[Any, ...] = ([kernel], [()], kernel, 5)
    for items in wrong:
        with pytest.raises(InvalidArgument, match=r"it was given the item .*Give tuples"):
            tzero.warmup(items)
    if not torch.cuda.is_available():
        with pytest.raises(InvalidArgument, match="a Spec is on cuda, where no tensor can be"):
            kernel.warmup(Spec((4,), device="cuda"))


def test_too_many_classes_are_said_before_anything_is_compiled() -> None:
    calls: list[int] = []

    @tzero.kernel(static_shapes=True)
    def kernel(x):
        calls.append(1)
        return doubled(x)

    before = tzero.compile.service().stats()
    with pytest.raises(InvalidArgument, match="its ranges mean 1,000,000 classes"):
        kernel.warmup(Spec((Range(1, 1_000_000),)))
    with pytest.raises(InvalidArgument, match="kernel: its ranges mean 1,048,576 classes"):
        tzero.warmup([(kernel, Spec((4,))), (kernel, Spec((Range(1, 1024), Range(0, 1023))))])
    with pytest.raises(InvalidArgument, match="mean 18,446,744,073,709,551,616 classes"):
        kernel.warmup(Spec((Range(1, 2**64),)))
    many = tuple(Range(1, 40 + k) for k in range(10))
    with pytest.raises(InvalidArgument, match=r"mean 59,\d+ classes, and at most 1,024"):
        tzero.kernel(doubled).warmup(Spec(many))
    assert not calls and tzero.compile.service().stats() == before


def test_classes_of_ranges() -> None:
    assert classes("k", (1, "a"), exact=False) == [(1, "a")]
    both = classes("k", (Range(1, 40), Range(1, 40)), exact=False)
    assert all(one == other for one, other in both)  # equal ranges vary together
    apart = classes("k", (Range(1, 40), Range(2, 40)), exact=False)
    assert {(1, 16), (1, 2), (16, 16), (16, 2), (2, 2)} <= set(apart)
    residues = {n % 16 for (n,) in classes("k", (Range(33, 64),), exact=False)}
    assert residues == set(range(16))
    wide = {n for (n,) in classes("k", (Range(1, 2**32),), exact=False)}
    assert {1, 2, 16, 2**31, 2**31 + 1, 2**32} <= wide and len(wide) < MOST
    for low, high in ((-1, 3), (5, 4), (1.0, 2), (True, 2)):
        with pytest.raises(InvalidArgument, match="the least and the greatest"):
            Range(low, high)  # type: ignore[arg-type]


def test_a_class_that_does_not_fit_into_memory_is_compiled_only() -> None:
    @tzero.kernel
    def kernel(x):
        out = torch.empty_like(x)
        double_kernel[(triton.cdiv(x.numel(), 64),)](x, out, x.numel(), BLOCK=64)
        return out

    warmed = kernel.warmup(Spec((Range(2**40, 2**40 + 1),)))
    assert warmed.recorded == 0 and warmed.compiled > 0
    assert "would take" in next(iter(warmed.left.values()))
    assert "only compiled: float32[1099511627776]" in str(warmed)


def test_a_call_that_raises_says_with_what() -> None:
    @tzero.kernel
    def picky(x):
        if x.numel() == 3:
            raise ValueError("not 3")
        return doubled(x)

    with pytest.raises(ValueError, match="not 3") as raised:
        picky.warmup(Spec((3,)))
    assert raised.value.__notes__ == ["while warmup called picky(float32[3])"]


@pytest.mark.parametrize("kernel", [double_kernel, len, "add"])
def test_what_is_no_kernel_of_tzero_is_refused(kernel: Any) -> None:
    with pytest.raises(InvalidArgument, match="warmup was given"):
        tzero.warmup([(kernel, 1)])


def test_on_a_terminal_a_bar_shows_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with warming._bar(4) as advance:
        advance("add", 1)
        advance("add", 2)
    assert "warming up add" in screen.getvalue() and "3/4" in screen.getvalue()


FIRST_CALL = """
import json, sys
import torch
import tzero
from tests.calls.test_warming import doubled

kernel = tzero.kernel(doubled)
heavy = "torch._dynamo" in sys.modules
kernel.warmup(tzero.Spec((tzero.Range(1, 40),)))
assert heavy or "torch._dynamo" not in sys.modules
tzero.coverage().save(sys.argv[1])
modules, before = set(sys.modules), tzero.compile.service().stats().requests
x = torch.randn(23)
assert torch.equal(kernel(x), x * 2)
print(json.dumps([
    sorted(set(sys.modules) - modules),
    tzero.compile.service().stats().requests - before,
    len(tzero.coverage()),
]))
"""


def test_the_first_call_imports_and_compiles_nothing_and_coverage_files_warm_up_others(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "coverage.json")
    done = warm.run([sys.executable, "-c", FIRST_CALL, path])
    assert done.returncode == 0, done.stderr
    imported, requests, count = json.loads(done.stdout)
    assert (imported, requests) == ([], 0)
    for place in (path, Path(path)):
        (warmed,) = tzero.warmup(place)
        assert warmed.classes == count and not warmed.left
