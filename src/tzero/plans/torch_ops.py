"""Classifies torch's functions and operators: reads, views, allocations, fills, others.

Enters: the name of a function, and the operators that ran in it. Leaves: what kind of step it is,
or why it cannot be one. It must not know recordings.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch.overrides import resolve_name

from tzero.adapters.torch_internals import (
    DisableTorchDispatch,
    OpOverload,
    disable_current_modes,
    fake_tensor,
    has_fake_kernel,
    is_zero_tensor,
    name_of,
    schema_of,
    storage_id,
    tree_leaves,
    tree_map,
)

__all__ = [
    "NOTHING",
    "Picked",
    "Ran",
    "allocates",
    "always_makes_new",
    "fills",
    "is_custom",
    "is_geometry",
    "is_own",
    "is_read",
    "named",
    "obstacle",
    "outcomes",
]

_OF_DTYPES = frozenset(["promote_types", "can_cast", "device"])
"""Functions of dtypes and devices, which are constants."""

_READS = frozenset(
    [
        f"Tensor.{name}.__get__"
        for name in [
            "shape",
            "dtype",
            "device",
            "layout",
            "ndim",
            "itemsize",
            "nbytes",
            "requires_grad",
            "is_cuda",
            "is_cpu",
            "is_meta",
            "is_sparse",
            "is_sparse_csr",
            "is_quantized",
            "is_nested",
            "is_mkldnn",
            "is_xpu",
            "is_mps",
        ]
    ]
    + [
        f"Tensor.{name}"
        for name in [
            "size",
            "stride",
            "dim",
            "ndimension",
            "numel",
            "nelement",
            "element_size",
            "is_contiguous",
            "is_floating_point",
            "is_complex",
            "is_signed",
            "_is_zerotensor",
            "is_conj",
            "is_neg",
            "get_device",
            "__len__",
            "is_same_size",
            "dim_order",
        ]
    ]
    + ["numel", "is_floating_point", "is_complex", "is_conj", "is_neg", "is_same_size"]
    + ["_set_grad_enabled", "_C._set_grad_enabled"]
)
"""Functions whose result the key determines, or that only change a mode, which steps check."""

_ALLOCATE = frozenset(
    [
        "aten::empty.memory_format",
        "aten::empty_strided",
        "aten::empty_like",
        "aten::new_empty",
        "aten::new_empty_strided",
    ]
)
_ALLOCATE_FULL: Mapping[str, Any] = {
    **dict.fromkeys(["aten::zeros", "aten::zeros_like", "aten::new_zeros"], 0),
    **dict.fromkeys(["aten::ones", "aten::ones_like", "aten::new_ones"], 1),
    **dict.fromkeys(["aten::full", "aten::full_like", "aten::new_full"]),
}
_GETTERS = frozenset(
    f"Tensor.{name}.__get__" for name in ["T", "mT", "H", "mH", "data", "real", "imag"]
)

_BY_VALUES = ("pack_padded", "pad_packed", "histogramdd")
"""Parts of the names of functions whose output sizes depend on values, without a tag that says
so."""

_OWN = ("aten", "prims")
"""The namespaces of torch's own operators."""

NOTHING: Any = object()
"""Stands for a tensor that is not filled."""


class Ran(NamedTuple):
    """An operator that ran, its arguments, and the tensor that it returned, if it was one: as a
    weak reference, because torch copies a result that someone else holds."""

    operator: OpOverload
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: weakref.ref[torch.Tensor] | None = None

    @property
    def traits(self) -> _Traits:
        """What the operator's schema and tags say."""
        return _traits(self.operator)

    @property
    def name(self) -> str:
        """The operator's name with its overload, such as ``aten::fill_.Scalar``."""
        return self.traits.name

    @property
    def arguments(self) -> dict[str, Any]:
        """The given arguments, by name."""
        names = self.traits.arguments
        return {**dict(zip(names, self.args, strict=False)), **self.kwargs}

    @property
    def of_tensor(self) -> bool:
        """Whether it takes a tensor, and so its dtype by default."""
        return any(isinstance(arg, torch.Tensor) for arg in self.args)


