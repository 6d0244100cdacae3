"""`tzero.helion.install` and `uninstall`: what they change, and that nothing is left."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import tzero
from tests.integrations.helion import kernels_calls, kernels_tiles
from tests.integrations.helion.calls import again, held_to, installed, settled, wrapped
from tzero import events
from tzero.integrations.helion import compat

ROW = kernels_tiles.tile_1d


@pytest.fixture
def kernel() -> Any:
    """A new kernel."""
    return again(ROW.kernel)


def test_installed_kernels_are_called_through_tzero(kernel: Any) -> None:
    with installed():
        assert tzero.helion.installed()
        settled(kernel, ROW)
        twin = vars(kernel)["_tzero_twin"]
        assert twin.explain(*ROW.fresh()).plan is not None
        kernel.bind(ROW.fresh())._run = lambda x, y: x * y
        x, y = ROW.fresh()
        torch.testing.assert_close(kernel(x, y), x * y)


def test_nothing_is_left_once_it_is_uninstalled(kernel: Any) -> None:
    kind, before = compat.kernel_class(), compat.kernel_class().__call__
    settled(kernel, ROW)
    names, entries = set(vars(kernel)), set(kernel._dispatch_cache)
    with installed():
        assert kind.__call__ is not before
        settled(kernel, ROW)
    assert kind.__call__ is before and not tzero.helion.installed()
    assert set(vars(kernel)) == names and set(kernel._dispatch_cache) == entries
    held_to(ROW, kernel(*ROW.fresh()))


def test_to_install_or_uninstall_again_does_nothing(kernel: Any) -> None:
    before = compat.kernel_class().__call__
    tzero.helion.uninstall()
    with installed():
        tzero.helion.install()
        held_to(ROW, kernel(*ROW.fresh()))
    tzero.helion.uninstall()
    assert compat.kernel_class().__call__ is before


def test_a_kernel_of_tzeros_stays_what_it_is(kernel: Any) -> None:
    own = wrapped(kernel)
    settled(own, ROW)
    with installed():
        settled(own, ROW)
    settled(own, ROW)
    assert own.explain(*ROW.fresh()).plan is not None


def test_importing_tzero_imports_no_helion() -> None:
    import subprocess
    import sys

    code = "import sys, tzero; tzero.kernel; tzero.helion; assert 'helion' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_options_that_helion_has_itself_are_refused(kernel: Any) -> None:
    with pytest.raises(tzero.InvalidKernel, match="kernel of Helion's"):
        tzero.kernel(static_shapes=False)(kernel)
    with pytest.raises(tzero.InvalidKernel, match="kernel of Helion's"):
        tzero.kernel(key=lambda x, y: 0)(kernel)


def test_precompile_says_who_compiles(kernel: Any) -> None:
    with pytest.raises(tzero.InvalidArgument, match="Helion compiles"):
        wrapped(kernel).precompile(*ROW.fresh())


def test_a_kernel_within_a_kernel_is_not_taken_for_a_part_of_it() -> None:
    inner = wrapped(again(ROW.kernel))

    @tzero.kernel
    def outer(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return inner(x, y) + 1

    x, y = ROW.fresh()
    for _ in range(3):
        torch.testing.assert_close(outer(x, y), x + y + 1)
    inner.helion.bind((x, y))._run = lambda x, y: x - y
    for _ in range(3):
        torch.testing.assert_close(outer(x, y), x - y + 1)


def test_what_is_left_to_helion_is_an_event() -> None:
    seen: list[events.Event] = []
    kernel = wrapped(again(kernels_calls.takes_closure.kernel))
    with events.observe(seen.append):
        settled(kernel, kernels_calls.takes_closure)
    reasons = [event.reason for event in seen if event.kind == "fallback"]
    assert reasons == ["left to Helion: an argument is of a class that plans do not support"]


@pytest.mark.parametrize("how", ["wrapped", "installed"])
def test_torch_compile_traces_helions_own_call(kernel: Any, how: str) -> None:
    x, y = ROW.fresh()
    traced = wrapped(kernel) if how == "wrapped" else kernel
    compiled = torch.compile(lambda x, y: traced(x + 1, y) * 2, backend="eager")
    with installed():
        for _ in range(3):
            torch.testing.assert_close(compiled(x, y), (x + 1 + y) * 2)
            torch.testing.assert_close(traced(x, y), x + y)


def test_many_threads_may_call_one_kernel() -> None:
    kernel = wrapped(again(ROW.kernel))
    start, wrong = threading.Barrier(8), []

    def calls(k: int) -> None:
        sizes = [32 * (1 + (k + j) % 4) for j in range(40)]
        start.wait()
        for size in sizes:
            x, y = torch.full((size,), float(k)), torch.arange(float(size))
            if not torch.equal(kernel(x, y), x + y):
                wrong.append((k, size))

    threads = [threading.Thread(target=calls, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_may_install_and_call_at_once() -> None:
    kernel = again(ROW.kernel)
    settled(kernel, ROW)
    x, y = ROW.fresh()
    wrong: list[int] = []

    def calls() -> None:
        for k in range(300):
            if not torch.equal(kernel(x, y), x + y):
                wrong.append(k)

    threads = [threading.Thread(target=calls) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        with installed():
            held_to(ROW, kernel(x, y))
    for thread in threads:
        thread.join()
    assert not wrong and "_tzero_twin" not in vars(kernel)


def test_installed_kernels_explain_and_count_their_calls(kernel: Any) -> None:
    with installed():
        settled(kernel, ROW, 2)  # Helion compiles, and the second call is recorded
        said = kernel.explain(*ROW.fresh())
        assert said.replay is not None and said.replay.how == "natively", said
        before = kernel.stats()
        settled(kernel, ROW, 3)
        after = kernel.stats()
        assert after.native_replays == before.native_replays + 3
        assert after.calls == after.native_replays + after.python_replays + after.plain_calls
        assert kernel.explain(ROW.fresh()[0].double(), ROW.fresh()[1].double()).plan is None
    kind = compat.kernel_class()
    assert not hasattr(kind, "explain") and not hasattr(kind, "stats")


@pytest.mark.parametrize("off", [{"disable": True}, {"tier": 1}], ids=str)
def test_kernels_whose_calls_helion_makes_say_so_and_count_them(
    kernel: Any, off: dict[str, Any]
) -> None:
    with tzero.settings.override(**off), installed():
        settled(kernel, ROW, 3)
        assert kernel.explain(*ROW.fresh()).refusal.startswith("left to Helion: ")
        assert "left to Helion" in str(kernel.explain(*ROW.fresh()))
        assert kernel.stats().calls == kernel.stats().plain_calls == 3


def test_a_call_that_is_left_to_helion_is_counted_and_explained() -> None:
    kernel = again(kernels_calls.takes_closure.kernel)
    with installed():
        settled(kernel, kernels_calls.takes_closure, 3)
        args = kernels_calls.takes_closure.fresh()
        assert (
            "an argument is of a class that plans do not support" in kernel.explain(*args).refusal
        )
        assert kernel.stats().calls == kernel.stats().plain_calls == 3
        assert kernel.stats().hits == 0


def test_methods_of_helions_own_are_not_replaced(
    kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compat.kernel_class(), "stats", lambda self: "its own", raising=False)
    with installed():
        assert kernel.stats() == "its own"
        settled(kernel, ROW, 2)
        assert kernel.explain(*ROW.fresh()).plan is not None
    assert kernel.stats() == "its own"
