"""Triton kernels through the compile service: for CUDA, HIP and the CPU.

::

    ASTSource ─ request ─► Request ─ service, worker: compile ─► Artifact ─ load ─► CompiledKernel

Enters: what Triton's launches give to ``triton.compile``: a kernel with the types and constants of
its arguments, a target, and options. Leaves: Triton's own ``CompiledKernel``. It must not know how
requests travel or are cached, nor how kernels are launched.

    write_request    a kernel, its types, options and target as a `Request`
    program          the kernel itself as tables; names: which globals its source text reads
    compile_request  `Request` -> `Artifact`, in a worker process
    rebuild          the kernel made again from the tables, there
    function_code    the bytecode of one function: compiled, compared
    load_artifact    `Artifact` -> Triton's ``CompiledKernel``
    carried          kernels in bundles: found there first, collected for one

Triton compiles in this process what cannot be written down, and everything while it is told to
print, dump or replace what it compiles; an event says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Literal

from tzero import events, sealed, settings
from tzero.adapters import triton_launch
from tzero.adapters.triton_launch import CompiledKernel, GPUTarget
from tzero.backends.triton import carried
from tzero.backends.triton.compile_request import compile, warm
from tzero.backends.triton.load_artifact import load
from tzero.backends.triton.rebuild import NotFaithful
from tzero.backends.triton.write_request import (
    NotTransportable,
    Written,
    for_this_machine,
    request,
    requested,
    retargeted,
    sources,
    written,
)
from tzero.cache import in_use
from tzero.compile import service
from tzero.compile.request import Artifact, Malformed, Request
from tzero.errors import CompileFailed

__all__ = [
    "NotTransportable",
    "backend",
    "compile",
    "compiled",
    "load",
    "request",
    "requested",
    "retargeted",
    "submit",
    "take_over",
    "warm",
    "written",
]


def compiled(
    source: Any,
    target: GPUTarget | None = None,
    options: Mapping[str, Any] | None = None,
    _env_vars: Mapping[str, str] | None = None,
) -> CompiledKernel:
    """Replaces ``triton.compile``: same arguments and result, but compiled by the service.

    ::

        kernel.compile = compiled
    """
    if target is None:
        target = triton_launch.driver.active.get_current_target()

    def here(kind: Literal["compile", "cache"], reason: str) -> CompiledKernel:
        name = getattr(source, "name", str(source))
        carried.refused(name, reason)
        sealed.check("compile", name, lambda: reason)
        events.emit(events.Event(kind, name, f"Triton compiles it in this process: {reason}"))
        return triton_launch.compile_here(source, target=target, options=options)

    if triton_launch.interpreting():
        return triton_launch.compile_here(source, target=target, options=options)
    made = written(source, target, options)
    if isinstance(made, NotTransportable):
        return here("compile", made.reason)
    kernel = _from_bundle(made, source)
    if kernel is not None:
        return kernel

    def again(kind: Literal["compile", "cache"], reason: str) -> CompiledKernel:
        service().reloaded()  # Triton reads the source, which the request had
        return here(kind, reason)

    try:
        with sealed.describing(lambda: carried.difference(made)):
            artifact = service().compile(requested(made))
    except NotFaithful as refusal:
        return again("compile", str(refusal))
    except CompileFailed as failure:
        if failure.__cause__ is None:
            return again("compile", failure.problem)  # the exception could not be pickled
        problem = failure.__cause__
    else:
        try:
            kernel = load(artifact, source)
        except Malformed as error:
            return again("cache", str(error))
        carried.used(made, artifact)
        return kernel
    raise _copied(problem)  # as Triton raises it


def _from_bundle(made: Written, source: Any) -> CompiledKernel | None:
    """Triton's kernel from a bundle in use; None if none has it."""
    artifact = carried.find(made)
    if artifact is None:
        return None
    try:
        kernel = load(artifact, source)
    except Malformed as error:
        events.emit(events.Event("cache", made.name, f"its entry in a bundle is not used: {error}"))
        return None
    carried.used(made, artifact)
    return kernel


def submit(made: Written) -> Future[Artifact]:
    """What a kernel compiles to, as a future: from a bundle in use, or from the service.

    ::

        submit(written(source, target)).result()
    """
    found = carried.find(made)
    if found is None:
        future: Future[Artifact] = service().submit(requested(made))
    else:
        future = Future()
        future.set_result(found)

    def note(done: Future[Artifact]) -> None:
        if not done.cancelled() and done.exception() is None:
            carried.used(made, done.result())

    future.add_done_callback(note)
    return future


def _copied(error: BaseException) -> BaseException:
    """A copy of an exception: several threads may raise the same failure."""
    made = type(error).__new__(type(error), *error.args)
    made.args = error.args
    made.__dict__.update(error.__dict__)
    made.__cause__ = error.__cause__
    return made.with_traceback(error.__traceback__)


def take_over(kernel: Any) -> None:
    """Make one of Triton's own kernels compile through the service from now on.

    ::

        take_over(someone_elses_kernel)
    """
    triton_launch.compile_with(kernel, compiled)


def _takes_all() -> bool:
    """Whether kernels of Triton's own compile through the service too: for a bundle, or a seal."""
    return sealed.is_sealed() or settings.now().collect is not None or bool(in_use.bundles())


triton_launch.compile_all_with(compiled, _takes_all, carried.seen)


class _Triton:
    """The backend that the entry point names."""

    runs: Literal["process", "thread"] = "process"

    def compile(self, request: Request) -> Artifact:
        return compile(request)

    def for_this_machine(self, request: Request) -> Request:
        return for_this_machine(request)

    def source(self, request: Request) -> str:
        return "\n\n".join(sources(request))

    def warm(self) -> None:
        warm()


backend = _Triton()
