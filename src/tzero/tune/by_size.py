"""The config of a call by the sizes of its tensors, for kernels that were tuned at several sizes.

::

    arguments ── resized(args, 64) ──► arguments to tune for that hint ──► config ─┐
              └─ resized(args, 4096) ──► ...                                       ├─► BySize
    a call's arguments ── shapes of inputs and results ── nearest hint ◄───────────┘

Enters: arguments of calls, and size hints. Leaves: resized arguments, and a `Choice` for each call,
made without timing. It must not know how a config is tuned for a hint.

A hint is a size. It replaces every size above 1, except in dimensions that are marked static. To
find which sizes of the arguments the results have, the host function runs once on meta tensors with
distinct sizes. A size of a result that matches none of them counts as unknown. Where the run fails,
results are not compared.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from tzero.adapters.torch_internals import static_dims, tree_flatten
from tzero.arguments.situation import leaves
from tzero.config import Config
from tzero.launches.ahead import Spec
from tzero.symbolic.formulas import Source
from tzero.tune.copying import tensors_in, walk
from tzero.tune.select import MOST_DIMS, Choice, Hint, Selector

__all__ = [
    "BySize",
    "NotFollowed",
    "NotResizable",
    "Origin",
    "bounded",
    "check_memory",
    "filled",
    "most_general",
    "origins",
    "resized",
    "shapes_of",
]

Shapes = tuple[tuple[int, ...], ...]

Compared = Source | int | None
"""Where a size comes from that is compared with those of hints: an argument, or it is a number in
all calls, or unknown. A negative integer counts as 0."""

S = TypeVar("S")


class NotResizable(Exception):
    """Arguments that cannot be resized; the message says why."""


class NotFollowed(Exception):
    """A host function that does not run on meta tensors; the message says why."""


class Origin(NamedTuple):
    """Where the size of a result comes from: a dimension of an argument. Where that is unknown,
    `tensor` is -1, and `size` is the number itself or None.

    >>> Origin(tensor=0, dimension=1).of([(2, 3)])
    3
    """

    tensor: int = -1
    dimension: int = 0
    size: int | None = None

    def of(self, shapes: Sequence[Sequence[S]]) -> S | int | None:
        """The size, for tensors of these shapes."""
        return self.size if self.tensor < 0 else shapes[self.tensor][self.dimension]


Origins = tuple[tuple[Origin, ...], ...]


class BySize:
    """Chooses for each call the config of the hint that is nearest to its shapes.

    >>> hints = [Hint(Config(BLOCK=16), [(64, 64)]), Hint(Config(BLOCK=128), [(4096, 4096)])]
    >>> BySize(hints, (), ("x",))((torch.ones(100, 60),)).variant
    Config(BLOCK=16)
    """

    def __init__(
        self, hints: Sequence[Hint[Config]], origins: Origins, parameters: Sequence[str]
    ) -> None:
        self.selector = Selector(hints)
        self._origins = origins
        self._parameters = parameters

    def shapes(self, args: Sequence[Any]) -> tuple[tuple[int | None, ...], ...]:
        """The shapes of the arguments, then those of the results."""
        given: Shapes = shapes_of(args, self._parameters)
        results = [tuple(size.of(given) for size in each) for each in self._origins]
        return (*given, *results)

    def __call__(self, args: Sequence[Any]) -> Choice[Config]:
        return self.selector.select(self.shapes(args))

    def sources(self, args: Sequence[Any]) -> tuple[tuple[Compared, ...], ...]:
        """Where the sizes of `shapes` come from, for calls with such arguments."""
        every = enumerate(leaves(args, self._parameters))
        tensors = [(k, value) for k, (_, value) in every if isinstance(value, torch.Tensor)]
        given = [tuple(Source("size", k, d) for d in range(x.dim())) for k, x in tensors]
        results = [tuple(size.of(given) for size in each) for each in self._origins]
        return (*given, *results)


def shapes_of(args: Sequence[Any], parameters: Sequence[str]) -> Shapes:
    """The shapes of all tensors in some arguments.

    >>> shapes_of((torch.ones(2, 3), [torch.ones(4), 5]), ("x", "more"))
    ((2, 3), (4,))
    """
    if any(type(value) in (list, tuple, dict) for value in args):
        args = [value for _, value in leaves(args, parameters)]
    return tuple(tuple(value.shape) for value in args if isinstance(value, torch.Tensor))


AS_FAST = 1.05
"""Configs whose times differ by less than this factor count as equally fast."""


H = TypeVar("H")


def _closeness(one: Any, other: Any) -> float:
    return float(min(one, other) / max(one, other))


def most_general(
    times: Mapping[H, Mapping[Config, float]],
    hint: H,
    closeness: Callable[[H, H], float] = _closeness,
) -> Config:
    """The config for a hint, from the seconds that each config took at each hint. A hint stands for
    all sizes that are nearest to it. So among the configs that are as fast as its fastest, this is
    the one with the best times at all hints. A hint twice as large or small has half the weight.

    >>> one, other = Config(BLOCK=64), Config(BLOCK=256)
    >>> times = {64: {one: 1.0, other: 3.0}, 256: {one: 5.1, other: 5.0}}
    >>> most_general(times, 256)
    Config(BLOCK=64)

    A config that was not timed at every hint cannot replace the fastest.
    """
    least = {each: min(found.values()) for each, found in times.items()}
    mine = times[hint]
    fastest = min(mine, key=mine.__getitem__)
    everywhere = set(mine).intersection(*times.values())

    def loss(config: Config) -> float:
        return sum(closeness(hint, each) * times[each][config] / least[each] for each in times)

    if fastest not in everywhere:
        return fastest
    return min((c for c in mine if c in everywhere and mine[c] <= AS_FAST * least[hint]), key=loss)


def resized(args: tuple[Any, ...], parameters: Sequence[str], hint: int) -> tuple[Any, ...]:
    """Arguments of another size. Tensors are cut, or filled by repeating their contents. An integer
    that equals a size or the number of elements of a tensor becomes that of the new tensor.

    >>> x, n = resized((torch.arange(6), 6), ("x", "n"), 4)
    >>> x, n
    (tensor([0, 1, 2, 3]), 4)

    `NotResizable` where an integer may be a size that matches no tensor, or is in a list, because a
    kernel could then run past the end of a smaller tensor; where tensors are inside other objects
    than lists, tuples and dicts; and where the new tensors would take too much memory.
    """
    numbers: dict[int, int] = {}  # sizes and element counts, old to new
    needed: dict[torch.device, int] = {}  # bytes
    for name, value in leaves(args, parameters):
        if isinstance(value, torch.Tensor):
            if type(value) not in (torch.Tensor, torch.nn.Parameter):
                raise NotResizable(f"an argument is a {type(value).__name__}")
            new = _sizes(value, hint)
            numbers |= dict(zip(value.shape, new, strict=True))
            count = math.prod(new)
            numbers.setdefault(value.numel(), count)
            needed[value.device] = needed.get(value.device, 0) + count * value.dtype.itemsize
        elif tensors_in(value):
            kind = type(value).__name__
            raise NotResizable(f"argument {name!r} is a {kind}, whose tensors are not resized")
    dimensions = sum(map(len, shapes_of(args, parameters)))
    if dimensions > MOST_DIMS:
        raise NotResizable(f"its tensors have {dimensions} dimensions, more than {MOST_DIMS}")
    for device, size in needed.items():
        check_memory(device, size, str(hint))
    for name, value in leaves(args, parameters):
        if name not in parameters or type(value) is torch.Size:
            _check_nested(name, value, numbers, hint)
    made = walk(args, lambda tensor: _resized(tensor, _sizes(tensor, hint), hint), {})
    return tuple(
        _number(name, value, numbers, hint) if type(value) is int else value
        for name, value in zip(parameters, made, strict=True)
    )


_PART = 4
"""Resized arguments may take one part in so many of a device's memory: there are also copies of
them, results, and the reference's results."""


