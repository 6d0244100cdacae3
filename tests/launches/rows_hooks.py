"""Rows about hooks: attached late, taken away, replaced, raising, and what they are told."""

from __future__ import annotations

import threading

import pytest
import torch
import triton
from triton import knobs

from tests.launches import kernels
from tests.launches.looking import warm, watched
from tests.launches.row import table
from tests.launches.rows_arguments import GRID, integers

ROWS = table()
row = ROWS.add


@row("launch_hooks")
def hooks_that_are_attached_late_are_called_until_they_are_removed(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []

    def enter(metadata):
        seen.append(("enter", metadata.get()["name"], out[0].item()))

    def leave(metadata):
        seen.append(("exit", metadata.get()["name"], out[0].item()))

    knobs.runtime.launch_enter_hook.add(enter)
    kernel[GRID](out, 9)
    assert seen == [("enter", "put", 7)]
    knobs.runtime.launch_exit_hook.add(leave)
    kernel[GRID](out, 11)
    assert seen[1:] == [("enter", "put", 9), ("exit", "put", 11)]
    knobs.runtime.launch_enter_hook.remove(enter)
    kernel[GRID](out, 13)
    assert seen[3:] == [("exit", "put", 13)]
    knobs.runtime.launch_exit_hook.remove(leave)
    kernel[GRID](out, 15)
    assert len(seen) == 4 and out[0].item() == 15


@row("launch_hooks")
def hooks_are_called_for_a_grid_of_nothing_too(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[(0,)](out, 7))
    seen = []
    knobs.runtime.launch_enter_hook.add(lambda metadata: seen.append("enter"))
    knobs.runtime.launch_exit_hook.add(lambda metadata: seen.append("exit"))
    kernel[(0,)](out, 7)
    assert seen == ["enter", "exit"] and out[0].item() == 0


@row("launch_hooks")
def exit_hooks_run_in_reverse(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []
    for name in "abc":
        knobs.runtime.launch_enter_hook.add(lambda metadata, name=name: seen.append(name))
        knobs.runtime.launch_exit_hook.add(lambda metadata, name=name: seen.append(name.upper()))
    kernel[GRID](out, 7)
    assert "".join(seen) == "abcCBA"


@row("launch_hooks")
def a_hook_may_remove_itself(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []

    def once(metadata):
        seen.append("once")
        knobs.runtime.launch_enter_hook.remove(once)

    knobs.runtime.launch_enter_hook.add(once)
    knobs.runtime.launch_enter_hook.add(lambda metadata: seen.append("always"))
    kernel[GRID](out, 9)
    assert seen == ["once"]  # Triton walks over the list that changes
    kernel[GRID](out, 11)
    assert seen == ["once", "always"] and out[0].item() == 11


@row("launch_hooks")
def an_enter_hook_may_attach_an_exit_hook_for_the_same_launch(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []

    def leave(metadata):
        seen.append("exit")

    knobs.runtime.launch_enter_hook.add(lambda metadata: knobs.runtime.launch_exit_hook.add(leave))
    kernel[GRID](out, 9)
    assert seen == ["exit"]


@row("launch_hooks")
def a_grid_function_may_attach_a_hook_for_the_same_launch(make, device):
    kernel, out = make(kernels.put), integers(device)
    seen = []
    attach = []

    def grid(meta):
        for hook in attach:
            knobs.runtime.launch_enter_hook.add(hook)
        return (1,)

    warm(kernel, lambda: kernel[grid](out, 7))
    attach.append(lambda metadata: seen.append("enter"))
    kernel[grid](out, 9)
    assert seen == ["enter"] and out[0].item() == 9


@row("launch_hooks")
def a_plain_function_in_place_of_the_chain_is_called(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []
    with knobs.runtime.scope():
        knobs.runtime.launch_enter_hook = lambda metadata: seen.append(metadata.get()["name"])
        kernel[GRID](out, 9)
        knobs.runtime.launch_exit_hook = lambda metadata: seen.append("exit")
        kernel[GRID](out, 11)
    assert seen == ["put", "put", "exit"]
    kernel[GRID](out, 13)
    assert len(seen) == 3 and out[0].item() == 13


@row("launch_hooks")
def without_an_enter_hook_the_exit_hook_is_told_nothing(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []
    knobs.runtime.launch_enter_hook = None
    kernel[GRID](out, 9)
    assert out[0].item() == 9
    knobs.runtime.launch_exit_hook.add(seen.append)
    kernel[GRID](out, 11)
    assert seen == [None] and out[0].item() == 11


class Chain(knobs.HookChain):
    """A chain that looks empty and is not."""

    def __call__(self, metadata):
        self.seen.append(metadata.get()["name"])


@row("launch_hooks")
def a_chain_of_ones_own_is_called(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    chain = Chain()
    chain.seen = []
    knobs.runtime.launch_enter_hook = chain
    kernel[GRID](out, 9)
    assert chain.seen == ["put"] and out[0].item() == 9


@row("launch_hooks")
def hooks_are_told_what_the_kernels_own_metadata_function_says(make, device):
    def say(grid, metadata, args):
        return {"work": args["n"] * grid[0], "warps": metadata.num_warps, "names": list(args)}

    kernel = make(kernels.copy, launch_metadata=say)
    x, y = torch.ones(64, device=device), torch.zeros(64, device=device)
    warm(kernel, lambda: kernel[(2,)](x, y, 16, BLOCK=8))
    warm(kernel, lambda: kernel[(2,)](x, y, 16, BLOCK=8, num_warps=2))
    seen = []
    knobs.runtime.launch_enter_hook.add(lambda metadata: seen.append(metadata.get()))
    kernel[(2,)](x, y, 16, BLOCK=8)
    kernel[lambda meta: (meta["n"] // meta["BLOCK"],)](x, y, 64, BLOCK=8, num_warps=2)
    assert [each["work"] for each in seen] == [32, 512]
    assert seen[1]["warps"] == 2 and seen[0]["names"] == ["x", "y", "n", "BLOCK"]
    assert seen[0]["name"] == "copy" and seen[0]["function"] is not None
    assert y.tolist() == [1.0] * 64


@row("launch_hooks")
def a_metadata_function_that_is_attached_late_is_asked(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []
    knobs.runtime.launch_enter_hook.add(lambda metadata: seen.append(metadata.get().get("value")))
    kernel[GRID](out, 9)
    kernel.launch_metadata = lambda grid, metadata, args: {"value": args["value"]}
    kernel[GRID](out, 11)
    assert seen == [None, 11]


@row()
def a_kernel_with_a_repr_is_called_so(make, device):
    # A function of its own: in Triton's cache on disk a repr counts for nothing.
    kernel = make(kernels.renamed, repr=lambda facts: f"put_{facts.signature['value']}")
    out = integers(device)
    assert warm(kernel, lambda: kernel[GRID](out, 7)).name == "put_i32"
    assert kernel[GRID](out, 2.5).name == "put_fp32"


@row("launch_hooks")
def a_hook_that_raises_is_heard_and_leaves_the_kernel_usable(make, device):
    kernel, out = make(kernels.put), integers(device)
    binary = warm(kernel, lambda: kernel[GRID](out, 7))

    def fail(metadata):
        raise LookupError("not today")

    knobs.runtime.launch_enter_hook.add(fail)
    for _ in range(2):
        with pytest.raises(LookupError, match="not today"):
            kernel[GRID](out, 9)
        assert out[0].item() == 7
    knobs.runtime.launch_enter_hook.remove(fail)
    knobs.runtime.launch_exit_hook.add(fail)
    with pytest.raises(LookupError, match="not today"):
        kernel[GRID](out, 9)
    assert out[0].item() == 9
    knobs.runtime.launch_exit_hook.remove(fail)
    assert kernel[GRID](out, 11) is binary and out[0].item() == 11


@row("launch_hooks")
def a_hook_that_another_thread_attaches_is_called(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []
    thread = threading.Thread(
        target=knobs.runtime.launch_enter_hook.add,
        args=(lambda metadata: seen.append(metadata.get()["name"]),),
    )
    thread.start()
    thread.join()
    kernel[GRID](out, 9)
    assert seen == ["put"]


@row("launch_hooks")
def a_hook_may_launch_a_kernel(make, device):
    kernel, out = make(kernels.put), integers(device)
    other, elsewhere = make(kernels.double), torch.ones(8, device=device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    warm(other, lambda: other[GRID](elsewhere, 8))
    inside = []

    def enter(metadata):
        if not inside:
            inside.append(True)
            other[GRID](elsewhere, 8)
            inside.pop()

    knobs.runtime.launch_enter_hook.add(enter)
    kernel[GRID](out, 9)
    assert elsewhere.tolist() == [16.0] * 8 and out[0].item() == 9


@row()
def launches_with_hooks_stay_right_for_every_specialization(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    knobs.runtime.launch_enter_hook.add(lambda metadata: None)
    for value in (7, 1, 16, 2**31, 9, -1, 1):
        kernel[GRID](out, value)
        assert out[0].item() == value


# -- pre-run hooks -------------------------------------------------------------------------------


@row("pre_run_hooks")
def a_pre_run_hook_that_is_added_late_is_called_until_it_is_removed(make, device):
    kernel, x = make(kernels.double), torch.ones(8, device=device)
    binary = warm(kernel, lambda: kernel[GRID](x, 8, BLOCK=8))
    seen = []

    def hook(*args, **kwargs):
        seen.append((args, kwargs["BLOCK"], kwargs["debug"]))

    kernel.add_pre_run_hook(hook)
    for _ in range(3):
        assert kernel[GRID](x, 8, BLOCK=8) is binary
    assert [(len(args), block, debug) for args, block, debug in seen] == [(2, 8, False)] * 3
    assert seen[0][0][0] is x
    kernel.pre_run_hooks.remove(hook)
    _, kinds = watched(kernel, lambda: kernel[GRID](x, 8, BLOCK=8))
    assert len(seen) == 3 and kinds in ([], ["launch"])
    assert x.tolist() == [2.0**7] * 8


@row("pre_run_hooks")
def a_new_list_of_pre_run_hooks_counts(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []
    kernel.pre_run_hooks = [lambda *args, **kwargs: seen.append(args[1])]
    kernel[GRID](out, 9)
    kernel.pre_run_hooks = []
    kernel[GRID](out, 11)
    assert seen == [9] and out[0].item() == 11


@row("pre_run_hooks")
def a_pre_run_hook_may_write_into_the_arguments(make, device):
    kernel, x = make(kernels.double), torch.ones(8, device=device)
    warm(kernel, lambda: kernel[GRID](x, 8))
    kernel.add_pre_run_hook(lambda *args, **kwargs: args[0].fill_(21.0))
    kernel[GRID](x, 8)
    assert x.tolist() == [42.0] * 8


@row("pre_run_hooks")
def a_pre_run_hook_that_raises_stops_the_launch(make, device):
    kernel, out = make(kernels.put), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))

    def fail(*args, **kwargs):
        raise LookupError("not today")

    kernel.add_pre_run_hook(fail)
    with pytest.raises(LookupError, match="not today"):
        kernel[GRID](out, 9)
    assert out[0].item() == 7
    kernel.pre_run_hooks.clear()
    kernel[GRID](out, 9)
    assert out[0].item() == 9


@row("pre_run_hooks")
def hooks_of_the_kernel_that_was_given_run_too(make, device):
    plain = triton.jit(kernels.put)
    kernel, out = make(plain), integers(device)
    warm(kernel, lambda: kernel[GRID](out, 7))
    seen = []
    plain.add_pre_run_hook(lambda *args, **kwargs: seen.append(args[1]))
    kernel[GRID](out, 9)
    assert seen == [9] and out[0].item() == 9
