"""Of a thousand seeded candidates of each sort, no wrong one passes, and every right one does."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.tune.trials import OTHER, RIGHT, Host, SetClock, tried, trying
from tzero import Config

TRIES = 1000  # of all kinds together

EIGHT_BITS = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
NUMBERS = FLOATS + COMPLEX + INTEGERS
ALL = (*NUMBERS, *EIGHT_BITS, *UNSIGNED, torch.bool)


@dataclass
class Draw:
    """What is random in one try."""

    chance: random.Random
    device: str
    dtype: torch.dtype

    @property
    def size(self) -> int:
        return self.chance.choice((3, 10, 100, 1000))

    def tensor(self, size: int) -> torch.Tensor:
        source = torch.Generator().manual_seed(self.chance.randrange(1 << 30))
        if self.dtype.is_complex:
            made = torch.randn(size, generator=source, dtype=self.dtype)
        elif self.dtype.is_floating_point:
            made = torch.randn(size, generator=source)
        else:
            made = torch.randint(
                0, 2 if self.dtype is torch.bool else 120, (size,), generator=source
            )
        return made.to(self.dtype).to(self.device)

    def fresh(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """One of the ways to allocate a tensor like another one."""
        return self.chance.choice(
            [
                torch.empty_like,
                lambda x: torch.empty(x.shape, dtype=x.dtype, device=x.device),
                lambda x: torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device),
                lambda x: torch.empty_permuted(x.shape, (0,), dtype=x.dtype, device=x.device),
                lambda x: x.new_empty(x.shape),
                lambda x: x.new_empty_strided(x.shape, x.stride()),
                lambda x: torch.empty(0, dtype=x.dtype, device=x.device).resize_(x.shape),
                lambda x: torch.empty(0, dtype=x.dtype, device=x.device).resize_as_(x),
                lambda x: torch.empty(0, dtype=x.dtype, device=x.device).new(*x.shape),
            ]
        )


def raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of each element, in rows: every dtype can be indexed this way."""
    return tensor.view(torch.uint8).view(tensor.numel(), tensor.element_size())


def largest(dtype: torch.dtype) -> float:
    return min(1e9, torch.finfo(dtype).max)


Case = tuple[Host, tuple[Any, ...]]
Kind = Callable[[Draw], Case]
KINDS: dict[str, tuple[Kind, tuple[torch.dtype, ...]]] = {}
RIGHT_KINDS: dict[str, tuple[Kind, tuple[torch.dtype, ...]]] = {}


def wrong(*dtypes: torch.dtype) -> Callable[[Kind], Kind]:
    """A kind of candidate that is wrong, with these dtypes."""
    return lambda kind: KINDS.setdefault(kind.__name__, (kind, dtypes))[0]


def right(*dtypes: torch.dtype) -> Callable[[Kind], Kind]:
    """A kind of candidate that is right, with these dtypes."""
    return lambda kind: RIGHT_KINDS.setdefault(kind.__name__, (kind, dtypes))[0]


# -- wrong ----------------------------------------------------------------------------------------


@wrong(*ALL)
def tail_unwritten(draw: Draw) -> Case:
    x, fresh = draw.tensor(draw.size), draw.fresh()
    written = draw.chance.randrange(x.numel())

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        out, most = fresh(x), x.numel() if config == RIGHT else written
        out[:most] = x[:most]
        return out

    return host, (x,)


@wrong(*ALL)
def stale_memory(draw: Draw) -> Case:
    """Elements anywhere are left as an earlier call has left them."""
    x, fresh = draw.tensor(draw.size), draw.fresh()
    kept = torch.tensor([draw.chance.random() < 0.5 for _ in range(x.numel())], device=x.device)
    kept[draw.chance.randrange(x.numel())] = False

    def host(x: torch.Tensor, config: Config) -> dict[str, list[torch.Tensor]]:
        out = fresh(x)
        if config == RIGHT:
            raw(out).copy_(raw(x))
        else:
            raw(out)[kept] = raw(x)[kept]
        return {"out": [out]}

    return host, (x,)


@wrong(*NUMBERS)
def stale_sum(draw: Draw) -> Case:
    """It accumulates in memory that it never cleared."""
    x, fresh = draw.tensor(draw.size), draw.fresh()

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        out = fresh(x)
        if config == RIGHT:
            out.zero_()
        return out.add_(x)

    return host, (x,)


@wrong(*FLOATS)
def stale_part_of_a_maximum(draw: Draw) -> Case:
    """Unwritten elements take part in a maximum or minimum that ignores NaN."""
    x, fresh = draw.tensor(draw.size) * draw.chance.choice((1, 1000)), draw.fresh()
    written = draw.chance.randrange(min(x.numel(), 100))
    reduced = draw.chance.choice((torch.fmax, torch.fmin))

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        out, most = fresh(x), x.numel() if config == RIGHT else written
        out[:most] = x[:most]
        return functools.reduce(reduced, out.unbind()[:100])

    return host, (x,)


