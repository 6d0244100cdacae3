"""`tzero.adapters.triton_cuda` matches the launcher for CUDA of the installed Triton.

None of it needs a GPU; `tests/gpu/test_queued.py` compares launches.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.runtime.build import compile_module_from_src
from triton.tools.tensor_descriptor import TensorDescriptor

from tests.launches.looking import VERSION
from tzero.adapters import triton_cuda
from tzero.adapters.triton_cuda import TensorMap, Unknown

MODULE = """
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(%d); }
static PyMethodDef methods[] = {{"launch", answer, METH_VARARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "__triton_launcher", NULL, -1, methods
};
PyMODINIT_FUNC PyInit___triton_launcher(void) { return PyModule_Create(&definition); }
"""


def test_each_launcher_is_a_module_of_its_own() -> None:
    """Those of Triton 3.6 have the same name, and are loaded again and again."""
    before = set(sys.modules)
    made = [compile_module_from_src(MODULE % k, "__triton_launcher") for k in (1, 2, 1, 2)]
    assert [each.launch() for each in made] == [1, 2, 1, 2]
    assert "__triton_launcher" not in set(sys.modules) - before
    again = compile_module_from_src(MODULE % 1, "__triton_launcher")
    assert [each.launch() for each in (*made, again)] == [1, 2, 1, 2, 1]


META = {"swizzle": 3, "elem_size": 4, "elem_type": 7, "block_size": [4, 32], "fp4_padded": False}


def kernel(signature: dict[str, Any], metas: Any) -> Any:
    metadata = SimpleNamespace(tensordesc_meta=metas)
    return SimpleNamespace(metadata=metadata, src=SimpleNamespace(signature=signature))


def values(found: list[triton_cuda.Parameter], given: tuple[Any, ...]) -> list[Any]:
    """What the parameters stand for in a launch."""
    read = []
    for each in found:
        value: Any = given
        for step in each.path:
            value = value[step]
        field, axis = each.part or ("", 0)
        if field in ("shape", "strides"):
            value = getattr(value, field)[axis]
        elif field == "padding":
            value = value.padding == "nan"
        elif field:
            value = "map" if field == "map" else getattr(value, field)
        read.append(value)
    return read


SIGNATURE = {
    "a": "*fp32",
    "d": "tensordesc<fp32[4,32]>",
    "t": ("i32", ("*fp16", "constexpr")),
    "K": "constexpr",
    "e": "tensordesc<fp32[4,32]>",
    "n": "i64",
}


@pytest.mark.parametrize("metas", [None, [], [META, META], [None, META]], ids=str)
def test_descriptors_are_expanded_as_by_the_launcher(metas: Any) -> None:
    driver = pytest.importorskip("triton.backends.nvidia.driver")
    if not hasattr(driver, "make_launcher"):
        pytest.skip("this Triton expands signatures in native code")
    one = TensorDescriptor(torch.zeros(8, 64), [8, 60], [64, 1], [4, 32], "nan")
    two = TensorDescriptor(torch.zeros(8, 32), [7, 32], [32, 1], [4, 32], "zero")
    constant = object()
    given = (one.base, one, (3, (two.base, 5)), constant, two, 2**40)
    found = list(triton_cuda.parameters(kernel(SIGNATURE, metas)))
    seen: list[Any] = []

    def launch(*args: Any) -> None:
        seen.extend(args)

    utils = SimpleNamespace(fill_tma_descriptor=lambda *args: "map")
    with pytest.MonkeyPatch.context() as patch:
        active = SimpleNamespace(utils=utils)
        patch.setattr(triton.runtime, "driver", SimpleNamespace(active=active))
        wrapped = driver.wrap_handle_tensordesc(launch, SIGNATURE, metas)
        wrapped(*[None] * driver._BASE_ARGS_FORMAT_LEN, *given)
    passed = seen[driver._BASE_ARGS_FORMAT_LEN :]
    flat: list[Any] = []
    for each in passed:
        flat += [each[0], each[1][0]] if isinstance(each, tuple) else [each]
    flat = [each for each in flat if each is not constant]
    mine = values(found, given)
    assert len(mine) == len(flat)
    assert all(one is other or one == other for one, other in zip(mine, flat, strict=True))
    maps = [each.type for each in found if isinstance(each.type, TensorMap)]
    assert maps == [TensorMap(2, 3, 4, 7, (4, 32))] * len([each for each in metas or () if each])


@pytest.mark.parametrize(
    ("signature", "meta", "words"),
    [
        ({"d": "tensordesc<u8[4,32]>"}, {**META, "fp4_padded": True}, "only Triton passes"),
        ({"d": "tensordesc<fp32[4,32]>"}, {**META, "is_im2col": True}, "only Triton passes"),
        ({"d": ("i32", "tensordesc<fp32[4,32]>")}, META, "descriptor in a tuple"),
    ],
)
def test_other_descriptors_are_refused(signature: Any, meta: Any, words: str) -> None:
    if VERSION >= (3, 7):
        pytest.skip("later Tritons fill tensor maps in other ways, and all are refused")
    with pytest.raises(Unknown, match=words):
        list(triton_cuda.parameters(kernel(signature, [meta])))


def test_tensor_maps_of_other_tritons_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "__version__", "3.7.0")
    with pytest.raises(Unknown, match="how this Triton fills"):
        list(triton_cuda.parameters(kernel({"d": "tensordesc<fp32[4,32]>"}, [META])))


def test_scratch_memory_is_what_the_launcher_says() -> None:
    def launcher(most: int, profile: int) -> Any:
        return SimpleNamespace(
            global_scratch_size=most,
            global_scratch_align=128,
            profile_scratch_size=profile,
            profile_scratch_align=1,
        )

    assert triton_cuda.scratch(launcher(0, 0)) == ()
    found = triton_cuda.scratch(launcher(64, 0))
    assert found is not None
    assert [each[:2] for each in found] == [(64, 128), (0, 1)]
    known = triton_cuda.scratch(launcher(0, 32))
    assert (known is None) == (VERSION >= (3, 8))