class Picked:
    """One of the tensors that a function returns.

    >>> Picked(torch.unbind, 1)(torch.arange(3)).item()
    1
    """

    __slots__ = ("function", "index")

    def __init__(self, function: Any, index: int) -> None:
        self.function = function
        self.index = index

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)[self.index]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Picked)
            and self.function == other.function
            and self.index == other.index
        )

    def __hash__(self) -> int:
        return hash((self.function, self.index))


def named(function: Any) -> str:
    """The name of a torch function, without the module.

    >>> named(torch.Tensor.size)
    'Tensor.size'
    """
    if isinstance(function, FunctionType) and not is_own(function):
        return _named(function)
    return _named_once(function)


def _named(function: Any) -> str:
    name: str = resolve_name(function) or getattr(function, "__name__", repr(function))
    return name.removeprefix("torch.")


_named_once = functools.lru_cache(1024)(_named)
"""The name of a function of torch, which stays alive anyway. To find it takes long."""


def is_own(function: Any) -> bool:
    """Whether a function is torch's own. One of the program, such as an operator made of others,
    may decide by more than its arguments what it does: a replay calls it again.

    >>> is_own(torch.full), is_own(torch.Tensor.add)
    (True, True)
    """
    if isinstance(function, (OpOverload, _PACKET)):
        return function.__module__.split(".")[2] in _OWN  # torch._ops.aten
    if isinstance(function, FunctionType):
        return str(function.__globals__.get("__name__")).partition(".")[0] == "torch"
    return True


_PACKET = type(torch.ops.aten.add)

_SPELLED = {"truediv": "div", "floordiv": "floor_divide", "matmul": "mm"}

_ALWAYS_NEW = frozenset(
    [
        *("matmul", "Tensor.matmul", "Tensor.__matmul__", "softmax", "Tensor.softmax"),
        *(
            f"nn.functional.{name}"
            for name in ("softmax", "linear", "layer_norm", "gelu", "silu", "relu", "embedding")
        ),
    ]
)
"""Functions made of several operators whose results are new tensors for all sizes."""


def always_makes_new(name: str, ran: Sequence[Ran]) -> bool:
    """Whether a function makes new tensors for all sizes, or changes its argument in place for all
    sizes: it is one operator, whose schema says so.

    >>> always_makes_new("Tensor.contiguous", [])
    False
    """
    if name in _ALWAYS_NEW:
        return True
    if len(ran) != 1 or ran[0].operator.namespace not in _OWN:
        return False
    schema = schema_of(ran[0].operator)
    if not schema.is_mutable and any(each.alias_info is not None for each in schema.returns):
        return False
    word = name.rpartition(".")[2].strip("_")
    own = ran[0].name.partition("::")[2].partition(".")[0].strip("_")
    return own in (word, _SPELLED.get(word), word.removeprefix("r"), word.removeprefix("i"))


def is_among(function: Any, ran: Sequence[Ran]) -> bool:
    """Whether a function is an operator that ran itself, and not one made of others."""
    packet = getattr(function, "overloadpacket", function)
    return any(each.operator.overloadpacket is packet for each in ran)


def is_read(name: str) -> bool:
    """Whether the key determines what a function returns.

    >>> is_read("Tensor.size"), is_read("Tensor.data_ptr")
    (True, False)
    """
    return name in _READS or name in _OF_DTYPES


class _Traits(NamedTuple):
    """What an operator is, which its schema and its tags say once and for all."""

    operator: OpOverload
    name: str
    arguments: tuple[str, ...]
    tags: frozenset[Any]
    is_mutable: bool
    is_own: bool
    returns_tensors: bool
    is_view: bool


_all_traits: dict[
    int, _Traits
] = {}  # by the ids of operators, as their hashes are computed in Python


def _traits(operator: OpOverload) -> _Traits:
    found = _all_traits.get(id(operator))
    if found is None:
        found = _all_traits[id(operator)] = _traits_of(operator)
    return found


def _traits_of(operator: OpOverload) -> _Traits:
    schema, is_own = schema_of(operator), operator.namespace in _OWN
    return _Traits(
        operator,
        name_of(operator),
        tuple(argument.name for argument in schema.arguments),
        frozenset(operator.tags),
        bool(schema.is_mutable),
        is_own,
        any("Tensor" in str(each.type) for each in schema.returns),
        # The sizes of views by own operators do not depend on values.
        is_own and bool(operator.is_view) and not schema.is_mutable,
    )