@wrong(*FLOATS)
def stale_part_of_a_test(draw: Draw) -> Case:
    """Unwritten elements count only as zero or not, or as large or not."""
    x, fresh = draw.tensor(draw.size), draw.fresh()
    written = draw.chance.randrange(x.numel())
    test = draw.chance.choice((lambda out: out != 0, lambda out: (out * out).nan_to_num(9) > 4))

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        out, most = fresh(x), x.numel() if config == RIGHT else written
        out[:most] = x[:most]
        return test(out)

    return host, (x.abs() + 3,)


@wrong(*ALL)
def stale_in_an_argument(draw: Draw) -> Case:
    """A result is copied from unwritten memory into an argument."""
    x, fresh = draw.tensor(draw.size), draw.fresh()
    written = draw.chance.randrange(x.numel())

    def host(x: torch.Tensor, y: torch.Tensor, config: Config) -> None:
        out, most = fresh(x), x.numel() if config == RIGHT else written
        out[:most] = x[:most]
        y.copy_(out)

    return host, (x, x.clone())


@wrong(*ALL)
def one_element_off(draw: Draw) -> Case:
    x = draw.tensor(draw.size)
    k = draw.chance.randrange(x.numel())
    off = x[k].to(torch.complex128 if x.is_complex() else torch.float64)
    if x.dtype is torch.bool:
        off = 1 - off
    elif x.is_floating_point() or x.is_complex():
        off = off + (2 if off.real >= 0 else -2)
    else:
        off = off + 1
    wrong_element = off.to(x.dtype)

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        out = x.clone()
        if config == OTHER:
            out[k] = wrong_element
        return out

    return host, (x,)


@wrong(*FLOATS, *EIGHT_BITS, *COMPLEX)
def zero_beside_an_outlier(draw: Draw) -> Case:
    x = draw.tensor(draw.size)
    at = draw.chance.randrange(x.numel())
    x[at] = torch.tensor(largest(x.dtype)).to(x.dtype)

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        if config == RIGHT:
            return x.clone()
        out = torch.zeros_like(x)
        out[at] = x[at]
        return out

    return host, (x,)


@wrong(*FLOATS, *EIGHT_BITS, *COMPLEX)
def another_order_beside_a_mask(draw: Draw) -> Case:
    """Most elements are masked, as in attention, and the others are not where they should be."""
    x = draw.tensor(1000)
    share = draw.chance.uniform(0.1, 0.98)
    shown = torch.tensor([draw.chance.random() >= share for _ in range(1000)], device=x.device)
    shown[:3] = True
    raw(x)[~shown] = raw(torch.tensor([-largest(x.dtype)]).to(x.dtype)).to(x.device)

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        out = x.clone()
        if config == OTHER:
            raw(out)[shown] = raw(x)[shown].roll(1, 0)
        return out

    return host, (x,)


@wrong(*FLOATS)
def zero_beside_a_mask_that_is_added(draw: Draw) -> Case:
    """-1e4 was added to most elements, so that no two of them are equal."""
    x = draw.tensor(1000)
    shown = torch.tensor([draw.chance.random() < 0.3 for _ in range(1000)], device=x.device)
    x = torch.where(shown, x, x - 1e4)

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        return x.clone() if config == RIGHT else x.where(~shown, 0)

    return host, (x,)


@wrong(*ALL)
def nondeterministic(draw: Draw) -> Case:
    """It is right for a few calls, or every second time."""
    x = draw.tensor(draw.size)
    calls = itertools.count()
    first, every = draw.chance.choice(((0, 1), (1, 1), (2, 1), (3, 1), (0, 2), (1, 2), (2, 2)))

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        out = x.clone()
        if config == OTHER:
            number = next(calls)
            if number >= first and (number - first) % every == 0:
                raw(out).bitwise_xor_(1 if x.dtype is torch.bool else 0x41)
        return out

    return host, (x,)


@wrong(*NUMBERS, torch.bool)
def in_place_twice(draw: Draw) -> Case:
    x = draw.tensor(10)
    y = torch.ones_like(x)

    def host(x: torch.Tensor, y: torch.Tensor, config: Config) -> torch.Tensor | None:
        for _ in range(1 if config == RIGHT else 2):
            if x.dtype is torch.bool:
                x.logical_xor_(y)
            else:
                x.add_(y)
        return x if returned else None

    returned = draw.chance.random() < 0.5
    return host, (x, y)


# -- right ----------------------------------------------------------------------------------------


@right(*ALL)
def padded(draw: Draw) -> Case:
    """The buffer is larger than the result, and blocks write more or less of the rest."""
    x, fresh = draw.tensor(draw.size), draw.fresh()
    much = draw.chance.randrange(8)

    def host(x: torch.Tensor, config: Config) -> tuple[torch.Tensor, torch.Tensor]:
        out = fresh(torch.cat([raw(x), raw(x)]).view(x.dtype).view(-1))
        out[: x.numel()] = x
        if config == OTHER:
            out[x.numel() : x.numel() + much] = x[:much]
        return out, fresh(x)

    return host, (x,)


