"""`tzero.adapters.triton_launch` matches the launch path of the installed Triton.

These tests run on the oldest and the newest supported Triton (`make test-all`, `make test-newest`).
On a new Triton whose launches read more than before, the first two fail and name what is read.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.driver import driver
from triton.runtime.jit import JITFunction

from tests.launches import kernels
from tests.launches.looking import VERSION
from tests.launches.rows_arguments import Mine, Pointer
from tzero.adapters import triton_launch
from tzero.cpu.driver import CPUDriver
from tzero.launches.python import PythonJit

RUN = ast.parse(textwrap.dedent(inspect.getsource(JITFunction.run)))


def reads(tree: ast.AST, root: str) -> Iterator[str]:
    """Every ``root.x.y`` in some code, without the root, as long as it is written."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            words = ast.unparse(node).split(".")
            if words[0] == root:
                yield ".".join(words[1:])


def test_the_knobs_are_those_that_triton_makes_options_of_a_launch() -> None:
    options = [
        node.value
        for node in ast.walk(RUN)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).startswith("kwargs[")
    ]
    found = {knob for option in options for knob in reads(option, "knobs")}
    assert found == {f"{group}.{name}" for group, name in triton_launch.KNOBS}


def test_triton_looks_at_nothing_else_when_it_launches() -> None:
    asked = {f"{group}.{name}" for group, name in triton_launch.KNOBS}
    asked |= {"runtime.launch_enter_hook", "runtime.launch_exit_hook"}
    if VERSION >= (3, 7):
        asked.add("runtime.add_stages_inspection_hook")
    assert set(reads(RUN, "knobs")) == asked
    assert set(reads(RUN, "driver")) == {"active.get_current_device", "active.get_current_stream"}
    own = {"debug", "pre_run_hooks", "device_caches", "used_global_vals.items"}
    assert set(reads(RUN, "self")) == own | {"_pack_args", "_do_compile"}


PLACES = (("runtime", "add_stages_inspection_hook"), *triton_launch.KNOBS)


@pytest.mark.parametrize(("group", "name"), PLACES, ids=[name for _, name in PLACES])
def test_the_world_changes_with_each_knob_and_back(group: str, name: str) -> None:
    before = triton_launch.launch_knobs()
    seen = [before]
    for value in (True, 1, "text"):
        with getattr(knobs, group).scope():
            setattr(getattr(knobs, group), name, value)
            seen.append(triton_launch.launch_knobs())
        assert triton_launch.launch_knobs() == before
    different = {repr(each) for each in seen}
    assert len(different) == len(seen)
    assert triton_launch.launch_knobs()[0] is None  # the hook on the stages


def test_a_debug_knob_of_one_makes_another_world_than_true() -> None:
    knobs.runtime.debug = True
    flag = triton_launch.launch_knobs()
    knobs.runtime.debug = 1
    assert triton_launch.launch_knobs() != flag


def various(a, b: tl.constexpr, c: tl.const, d: tl.int64, e=3, *, f: tl.constexpr = 5):
    """A kernel with parameters of every kind."""


def test_parameters_have_the_flags_that_triton_gives_them() -> None:
    kernel = triton.jit(
        various, do_not_specialize=[0, "e"], do_not_specialize_on_alignment=["c", 3]
    )
    found = triton_launch.parameters(kernel)
    assert found is not None
    names = [parameter.name for parameter in found]
    assert names == ["a", "b", "c", "d", "e", "f"] == kernel.arg_names
    assert [p.name for p in found if p.constant] == ["b", "f"]
    assert [p.name for p in found if p.const] == ["c"]
    assert [p.name for p in found if not p.specialize] == ["a", "e"]
    assert [p.name for p in found if not p.align] == ["c", "d"]
    assert [p.name for p in found if p.keyword_only] == ["f"]
    assert [p.default for p in found] == [inspect.Parameter.empty] * 4 + [3, 5]


def test_a_kernel_that_collects_arguments_is_known_for_one() -> None:
    assert "'items' collects" in triton_launch.unsupported(triton.jit(kernels.collecting))
    assert not triton_launch.unsupported(triton.jit(various))


def test_every_option_of_tritons_decorator_is_carried_over() -> None:
    given = {
        "version": 3,
        "repr": lambda facts: "name",
        "launch_metadata": lambda grid, metadata, args: {},
        "do_not_specialize": ["value"],
        "do_not_specialize_on_alignment": [0],
        "debug": True,
        "noinline": True,
    }
    assert set(given) == set(inspect.signature(triton.jit).parameters) - {"fn"}
    kernel = triton.jit(kernels.put, **given)
    assert triton_launch.options_of(kernel) == given
    assert triton_launch.options_of(PythonJit.of(kernel)) == given


VALUES = (
    1,
    7,
    16,
    -16,
    2**31,
    2**63,
    True,
    2.5,
    None,
    (7, 16, (2.5, None)),
    tl.constexpr(7),
    kernels.plus_one,
)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_description_is_the_one_that_triton_looks_up(value: Any) -> None:
    for options in ({}, {"do_not_specialize": ["value"]}, {"do_not_specialize_on_alignment": [1]}):
        assert described(triton.jit(kernels.put, **options), value)


