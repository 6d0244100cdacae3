"""A search on another machine, whose device is of the same class.

::

    KernelSearch ── search_elsewhere ── parcel: function, arguments; task: configs ──► search_there
         ▲                                                                               │
         └──── Search ◄── decoded ◄── Answer: outcomes and steps as JSON ◄───────────────┘

Enters: a host function, its arguments, the configs, and what is known of them. Leaves: a `Search`,
or None where this process has to time. It must not know which executor runs a search.

A time is worth something only on the same hardware. So the other process compares the class and the
name of its device, and the versions of torch, Triton and tzero, before it times anything. The
function and its arguments are pickled: an executor that is not trusted with code of this program
has no `measuring`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from typing import Any

import cloudpickle
import torch
import triton

from tzero import versions
from tzero.arguments.host import Host
from tzero.compile import executors
from tzero.compile.backend import OtherTools
from tzero.compile.executor_task import Answer, failed, place
from tzero.compile.redis_queue import measure_name
from tzero.compile.request import Artifact, Malformed
from tzero.config import Config
from tzero.errors import InvalidArgument
from tzero.tune.child import ProcessState, process_state
from tzero.tune.facts import Facts, hardware_of
from tzero.tune.judge import Judge
from tzero.tune.notices import Notices
from tzero.tune.outcome import Outcome
from tzero.tune.records import Pretuned, Record
from tzero.tune.search import Effort
from tzero.tune.shipping import files_in_use, using
from tzero.tune.space import Space
from tzero.tune.transfer import Parcel, opened, packed
from tzero.tune.trial import Called, device_of
from tzero.tune.tuner import Search, Step
from tzero.tune.turn import TURN, outside_recording

__all__ = ["search_elsewhere", "search_there", "this_queue"]

ATTEMPTS = 2
"""How often a search is sent before this process times."""

# The settings that change what a candidate does; places and secrets stay here.
_SETTINGS = ("cpu", "cpu_check", "tier")


@dataclasses.dataclass(frozen=True, slots=True)
class _Task:
    """What is searched, beside the function and its arguments."""

    space: Space
    effort: Effort
    known: dict[Config, Outcome]
    budget: float
    isolate: bool
    hardware: tuple[str, str]
    versions: tuple[str, ...]
    state: ProcessState
    tables: tuple[Pretuned, ...]
    """The configs that are known ahead of time, for kernels that the function calls."""


def search_elsewhere(
    host: Host[Any],
    args: tuple[Any, ...],
    space: Space,
    called: Called,
    judge: Judge,
    facts: Facts,
    effort: Effort,
    known: Mapping[Config, Outcome],
    budget: float,
    isolate: bool,
    notices: Notices,
) -> Search | None:
    """Search where the executor of `tzero.compile.on` has a device of this class; None where it has
    none, or fails."""
    sending = executors.current()
    measuring: Callable[[str], Executor | None] | None
    measuring = None if sending is None else getattr(sending.executor, "measuring", None)
    executor = None if measuring is None else measuring(facts.hardware)
    if executor is None:
        return None
    state = process_state()
    kept = {name: state.settings[name] for name in _SETTINGS}
    task = _Task(
        *(space, effort, dict(known), budget, isolate, (facts.hardware, facts.device)),
        versions=_versions(),
        state=dataclasses.replace(state, settings=kept, device=None),
        tables=files_in_use(),
    )
    try:
        sent = (*_bytes_of(host, args, called, judge), cloudpickle.dumps(task))
    except (InvalidArgument, TypeError, pickle.PicklingError) as error:
        notices.once(f"it is timed in this process, not by the executor: {error}")
        return None
    for attempt in range(1, ATTEMPTS + 1):
        try:
            answer = _asked(executor, sent)
            found = _decoded(answer, space.first)
        except Exception as error:  # of any executor
            words = f"{type(error).__name__}: {error}" if not isinstance(error, _Failed) else error
            then = "it is sent again" if attempt < ATTEMPTS else "this process times it"
            notices.each_time(f"attempt {attempt} to time it elsewhere failed, {then}: {words}")
            if isinstance(error, _Failed) and not error.passing:
                return None
        else:
            notices.each_time(f"timed elsewhere: {answer.where}")
            return found
    return None


class _Failed(Exception):
    """The other process could not search."""

    def __init__(self, words: str, passing: bool) -> None:
        super().__init__(words)
        self.passing = passing


def _asked(executor: Executor, sent: tuple[bytes, int, bytes]) -> Answer:
    future: Future[Answer] = executor.submit(search_there, *sent)
    try:
        answer = future.result()
    except KeyboardInterrupt:
        future.cancel()
        raise
    if not isinstance(answer, Answer):
        raise TypeError(f"the executor returned a {type(answer).__name__}, not an Answer")
    if answer.failure is not None:
        raise _Failed(f"{answer.where}: {answer.failure.problem}", answer.passing)
    return answer


def _versions() -> tuple[str, ...]:
    return (str(torch.__version__), triton.__version__, versions.TZERO)


def _bytes_of(
    host: Host[Any], args: tuple[Any, ...], called: Called, judge: Judge
) -> tuple[bytes, int]:
    parcel = packed(host, args, called, judge)
    try:
        size = os.fstat(parcel.descriptor).st_size
        return os.pread(parcel.descriptor, size, 0), parcel.length
    finally:
        os.close(parcel.descriptor)


def this_queue() -> str:
    """The name of the queue of searches for the device of this machine.

    >>> this_queue().partition(":")[0] in ("measure/cpu", "measure/cuda", "measure/hip")
    True
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return measure_name(hardware_of(device)[0])


