"""Adapts the memory layout of torch's C++ objects: offsets that native code reads, by probing.

Enters: a build of the native module. Leaves: that module, configured with offsets into torch's C++
objects, each checked against what torch returns in Python; or the reason why it cannot be. It must
not know plans.

On a torch with another layout `configure` returns a reason, plans are then replayed in Python, and
`tests/native/test_native_plan.py` fails first; the steps for a new torch are in `tzero.adapters`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import operator
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch

from tzero import measure, settings

__all__ = [
    "configure",
    "dtype_in",
    "handle_offset",
    "in_a_new_thread",
    "place_of_storage",
    "reference_words",
]


def in_a_new_thread(ask: Callable[[], str]) -> str:
    """Call a function in a new thread, where torch's thread-local state is the default."""
    answers: list[Any] = []

    def answer() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=answer)
    thread.start()
    thread.join()
    if isinstance(answers[0], BaseException):
        raise answers[0]
    found: str = answers[0]
    return found


def configure(native: ModuleType) -> str:
    """Give native code the offsets that it reads, each checked against what torch returns in
    Python. Returns why plans cannot be native here; empty if they can."""
    missing = native.open_torch()
    if missing:
        return f"this torch does not have {missing}"
    wrong = _wrong_modes(native)
    if wrong:
        return wrong
    tensors = _examples()
    key_set = _key_set_offset(tensors)
    if key_set < 0:
        return "the dispatch keys of a tensor are at no known offset"
    plain_keys = _plain_keys(tensors)
    facts: dict[str, Any] = {
        "dtype": torch.dtype,
        "layout": torch.layout,
        "memory_format": torch.memory_format,
        "device": torch.device,
        "size": torch.Size,
        "measure": vars(measure),
        "settings": vars(settings._held),
        "key_set": key_set,
        "plain_keys": plain_keys,
        "storage": _storage_offset(),
        "gradients": _gradients_offset(),
        **_keys_of_views(),
        **_plain_modes(native),
    }
    native.configure_plans(**facts, makes_views=False, ready=False)
    numbers: dict[int, torch.dtype] = {}
    for tensor in tensors:
        words = native.tensor_words(tensor)
        known = words and numbers.setdefault(dtype_in(words), tensor.dtype)
        if words != _expected(tensor, words, plain_keys) or known not in (
            None,
            tensor.dtype,
        ):
            return "the sizes, strides or dtype of a tensor are at no known offset"
    written = torch.empty(2, device="cpu").zero_().zero_()
    native.bump_version(written)
    if native.tensor_version(written) != written._version or written._version != 3:
        return "the version counter of a tensor is at no known offset"
    native.configure_plans(**facts, makes_views=_makes_views(native), ready=True)
    return ""


def _wrong_modes(native: ModuleType) -> str:
    """Which of this thread's modes native code reads wrongly; empty if none."""

    def offsets() -> tuple[int, int]:
        included, excluded, *rest = native.torch_modes()
        grad, deterministic, functions, threads = rest
        said = (
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch._C._len_torch_function_stack(),
        )
        if (grad, deterministic, functions) != said:
            wrong.append("its modes")
        if threads not in (-1, torch.get_num_threads()):
            wrong.append("its threads")
        now_included = torch._C._dispatch_tls_local_include_set().raw_repr()
        now_excluded = torch._C._dispatch_tls_local_exclude_set().raw_repr()
        return included ^ now_included, excluded ^ now_excluded

    wrong: list[str] = []
    differences = {offsets()}
    for context in (
        torch.inference_mode(),
        torch.no_grad(),
        torch.overrides.BaseTorchFunctionMode(),
    ):
        with context:
            differences.add(offsets())
    with _flag_on(torch._C.DispatchKey.AutocastCPU):
        differences.add(offsets())
    if len(differences) != 1:
        wrong.append("its dispatch keys")
    return (
        f"native code reads wrongly what torch is set to in a thread ({', '.join(wrong)})"
        if wrong
        else ""
    )


@contextlib.contextmanager
def _flag_on(key: Any) -> Iterator[None]:
    before = torch._C._dispatch_tls_is_dispatch_key_included(key)
    torch._C._dispatch_tls_set_dispatch_key_included(key, not before)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_included(key, before)


def _plain_modes(native: ModuleType) -> dict[str, int]:
    """The thread-local dispatch keys that may vary in calls that native code replays: those that
    inference mode and autocast change."""
    with torch.inference_mode(False):
        before = native.torch_modes()
        keys = [_changed_by_autocast(native, device) for device in ("cpu", "cuda")]
    with torch.inference_mode():
        within = native.torch_modes()
    keys.append((before[0] ^ within[0], before[1] ^ within[1]))
    included, excluded = (functools.reduce(operator.or_, each) for each in zip(*keys, strict=True))
    return {"plain_included": included, "plain_excluded": excluded}