def check_memory(device: torch.device, size: int, sizes: str) -> None:
    """Raise `NotResizable` if tensors of these sizes would take too much of a device's memory.

    >>> check_memory(torch.device("cpu"), 4096, "64")
    """
    if device.type == "cuda":
        whole = int(torch.cuda.get_device_properties(device).total_memory)
    else:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if size > whole // _PART:
        raise NotResizable(
            f"tensors of sizes {sizes} would take {size} bytes on {device}, which has {whole}; "
            "torch._dynamo.mark_static keeps a dimension as it is"
        )


def _number(name: str, value: int, numbers: dict[int, int], hint: int) -> int:
    if value in numbers:
        return numbers[value]
    if abs(value) > min(hint, *numbers.values(), hint):
        raise NotResizable(f"argument {name!r} is {value}, which is the size of no tensor")
    return value


def _check_nested(name: str, value: Any, numbers: dict[int, int], hint: int) -> None:
    """Reject integers in lists that may be sizes: only arguments of their own are resized."""
    for each in value if type(value) is torch.Size else (value,):
        if type(each) is int and _number(name, each, numbers, hint) != each:
            raise NotResizable(f"{name} is {value}, which may be a size, and is in a list")


def _sizes(tensor: torch.Tensor, hint: int) -> tuple[int, ...]:
    static = static_dims(tensor)
    return tuple(n if n < 2 or k in static else hint for k, n in enumerate(tensor.shape))


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Dtypes for which torch lacks most operators, and the ones used instead."""


def _resized(tensor: torch.Tensor, sizes: tuple[int, ...], hint: int) -> torch.Tensor:
    """A tensor of other sizes. Integers in it stay below the hint, because they may be indices into
    another tensor."""
    if 0 in sizes:
        return torch.empty(sizes, dtype=tensor.dtype, device=tensor.device)
    made = bounded(filled(tensor, sizes), hint)
    made.requires_grad_(tensor.requires_grad)
    made.__dict__.update(tensor.__dict__)
    return made


def filled(tensor: torch.Tensor, sizes: tuple[int, ...]) -> torch.Tensor:
    """A new tensor of other sizes, with the same order of dimensions in memory. Contents are cut or
    repeated.

    >>> filled(torch.tensor([1, 2]), (5,))
    tensor([1, 2, 1, 2, 1])
    """
    dtype = _SIGNED.get(tensor.dtype, tensor.dtype)
    found = tensor.detach().resolve_conj().resolve_neg().view(dtype)
    for k, size in enumerate(sizes):
        have = found.shape[k]
        at = torch.arange(size, device=tensor.device) % have
        found = found.index_select(k, at) if size != have else found
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda k: (-strides[k], k))
    made = torch.empty([sizes[k] for k in order], dtype=dtype, device=tensor.device)
    made = made.permute([order.index(k) for k in range(tensor.dim())])
    made.copy_(found)
    return made.view(tensor.dtype)


def bounded(tensor: torch.Tensor, limit: int) -> torch.Tensor:
    """The tensor, in which integers from the limit on are replaced by their remainder.

    >>> bounded(torch.tensor([-1, 3, 9]), 4)
    tensor([-1,  3,  1])
    """
    dtype = _SIGNED.get(tensor.dtype, tensor.dtype)
    whole = not (dtype.is_floating_point or dtype.is_complex or dtype == torch.bool)
    if whole and limit <= torch.iinfo(dtype).max:
        found = tensor.view(dtype)
        found.copy_(torch.where(found < 0, found, found % limit))
    return tensor


# -- tensors without their contents --------------------------------------------------------------


class Layout(NamedTuple):
    """The layout of a tensor, without its contents.

    >>> Layout.of(torch.ones(2, 3)).tensor().shape
    torch.Size([2, 3])
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    def tensor(self) -> torch.Tensor:
        """A tensor of this layout: random floats, or zeros for integers, which may be indices into
        another tensor."""
        pairs = zip(self.size, self.stride, strict=True)
        last = sum((n - 1) * step for n, step in pairs) if 0 not in self.size else -1
        # Elements may overlap, and torch does not fill overlapping views: fill the memory instead.
        memory = torch.empty(last + 1, dtype=self.dtype, device=self.device)
        filled = self.dtype.is_floating_point and self.dtype.itemsize > 1
        memory = memory.normal_() if filled else memory.zero_()
        return memory.as_strided(self.size, self.stride)


