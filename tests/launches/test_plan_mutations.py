"""Each guard of a native plan is needed: with it switched off, a call that it is for goes wrong.

A scenario makes a plan, changes one fact, and demands the result of the host function. It passes
with every guard, and fails without its own: by a wrong result, not by an error. A fact that two
guards check names both, and both are switched off.

Without a scenario: `plan_alignment`, because launches check the address again (`plan_aligned`), and
the CPU accepts any; the device and the stream, which only CUDA has.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.launches import plan_scenarios_facts, plan_scenarios_running, plan_scenarios_sizes
from tests.launches.mutable_native import NATIVE, mutable
from tests.launches.plan_scenario import NotWarm, Scenario, X, twice
from tests.rows import by_row
from tzero.arguments.key import Options

if torch.cuda.is_available():
    pytest.skip("children that fork, and kernels of the CPU", allow_module_level=True)

SCENARIOS = [
    *plan_scenarios_facts.SCENARIOS,
    *plan_scenarios_running.SCENARIOS,
    *plan_scenarios_sizes.SCENARIOS,
]


@functools.cache
def kind_of(module: ModuleType) -> Any:
    """The class of kernels whose calls a build of the native module replays."""
    from tzero.calls import native as native_plan

    return native_plan.make(module)


def maker(module: ModuleType) -> Callable[..., Any]:
    """Makes kernels of that class."""

    def make(host: Any, **options: Any) -> Any:
        given = {"config": None, "options": Options(), "free": "nothing", **options}
        return kind_of(module)(host, key=None, plans=True, **given)

    return make


PASSES, FAILS, COLD, RAISES = range(4)


def in_a_child(run: Callable[[], None]) -> int:
    """Run a scenario in a child process, so that its changes stay there; returns how it ended."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(600)  # ends a child that hangs
    status = RAISES
    try:
        run()
        status = PASSES
    except AssertionError:
        status = FAILS
    except NotWarm as error:
        print(f"not native: {error}", file=sys.stderr)
        status = COLD
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    """The native module whose guards can be switched off."""
    found = mutable()
    if found is None:
        pytest.skip("the native module cannot be built a second time here")
    if kind_of(found).unavailable:
        pytest.skip(f"no native replay here: {kind_of(found).unavailable}")
    # Imported here once, and not by each child: torch's dispatch modes and custom
    # operators import torch.compile, and a first recording imports much too.
    importlib.import_module("torch._dynamo")

    maker(found)(twice)(X)
    return found


UNTESTED = {"plan_alignment"}


def test_every_guard_of_plans_has_a_scenario() -> None:
    words = (NATIVE / "guards.h").read_text().replace("(", " ").replace(")", " ").split()
    named = {word for word in words if word.startswith(("plan_", "pool_"))}
    claimed = {guard for each in SCENARIOS for guard in each.guards}
    assert named - UNTESTED == claimed


@by_row(SCENARIOS, "scenario")
def test_a_call_goes_wrong_without_its_guard(scenario: Scenario, module: ModuleType) -> None:
    def run() -> None:
        scenario.run(maker(module))

    assert in_a_child(run) == PASSES, "it fails with every guard in place"
    try:
        module.guards_off(frozenset(scenario.guards))
        assert in_a_child(run) == FAILS, f"without {scenario.guards} it does not"
        for guard in scenario.guards if len(scenario.guards) > 1 else ():
            module.guards_off(frozenset({guard}))
            assert in_a_child(run) == PASSES, f"{guard} alone is all it takes: name no other"
    finally:
        module.guards_off(frozenset())
