# mypy: allow-untyped-decorators
"""Copies in CUDA graphs, on a stand-in for CUDA's driver: which calls of torch become nodes, and
what is torch's all the same.

tests/gpu/test_graph_copies.py has the real driver.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
from torch import Tensor
from torch.autograd import forward_ad

from tests.native.standin import Driver, kernel_of, on_cuda
from tests.native.test_graphs import FILL, HOT, LAUNCH, PLAIN, N, add, cuda, kinds, warm, xy
from tzero import events, settings
from tzero.errors import LaunchFailed

__all__ = ["cuda", "xy"]  # fixtures

COPY = f"cuMemcpyDtoDAsync {4 * N}"
SET = "cuGraphExecMemcpyNodeSetParams"


@pytest.fixture(autouse=True)
def without_pitches(cuda: Driver) -> Iterator[None]:
    cuda.pitches(0)
    yield
    cuda.pitches(0)


def launched(x: Tensor, y: Tensor, out: Tensor) -> None:
    n = y.numel()
    add[(triton.cdiv(n, 128),)](x, y, out, n, BLOCK=128)


# -- which calls become nodes ----------------------------------------------------------------------


def copied(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launched(x, y, out)
    kept = torch.empty_like(x)
    kept.copy_(out)
    launched(kept, y, out)
    return out


def copied_at_once(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x).copy_(x, non_blocking=True)
    launched(out, y, out)
    launched(out, y, out)
    return out


def cloned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    kept = x.clone()
    launched(kept, y, kept)
    out = torch.clone(kept, memory_format=torch.contiguous_format)
    launched(out, y, out)
    return kept, out.clone()


def assigned(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[:] = x
    launched(out, y, out)
    out[...] = y
    launched(out, y, out)
    return out


def converted(x: Tensor, y: Tensor) -> Tensor:
    out = x.to(torch.float32, copy=True)
    launched(out, y, out)
    launched(out, y, out)
    return out


def of_views(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros(2 * x.numel())
    half = out[x.numel() :]
    half.copy_(x)
    launched(half, y, out)
    out[: x.numel()].copy_(half)
    launched(out, y, half)
    return out


def in_place(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launched(x, y, out)
    y.copy_(out)
    launched(out, y, out)
    return out


def transposed(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launched(x, y, out)
    turned = out.view(10, -1).t().contiguous().view(-1)
    launched(turned, y, turned)
    launched(turned, y, turned)
    return turned


def narrowed(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launched(x, y, out)
    halves = out.to(torch.float16).to(torch.float32)
    launched(halves, y, halves)
    launched(halves, y, halves)
    return halves


def spread(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty(2, x.numel())
    out.copy_(x)
    launched(out, y, out)
    launched(out, y, out)
    return out


def sliced(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros(2 * x.numel())
    launched(x, y, out)
    out[x.numel() :] = x
    launched(out, y, out)
    launched(out, y, out)
    return out


HOSTS: dict[Callable[..., Any], tuple[list[int], list[int]]] = {
    copied: ([3], [1]),
    copied_at_once: ([3], [1]),
    cloned: ([5], [3]),
    assigned: ([4], [2]),
    converted: ([3], [1]),
    of_views: ([5], [2]),
    in_place: ([3], [1]),
    transposed: ([1, 2], [0, 0]),
    narrowed: ([1, 2], [0, 0]),
    spread: ([2], [0]),
    sliced: ([2, 2], [0, 0]),
}
"""By host function: the pieces of work of each run, and how many of these are copies."""


@pytest.mark.parametrize("host", HOSTS, ids=lambda host: host.__name__)
@pytest.mark.parametrize("pool", [False, True], ids=["fresh", "pooled"])
def test_copies_in_the_order_of_memory_are_nodes(cuda: Driver, host: Any, pool: bool) -> None:
    kernel = kernel_of(host, pool=pool)
    for _ in range(3 * HOT):
        x, y = torch.rand(N), torch.rand(N)
        given = x.clone(), y.clone()
        expected = host(*given)
        torch.testing.assert_close(kernel(x, y), expected, rtol=0, atol=0)
        assert torch.equal(y, given[1])
        assert (x._version, y._version) == (given[0]._version, given[1]._version)
    made = kernel.explain(x, y).runs
    assert ([run.work for run in made], [run.copies for run in made]) == HOSTS[host]
    assert [run.graphs for run in made] == [1] * len(made)


def test_a_graph_holds_the_copies_of_a_run(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(copied)
    kernel(*xy)
    kernel(*xy)
    assert cuda.calls() == [PLAIN, COPY, PLAIN]
    warm(kernel, *xy, calls=HOT - 1)
    assert COPY in cuda.calls()
    keep = [kernel(*xy) for _ in range(3)]
    assert torch.equal(keep[-1], copied(*xy))
    calls = cuda.calls()
    assert calls[-1] == LAUNCH
    assert not {"cuMemcpyDtoDAsync", "cuLaunchKernelEx"} & set(kinds(calls))
    said = str(kernel.explain(*xy))
    assert "a CUDA graph of 3 (1 copy): launched 3 times" in said
    assert len(keep) == 3


def test_events_tell_of_copies(cuda: Driver, xy: Any) -> None:
    seen: list[str] = []
    with events.observe(lambda event: seen.append(str(event)), calls=False):
        warm(kernel_of(copied), *xy)
    assert "copied: graph: 3 launches, fills and copies are one CUDA graph" in seen


def test_both_ends_of_a_copy_are_set(cuda: Driver) -> None:
    kernel = kernel_of(in_place)
    y = torch.rand(N)
    warm(kernel, torch.rand(N), y)
    cuda.calls()
    for _ in range(3):
        x, other = torch.rand(N), y.clone()
        wanted = in_place(x, other.clone())
        assert torch.equal(kernel(x, other), wanted)
        assert f"{SET} 1" in cuda.calls()


@pytest.mark.parametrize("how", [0, 1])
def test_sizes_of_copies_are_set(cuda: Driver, how: int) -> None:
    cuda.pitches(how)
    kernel = kernel_of(copied, over_sizes=True)
    for n in (200, 300, 200, 256, 300, 200, 264, 1024, 200, 0, 300, 200, 300, 2, 0):
        for _ in range(HOT):
            x, y = torch.rand(n), torch.rand(n)
            assert torch.equal(kernel(x, y), copied(x, y)), n
    assert sum(call == LAUNCH for call in cuda.calls()) > 10
    assert kernel.explain(x, y).plan.sizing is not None
    assert "nothing" in str(kernel.explain(x, y))


def of_rows(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty(y.shape)
    launched(y, y, out)
    out.copy_(x)
    launched(out, y, out)
    return out


def test_tensors_with_gaps_are_copied_by_torch(cuda: Driver) -> None:
    """A plan over sizes is for tensors with and without gaps."""
    kernel = kernel_of(of_rows, over_sizes=True)
    whole = torch.rand(64, 6)
    for width in (6, 6, 6, 6, 4, 6, 4, 4, 6, 4):
        x, y = whole[:, :width], torch.rand(64, width)
        assert torch.equal(kernel(x, y), of_rows(x, y))
    made = kernel.explain(x, y).runs[0]
    assert (made.copies, made.graphs, made.plainly["interrupted"]) == (1, 1, 4)


def alone(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    launched(x, y, out)
    doubled = (out * 2).clone() * 2
    launched(doubled, y, doubled)
    return doubled


def test_a_copy_alone_is_no_graph(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(alone)
    expected = alone(*xy)
    warm(kernel, *xy, calls=2 * HOT)
    cuda.calls()
    assert torch.equal(kernel(*xy), expected)
    calls = [call for call in cuda.calls() if "SetParams" not in call]
    assert calls == [LAUNCH, COPY, LAUNCH]
    assert [run.work for run in kernel.explain(*xy).runs] == [1, 1]


# -- what torch copies all the same ----------------------------------------------------------------


def shifted(x: Tensor, y: Tensor) -> Tensor:
    launched(x, y, y)
    x.copy_(y)
    launched(x, y, x)
    return x


def test_tensors_in_the_same_memory_are_copied_by_torch(cuda: Driver) -> None:
    kernel = kernel_of(shifted)
    warm(kernel, torch.rand(N), torch.rand(N), calls=2 * HOT)
    memory = torch.rand(2 * N)
    x, y = memory[:N], memory[N // 2 : N // 2 + N]
    cuda.calls()
    for call in (shifted, kernel):
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            call(x, y)
    assert not {"cuMemcpyDtoDAsync", "cuGraphLaunch"} & set(kinds(cuda.calls()))
    both = torch.rand(N)
    version = both._version
    wanted = both * 4
    assert torch.equal(kernel(both, both.view(-1)), wanted)
    assert both._version == version + 1
    x, y = memory[:N], memory[N:]
    wanted = shifted(x.clone(), y.clone())
    assert torch.equal(kernel(x, y), wanted)
    assert kernel.explain(x, y).runs[0].plainly["interrupted"] >= 1


def test_lazily_negated_tensors_are_copied_by_torch(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(assigned)
    x, y = xy
    warm(kernel, x, y, calls=2 * HOT)
    negated = torch._neg_view(x)
    expected = assigned(negated, y)
    for _ in range(2 * HOT):
        assert torch.equal(kernel(negated, y), expected)
    assert [run.copies for run in kernel.explain(negated, y).runs] == [1]


def test_tangents_are_copied_by_torch(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(cloned)
    warm(kernel, *xy, calls=2 * HOT)
    x, y = xy
    native = on_cuda().module
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        assert native.has_tangent(dual)
        assert native.has_tangent(dual[1:])
        assert not native.has_tangent(y)
        tangents = [
            [forward_ad.unpack_dual(each).tangent for each in call(dual, y)]
            for call in (cloned, kernel)
        ]
    assert [each.tolist() for each in tangents[0]] == [each.tolist() for each in tangents[1]]


def test_profilers_see_the_copies_of_torch(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(cloned)
    warm(kernel, *xy, calls=2 * HOT)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        kernel(*xy)
    assert sum(event.name == "aten::clone" for event in profile.events()) == 3


@pytest.mark.parametrize(
    "mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference"]
)
def test_changes_are_counted_as_torch_counts_them(cuda: Driver, mode: Any) -> None:
    kernel, versions = kernel_of(in_place), []
    for call in (in_place, kernel):
        with mode():
            made = torch.rand(N)
        for given in (torch.rand(N), torch.nn.Parameter(torch.rand(N)), made):
            with mode():
                results = [call(torch.rand(N), given) for _ in range(2 * HOT)]
                kinds_of = {(each.is_inference(), each.requires_grad) for each in results}
            version = None if given.is_inference() else given._version
            versions.append((version, kinds_of))
    assert versions[:3] == versions[3:]
    assert LAUNCH in cuda.calls()


def test_what_autograd_records_is_torchs(cuda: Driver) -> None:
    kernel = kernel_of(cloned)
    x, y = torch.rand(N, requires_grad=True), torch.rand(N)
    for _ in range(2 * HOT):
        for call in (cloned, kernel):
            assert all(each.requires_grad for each in call(x, y))
    assert not any("Memcpy" in each for each in cuda.calls())


def test_a_stream_that_captures_gets_plain_copies(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(copied)
    warm(kernel, *xy, calls=2 * HOT)
    cuda.capture(1)
    cuda.calls()
    kernel(*xy)
    assert cuda.calls() == [PLAIN, COPY, PLAIN]


# -- failures --------------------------------------------------------------------------------------


def test_a_copy_that_is_read_back_otherwise_leaves_plain_launches(cuda: Driver, xy: Any) -> None:
    cuda.pitches(2)
    kernel = kernel_of(copied)
    warm(kernel, *xy, calls=2 * HOT)
    assert torch.equal(kernel(*xy), copied(*xy))
    assert "cuGraphMemcpyNodeGetParams failed" in kernel.explain(*xy).runs[0].ended
    assert cuda.alive() == 0


def test_ends_that_cannot_be_set_leave_plain_copies(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(in_place)
    x, y = xy
    warm(kernel, x, y, calls=HOT + 3)
    other = torch.rand(N)
    expected = in_place(x, other.clone())
    cuda.fail(SET, 1)
    assert torch.equal(kernel(x, other), expected)
    assert cuda.alive() == 0
    assert "tried again after" in str(kernel.explain(x, y))


@pytest.mark.parametrize("is_hot", [False, True])
def test_a_failed_copy_ends_the_call(cuda: Driver, xy: Any, is_hot: bool) -> None:
    kernel = kernel_of(copied)
    warm(kernel, *xy, calls=HOT if is_hot else 2)
    cuda.fail("cuMemcpyDtoDAsync")
    with pytest.raises(RuntimeError, match="CUDA could not fill or copy a tensor"):
        kernel(*xy)
    assert torch.equal(kernel(*xy), copied(*xy))


def test_a_failed_graph_names_its_copies(cuda: Driver, xy: Any) -> None:
    kernel = kernel_of(copied)
    warm(kernel, *xy, calls=2 * HOT)
    cuda.fail("cuGraphLaunch")
    with pytest.raises(LaunchFailed) as caught:
        kernel(*xy)
    assert "a copy" in str(caught.value)


# -- pools -----------------------------------------------------------------------------------------


def filled_and_copied(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    out = torch.zeros_like(x)
    launched(out, y, out)
    out.copy_(x)
    out.zero_()
    out.copy_(y)
    return out, x.clone()


def test_outputs_that_are_copied_to_are_reused(cuda: Driver, xy: Any) -> None:
    if not on_cuda().module.rings():
        pytest.skip("no rings here")
    kernel = kernel_of(filled_and_copied, pool=True)
    expected = filled_and_copied(*xy)
    warm(kernel, *xy, calls=2 * HOT)
    cuda.calls()
    for _ in range(5):
        out, clone = kernel(*xy)
        assert torch.equal(out, expected[0]) and torch.equal(clone, expected[1])
        assert (out._version, clone._version) == (expected[0]._version, 0)
        del out, clone
    calls = cuda.calls()
    assert calls[-1] == LAUNCH
    assert len(calls) <= 6, "tensors of the pool have the addresses that the graph has"
    with settings.override(graphs=0):
        kernel(*xy)
        assert kinds(cuda.calls()).count(FILL) == 2