# -- in the other process -------------------------------------------------------------------------


def search_there(parcel: bytes, length: int, task: bytes) -> Answer:
    """Search in this process, which an executor runs on a machine with the right device.

    ::

        executor.submit(search_there, parcel, length, task)
    """
    start = time.perf_counter()
    try:
        wanted: _Task = pickle.loads(task)
        with wanted.state.entered(), TURN, outside_recording(), using(wanted.tables):
            found = _searched(parcel, length, wanted)
        payload = _encoded(found)
    except Exception as error:
        return failed(error, start)
    return Answer(payload, None, False, place(), os.getpid(), time.perf_counter() - start)


def _searched(parcel: bytes, length: int, wanted: _Task) -> Search:
    from tzero.tune.kernel_search import KernelSearch  # late: it searches elsewhere

    if wanted.versions != _versions():
        ours, theirs = ", ".join(_versions()), ", ".join(wanted.versions)
        raise OtherTools(f"this machine has torch, Triton and tzero {ours}, and not {theirs}")
    descriptor = os.memfd_create("tzero-parcel", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(parcel)
        host, args, called, judge = opened(Parcel(descriptor, length))
    finally:
        os.close(descriptor)
    hardware = hardware_of(device_of(args))
    if hardware != wanted.hardware:
        raise OtherTools(f"the device of this machine is {hardware}, and not {wanted.hardware}")
    searching = KernelSearch(host, wanted.space, called, Notices(host.name), judge)
    end = time.monotonic() + wanted.budget
    given = (wanted.effort, wanted.known, end, wanted.isolate)
    return searching.search_here(host.function, args, *given)


# -- a search as bytes ----------------------------------------------------------------------------


def _encoded(found: Search) -> bytes:
    facts = {
        "steps": [[step.at, step.config.to_json(), _row(step.outcome)] for step in found.steps],
        "order": [config.to_json() for config in found.outcomes],
        "left_out": [config.to_json() for config in found.left_out],
        "seconds": found.seconds,
        "ended": found.ended,
    }
    return Artifact({"outcomes": Record("", found.outcomes).encode()}, facts).encode()


def _row(outcome: Outcome) -> str:
    return json.dumps(dataclasses.asdict(outcome))


def _decoded(answer: Answer, first: Config) -> Search:
    if answer.payload is None:
        raise Malformed("the answer has neither a search nor a failure")
    made = Artifact.decode(answer.payload)
    outcomes = Record.decode(made.files["outcomes"], "").outcomes
    steps = tuple(
        Step(at, Config.from_json(config), Outcome(**json.loads(row)))
        for at, config, row in made.facts["steps"]
    )
    return Search(
        {config: outcomes[config] for config in map(Config.from_json, made.facts["order"])},
        steps,
        made.facts["seconds"],
        made.facts["ended"],
        tuple(map(Config.from_json, made.facts["left_out"])),
        first,
    )