def test_tensors_are_described_as_triton_looks_them_up(device: Any) -> None:
    whole = torch.zeros(9, device=device)
    for tensor in (whole, whole[1:], whole.half(), torch.nn.Parameter(whole), Pointer(whole)):
        assert described(triton.jit(kernels.put), tensor)
    assert described(triton.jit(kernels.put), whole.as_subclass(Mine))


def described(kernel: Any, value: Any) -> bool:
    """Whether Triton's own binder says of the last argument what `specialization` says."""
    caches = kernel.device_caches[driver.active.get_current_device()]
    binder, backend = caches[4], triton_launch.backend_of(caches)
    _, specialization, _ = binder(0, value)
    parameters = triton_launch.parameters(kernel)
    assert parameters is not None
    return bool(specialization[1] == triton_launch.specialization(backend, value, parameters[1]))


def test_the_backend_asks_of_a_pointer_only_if_16_divides_it(device: Any) -> None:
    kernel = triton.jit(kernels.put)
    caches = kernel.device_caches[driver.active.get_current_device()]
    assert triton_launch.backend_of(caches) is caches[3]
    assert triton_launch.plain_alignment(caches[3]) is True
    assert triton_launch.plain_alignment(object()) is False


# -- compiled kernels ----------------------------------------------------------------------------


def launched(device: Any, value: Any = 7) -> tuple[Any, Any, Any]:
    kernel = triton.jit(kernels.put)
    binary = kernel[(1,)](torch.zeros(8, device=device), value)
    return kernel, binary, driver.active.get_current_device()


def test_a_kernel_that_was_launched_is_found_where_triton_keeps_it(device: Any) -> None:
    kernel, binary, where = launched(device)
    found = triton_launch.compiled(kernel, binary, where)
    assert found is not None and found.kernel is binary
    assert found.table[found.key] is binary
    assert (found.run, found.handle) == (binary.run, binary.function)
    assert found.packed is binary.packed_metadata
    assert found.is_current(kernel, where)


def test_a_kernel_that_triton_does_not_keep_is_not_found(device: Any) -> None:
    kernel, binary, where = launched(device)
    _, other, _ = launched(device)
    assert triton_launch.compiled(kernel, other, where) is None
    assert triton_launch.compiled(kernel, binary, "nowhere") is None
    assert "nowhere" not in kernel.device_caches  # asking makes no entry


@pytest.mark.parametrize("change", ["cleared", "emptied", "replaced", "elsewhere"])
def test_a_kernel_that_triton_has_dropped_is_not_current(change: str, device: Any) -> None:
    kernel, binary, where = launched(device)
    found = triton_launch.compiled(kernel, binary, where)
    assert found is not None
    if change == "cleared":
        kernel.device_caches.clear()
    elif change == "emptied":
        found.table.clear()
    elif change == "replaced":
        found.table[found.key] = launched(device)[1]
    else:
        where = "nowhere"
    assert not found.is_current(kernel, where)


# -- hooks and globals ---------------------------------------------------------------------------


def test_empty_hooks_are_none_and_any_hook_brings_both() -> None:
    runtime = knobs.runtime
    chains = (runtime.launch_enter_hook, runtime.launch_exit_hook)
    assert triton_launch.hooks() is None
    for chain in chains:
        chain.add(print)
        assert triton_launch.hooks() == chains
        chain.remove(print)
        assert triton_launch.hooks() is None


def test_a_hook_that_is_no_chain_is_a_hook() -> None:
    class Own(knobs.HookChain):  # type: ignore[misc,type-arg]
        """Looks empty; what its call does is its own affair."""

    exit_chain = knobs.runtime.launch_exit_hook
    for hook in (print, Own()):
        knobs.runtime.launch_enter_hook = hook
        assert triton_launch.hooks() == (hook, exit_chain)
    knobs.runtime.launch_enter_hook = None
    assert triton_launch.hooks() is None
    exit_chain.add(print)
    assert triton_launch.hooks() == (None, exit_chain)


def test_changed_globals_are_those_that_triton_would_name(device: Any) -> None:
    kernel = triton.jit(kernels.with_global)
    kernel[(1,)](torch.zeros(8, device=device))
    assert list(triton_launch.changed_globals(kernel)) == []
    kernels.FACTOR = tl.constexpr(3)
    assert list(triton_launch.changed_globals(kernel)) == []
    kernels.FACTOR = tl.constexpr(4)
    assert list(triton_launch.changed_globals(kernel)) == ["FACTOR"]
    del kernels.FACTOR
    assert list(triton_launch.changed_globals(kernel)) == ["FACTOR"]


# -- drivers -------------------------------------------------------------------------------------


def test_a_driver_is_plain_until_its_device_or_stream_is_patched() -> None:
    active = type(driver.active)()
    assert triton_launch.is_plain_driver(active)
    active.get_current_device = lambda: 0
    assert not triton_launch.is_plain_driver(active)


def test_a_driver_of_another_class_is_not_plain() -> None:
    class Other(CPUDriver):
        """Its methods may return anything."""

    assert triton_launch.is_plain_driver(CPUDriver())
    assert not triton_launch.is_plain_driver(Other())


def test_an_interpreted_kernel_is_known_for_one() -> None:
    assert not triton_launch.is_interpreted(triton.jit(kernels.put))
    assert not triton_launch.is_interpreted(kernels.put)
    with knobs.runtime.scope():
        knobs.runtime.interpret = True
        assert triton_launch.is_interpreted(triton.jit(kernels.put))
