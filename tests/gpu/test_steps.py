# mypy: allow-untyped-decorators, disable-error-code="no-untyped-call"
"""Whole steps as guarded CUDA graphs: what they compute is bit for bit what the functions compute,
whatever changes between two calls."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor, nn

import tzero
from tests.steps import CHANGES, ON_CUDA, Both, models
from tzero import events

pytestmark = pytest.mark.gpu

STEPS = 200


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def launched(both: Both) -> int:
    """How many graphs of its step were launched."""
    return graphs_of(both.step.forward)


def graphs_of(kernel: Any) -> int:
    return sum(int(each.launched) for each in kernel.capturing.made())


def test_the_steps_of_a_model_are_the_same_bit_for_bit() -> None:
    both = Both()
    generator = torch.Generator().manual_seed(1)
    for k in range(STEPS):
        position = int(torch.randint(0, 256, (), generator=generator))
        both(position, word=k % 100)
    assert launched(both) >= STEPS - 2
    kernel = both.step.forward
    assert kernel.stats().native_replays >= STEPS - 2


def test_explain_says_what_becomes_a_graph_and_how_inputs_get_there() -> None:
    both = Both()
    for k in range(3):
        both(k)
    token, at = (
        torch.zeros((1, 1), dtype=torch.long, device="cuda"),
        torch.zeros(1, dtype=torch.long, device="cuda"),
    )
    text = str(both.step.forward.explain(token, at, *both.caches[2:]))
    assert "one CUDA graph of the next" in text
    assert "in the graph, position: it is copied into the graph's memory" in text
    assert "in the graph, keys[0]: its address is set in" in text
    assert "tensors of the world: the graph is for their addresses" in text


# -- what changes between two steps ----------------------------------------------------------------


@pytest.fixture
def settings_restored() -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_bf16_reduced_precision_reduction, torch.backends.cuda.cudnn_sdp_enabled()
    yield
    matmul.allow_bf16_reduced_precision_reduction = before[0]
    torch.backends.cuda.enable_cudnn_sdp(before[1])


@pytest.mark.usefixtures("settings_restored")
@pytest.mark.parametrize("change", [*CHANGES, *ON_CUDA], ids=lambda each: each.__name__)
def test_a_change_between_two_steps_is_seen(change: Callable[[Both], None]) -> None:
    both = Both()
    for k in range(4):
        both(k)
    change(both)
    for k in range(4, 9):
        both(k)


def test_every_change_one_after_the_other_gives_no_wrong_token() -> None:
    both = Both()
    names = ("weights_in_place", "caches_moved", "weights_moved", "caches_swapped")
    changes = [each for each in CHANGES if each.__name__ in names]
    for k in range(40):
        both(k, word=k)
        if k % 2:
            changes[k // 2 % len(changes)](both)
    assert launched(both) > 0


# -- outputs, streams, memory ----------------------------------------------------------------------


def test_an_output_that_is_held_is_never_written_again() -> None:
    both = Both()
    held = [both(k, word=k) for k in range(20)]
    copies = [each.clone() for each in held]
    for k in range(20, 40):
        both(k, word=k)
    assert all(map(torch.equal, held, copies))
    assert len({each.data_ptr() for each in held}) == len(held)


def test_two_models_on_two_streams_do_not_disturb_each_other() -> None:
    pairs = [Both(), Both()]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    for k in range(30):
        for both, stream in zip(pairs, streams, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                both(k, word=k)
    torch.cuda.synchronize()
    assert all(launched(both) > 20 for both in pairs)


def test_two_threads_share_a_model() -> None:
    plain, step = models()
    errors: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
                caches = [each.caches() for each in (plain, plain, step, step)]
                for k in range(30):
                    token = torch.full((1, 1), seed + k, device="cuda")
                    at = torch.full((1,), k, device="cuda")
                    wanted = plain(token, at, *caches[:2])
                    assert torch.equal(step(token, at, *caches[2:]), wanted)
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(10 * k,)) for k in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not errors, errors


def test_memory_stays_the_same_over_many_steps() -> None:
    both = Both()
    for k in range(10):
        both(k)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    token = torch.full((1, 1), 5, device="cuda")
    at = torch.full((1,), 5, device="cuda")
    for _ in range(10_000):
        both.step(token, at, *both.caches[2:])
    torch.cuda.synchronize()
    after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    assert after[0] <= before[0] + 4096 and after[1] == before[1]


def test_a_step_inside_a_capture_is_made_step_by_step() -> None:
    both = Both()
    for k in range(4):
        both(k)
    token = torch.full((1, 1), 5, device="cuda")
    at = torch.full((1,), 5, device="cuda")
    before = launched(both)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = both.step(token, at, *both.caches[2:])
    assert launched(both) == before
    graph.replay()
    assert torch.equal(found, both.plain(token, at, *both.caches[:2]))


def test_inference_mode_and_no_grad_have_graphs_of_their_own() -> None:
    both = Both()
    for k in range(6):
        with torch.inference_mode(k % 2 == 1):
            both(k)
    with torch.inference_mode():
        caches = [both.step.caches(), both.step.caches()]
        token = torch.full((1, 1), 5, device="cuda")
        at = torch.full((1,), 5, device="cuda")
        for _ in range(3):
            found = both.step(token, at, *caches)
        assert found.is_inference()


# -- functions -------------------------------------------------------------------------------------


@triton.jit
def twice_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)


def twice(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    twice_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


def compared(function: Callable[..., Any], *calls: tuple[Any, ...], least: int = 1) -> Any:
    """Calls of a function and of its graphs give the same, also in what they change."""
    kernel = tzero.kernel(graph=True)(function)
    for given in calls:
        mine = copy.deepcopy(given)
        wanted, found = function(*given), kernel(*mine)
        assert same(found, wanted), (found, wanted)
        assert same(mine, given), "its arguments differ"
    assert graphs_of(kernel) >= least
    return kernel


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return torch.equal(one, other) and one.stride() == other.stride()
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def some(*shape: int, count: int = 4) -> list[tuple[Tensor, ...]]:
    return [(torch.randn(*shape, device="cuda"),) for _ in range(count)]


def normed(x: Tensor) -> Tensor:
    return twice(F.layer_norm(x, (x.shape[-1],)).softmax(-1).cumsum(-1))


def several(x: Tensor) -> tuple[Tensor, ...]:
    values, places = x.topk(5)
    return values, places, x.argmax(-1), twice(values).t()


def viewed(x: Tensor) -> tuple[Tensor, Tensor]:
    y = twice(x + 1)
    return y[1:], x[2:]


def in_place(x: Tensor) -> Tensor:
    x.add_(1).mul_(2)
    x[0] = x[1]
    return twice(x)


def joined(x: Tensor) -> Tensor:
    return torch.cat([x, twice(x), x * 3, x.sort(-1)[0]], 0) @ x.t()


def with_a_read(x: Tensor) -> Tensor:
    y = twice(x) * 3
    return twice(y + y.sum().item())


FUNCTIONS = [normed, several, viewed, in_place, joined]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda each: each.__name__)
def test_a_function_gives_the_same(function: Callable[..., Any]) -> None:
    compared(function, *some(8, 64))


def test_sampling_draws_as_without_graphs() -> None:
    def sampled(x: Tensor) -> Tensor:
        chances = twice(x * 2).softmax(-1)
        return twice(torch.multinomial(chances, 1).float() + 1) * 2

    kernel = tzero.kernel(graph=True)(sampled)
    given = torch.randn(16, 64, device="cuda")
    for seed in range(5):
        torch.manual_seed(seed)
        wanted = [sampled(given) for _ in range(3)]
        torch.manual_seed(seed)
        found = [kernel(given) for _ in range(3)]
        assert same(found, wanted)
    assert graphs_of(kernel) > 0
    text = str(kernel.explain(given))
    assert "not in a graph: aten::multinomial draws random numbers" in text


def test_a_read_after_a_launch_is_refused_with_its_place() -> None:
    kernel = tzero.kernel(graph=True)(with_a_read)
    for (given,) in some(8, 64):
        assert torch.equal(kernel(given), with_a_read(given))
    assert "it reads the value of a tensor" in kernel.explain(*some(8, 64)[0]).refusal


def test_with_gradients_the_step_is_not_a_graph() -> None:
    layer = nn.Linear(64, 64, device="cuda")

    def loss(x: Tensor) -> Tensor:
        return twice(x.detach()).sum() + layer(x).square().mean()

    kernel = tzero.kernel(graph=True)(loss)
    for (given,) in some(8, 64):
        with torch.enable_grad():
            kernel(given).backward()
            found, layer.weight.grad = layer.weight.grad, None
            loss(given).backward()
        assert found is not None and layer.weight.grad is not None
        assert torch.equal(found, layer.weight.grad)
        layer.weight.grad = None


def test_the_parts_of_an_autograd_function_are_replayed() -> None:
    forward = tzero.kernel(graph=True)(lambda x: twice(x * 2) + 1)
    backward = tzero.kernel(graph=True)(lambda gradient: twice(gradient) * 2 + 0)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            return forward(x)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return backward(gradient.contiguous())

    for (given,) in some(8, 64):
        given.requires_grad_()
        with torch.enable_grad():
            Scaled.apply(given).square().sum().backward()
        wanted = (given.detach() * 4 + 1) * 8
        assert given.grad is not None and torch.allclose(given.grad, wanted)
    assert graphs_of(forward) > 0
    # autograd's thread for the GPU has modes of its own, in which Python replays plans.
    stats = backward.stats()
    assert stats.native_replays + stats.python_replays >= 2, str(stats)


def test_sizes_share_one_pool_of_memory() -> None:
    kernel = tzero.kernel(graph=True)(lambda x: twice(x @ x.t() + 1) * 2)
    torch.cuda.synchronize()
    for rows in (256, 128, 64, 32, 16):
        for (given,) in some(rows, 512, count=3):
            kernel(given)
    reserved = torch.cuda.memory_reserved()
    for rows in (240, 120, 60, 30, 15):
        for (given,) in some(rows, 512, count=3):
            kernel(given)
    assert torch.cuda.memory_reserved() <= reserved + (4 << 20)


def test_nothing_is_said_of_graphs_that_work() -> None:
    kernel = tzero.kernel(graph=True)(normed)
    seen: list[events.Event] = []
    for (given,) in some(8, 64):
        kernel(given)
    with events.observe(seen.append):
        kernel(*some(8, 64)[0])
    assert not [event for event in seen if event.kind == "fallback"]


def test_a_function_that_launches_nothing_is_a_graph_in_a_process_of_its_own() -> None:
    program = """
import torch, tzero
step = tzero.kernel(graph=True)(lambda x: (x * 2).softmax(-1) + 1)
with torch.no_grad():
    for _ in range(4):
        x = torch.randn(8, 64, device="cuda")
        assert torch.equal(step(x), (x * 2).softmax(-1) + 1)
print(sum(each.launched for each in step.capturing.made()))
"""
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) >= 2
