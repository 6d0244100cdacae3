"""Rows about what a launch depends on besides its arguments: globals, knobs, caches, the driver."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.runtime.driver import driver

from tests.launches import kernels
from tests.launches.looking import VERSION, assumes_16, kind_of, warm
from tests.launches.row import table
from tests.launches.rows_arguments import GRID, floats, integers

ROWS = table()
row = ROWS.add


# -- globals -------------------------------------------------------------------------------------


@row("globals")
def a_changed_global_raises_tritons_own_error(make, device):
    kernel, out = make(kernels.with_global), integers(device)
    out.fill_(1)
    warm(kernel, lambda: kernel[GRID](out))
    kernels.FACTOR = tl.constexpr(5)
    words = (
        "Global variable FACTOR has changed since we compiled this kernel, "
        r"from constexpr\[3\] to constexpr\[5\]"
    )
    for _ in range(2):
        with pytest.raises(RuntimeError, match=words):
            kernel[GRID](out)
    assert out[0].item() == 27
    kernels.FACTOR = tl.constexpr(3)  # equal, and another object
    kernel[GRID](out)
    assert out[0].item() == 81


@row("globals")
def a_constant_is_compared_by_what_it_holds_now(make, device):
    kernels.FACTOR = constant = tl.constexpr(3)
    kernel, out = make(kernels.with_global), integers(device)
    out.fill_(1)
    warm(kernel, lambda: kernel[GRID](out))
    for value in (5, "3", float("nan"), None, [3]):
        constant.value = value
        with pytest.raises(RuntimeError, match="Global variable FACTOR has changed"):
            kernel[GRID](out)
    for value in (3, 3.0, True + 2):  # equal to 3
        constant.value = value
        kernel[GRID](out)
    assert out[0].item() == 3**6


@row("globals")
def what_differs_is_for_the_class_of_constants_to_say(make, device):
    kernel, out = make(kernels.with_global), integers(device)
    out.fill_(1)
    warm(kernel, lambda: kernel[GRID](out))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tl.constexpr, "__ne__", lambda self, other: True)
        with pytest.raises(RuntimeError, match="Global variable FACTOR has changed"):
            kernel[GRID](out)
    kernel[GRID](out)
    assert out[0].item() == 81


@row("globals")
def a_deleted_global_raises_and_a_restored_one_does_not(make, device):
    kernel, out = make(kernels.with_global), integers(device)
    out.fill_(1)
    warm(kernel, lambda: kernel[GRID](out))
    kept = kernels.FACTOR
    del kernels.FACTOR
    with pytest.raises(RuntimeError, match=r"Global variable FACTOR has changed .* to <object"):
        kernel[GRID](out)
    kernels.FACTOR = kept
    kernel[GRID](out)
    assert out[0].item() == 81


@row("globals")
def a_changed_global_of_a_kernel_that_is_called_raises_too(make, device):
    kernel, out = make(kernels.with_inner_global), integers(device)
    assert kernels.shifted.cache_key  # Triton 3.6 knows only the globals of what has a key already
    warm(kernel, lambda: kernel[GRID](out))
    assert out[0].item() == 30
    kernels.SHIFT = tl.constexpr(11)
    with pytest.raises(RuntimeError, match="Global variable SHIFT has changed"):
        kernel[GRID](out)
    kernels.SHIFT = tl.constexpr(10)
    kernel[GRID](out)
    assert out[0].item() == 40


@row()
def a_global_that_triton_does_not_know_of_is_not_looked_at(make, device):
    kernel, out = make(kernels.with_inner_global), integers(device)
    kernels.shifted = make(kernels.shifted.fn)  # it has no key yet
    warm(kernel, lambda: kernel[GRID](out))
    kernels.SHIFT = tl.constexpr(11)
    if VERSION < (3, 7):
        kernel[GRID](out)
        assert out[0].item() == 40
    else:
        with pytest.raises(RuntimeError, match="Global variable SHIFT has changed"):
            kernel[GRID](out)


@row("globals")
def a_changed_global_raises_before_the_grid_is_asked(make, device):
    kernel, out = make(kernels.with_global), integers(device)
    asked = []

    def grid(meta):
        asked.append(meta)
        return (1,)

    warm(kernel, lambda: kernel[grid](out))
    kernels.FACTOR = tl.constexpr(5)
    before = len(asked)
    with pytest.raises(RuntimeError, match="Global variable FACTOR"):
        kernel[grid](out)
    assert len(asked) == before


@row()
def kernels_are_called_from_kernels_whoever_made_them(make, device):
    kernels.shifted = make(kernels.shifted.fn)
    for outer in (make(kernels.with_inner_global), triton.jit(kernels.with_inner_global)):
        out = integers(device)
        warm(outer, lambda outer=outer, out=out: outer[GRID](out))
        assert out[0].item() == 30


# -- knobs and debug -----------------------------------------------------------------------------


@row("knob_debug")
def the_debug_knob_chooses_the_binary(make, device):
    kernel, out = make(kernels.checked), integers(device)
    plain = warm(kernel, lambda: kernel[GRID](out, 7))
    assert not plain.metadata.debug
    for _ in range(2):
        knobs.runtime.debug = True
        assert kernel[GRID](out, 9).metadata.debug
        assert out[0].item() == 9
        knobs.runtime.debug = False
        assert kernel[GRID](out, 7) is plain
        assert out[0].item() == 7


@row("knob_debug")
def the_scope_of_a_knob_ends(make, device):
    kernel, out = make(kernels.checked), integers(device)
    plain = warm(kernel, lambda: kernel[GRID](out, 7))
    with knobs.runtime.scope():
        knobs.runtime.debug = True
        checked = warm(kernel, lambda: kernel[GRID](out, 7))
        assert checked.metadata.debug
    assert kernel[GRID](out, 7) is plain


@row()
def a_debug_knob_of_one_is_not_true(make, device):
    kernel, out = make(kernels.checked), integers(device)
    knobs.runtime.debug = True
    flag = warm(kernel, lambda: kernel[GRID](out, 7))
    knobs.runtime.debug = 1
    assert kernel[GRID](out, 7) is not flag


@row("knob_instrumentation")
def the_instrumentation_knob_chooses_the_binary(make, device):
    kernel, out = make(kernels.put), integers(device)
    plain = warm(kernel, lambda: kernel[GRID](out, 7))
    for _ in range(2):
        with knobs.compilation.scope():
            knobs.compilation.instrumentation_mode = "guards"
            other = kernel[GRID](out, 9)
            assert other.metadata.instrumentation_mode == "guards"
            assert out[0].item() == 9
        assert kernel[GRID](out, 7) is plain
        assert out[0].item() == 7


@row()
def every_other_knob_that_triton_makes_an_option_chooses_the_binary(make, device):
    if not hasattr(knobs.compilation, "fpsan_homomorphic_casts"):
        return  # this Triton has no other
    kernel, out = make(kernels.put), integers(device)
    plain = warm(kernel, lambda: kernel[GRID](out, 7))
    with knobs.compilation.scope():
        knobs.compilation.fpsan_homomorphic_casts = True
        other = kernel[GRID](out, 7)
        assert other is not plain and other.metadata.fpsan_homomorphic_casts
    assert kernel[GRID](out, 7) is plain


@row()
def a_knob_that_follows_the_environment_is_followed(make, device):
    if not hasattr(knobs.compilation, "fpsan_homomorphic_casts"):
        return  # this Triton has no such knob
    kernel, out = make(kernels.put), integers(device)
    plain = warm(kernel, lambda: kernel[GRID](out, 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_FPSAN_HOMOMORPHIC_CASTS", "1")
        assert kernel[GRID](out, 7) is not plain
    assert kernel[GRID](out, 7) is plain


@row("own_debug")
def the_debug_of_the_kernel_itself_chooses_the_binary(make, device):
    kernel, out = make(kernels.checked), integers(device)
    plain = warm(kernel, lambda: kernel[GRID](out, 7))
    for _ in range(2):
        kernel.debug = True
        assert kernel[GRID](out, 9).metadata.debug
        kernel.debug = None
        assert kernel[GRID](out, 7) is plain


@row("options")
def debug_may_be_an_argument(make, device):
    kernel, out = make(kernels.checked), integers(device)
    plain = warm(kernel, lambda: kernel[GRID](out, 7))
    assert kernel[GRID](out, 7, debug=True).metadata.debug
    assert not kernel[GRID](out, 7, debug=False).metadata.debug
    assert kernel[GRID](out, 7) is plain


@row()
def assertions_are_made_where_debug_says_so(make, device):
    if device.type != "cpu":
        return  # a failed assertion takes a GPU's whole process with it
    kernel, out = make(kernels.checked), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 200))
    assert out[0].item() == 200  # debug is off: nothing is checked
    with pytest.raises(AssertionError, match="n is too large"):
        kernel[GRID](out, 200, debug=True)
    with knobs.runtime.scope(), pytest.raises(AssertionError, match="n is too large"):
        knobs.runtime.debug = True
        kernel[GRID](out, 200)
    kernel.debug = True
    with pytest.raises(AssertionError, match="n is too large"):
        kernel[GRID](out, 200)
    kernel.debug = False
    kernel[GRID](out, 300)
    assert out[0].item() == 300


@row()
def a_kernel_made_with_debug_checks(make, device):
    kernel, out = make(kernels.checked, debug=True), integers(device)
    assert warm(kernel, lambda: kernel[GRID](out, 7)).metadata.debug
    assert kernel[GRID](out, 7, debug=False).metadata.debug is False


@row("stages_hook")
def a_hook_on_the_compilers_stages_is_asked_as_triton_asks_it(make, device):
    kernel, out = make(kernels.put), integers(device)
    plain = warm(kernel, lambda: kernel[GRID](out, 7))
    asked = []

    def hook(*stages):
        asked.append(stages)
        return None if stages else ("key", "hash")

    knobs.runtime.add_stages_inspection_hook = hook
    binary = kernel[GRID](out, 9)
    if VERSION < (3, 7):
        assert binary is plain and not asked  # only the compiler asks it
    else:
        assert binary is not plain and () in asked
    assert out[0].item() == 9
    knobs.runtime.add_stages_inspection_hook = None
    assert kernel[GRID](out, 7) is plain


# -- what Triton keeps ---------------------------------------------------------------------------


@row("cache")
def a_kernel_whose_caches_are_cleared_is_compiled_anew(make, device):
    kernel, out = make(kernels.put), integers(device)
    first = warm(kernel, lambda: kernel[GRID](out, 7))
    kernel.device_caches.clear()
    second = warm(kernel, lambda: kernel[GRID](out, 9))
    assert second is not first and out[0].item() == 9
    next(iter(kernel.device_caches.values()))[0].clear()
    third = kernel[GRID](out, 7)
    assert third is not second and out[0].item() == 7


@row("cache")
def a_binary_that_is_replaced_in_the_cache_is_not_launched(make, device):
    give, out = make(kernels.give), integers(device)
    seven = warm(give, lambda: give[GRID](out, 7))
    eight = warm(give, lambda: give[GRID](out, 8))
    table = next(iter(give.device_caches.values()))[0]
    for key, binary in list(table.items()):
        table[key] = eight if binary is seven else seven
    assert give[GRID](out, 7) is eight
    assert out[0].item() == 8
    assert give[GRID](out, 8) is seven
    assert out[0].item() == 7


@row("cache")
def parameters_that_were_changed_are_specialized_once_the_caches_are_cleared(make, device):
    put, out = make(kernels.put, do_not_specialize=["value"]), integers(device)
    warm(put, lambda: put[GRID](out, 7))
    for parameter in put.params:
        parameter.do_not_specialize = False
    put[GRID](out, 1)
    assert out[0].item() == 1
    put.device_caches.clear()
    for value in (1, 17, 16, 1, 17, 16):
        made = put[GRID](out, value)
        assert out[0].item() == value
        assert kind_of(made, "value") == ("constexpr" if value == 1 else "i32")
        assert assumes_16(made, 1) == (value == 16)


@row("cache")
def new_source_is_used_once_the_caches_are_cleared(make, device):
    kernel, out = make(kernels.put), integers(device)
    old = warm(kernel, lambda: kernel[GRID](out, 7))
    kernel._unsafe_update_src(
        kernel.src.replace("value)", "value + 100)", 2).replace(
            "def put(out, value + 100)", "def put(out, value)"
        )
    )
    assert kernel[GRID](out, 7) is old and out[0].item() == 7  # as Triton has it
    kernel[GRID](out, 16)  # a new specialization
    assert out[0].item() == 116
    kernel.device_caches.clear()
    kernel[GRID](out, 7)
    assert out[0].item() == 107


@row()
def a_hook_on_the_cache_may_refuse_a_launch(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []

    def hook(**facts):
        seen.append(facts)
        return True

    knobs.runtime.jit_cache_hook = hook
    for _ in range(3):
        assert kernel[GRID](out, 16) is None
    assert len(seen) == 3 and out[0].item() == 7
    assert seen[0]["fn"].name == "put" and not seen[0]["already_compiled"]
    kernel[GRID](out, 9)  # compiled before: nobody is asked
    assert len(seen) == 3 and out[0].item() == 9
    knobs.runtime.jit_cache_hook = None
    kernel[GRID](out, 16)
    assert out[0].item() == 16


@row()
def hooks_around_compiling_are_called_once_for_a_binary(make, device):
    kernel, out = make(kernels.put), integers(device)
    seen = []
    knobs.runtime.jit_cache_hook = lambda **facts: seen.append("before")
    knobs.runtime.jit_post_compile_hook = lambda **facts: seen.append("after")
    warm(kernel, lambda: kernel[GRID](out, 7))
    assert seen == ["before", "after"]
    kernel[GRID](out, 16)
    kernel[GRID](out, 32)
    assert seen == ["before", "after"] * 2
    kernel.warmup(torch.int64, 2**40, grid=GRID)
    assert seen == ["before", "after"] * 3


@row()
def a_kernel_that_was_loaded_ahead_is_launched(make, device):
    kernel, out = make(kernels.put), integers(device)
    said = []
    knobs.runtime.jit_post_compile_hook = lambda **facts: said.append(
        facts["compile"]["specialization_data"]
    )
    warm(kernel, lambda: kernel[GRID](out, 7))
    knobs.runtime.jit_post_compile_hook = None
    other = make(kernels.put)
    loaded = other.preload(said[0])
    assert warm(other, lambda: other[GRID](out, 9)) is loaded
    assert out[0].item() == 9


@row()
def a_kernel_that_is_compiled_by_another_thread_is_launched(make, device):
    kernel, out = make(kernels.put), integers(device)
    with ThreadPoolExecutor(2) as pool, triton.AsyncCompileMode(pool):
        for value in (7, 16, 1):
            kernel.warmup(torch.int64, value, grid=GRID)
    for value in (7, 16, 1):
        warm(kernel, lambda value=value: kernel[GRID](out, value))
        assert out[0].item() == value


# -- driver, device, stream ----------------------------------------------------------------------


def alike(**attributes):
    """A driver like the active one, with other answers."""
    active = driver.active
    other = object.__new__(type("Alike", (type(active),), {}))
    vars(other).update(vars(active), **attributes)
    return other


def other_device():
    """A device that is not the current one, though it is called the same."""
    current = driver.active.get_current_device()
    own = {"__eq__": lambda self, other: self is other, "__hash__": lambda self: id(self)}
    return type("Device", (type(current),), own)(current)


@row("driver")
def another_driver_is_asked_where_it_is(make, device):
    kernel, out = make(kernels.put), integers(device)
    here = warm(kernel, lambda: kernel[GRID](out, 7))
    elsewhere = other_device()
    first = driver.active
    driver.set_active(alike(get_current_device=lambda: elsewhere))
    for _ in range(3):
        there = kernel[GRID](out, 9)
        assert there is not here and out[0].item() == 9
    assert there in kernel.device_caches[elsewhere][0].values()
    driver.set_active(first)
    assert kernel[GRID](out, 7) is here and out[0].item() == 7


@row("device")
def a_switch_of_the_device_is_seen(make, device):
    kernel, out = make(kernels.put), integers(device)
    if device.type == "cuda" and torch.cuda.device_count() > 1:
        return _two_devices(kernel)
    current, launcher = driver.active.get_current_device(), driver.active.launcher_cls
    elsewhere = other_device()
    now = [current]
    several = alike(get_current_device=lambda: now[0])
    if device.type == "cpu":
        # The CPU is one device, and its launcher known for that: this one could be anybody's.
        several.launcher_cls = lambda *made_of: functools.partial(launcher(*made_of))
    driver.set_active(several)
    here = warm(kernel, lambda: kernel[GRID](out, 7))
    now[0] = elsewhere
    for _ in range(3):
        there = kernel[GRID](out, 9)
        assert there is not here and out[0].item() == 9
    now[0] = current
    assert kernel[GRID](out, 7) is here
    return None


def _two_devices(kernel):
    """Real devices: each has a binary of its own, which the other cannot run."""
    here, there = integers("cuda:0"), integers("cuda:1")
    first = warm(kernel, lambda: kernel[GRID](here, 7))
    with torch.cuda.device(1):
        second = kernel[GRID](there, 9)
    assert second is not first and there[0].item() == 9
    assert kernel[GRID](here, 11) is first and here[0].item() == 11


@row("stream")
def a_launch_goes_to_the_stream_of_the_moment(make, device):
    kernel, out = make(kernels.put), integers(device)
    if device.type == "cuda":
        return _two_streams(kernel, out)
    now = [11]
    driver.set_active(alike(get_current_stream=lambda device: now[0]))
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []
    knobs.runtime.launch_enter_hook.add(lambda metadata: seen.append(metadata.get()["stream"]))
    for now[0] in (11, 22, 33, 11):
        kernel[GRID](out, 9)
    assert seen == [11, 22, 33, 11]
    return None


def _two_streams(kernel, out):
    """The first stream is busy; what is launched on the second is done before it."""
    warm(kernel, lambda: kernel[GRID](out, 7))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        out.cpu()
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)
    busy = torch.cuda.Event()
    busy.record()
    with torch.cuda.stream(side):
        kernel[GRID](out, 9)
        stored = out.cpu()[0].item()
    assert not busy.query(), "the first stream was done too early for this to prove anything"
    assert stored == 9


@row()
def the_stream_is_read_before_the_grid_is_asked(make, device):
    kernel, out = make(kernels.put), integers(device)
    one, other = 11, 22
    if device.type == "cuda":
        streams = [torch.cuda.Stream() for _ in range(2)]
        one, other = (stream.cuda_stream for stream in streams)
    now = [one]

    def grid(meta):
        now[0] = other
        return (1,)

    driver.set_active(alike(get_current_stream=lambda device: now[0]))
    warm(kernel, lambda: kernel[grid](out, 7))
    seen = []
    knobs.runtime.launch_enter_hook.add(lambda metadata: seen.append(metadata.get()["stream"]))
    now[0] = one
    kernel[grid](out, 9)
    assert seen == [one]


@row()
def drivers_may_come_and_go(make, device):
    kernel, out = make(kernels.put), floats(device)
    first = driver.active
    binary = warm(kernel, lambda: kernel[GRID](out, 7))
    for k in range(20):
        driver.set_active(alike())
        assert kernel[GRID](out, 7 + 2 * k) is binary
        assert out[0].item() == 7 + 2 * k
    driver.set_active(first)
    assert kernel[GRID](out, 9) is binary