def _changed_by_autocast(native: ModuleType, device: str) -> tuple[int, int]:
    """The dispatch keys that autocast for a type of device changes."""
    found = []
    before = torch.is_autocast_enabled(device)
    try:
        for is_on in (False, True):
            torch.set_autocast_enabled(device, is_on)
            found.append(native.torch_modes())
    finally:
        torch.set_autocast_enabled(device, before)
    return found[0][0] ^ found[1][0], found[0][1] ^ found[1][1]


def _examples() -> list[torch.Tensor]:
    """Tensors of every kind that plans distinguish, and some that plans do not support."""
    plain = torch.empty(3, 4, device="cpu", dtype=torch.float32)
    shifted = torch.empty(7, device="cpu", dtype=torch.float16)[1:6:2]
    with torch.inference_mode():
        inference = torch.empty(2, 1, device="cpu", dtype=torch.int8)
    return [
        plain,
        plain.t(),
        shifted,
        inference,
        torch.empty((), device="cpu", dtype=torch.int64),
        torch.empty(2, device="cpu", dtype=torch.complex64).conj(),
        torch._neg_view(torch.empty(2, device="cpu", dtype=torch.float32)),
        torch.empty(5, device="cpu", dtype=torch.float32, requires_grad=True),
        torch.nn.Parameter(torch.empty(2, 3, device="cpu", dtype=torch.bfloat16)),
        torch.empty(2, 2, device="cpu", dtype=torch.float32).to_sparse(),
        torch.empty(2, device="meta"),
    ]


def _keys(tensor: torch.Tensor) -> int:
    found: int = torch._C._dispatch_keys(tensor).raw_repr()
    return found


_MOST_OBJECT_BYTES = 208  # of torch's C++ tensor, in every version known


def _key_set_offset(tensors: list[torch.Tensor]) -> int:
    """The offset of the dispatch keys in a tensor's C++ object: the only one that holds the right
    value for each of these tensors. -1 if there is none, or several."""
    found = [
        offset
        for offset in range(0, _MOST_OBJECT_BYTES, 8)
        if all(
            ctypes.c_uint64.from_address(tensor._cdata + offset).value == _keys(tensor)
            for tensor in tensors
        )
    ]
    return found[0] if len(found) == 1 else -1


def _words(address: int, size: int) -> list[int]:
    return [ctypes.c_uint64.from_address(address + at).value for at in range(0, size, 8)]


def _storage_offset() -> int:
    """The offset of the storage in a tensor's C++ object; -1 if it is not found, or if the
    reference counts are not in the second word of both objects."""
    tensor = torch.empty(3, device="cpu")
    storage = tensor.untyped_storage()._cdata
    words = _words(tensor._cdata, _MOST_OBJECT_BYTES)
    found = [8 * k for k, word in enumerate(words) if word == storage]

    def counts() -> tuple[int, int]:
        return _words(tensor._cdata, 16)[1], _words(storage, 16)[1]

    alone = counts()
    view = tensor[1:]
    viewed = counts()
    del view
    after = counts()
    graph = (tensor.requires_grad_() * tensor).grad_fn
    saved = counts()
    del graph
    tensor.requires_grad_(False)
    right = viewed[1] == alone[1] + 1 and after == alone and saved[0] > alone[0]
    return found[0] if len(found) == 1 and right and counts()[1] == alone[1] else -1


def _gradients_offset() -> int:
    """Where in the C++ object of a tensor it says what there is about gradients: the one word that
    is empty in a new tensor, and is not once it has required some. -1 where there is none."""
    tensor = torch.empty(3, device="cpu")
    before = _words(tensor._cdata, _MOST_OBJECT_BYTES)
    tensor.requires_grad_().requires_grad_(False)
    pairs = enumerate(zip(before, _words(tensor._cdata, _MOST_OBJECT_BYTES), strict=True))
    found = [8 * k for k, (one, other) in pairs if one == 0 and other != 0]
    return found[0] if len(found) == 1 else -1


def _keys_of_views() -> dict[str, int]:
    """The dispatch key that tracks views, and with it the keys below, of the CPU and of GPUs."""
    kinds = torch._C.DispatchKey
    key, *below = (
        torch._C.DispatchKeySet(each).raw_repr()
        for each in (kinds.ADInplaceOrView, kinds.CPU, kinds.CUDA)
    )
    return {"view_key": key, "keys_of_views": functools.reduce(operator.or_, below, key)}