def obstacle(name: str, result: Any, ran: Sequence[Ran]) -> str:
    """Why a function cannot be a step; usually empty.

    >>> obstacle("Tensor.item", 3.0, [])
    'it reads Tensor.item, which its arguments do not determine'
    """
    why = _obstacle_in_name(name)
    if why.startswith("the size"):
        return why
    for each in ran:
        traits = _traits(each.operator)
        if not traits.is_own or not traits.tags.isdisjoint(_OBSTACLES):
            return _obstacle_in(name, ran) or why or _obstacle_in_result(name, result, ran)
    return why or _obstacle_in_result(name, result, ran)


_OBSTACLES = {
    torch.Tag.inplace_view: "{} changes the geometry of a tensor in place",
    torch.Tag.dynamic_output_shape: "the size of the result of {} depends on values",
    torch.Tag.data_dependent_output: "it reads the value of a tensor ({})",
}


@functools.lru_cache(1024)
def _obstacle_in_name(name: str) -> str:
    if any(word in name for word in _BY_VALUES):
        return f"the size of the result of {name} may depend on values"
    if "backward" in name:
        return f"{name} computes gradients"
    if name.endswith(".__get__") and name not in _GETTERS:
        return f"it reads {name.removesuffix('.__get__')}, which its arguments do not determine"
    return ""


def _obstacle_in(name: str, ran: Sequence[Ran]) -> str:
    """An obstacle in what the operators do."""
    own = [ran[k] for k in range(len(ran)) if not _is_of_own(ran, k)]
    tags = {tag for each in own for tag in _traits(each.operator).tags}
    for tag, words in _OBSTACLES.items():
        if tag in tags:
            return words.format(name)
    if any(map(_is_unknown, ran)):
        return (
            f"the size of the result of {name} is unknown: register a fake kernel for it "
            "(torch.library.register_fake)"
        )
    if any(map(_is_sized_by_values, ran)):
        return f"the size of the result of {name} depends on values"
    return ""


_TURNED = ("aten::transpose_", "aten::t_", "aten::squeeze_", "aten::unsqueeze_")


def _is_of_own(ran: Sequence[Ran], k: int) -> bool:
    """Whether an operator changes the geometry of a tensor that another one in the function made,
    which nobody has seen yet."""
    if ran[k].name not in _TURNED:
        return False
    changed = ran[k].args[0]
    return any(each.result is not None and each.result() is changed for each in ran[:k])


def _obstacle_in_result(name: str, result: Any, ran: Sequence[Ran]) -> str:
    if result is None and any(_traits(each.operator).is_mutable for each in ran):
        return ""
    if type(result) is torch.Tensor:
        return ""
    if not _has(result, torch.Tensor) or _has(result, float):
        return f"it reads {name}, which its arguments do not determine"
    return ""


def is_custom(operator: Any) -> bool:
    """Whether an operator is not torch's own.

    >>> is_custom(torch.ops.aten.add.Tensor)
    False
    """
    is_operator = type(operator) is OpOverload or isinstance(operator, OpOverload)
    return is_operator and not _traits(operator).is_own


def _is_foreign(operator: OpOverload) -> bool:
    """Whether an operator is custom and returns tensors: no tag says what their sizes depend on."""
    traits = _traits(operator)
    return not traits.is_own and traits.returns_tensors


def _is_unknown(ran: Ran) -> bool:
    return _is_foreign(ran.operator) and not has_fake_kernel(ran.operator)


def _is_sized_by_values(ran: Ran) -> bool:
    """Whether the output sizes of a custom operator depend on values: then its fake kernel, which
    sees no values, returns symbolic sizes."""
    operator = ran.operator
    if not _is_foreign(operator):
        return False
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    fakes = fake_tensor()
    with disable_current_modes(), fakes.FakeTensorMode(shape_env=ShapeEnv()) as mode:

        def fake(value: Any) -> Any:
            is_tensor = isinstance(value, torch.Tensor)
            return mode.from_tensor(value, static_shapes=True) if is_tensor else value

        try:
            result = operator(*tree_map(fake, ran.args), **tree_map(fake, ran.kwargs))
        except Exception:  # sizes unknown: assume that they depend on values
            return True
        tensors = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        return not all(type(n) is int for each in tensors for n in (*each.size(), *each.stride()))


def _has(value: Any, kind: type) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has(item, kind) for item in value)
    return isinstance(value, kind)