def described(args: tuple[Any, ...]) -> Any:
    """Arguments with a `Layout` in place of each tensor, so that no memory is kept alive."""
    return walk(args, Layout.of, {})


def imagined(example: Any) -> tuple[Any, ...]:
    """New arguments with the layouts of described ones.

    >>> imagined(described((torch.ones(2), 3)))[0].shape
    torch.Size([2])
    """
    made: tuple[Any, ...] = walk(example, Layout.tensor, {}, Layout)
    return made


# -- where the sizes of results come from ---------------------------------------------------------


def origins(
    run: Callable[[tuple[Any, ...]], Any], args: tuple[Any, ...], parameters: Sequence[str]
) -> Origins:
    """Which dimension of an argument each size of the results comes from. `run` calls the host
    function on meta tensors, to which distinct sizes are given. `NotFollowed` where that fails."""
    given = [v for _, v in leaves(args, parameters) if isinstance(v, torch.Tensor)]
    fresh = _primes()
    renamed: dict[int, int] = {}  # equal sizes stay equal
    places: dict[int, Origin] = {}
    wanted: dict[int, tuple[int, ...]] = {}
    for k, tensor in enumerate(given):
        static, sizes = static_dims(tensor), []
        for d, size in enumerate(tensor.shape):
            if size > 1 and d not in static:
                if size not in renamed:
                    renamed[size] = next(fresh)
                size = renamed[size]
                places.setdefault(size, Origin(k, d))
            sizes.append(size)
        wanted[id(tensor)] = tuple(sizes)

    def like(tensor: torch.Tensor) -> Any:
        return Spec(wanted.get(id(tensor), tuple(tensor.shape)), tensor.dtype, tensor.device)

    try:
        results = run(walk(args, like, {}))
    except Exception as error:  # from the host function, for sizes that it does not support
        raise NotFollowed(f"{type(error).__name__}: {error}") from error
    tensors = [each for each in tree_flatten(results)[0] if isinstance(each, torch.Tensor)]
    return tuple(
        tuple(places.get(int(n)) or Origin(size=int(n) if n < 2 else None) for n in tensor.shape)
        for tensor in tensors
    )


def _primes() -> Iterator[int]:
    """Sizes that hardly come from anywhere else: primes from 1009 on."""
    return (n for n in itertools.count(1009, 2) if all(n % d for d in range(3, int(n**0.5) + 1, 2)))
