"""Compiling ahead of time what a host function would launch, through the compile service.

::

    add.precompile(x, y) ──► the host function, run on fake tensors
                               └─ launches are intercepted; each becomes a compile request
                                    ──► tzero.compile ──► futures

Enters: a host function, and its arguments or `Spec`s in their place. Leaves: a `Precompiled`: the
futures of everything that is being compiled. The first call waits only for what it needs. It must
not know how anything is compiled.
"""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from tzero import compile as compiling
from tzero.adapters import intercept, torch_modes, triton_entries, triton_launch
from tzero.adapters.torch_internals import fake_tensor, storage_id, tree_leaves, tree_map
from tzero.backends import triton as backend
from tzero.cache.place import Job, job
from tzero.compile.together import together
from tzero.errors import InvalidArgument

__all__ = [
    "Precompiled",
    "Spec",
    "check_left",
    "precompile",
    "precompile_host",
    "precompile_launch",
    "run_without_memory",
    "stand_in",
]

_ALIGNED = 16
"""Triton specializes an address on whether this divides it."""


@dataclass(frozen=True, slots=True)
class Spec:
    """Stands for a tensor when compiling ahead or warming up. Its memory is assumed to be aligned
    to 16 bytes, as torch's allocations are, unless it says otherwise.

    >>> Spec((1024, 512), torch.float16)
    Spec(shape=(1024, 512), dtype=torch.float16, device=None, strides=None, aligned=True)
    """

    shape: tuple[Any, ...]
    """Sizes; for `warmup`, some may be `tzero.Range`s."""
    dtype: torch.dtype = torch.float32
    device: torch.device | str | None = None
    """None: the accelerator, if there is one, else the CPU."""
    strides: tuple[int, ...] | None = None
    """In elements; None: contiguous."""
    aligned: bool = True
    """Whether its address is a multiple of 16 bytes; that of a slice may not be."""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise InvalidArgument(
                kernel="tzero.Spec",
                problem=problem,
                advice="Give sizes and strides as integers from 0 on or tzero.Ranges, one stride "
                "for each size, a torch.dtype, and a device as torch takes it.",
            )

    def _problem(self) -> str:
        """What is wrong with it; usually empty."""
        given: Any = self  # whatever its types are to be
        strides = () if given.strides is None else given.strides
        for what, numbers in (("shape", given.shape), ("strides", strides)):
            if not isinstance(numbers, (tuple, list)):
                return f"its {what} is {numbers!r}, which is no tuple"
            wrong = [each for each in numbers if not _is_size(each)]
            if wrong:
                return f"{wrong[0]!r} is in its {what}"
        if given.strides is not None and len(strides) != len(given.shape):
            return f"it has {len(given.shape)} sizes and {len(strides)} strides"
        if not isinstance(given.dtype, torch.dtype):
            return f"its dtype is {given.dtype!r}"
        try:
            torch.device(self.device or "cpu")
        except (RuntimeError, TypeError):
            return f"its device is {self.device!r}"
        return ""

    @property
    def offsets(self) -> range:
        """In elements, how far its address may be from the last multiple of 16 bytes."""
        return range(1) if self.aligned else range(1, max(16 // self.dtype.itemsize, 2))

    def tensor(self, offset: int = 1) -> torch.Tensor:
        """A tensor like this, made in the active (fake tensor) mode; one that is not aligned, with
        one of its `offsets`."""
        strides = self.strides
        if strides is None:
            ones = itertools.accumulate(
                reversed(self.shape[1:]), lambda a, n: a * max(n, 1), initial=1
            )
            strides = tuple(reversed(list(ones))) if self.shape else ()
        if self.aligned:
            return torch.empty_strided(self.shape, strides, dtype=self.dtype, device=self.place)
        reach = sum((n - 1) * step for n, step in zip(self.shape, strides, strict=True))
        count = 0 if 0 in self.shape else reach + 1
        memory = torch.empty(offset + count, dtype=self.dtype, device=self.place)
        return memory.as_strided(self.shape, strides, offset)

    @property
    def place(self) -> torch.device:
        """The device, or the one that None stands for."""
        return torch.device(self.device or torch.accelerator.current_accelerator() or "cpu")


def _is_size(value: Any) -> bool:
    from tzero.launches.ranges import Range  # late: it knows what a Spec is

    is_integer = isinstance(value, (int, torch.SymInt)) or hasattr(value, "__index__")
    return isinstance(value, Range) or (is_integer and value >= 0)


class Precompiled(Mapping[str, "Future[Any]"]):
    """The kernels that are being compiled: a mapping from name to future.

    ::

        ahead = add.precompile(x, y)
        ahead.wait()      # a progress bar, on a terminal
    """

    def __init__(self) -> None:
        self._futures: dict[str, Future[Any]] = {}
        self.refused: dict[str, str] = {}
        """Kernels that only this process can compile (their first call does) -> the reason."""

    def __getitem__(self, name: str) -> Future[Any]:
        return self._futures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._futures)

    def __len__(self) -> int:
        return len(self._futures)

    def __repr__(self) -> str:
        done = sum(each.done() for each in self._futures.values())
        refused = f", {len(self.refused)} left to this process" if self.refused else ""
        return f"<Precompiled {done} of {len(self)} kernels{refused}>"

    def wait(self) -> None:
        """Wait for all futures; raises if a kernel failed to compile."""
        compiling.service().wait(self._futures)

    def done(self) -> bool:
        """Whether all futures are done."""
        return all(future.done() for future in self._futures.values())

    def add(self, name: str, future: Future[Any]) -> None:
        """Add a future under a unique name."""
        if any(future is each for each in self._futures.values()):
            return
        number = 2
        free = name
        while free in self._futures:
            free, number = f"{name} ({number})", number + 1
        self._futures[free] = future


def precompile(items: Iterable[tuple[Any, ...]], *, shard: bool = False) -> Precompiled:
    """Compile what several kernels will need, in parallel, and wait for it.

    ::

        tzero.precompile([
            (add, x, y),
            (softmax, tzero.Spec((1024, 4096))),
        ])

    Each item is a kernel and the arguments of a call; a dict as the last item holds keyword
    arguments. For a kernel of `tzero.jit` these are the arguments of a launch.

    With ``shard=True`` each rank of a job compiles another part of it first, and then what is left
    of the others': so all ranks together compile each kernel once. All of them wait for all. They
    must share a disk cache or a fleet (`tzero.fleet`).
    """
    ahead = Precompiled()
    with together(_from_rank(job())) if shard else nullcontext():
        for kernel, *given in () if triton_launch.interpreting() else items:
            named = given.pop() if given and isinstance(given[-1], dict) else {}
            part = kernel.precompile(*given, **named)
            for name, future in part.items():
                ahead.add(name, future)
            ahead.refused.update(part.refused)
    ahead.wait()
    return ahead


def _from_rank(mine: Job) -> Callable[[str], int]:
    """An order of digests that begins with the share of this rank, then has those of the next."""

    def order(digest: str) -> int:
        share = int(digest, 16) * mine.world >> 256
        within = int(digest[-8:], 16)
        return ((share - mine.rank) % mine.world << 32) + within

    return order


def precompile_host(
    name: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    ahead: Precompiled,
    *,
    spoiling: bool = False,
) -> None:
    """Compile everything that a call of a host function would launch; nothing if Triton interprets.
    `spoiling`: the arguments may be overwritten. The host function is then called with them as they
    are, and the tensors that it makes are real, so it may keep them between calls.

    ::

        precompile_host("add", add_host, (x, y), ahead)
    """
    if triton_launch.interpreting():
        return
    addresses: dict[int, int] = {}

    def ask(
        kernel: Any, grid: Any, given: tuple[Any, ...], kwargs: Mapping[str, Any], launch: Any
    ) -> None:
        def pointer(value: Any) -> Any:
            unreal = isinstance(value, torch.Tensor) and not spoiling
            return _Pointer.of(value, addresses) if unreal else value

        try:
            _ask(kernel, tree_map(pointer, given), tree_map(pointer, dict(kwargs)), ahead)
        except Exception as error:
            refused.append(error)
            raise

    refused: list[Exception] = []  # errors of Triton's, which are raised unchanged
    made: list[weakref.ref[torch.Tensor]] = []
    try:
        if spoiling:
            _run_without_launches(function, args, ask)
        else:
            run_without_memory(function, args, ask, addresses, made)
    except Exception as error:
        if any(error is each for each in refused):
            raise
        fakes = fake_tensor()
        by_value = (fakes.DataDependentOutputException, fakes.DynamicOutputShapeException, _Read)
        what = ", which reads the values of a tensor" if isinstance(error, by_value) else ""
        raise InvalidArgument(
            kernel=name,
            problem="precompile, which runs without launches and values, cannot run its host "
            f"function{what} ({type(error).__name__}: {error})",
            advice="Call the kernel itself once; it compiles what it needs.",
        ) from error
    check_left(name, made, "to compile what it launches")


def run_without_memory(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    ask: Callable[..., None] = lambda *launch: None,
    addresses: dict[int, int] | None = None,
    made: list[weakref.ref[torch.Tensor]] | None = None,
) -> Any:
    """Call a host function on fake tensors, and return its result; its launches are not made but
    passed to `ask`. Fills `addresses` (storage -> address modulo 16) and `made` (all fake tensors
    that it is given or makes, for `check_left`).

    ::

        run_without_memory(add_host, (Spec((1009,)), Spec((1009,)))).shape
    """
    fakes = fake_tensor()
    mode = fakes.FakeTensorMode(allow_non_fake_inputs=True)
    held: dict[int, int] = {} if addresses is None else addresses
    noted: list[weakref.ref[torch.Tensor]] = [] if made is None else made

    def unreal(value: Any) -> Any:
        if isinstance(value, Spec):
            with mode, _Noting(noted):
                return value.tensor()
        if not isinstance(value, torch.Tensor) or isinstance(value, fakes.FakeTensor):
            return value
        like = mode.from_tensor(value, static_shapes=True)
        held[storage_id(like)] = value.untyped_storage().data_ptr() % _ALIGNED
        noted.append(weakref.ref(like))
        return like

    args = tree_map(unreal, args)
    try:
        with mode, _Noting(noted), intercept.intercepted(ask), triton_entries.every_config():
            return function(*args)
    finally:
        torch.clear_autocast_cache()  # it may hold fake copies of weights in another dtype


class _Read(RuntimeError):
    """A host function reads values of a tensor, which a launch that was not made may compute."""


_READS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class _Unread(torch_modes.Dispatching):
    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if not _READS.isdisjoint(function.tags):
            raise _Read(f"it reads a tensor by {function}")
        return function(*args, **(kwargs or {}))


def _run_without_launches(
    function: Callable[..., Any], args: tuple[Any, ...], ask: Callable[..., None]
) -> None:
    with _Unread(), intercept.intercepted(ask), triton_entries.every_config():  # type: ignore[no-untyped-call]
        function(*args)


class _Noting(torch_modes.Dispatching):
    """Collects weak references to all tensors that are made."""

    def __init__(self, made: list[weakref.ref[torch.Tensor]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made = made

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = (each for each in tree_leaves(result) if isinstance(each, torch.Tensor))
        self._made.extend(map(weakref.ref, tensors))
        return result


def check_left(name: str, made: list[weakref.ref[torch.Tensor]], why: str) -> None:
    """Raise if a fake tensor of `run_without_memory` is still alive: the host function has kept it,
    and a kernel launched with it would crash.

    >>> check_left("add", [weakref.ref(torch.ones(2))], "to compile what it launches")
    """
    if any(each() is not None for each in made):
        gc.collect()  # it may be in an unreachable cycle
    kept = next((tensor for each in made if (tensor := each()) is not None), None)
    if kept is not None:
        raise InvalidArgument(
            kernel=name,
            problem=f"it keeps a tensor, {kept.dtype} of sizes {tuple(kept.shape)}, from one call "
            f"to the next, and was called with fake tensors {why}: so the tensor that it keeps now "
            "has no memory",
            advice="Pass that tensor as an argument, or call the kernel once before this.",
        )


def precompile_launch(
    kernel: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], ahead: Precompiled
) -> None:
    """Compile what one launch of a Triton kernel needs; tensors may be `Spec`s.

    ::

        precompile_launch(add_kernel, (x, y, out, 4096), {"BLOCK": 1024}, ahead)
    """
    _ask(kernel, tree_map(stand_in, args), tree_map(stand_in, dict(kwargs)), ahead)


def stand_in(value: Any) -> Any:
    """What stands for a `Spec` in a launch that is not made; any other value is itself.

    >>> stand_in(Spec((4,))).data_ptr(), stand_in(7)
    (0, 7)
    """
    if isinstance(value, Spec):
        return _Pointer(value.dtype, 0 if value.aligned else value.dtype.itemsize)
    return value


class _Pointer:
    """Stands for a tensor in a launch: its dtype and its address modulo 16."""

    def __init__(self, dtype: torch.dtype, address: int) -> None:
        self.dtype = dtype
        self._address = address

    @classmethod
    def of(cls, tensor: torch.Tensor, addresses: Mapping[int, int]) -> _Pointer:
        base = addresses.get(storage_id(tensor), 0)
        return cls(tensor.dtype, base + int(tensor.storage_offset()) * tensor.dtype.itemsize)

    def data_ptr(self) -> int:
        return self._address


def _ask(kernel: Any, args: Any, kwargs: Mapping[str, Any], ahead: Precompiled) -> None:
    if not isinstance(kernel, triton_launch.JITFunction):  # a kernel of another backend
        ahead.add(kernel.__name__, kernel.precompile())
        return
    source, target, options = triton_launch.source_of(kernel, args, kwargs)
    backend.take_over(kernel)
    made = backend.written(source, target, options)
    if isinstance(made, backend.NotTransportable):
        ahead.refused[kernel.__name__] = made.reason
        return
    ahead.add(kernel.__name__, backend.submit(made))