def outcomes(
    ran: Sequence[Ran], found: Sequence[torch.Tensor], known: Callable[[torch.Tensor], bool]
) -> list[torch.Tensor] | None:
    """The tensor that each operator in a function made: one of those that the function returned,
    `found`, or one that only other operators are given. None if the function does more than these
    operators, or one of them changes a tensor. `known` tells tensors from before the function."""
    made: list[torch.Tensor] = []
    for each in ran:
        leaves = tree_leaves((each.args, dict(each.kwargs)))
        given = [arg for arg in leaves if isinstance(arg, torch.Tensor)]
        result = None if each.result is None else each.result()
        if result is None or schema_of(each.operator).is_mutable:
            return None
        if not all(known(arg) or _is_in(arg, made) for arg in given):
            return None
        if known(result) or _is_in(result, made):
            return None
        made.append(result)
    return made if all(known(each) or _is_in(each, made) for each in found) else None


def _is_in(tensor: torch.Tensor, tensors: Sequence[torch.Tensor]) -> bool:
    return any(tensor is each for each in tensors)


def allocates(ran: Ran) -> Any:
    """The number that an allocating operator fills its tensor with, `NOTHING` if it does not fill
    it; None for other operators."""
    if ran.name in _ALLOCATE:
        return NOTHING
    if ran.name not in _ALLOCATE_FULL:
        return None
    number = _ALLOCATE_FULL[ran.name]
    number = ran.arguments.get("fill_value") if number is None else number
    return number if type(number) in (bool, int, float) else None


def fills(ran: Ran) -> Any:
    """The number that an in-place operator fills its tensor with; `NOTHING` for others."""
    if ran.name == "aten::zero_":
        return 0
    number = ran.arguments.get("value") if ran.name == "aten::fill_.Scalar" else None
    return number if type(number) in (bool, int, float) else NOTHING


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a new tensor is a plain one: its own dense memory on a CPU or CUDA device."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type in ("cpu", "cuda")
        and not tensor.requires_grad
        and not (tensor.device.type == "cpu" and _is_pinned(tensor))
        and tensor.storage_offset() == 0
        and not tensor.dtype.is_complex
        and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    )


def _is_pinned(tensor: torch.Tensor) -> bool:
    """Whether a tensor on the CPU is in pinned memory. To ask runs an operator, which need not be
    shown to dispatch modes."""
    with DisableTorchDispatch():
        return tensor.is_pinned()


def oddity(tensor: torch.Tensor) -> str:
    """What kind of tensor this is, if it is not a plain strided one; usually empty.

    >>> oddity(torch.eye(2).to_sparse())
    'sparse_coo'
    """
    if type(tensor) is not torch.Tensor:
        return type(tensor).__name__
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    if tensor.is_quantized:
        return "quantized"
    return "zero" if is_zero_tensor(tensor) else ""


def is_geometry(ran: Ran) -> bool:
    """Whether an operator returns a view."""
    return _traits(ran.operator).is_view


_STRIDED = frozenset(
    f"aten::{name}"
    for name in [
        *("alias", "as_strided", "view", "_reshape_alias", "expand", "unfold", "diagonal"),
        *("t", "transpose.int", "permute", "slice.Tensor", "select.int", "unsqueeze"),
        *("squeeze", "squeeze.dim", "squeeze.dims"),
    ]
)
"""Views that torch knows by sizes, strides and offset alone. Not among them: `detach`, which hides
the base, and views of which one operator returns several, which may not be changed in place where
gradients are computed."""


def is_strided(ran: Ran) -> bool:
    """Whether `torch.as_strided` would return the view that an operator returned."""
    return ran.name in _STRIDED


def is_absolute(ran: Ran) -> bool:
    """Whether a view gives its offset from the start of the storage, not of the tensor."""
    return ran.name == "aten::as_strided" and ran.arguments.get("storage_offset") is not None


def shares_memory(tensor: torch.Tensor, base: torch.Tensor) -> bool:
    """Whether a view differs from its base only in sizes, strides and offset."""
    return (
        type(tensor) is torch.Tensor
        and tensor.dtype == base.dtype
        and not tensor.requires_grad
        and tensor.layout is torch.strided
        and tensor.is_conj() == base.is_conj()
        and tensor.is_neg() == base.is_neg()
        and storage_id(tensor) == storage_id(base)
    )