@right(*FLOATS, *INTEGERS)
def computed_from_padding(draw: Draw) -> Case:
    x, fresh = draw.tensor(draw.size), draw.fresh()

    def host(x: torch.Tensor, config: Config) -> tuple[torch.Tensor, float, Any]:
        out = fresh(torch.cat([x, x]))
        out[: x.numel()] = x
        unknown = out.to(torch.bfloat16 if x.is_floating_point() else torch.int64) * 3
        return unknown, float(out[-1]), out.cpu().numpy() if x.dtype != torch.bfloat16 else None

    return host, (x,)


@right(*ALL)
def patterns_that_are_results(draw: Draw) -> Case:
    """The values that fresh memory is filled with are right results here."""
    fresh = draw.fresh()
    if draw.dtype is torch.bool or not draw.dtype.is_floating_point:
        x = torch.tensor([113, 85, 0, 1, 127, 127]).to(draw.dtype)
    else:
        x = torch.tensor([-(2.0**100), math.nan, 1.0, 0.0, math.inf, -math.inf]).to(draw.dtype)

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        return fresh(x).copy_(x)

    return host, (x.to(draw.device),)


@right(*FLOATS, *COMPLEX)
def rounded_otherwise(draw: Draw) -> Case:
    x = draw.tensor(draw.size)
    x[0] = largest(x.dtype) / 2
    eps = torch.finfo(x.dtype).eps
    noise = 1 + eps * draw.tensor(x.numel()).clamp(-2, 2) if not x.is_complex() else 1 + eps

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        return x.clone() if config == RIGHT else x * noise

    return host, (x,)


@right(*FLOATS)
def sums_that_cancel(draw: Draw) -> Case:
    """Another order of summation: the error is that of the summands."""
    x = draw.tensor(64 * 256).reshape(64, 256)
    order = torch.randperm(256, generator=torch.Generator().manual_seed(0)).to(x.device)

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        summed = x if config == RIGHT else x[:, order]
        total = torch.zeros(64, dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        for part in summed.split(32, dim=1):
            total += part.to(total.dtype).sum(dim=1)
        return total.to(x.dtype)

    return host, (x,)


@right(torch.float64, torch.float32)
def varying(draw: Draw) -> Case:
    """Each call differs a little, as with atomic additions in any order."""
    x = draw.tensor(draw.size)
    much = 300 * torch.finfo(x.dtype).eps
    noise = torch.Generator(draw.device).manual_seed(draw.chance.randrange(1 << 30))

    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        jitter = torch.randn(x.shape, generator=noise, device=x.device, dtype=x.dtype)
        return x * (1 + much * jitter)

    return host, (x,)


@right(*ALL)
def in_place(draw: Draw) -> Case:
    x = draw.tensor(draw.size)
    y = draw.tensor(x.numel())

    def host(x: torch.Tensor, y: torch.Tensor, config: Config) -> Any:
        x.copy_(y)
        return [x, x[1:], x[:0], x.expand(2, x.numel()), x.view(-1, 1).t(), None, 3]

    return host, (x, y)


@right(torch.float32, torch.complex64, torch.float64)
def sparse(draw: Draw) -> Case:
    x = torch.diag(draw.tensor(10))

    def host(x: torch.Tensor, config: Config) -> list[torch.Tensor]:
        return [x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc()]

    return host, (x,)


@right(*FLOATS)
def random_numbers(draw: Draw) -> Case:
    def host(x: torch.Tensor, config: Config) -> torch.Tensor:
        return x + torch.rand(x.shape, device=x.device) + random.random()

    return host, (draw.tensor(draw.size),)


# -- the tries ------------------------------------------------------------------------------------


def tries(
    kinds: dict[str, tuple[Kind, tuple[torch.dtype, ...]]], name: str, device: str
) -> Iterator[tuple[int, torch.dtype, Case]]:
    kind, dtypes = kinds[name]
    for seed in range(-(-TRIES // len(kinds))):
        dtype = dtypes[seed % len(dtypes)]
        yield seed, dtype, kind(Draw(random.Random(f"{name} {seed}"), device, dtype))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Threads of torch's would spend more time on waiting for each other than on small tensors."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", KINDS)
def test_no_wrong_candidate_passes(name: str, device: str) -> None:
    passed = []
    for seed, dtype, (host, args) in tries(KINDS, name, device):
        made = trying(host, *args, clock=SetClock(seconds=1000.0))
        assert made.reference_problem() == "", (seed, dtype)
        found = tried(made, OTHER)
        if not found.problem.startswith("its results are wrong: "):
            passed.append((seed, dtype, found))
    assert passed == []


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", RIGHT_KINDS)
def test_every_right_candidate_passes(name: str, device: str) -> None:
    failed = []
    for seed, dtype, (host, args) in tries(RIGHT_KINDS, name, device):
        made = trying(host, *args, clock=SetClock(seconds=1000.0))
        for config in (RIGHT, OTHER):
            found = tried(made, config)
            if not found.usable:
                failed.append((seed, dtype, config, found.problem))
    assert failed == []
