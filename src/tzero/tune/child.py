"""The process that times candidates: it answers one question at a time.

Enters: a parcel and a connection, then questions. Leaves: a `Reply` to each. It must not know which
configs there are, nor what the replies are used for.

- It ends with its parent, even while a candidate hangs and holds the GIL.
- It ignores Ctrl-C, which the parent handles.
- It is the first process that the OOM killer takes, and it writes no core file.
- It exits after a candidate that broke the CUDA context; the next candidate gets a new process.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from tzero import events, settings
from tzero.adapters import intercept, triton_compile
from tzero.adapters.triton_launch import JITFunction, compile_with
from tzero.backends.triton import compiled
from tzero.compile.worker import end_at_crashes, end_with
from tzero.config import Config
from tzero.launches.current_call import current
from tzero.tune import source
from tzero.tune.fresh import Pattern
from tzero.tune.records import Outcome
from tzero.tune.surroundings import Surroundings
from tzero.tune.transfer import Parcel, opened
from tzero.tune.trial import Trial, device_of, problem_of

__all__ = ["ProcessState", "Reply", "SetReference", "TimeConfig", "main", "process_state"]


class SetReference(NamedTuple):
    """A question: does this config run? It becomes the reference."""

    config: Config


class TimeConfig(NamedTuple):
    """A question: what is the outcome of this config?"""

    config: Config
    budget: float
    best: float | None


class Reply(NamedTuple):
    """An answer: an outcome, or a problem, which may be empty; and whether the process exits."""

    value: str | Outcome
    last: bool


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The settings and modes of the parent that a candidate may depend on."""

    settings: dict[str, Any]
    knobs: dict[str, Any]
    device: int | None
    """The current CUDA device."""
    threads: int
    grad: bool
    inference: bool
    dtype: torch.dtype
    precision: str

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Give this process the same settings and modes."""
        torch.set_num_threads(self.threads)
        torch.set_default_dtype(self.dtype)
        torch.set_float32_matmul_precision(self.precision)
        if self.device is not None:
            torch.cuda.set_device(self.device)
        with ExitStack() as stack:
            stack.enter_context(settings.override(**self.settings))
            stack.enter_context(triton_compile.with_knobs(self.knobs))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            if self.inference:
                stack.enter_context(torch.inference_mode())
            yield


def process_state() -> ProcessState:
    """The state of this process. The child gets no compile workers: it finds in the cache what the
    parent has compiled, and compiles the rest itself.

    >>> process_state().settings["compile_workers"]
    1
    """
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return ProcessState(
        settings={**asdict(settings.now()), "compile_workers": 1, "trace": None},
        knobs=triton_compile.code_knobs(),
        device=torch.cuda.current_device() if cuda else None,
        threads=torch.get_num_threads(),
        grad=torch.is_grad_enabled(),
        inference=torch.is_inference_mode_enabled(),
        dtype=torch.get_default_dtype(),
        precision=torch.get_float32_matmul_precision(),
    )


def main(parent: int, connection: int, lifeline: int, descriptor: int, length: int) -> None:
    """Answer questions until the parent closes the connection. `tzero.tune.isolated` starts this.

    ::

        python -c "from tzero.tune.child import main; main(...)"
    """
    _begin(parent, lifeline)
    with Connection(connection) as pipe:
        state: ProcessState = pipe.recv()
        with state.entered(), events.hushed():
            try:
                trial, last = _trial_of(Parcel(descriptor, length)), False
                pipe.send(Reply("", last))
            except Exception as error:  # such as a module that cannot be imported here
                pipe.send(Reply(problem_of(error), True))
                return
            while not last:
                try:
                    question = pipe.recv()
                except EOFError:  # the parent has closed it
                    return
                reply = _answer(trial, question)
                last = reply.last
                pipe.send(reply)


def _answer(trial: Trial, question: SetReference | TimeConfig) -> Reply:
    value: str | Outcome
    if isinstance(question, SetReference):
        trial.set_reference(question.config)
        value = problem = trial.reference_problem()
        if problem:
            value = Outcome(problem=problem, passing=trial.reference_passing)
    else:
        value = trial.outcome(question.config, budget=question.budget, best=question.best)
        problem = value.problem
    return Reply(value, last=bool(problem) and trial.device_lost())


class _ChildTrial(Trial):
    """A trial that compiles every kernel through tzero's compile service, which finds in the cache
    what the parent has compiled."""

    def run(
        self,
        config: Config,
        pattern: Pattern | None = None,
        outputs: tuple[tuple[torch.Tensor, ...], Pattern] | None = None,
    ) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
        with intercept.intercepted(_compiled_by_service):
            return super().run(config, pattern, outputs)


def _compiled_by_service(
    kernel: Any,
    grid: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    launch: Callable[[Any], Any],
) -> Any:
    if isinstance(kernel, JITFunction):
        compile_with(kernel, _compiled)
    return launch(grid)


def _compiled(*given: Any, **named: Any) -> Any:
    """Compile in this process, which has no workers. LLVM installs signal handlers meanwhile, for
    Ctrl-C and for crashes: they are removed afterwards."""
    try:
        return compiled(*given, **named)
    finally:
        _set_signals()


def _set_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_at_crashes()


def _trial_of(parcel: Parcel) -> Trial:
    host, args, called, judge = opened(parcel)
    os.close(parcel.descriptor)
    current.is_trial = True  # kernels called by the host function are not tuned here
    made = functools.cache(functools.partial(called, host))
    around = Surroundings(functools.partial(source.reached, host.function))
    return _ChildTrial(made, args, device_of(args), Config(), judge=judge, around=around)


def _begin(parent: int, lifeline: int) -> None:
    _set_signals()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # not every system has this file
    # Nothing is ever written to the lifeline pipe. When the parent ends, its end is closed,
    # and the system sends this signal for that event, even while a thread holds the GIL.
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    # A process that the parent forked may hold that end too, and the parent may have ended already.
    threading.Thread(target=end_with, args=(parent,), name="tzero-parent", daemon=True).start()
