"""What runs in the process that times candidates: one question in, one reply out.

Enters: a parcel and a connection; then questions, one at a time. Leaves: a `Reply` to each. It must
not know which configs there are, nor what becomes of replies.

The process ends when its parent does, also while a candidate hangs and holds Python's lock; it
ignores Ctrl-C, which is for the parent to act on; of all processes it is the first that the system
ends when memory is short; and it leaves no core behind. It ends itself after a candidate by which
the device was lost, so that the next one gets a process with a device.
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

from tzero import settings
from tzero.adapters import intercept, triton_compile
from tzero.adapters.triton_launch import JITFunction, compile_with
from tzero.backends.triton import compiled
from tzero.compile.worker import end_with
from tzero.config import Config
from tzero.launches.current_call import current
from tzero.tune.records import Outcome
from tzero.tune.transfer import Parcel, opened
from tzero.tune.trial import Trial, device_of, problem_of

__all__ = ["Ask", "Refer", "Reply", "World", "main", "world"]


class Refer(NamedTuple):
    """A question: does this config run? It is the reference from now on.

    >>> Refer(Config(BLOCK=64)).config
    Config(BLOCK=64)
    """

    config: Config


class Ask(NamedTuple):
    """A question: what does this config come to?

    >>> Ask(Config(BLOCK=64), budget=0.5, best=None).budget
    0.5
    """

    config: Config
    budget: float
    best: float | None


class Reply(NamedTuple):
    """An answer: a problem or none, or an outcome; and whether the process ends now.

    >>> Reply("", last=False).value
    ''
    """

    value: str | Outcome
    last: bool


@dataclass(frozen=True, slots=True)
class World:
    """What the parent is set to, and a candidate may depend on.

    >>> world().threads > 0
    True
    """

    settings: dict[str, Any]
    knobs: dict[str, Any]
    device: int | None
    """Which CUDA device is the current one."""
    threads: int
    grad: bool
    inference: bool
    dtype: torch.dtype
    precision: str

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Have this process set to the same."""
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


def world() -> World:
    """What this process is set to. Nothing compiles beside the child: it finds what the parent's
    service has compiled, and compiles itself what that has not.

    >>> world().settings["compile_workers"]
    1
    """
    cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return World(
        settings={**asdict(settings.now()), "compile_workers": 1},
        knobs=triton_compile.code_knobs(),
        device=torch.cuda.current_device() if cuda else None,
        threads=torch.get_num_threads(),
        grad=torch.is_grad_enabled(),
        inference=torch.is_inference_mode_enabled(),
        dtype=torch.get_default_dtype(),
        precision=torch.get_float32_matmul_precision(),
    )


def main(parent: int, connection: int, lifeline: int, descriptor: int, length: int) -> None:
    """Answer questions until there are no more; called by what `tzero.tune.isolated` starts.

    ::

        python -c "from tzero.tune.child import main; main(...)"
    """
    _begin(parent, lifeline)
    with Connection(connection) as pipe:
        around: World = pipe.recv()
        with around.entered():
            try:
                trial, last = _served(Parcel(descriptor, length)), False
                pipe.send(Reply("", last))
            except Exception as error:  # of modules that are imported here, for one
                pipe.send(Reply(problem_of(error), True))
                return
            while not last:
                try:
                    question = pipe.recv()
                except EOFError:  # the parent is done
                    return
                reply = _answer(trial, question)
                last = reply.last
                pipe.send(reply)


def _answer(trial: Trial, question: Refer | Ask) -> Reply:
    value: str | Outcome
    if isinstance(question, Refer):
        trial.set_reference(question.config)
        value = problem = trial.reference_problem()
    else:
        value = trial.outcome(question.config, budget=question.budget, best=question.best)
        problem = value.problem
    return Reply(value, last=bool(problem) and trial.device_lost())


class _Served(Trial):
    """Every kernel is compiled by way of the service: it finds on disk what the parent's has
    compiled."""

    def run(self, config: Config) -> tuple[Callable[..., Any], tuple[Any, ...], Any]:
        with intercept.intercepted(_taken_over):
            return super().run(config)


def _taken_over(
    kernel: Any,
    grid: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    launch: Callable[[Any], Any],
) -> Any:
    if isinstance(kernel, JITFunction):
        compile_with(kernel, _compiled)
    return launch(grid)


_CRASHES = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP")


def _compiled(*given: Any, **named: Any) -> Any:
    """What is compiled by way of the service: in this process, for there are no workers, unless it
    is found. LLVM leaves handlers of signals behind: of Ctrl-C, and of crashes, which one after the
    other raise them anew without end, so that a crash would pass for a hang."""
    try:
        return compiled(*given, **named)
    finally:
        _set_signals()


def _set_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in _CRASHES:
        signal.signal(signal.Signals[name], signal.SIG_DFL)


def _served(parcel: Parcel) -> Trial:
    host, args, called = opened(parcel)
    os.close(parcel.descriptor)  # it is all here now

    current.is_trial = True  # what it specializes is no news, and kernels in it are not tuned here
    made = functools.cache(functools.partial(called, host))
    return _Served(made, args, device_of(args), Config())


def _begin(parent: int, lifeline: int) -> None:
    _set_signals()
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("1000")  # a system that does not have this chooses by itself
    # Nothing is ever written to the lifeline. When the parent is gone its other end is closed, and
    # that is an event, for which the system sends this signal: also while Python's lock is held.
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    # If the parent has forked, someone else has that end, too; and it may have been gone before.
    threading.Thread(target=end_with, args=(parent,), name="tzero-parent", daemon=True).start()
