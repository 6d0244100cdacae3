"""Adapts private functions and attributes of torch, under names of our own.

Enters: tensors, devices, operators. Leaves: what torch returns for them; nothing is computed
here. It must not know how the results are used. Slow imports are in functions.

A torch without one of these names fails when this module is imported; the steps for a new torch are
in `tzero.adapters`.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

import torch
from torch._C import DisableTorchFunction, TensorBase
from torch._C import _DisableTorchDispatch as DisableTorchDispatch
from torch._C import _storage_Use_Count as _storage_uses
from torch._C import _VariableFunctions as _functions
from torch._library.utils import has_fake_kernel
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils._python_dispatch import _disable_current_modes as disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from tzero import locks

__all__ = [
    "NAMED_IN_C",
    "DisableTorchDispatch",
    "DisableTorchFunction",
    "OpOverload",
    "TensorBase",
    "cuda_sleep",
    "current_cuda_stream",
    "disable_current_modes",
    "dynamic_dims",
    "fake_tensor",
    "filled_by_torch",
    "has_fake_kernel",
    "hooks_of",
    "in_c",
    "is_higher_order",
    "is_straight",
    "is_thin",
    "is_wrapped_launch",
    "is_zero_tensor",
    "name_of",
    "names_in",
    "negated_view",
    "quick_empty_strided",
    "schema_of",
    "static_dims",
    "storage_id",
    "tensor_object",
    "tree_flatten",
    "tree_leaves",
    "tree_map",
    "uses",
    "version",
]

locks.register_properties(OpOverload)

NAMED_IN_C = tuple(
    getattr(torch._C, name)
    for name in ("_nn", "_fft", "_linalg", "_special", "_sparse", "_nested")
    if hasattr(torch._C, name)
)
"""Modules in C of which torch shows a function to modes by its name in the module."""


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of torch's zero tensors, which have no memory.

    >>> is_zero_tensor(torch.zeros(2))
    False
    """
    return tensor._is_zerotensor()


def is_higher_order(operator: Any) -> bool:
    """Whether an operator runs functions that it is given, such as `torch.cond`.

    >>> is_higher_order(torch.ops.aten.add.Tensor)
    False
    """
    if type(operator) in _ORDINARY:  # `isinstance` asks the class in Python, as it is abstract
        return False
    return isinstance(operator, HigherOrderOperator)


_ORDINARY = (OpOverload, BuiltinFunctionType, MethodDescriptorType, FunctionType)


def is_wrapped_launch(operator: Any) -> bool:
    """Whether an operator does nothing but launch a kernel of `torch.library.wrap_triton`."""
    return is_higher_order(operator) and operator.name() == "triton_kernel_wrapper_mutation"


def tensor_object(tensor: torch.Tensor) -> int:
    """The address of a tensor's C++ object."""
    found: int = tensor._cdata
    return found


def storage_id(of: torch.Tensor | torch.UntypedStorage) -> int:
    """The address of the C++ object of a storage, or of a tensor's storage: equal for tensors that
    share it, even if it has no memory.

    >>> x = torch.empty(4)
    >>> storage_id(x) == storage_id(x[1:])
    True
    """
    storage = of.untyped_storage() if isinstance(of, torch.Tensor) else of
    return int(storage._cdata)


def version(tensor: torch.Tensor) -> int:
    """torch's version counter: the number of in-place changes.

    >>> version(torch.empty(2).zero_())
    1
    """
    return tensor._version


def hooks_of(tensor: torch.Tensor) -> tuple[Any, Any]:
    """The gradient hooks of a tensor.

    >>> hooks_of(torch.empty(2))
    (None, None)
    """
    return tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)


def uses(tensor: torch.Tensor) -> tuple[int, int]:
    """The C++ reference counts of a tensor and of its storage.

    >>> x = torch.empty(2)
    >>> alone, view = uses(x), x[1:]
    >>> uses(x)[1] - alone[1]
    1
    """
    of_tensor: int = tensor._use_count()  # type: ignore[attr-defined]
    return of_tensor, _storage_uses(storage_id(tensor))


def negated_view(tensor: torch.Tensor) -> torch.Tensor:
    """A lazily negated view.

    >>> negated_view(torch.ones(1)).is_neg()
    True
    """
    return torch._neg_view(tensor)


def quick_empty_strided(device: str) -> Callable[..., torch.Tensor] | None:
    """The allocation function of torch.compile's programs for a device type, if there is one."""
    found: Callable[..., torch.Tensor] | None = getattr(
        torch._C._dynamo.guards, f"_empty_strided_{device}", None
    )
    return found


def current_cuda_stream(device: int) -> int:
    """The handle of the current stream of a CUDA device."""
    found: int = torch._C._cuda_getCurrentRawStream(device)
    return found


