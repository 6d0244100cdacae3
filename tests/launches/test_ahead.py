"""`precompile` compiles what the first call needs, and launches nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

import tzero
from tzero import events
from tzero.compile import service

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available() and not tzero.settings.current().cpu,
    reason="these kernels are for tensors on the CPU; set TZERO_CPU=1 beside a GPU",
)


def scale_kernel(x, out, n, by, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, by * tl.load(x + at, mask=at < n), mask=at < n)


@pytest.fixture
def made(tmp_path: Any) -> Iterator[Any]:
    """A kernel that is in no cache."""
    with tzero.settings.override(cache_dir=str(tmp_path / "cache"), compile_workers=2):
        yield tzero.jit(scale_kernel)


def host_of(kernel: Any) -> Any:
    def scaled(x, by, config):
        out = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), config.BLOCK),)](x, out, x.numel(), by, config.BLOCK)
        return out

    return scaled


def compiles() -> int:
    return sum(service().stats().compiled.values())


def test_a_call_after_precompile_compiles_nothing(made: Any) -> None:
    kernel = tzero.kernel(config=tzero.Config(BLOCK=64))(host_of(made))
    x = torch.randn(200)
    before = compiles()
    ahead = kernel.precompile(x, 2.0)
    ahead.wait()
    assert list(ahead) == ["scale_kernel"] and ahead.done() and not ahead.refused
    assert compiles() == before + 1
    assert torch.equal(kernel(x, 2.0), 2 * x)
    assert compiles() == before + 1


def test_specs_stand_for_tensors(made: Any) -> None:
    kernel = tzero.kernel(config=tzero.Config(BLOCK=128))(host_of(made))
    kernel.precompile(tzero.Spec((200,)), 2.0).wait()
    before = compiles()
    x = torch.randn(200)
    assert torch.equal(kernel(x, 2.0), 2 * x)
    assert compiles() == before


@pytest.mark.parametrize("offset", [0, 1, 4])
def test_the_alignment_of_a_tensor_is_respected(made: Any, offset: int) -> None:
    kernel = tzero.kernel(config=tzero.Config(BLOCK=32))(host_of(made))
    x = torch.randn(200)[offset:]
    kernel.precompile(x, 3.0).wait()
    before = compiles()
    assert torch.equal(kernel(x, 3.0), 3 * x)
    assert compiles() == before


def test_nothing_is_launched(made: Any) -> None:
    kernel = tzero.kernel(config=tzero.Config(BLOCK=64))(host_of(made))
    x = torch.full((64,), 5.0)
    seen: list[str] = []
    with events.observe(lambda event: seen.append(event.kind)):
        kernel.precompile(x, 2.0).wait()
    assert "launch" not in seen and "compile" in seen
    assert kernel.stats().calls == 0


def test_each_config_is_compiled_at_once(made: Any) -> None:
    configs = [tzero.Config(BLOCK=size) for size in (512, 1024, 2048)]
    kernel = tzero.kernel(configs=configs)(host_of(made))
    x = torch.randn(100)
    before = compiles()
    assert torch.equal(kernel(x, 2.0), 2 * x)
    ahead = kernel.precompile(x, 2.0)
    ahead.wait()
    assert len(ahead) == 3 and compiles() == before + 3
    kernel.bind(x, 2.0).set_config(configs[2])
    assert torch.equal(kernel(x, 2.0), 2 * x) and compiles() == before + 3


def test_kernels_of_jit_are_precompiled_with_the_arguments_of_a_launch(made: Any) -> None:
    x, out = torch.randn(50), torch.empty(50)
    tzero.precompile(
        [
            (made, x, out, 50, 2.0, {"BLOCK": 64}),
            (made, tzero.Spec((50,), torch.float16), tzero.Spec((50,)), 50, 2.0, 64),
        ]
    )
    before = compiles()
    made[(1,)](x, out, 50, 2.0, BLOCK=64)
    assert torch.equal(out, 2 * x)
    made[(1,)](x.half(), out, 50, 2.0, BLOCK=64)
    assert torch.equal(out, 2 * x.half().float())
    assert compiles() == before


def test_tritons_own_kernels_are_compiled_ahead_too(made: Any) -> None:
    kernel = tzero.kernel(config=tzero.Config(BLOCK=256))(host_of(triton.jit(scale_kernel)))
    x = torch.randn(77)
    kernel.precompile(x, 2.0).wait()
    before = compiles()
    assert torch.equal(kernel(x, 2.0), 2 * x)
    assert compiles() == before


def test_each_config_of_an_autotuner_is_compiled_and_none_is_timed(made: Any) -> None:
    sizes = [triton.Config({"BLOCK": size}) for size in (16, 64)]
    tuned = triton.autotune(sizes, key=["n"])(made)

    @tzero.kernel
    def scaled(x, by):
        out = torch.empty_like(x)
        tuned[lambda given: (triton.cdiv(x.numel(), given["BLOCK"]),)](x, out, x.numel(), by)
        return out

    ahead = scaled.precompile(torch.randn(100), 2.0)
    ahead.wait()
    assert len(ahead) == 2 and not tuned.cache


def test_a_host_function_that_reads_tensor_values_is_rejected(made: Any) -> None:
    @tzero.kernel
    def scaled(x, by):
        out = torch.empty_like(x)
        made[(1,)](x, out, int(x.sum()), by, 64)
        return out

    with pytest.raises(tzero.InvalidArgument, match="reads the values of a tensor"):
        scaled.precompile(torch.randn(64), 2.0)


def test_a_host_function_that_keeps_a_tensor_is_rejected_at_once(made: Any) -> None:
    kept: dict[str, torch.Tensor] = {}

    def workspace(x: torch.Tensor) -> torch.Tensor:
        return kept.setdefault("workspace", torch.empty_like(x))

    @tzero.kernel
    def scaled(x, by):
        out = workspace(x)
        made[(4,)](x, out, x.numel(), by, 64)
        return out

    x = torch.randn(200)
    with pytest.raises(tzero.InvalidArgument, match="it keeps a tensor"):
        scaled.precompile(x, 2.0)
    kept.clear()
    assert torch.equal(scaled(x, 2.0), 2 * x)
    scaled.precompile(x, 2.0).wait()  # what it keeps now is a real one


@pytest.mark.parametrize("given", [torch.ones(64), tzero.Spec((64,))], ids=["tensor", "spec"])
def test_a_host_function_that_keeps_an_argument_is_rejected(made: Any, given: Any) -> None:
    kept: list[torch.Tensor] = []

    def note(x: torch.Tensor) -> None:
        kept.append(x)

    @tzero.kernel
    def scaled(x, by):
        note(x)
        made[(1,)](x, torch.empty_like(x), 64, by, 64)

    with pytest.raises(tzero.InvalidArgument, match="it keeps a tensor"):
        scaled.precompile(given, 2.0)


def test_weights_that_autocast_keeps_in_another_dtype_have_memory(made: Any) -> None:
    weight = torch.ones(64, 64, requires_grad=True)

    @tzero.kernel
    def scaled(x, by):
        y = torch.nn.functional.linear(x, weight)
        made[(1,)](x, torch.empty_like(x), 64, by, 64)
        return y

    x = torch.ones(1, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scaled.precompile(x, 2.0).wait()
        found = scaled(x, 2.0)
    assert type(found) is torch.Tensor and found.tolist() == [[64.0] * 64]


def test_specialize_works_in_a_precompiled_host_function(made: Any) -> None:
    @tzero.kernel
    def scaled(x, by):
        block = tzero.specialize(x.size(0))
        out = torch.empty_like(x)
        made[(1,)](x, out, x.numel(), by, block)
        return out

    scaled.precompile(torch.randn(64), 2.0).wait()
    x = torch.randn(64)
    assert torch.equal(scaled(x, 2.0), 2 * x)


def test_what_does_not_compile_raises_when_it_is_waited_for(made: Any) -> None:
    def broken_kernel(x, BLOCK: tl.constexpr):
        tl.store(x + tl.arange(0, BLOCK), not_there)  # noqa: F821

    broken = tzero.jit(broken_kernel)
    ahead = broken.precompile(tzero.Spec((64,)), 64)
    with pytest.raises(Exception, match="not_there"):
        ahead.wait()


def test_a_kernel_that_cannot_be_sent_is_named_and_compiles_at_its_first_call(made: Any) -> None:
    def telling_kernel(x, BLOCK: tl.constexpr):
        tl.static_print("compiling")
        tl.store(x + tl.arange(0, BLOCK), 1.0)

    telling = tzero.jit(telling_kernel)
    x = torch.zeros(64)
    ahead = telling.precompile(x, 64)
    assert "static_print" in ahead.refused["telling_kernel"] and not ahead
    telling[(1,)](x, 64)
    assert torch.equal(x, torch.ones(64))


def test_a_host_function_that_uses_the_result_of_a_launch_is_rejected(made: Any) -> None:
    @tzero.kernel
    def scaled(x, by):
        out = torch.empty_like(x)
        launched = made[(1,)](x, out, x.numel(), by, 64)
        return out, launched.metadata.num_warps

    with pytest.raises(tzero.InvalidArgument, match="runs without launches") as caught:
        scaled.precompile(torch.randn(64), 2.0)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_errors_of_triton_in_a_launch_are_raised_unchanged(made: Any) -> None:
    @tzero.kernel
    def scaled(x):
        made[(1,)](x, x, x.numel(), 2.0, 64, no_such_option=1)

    with pytest.raises(KeyError, match="no_such_option"):
        scaled.precompile(torch.randn(64))


def test_nothing_is_precompiled_for_the_interpreter(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = tzero.kernel(config=tzero.Config(BLOCK=64))(host_of(made))
    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    assert not kernel.precompile(tzero.Spec((64,)), 2.0)
    assert not tzero.precompile([(kernel, tzero.Spec((64,)), 2.0)])


def test_each_rank_begins_with_its_own_share_and_goes_on_with_the_next() -> None:
    from tzero.cache.place import Job
    from tzero.launches.ahead import _from_rank

    digests = [hashlib.sha256(bytes([k])).hexdigest() for k in range(40)]
    orders = [sorted(digests, key=_from_rank(Job(rank, 4, None))) for rank in range(4)]
    shares = [{each for each in digests if int(each[0], 16) // 4 == rank} for rank in range(4)]
    for rank, order in enumerate(orders):
        assert set(order) == set(digests)
        assert set(order[: len(shares[rank])]) == shares[rank]
        after = shares[(rank + 1) % 4]
        assert set(order[len(shares[rank]) :][: len(after)]) == after
    assert sorted(digests, key=_from_rank(Job(0, 1, None))) != digests