def _makes_views(native: ModuleType) -> bool:
    """Whether native code makes the views that torch makes."""

    def facts(view: torch.Tensor | None) -> tuple[Any, ...]:
        if type(view) is not torch.Tensor:
            return ()
        geometry = (view.size(), view.stride(), view.storage_offset(), view.dtype, view.data_ptr())
        return (*geometry, _keys(view), view._version, view.requires_grad, view._is_view())

    whole = torch.empty(24, device="cpu", dtype=torch.float64)
    shapes: list[tuple[tuple[int, ...], tuple[int, ...], int]] = [
        *(((), (), 0), ((3,), (2,), 0), ((2, 1, 3), (3, 0, 1), 5)),
        ((0, 4), (1, 1), 1),
    ]
    for tensor in (whole, whole[4:].view(4, 5).t(), torch.nn.Parameter(whole.view(2, 12))):
        start = tensor.storage_offset()
        for size, stride, offset in shapes:
            with torch.set_grad_enabled(not tensor.requires_grad):
                mine = native.strided_view(tensor, size, stride, offset)
                theirs = tensor.as_strided(size, stride, start + offset)
            if facts(mine) != facts(theirs) or mine._base is not theirs._base:
                return False
    return native.strided_view(whole, (25,), (1,), 0) is None


def _plain_keys(tensors: list[torch.Tensor]) -> int:
    """The dispatch keys that tensors for native code may have: strided, on the CPU or a GPU."""
    keys = 0
    for tensor in tensors:
        if tensor.layout is torch.strided and tensor.device.type == "cpu":
            keys |= _keys(tensor)
    for key in (torch._C.DispatchKey.CUDA, torch._C.DispatchKey.AutocastCUDA):
        keys |= torch._C.DispatchKeySet(key).raw_repr()
    return keys


def _expected(
    tensor: torch.Tensor, words: tuple[int, ...] | None, plain_keys: int
) -> tuple[int, ...] | None:
    """A tensor's facts packed as in native/tensors.h, from what torch returns in Python. The
    number of the dtype is not known in Python, and is taken from `words`."""
    if _keys(tensor) & ~plain_keys:
        return None
    first = (
        (type(tensor) is torch.nn.Parameter)
        | tensor.requires_grad << 1
        | (tensor.data_ptr() & 15) << 4
        | (dtype_in(words) if words else 0) << 8
        | max(tensor.get_device(), 0) << 16
        | tensor.dim() << 24
    )
    return (first, _keys(tensor), *tensor.size(), *tensor.stride())


def dtype_in(words: tuple[int, ...]) -> int:
    return words[0] >> 8 & 0xFF


def reference_words(tensor: torch.Tensor) -> list[int]:
    """The reference counts (strong and weak) of a tensor and of its storage, as words that can only
    be compared; empty if their offset is not known."""
    if not _are_counted():
        return []
    objects = tensor._cdata, tensor.untyped_storage()._cdata
    return [ctypes.c_uint64.from_address(address + 8).value for address in objects]


@functools.cache
def _are_counted() -> bool:
    """Whether reference counts are in the second word of torch's C++ objects. If not, a tensor with
    a weak reference in C++ looks unused."""
    tensor = torch.empty(1, device="cpu")
    storage = tensor.untyped_storage()
    places = (tensor._cdata + 8, storage._cdata + 8)

    def words() -> list[int]:
        return [ctypes.c_uint64.from_address(place).value for place in places]

    before = words()
    weak = torch._C._WeakTensorRef(tensor)  # type: ignore[attr-defined]
    one = words()
    del weak
    pointer = storage._weak_ref()
    other = words()
    type(storage)._free_weak_ref(pointer)  # type: ignore[no-untyped-call]
    changed = one[0] != before[0] and one[1] == before[1] and other[1] != before[1]
    return changed and words() == before


def handle_offset() -> int:
    """The offset in a Python tensor of the pointer to its C++ object: the only one that holds the
    address that torch returns. -1 if there is none, or several."""
    tensors = [torch.empty(2), torch.empty(3, 4).t(), torch.nn.Parameter(torch.empty(1))]
    sizes = [type(tensor).__basicsize__ for tensor in tensors]
    found = [
        offset
        for offset in range(object.__basicsize__, min(sizes), 8)
        if all(
            ctypes.c_void_p.from_address(id(tensor) + offset).value == tensor._cdata
            for tensor in tensors
        )
    ]
    return found[0] if len(found) == 1 else -1


def place_of_storage() -> int:
    """The offset in torch's C++ tensor of the pointer to its storage: the only one that holds the
    address that torch returns. -1 if there is none, or several. Tensors without a storage, such as
    sparse ones and those of MKL-DNN, have a null pointer there."""
    tensors = [torch.empty(2), torch.empty(3, 4).t(), torch.nn.Parameter(torch.empty(1))]
    found = [
        offset
        for offset in range(0, _MOST_OBJECT_BYTES, 8)
        if all(
            ctypes.c_uint64.from_address(tensor._cdata + offset).value
            == tensor.untyped_storage()._cdata
            for tensor in tensors
        )
    ]
    return found[0] if len(found) == 1 else -1