def static_dims(tensor: torch.Tensor) -> frozenset[int]:
    """The dimensions that `torch._dynamo.mark_static` has marked, counted from the first.

    >>> static_dims(torch.empty(2, 3))
    frozenset()
    """
    marked, dims = getattr(tensor, STATIC_MARKS, None) or (), tensor.dim()
    return frozenset(k % dims for k in marked if -dims <= k < dims)


STATIC_MARKS = "_dynamo_static_indices"
"""The attribute of a tensor with the dimensions that `torch._dynamo.mark_static` has marked."""


def static_marks(tensor: torch.Tensor) -> frozenset[int]:
    """The dimensions that are marked static as they are written, some from the last.

    >>> static_marks(torch.empty(2, 3))
    frozenset()
    """
    return frozenset(getattr(tensor, STATIC_MARKS, None) or ())


def dynamic_dims(tensor: torch.Tensor) -> frozenset[int]:
    """The dimensions that `torch._dynamo.mark_dynamic` has marked, counted from the first.

    >>> dynamic_dims(torch.empty(2, 3))
    frozenset()
    """
    dims = tensor.dim()
    names = ("_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices")
    marked = [k for name in names for k in getattr(tensor, name, None) or ()]
    return frozenset(k % dims for k in marked if -dims <= k < dims)


def name_of(operator: OpOverload) -> str:
    """An operator's name with its overload.

    >>> name_of(torch.ops.aten.fill_.Scalar)
    'aten::fill_.Scalar'
    """
    return str(operator._name)


def schema_of(operator: OpOverload) -> Any:
    """An operator's schema: its arguments, its returns, whether it mutates.

    >>> schema_of(torch.ops.aten.fill_.Scalar).is_mutable
    True
    """
    return operator._schema


def in_c(operator: OpOverload) -> Callable[..., Any]:
    """The function in C behind an operator.

    >>> in_c(torch.ops.aten.neg.default)(torch.ones(1))
    tensor([-1.])
    """
    found: Callable[..., Any] = operator._op
    return found


_ROADS = frozenset(
    [
        *("_C", "_VF", "_VariableFunctions", "torch", "Tensor", "handle_torch_function"),
        *("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"),
    ]
)
"""Names by which torch's Python functions reach those in C."""


def is_thin(function: Any) -> bool:
    """Whether a function of torch is written in Python, and only calls functions in C: it reads no
    settings, and warns of nothing.

    >>> is_thin(torch.Tensor.__rsub__), is_thin(torch.einsum), is_thin(torch.add)
    (True, False, False)
    """
    return isinstance(function, FunctionType) and _is_thin(function)


def is_straight(function: FunctionType) -> bool:
    """Whether a thin function does the same in every call: its code has no jumps.

    >>> is_straight(torch.Tensor.__rdiv__)
    True
    """
    inner = inspect.unwrap(function)
    assert isinstance(inner, FunctionType)
    jumps = {*dis.hasjrel, *dis.hasjabs}
    return not any(each.opcode in jumps for each in dis.get_instructions(inner.__code__))


def names_in(function: FunctionType) -> tuple[str, ...]:
    """The names that a thin function reads.

    >>> names_in(torch.Tensor.__rdiv__)
    ('reciprocal',)
    """
    inner = inspect.unwrap(function)
    assert isinstance(inner, FunctionType)
    return inner.__code__.co_names


@functools.cache
def _is_thin(function: FunctionType) -> bool:
    inner = inspect.unwrap(function)
    if not isinstance(inner, FunctionType) or not inner.__module__.startswith("torch."):
        return False
    names, code = inner.__code__.co_names, inner.__code__
    known = all(n in _ROADS or hasattr(_functions, n) or hasattr(TensorBase, n) for n in names)
    return known and not code.co_freevars and not code.co_cellvars


@contextmanager
def filled_by_torch() -> Iterator[None]:
    """A block in which torch fills fresh memory itself, also inside operators: with NaN, the
    greatest integer, or True. It does so in its deterministic mode, and then warns about operators
    that are not deterministic.

    >>> with filled_by_torch():
    ...     torch.empty(2)
    tensor([nan, nan])
    """
    before = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    filled = torch._C._get_deterministic_fill_uninitialized_memory()
    # torch.use_deterministic_algorithms would import torch.compile.
    torch._C._set_deterministic_algorithms(True, warn_only=warns or not before)
    torch._C._set_deterministic_fill_uninitialized_memory(True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(before, warn_only=warns)
        torch._C._set_deterministic_fill_uninitialized_memory(filled)


def cuda_sleep(cycles: int) -> None:
    """Keep the current CUDA stream busy for a number of cycles."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def fake_tensor() -> Any:
    """torch's module of fake tensors, whose import takes most of a second."""
    from torch._subclasses import fake_tensor as found

    return found
