"""Every error that tzero raises on purpose.

Enters: the facts of one failure, as keyword arguments. Leaves: an exception whose message says
what happened, where, and what to do, and which keeps the facts as attributes. It must not know
about settings, kernels or Triton.

All of them derive from :class:`TzeroError`, most also from the built-in exception that fits:
``except ValueError`` catches an InvalidSetting. To add one, add a class and a line in ``__all__``;
``tzero`` exports all of them. Errors cross process boundaries, and Triton deep-copies them, so each
survives ``pickle`` and ``copy.deepcopy`` with message, attributes and notes intact.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = [  # noqa: RUF022  in the order of the classes
    "TzeroError",  # the base of all
    "UnsupportedOperation",  # a kernel uses an operation the CPU backend lacks
    "CompilerMissing",  # no C compiler on this machine
    "CompilerFailed",  # the C compiler rejected a kernel
    "ToolchainMissing",  # the compiler or library of a backend is not installed
    "BackendMissing",  # no backend has that name
    "CompileFailed",  # a kernel does not compile
    "WorkerDied",  # a worker process died while it compiled
    "CompileTimeout",  # a compile took too long
    "CacheRefused",  # a cache directory that others can write to
    "BundleRefused",  # a bundle cannot be used
    "PretunedDamaged",  # a file of pretuned configs cannot be used
    "TuningFailed",  # no config of a kernel works
    "SealBroken",  # a sealed process would compile, tune or record
    "KernelAssertion",  # a tl.device_assert failed
    "OutOfBounds",  # checked mode caught an access outside a tensor
    "InvalidSetting",  # a variable or override has a wrong value
    "InvalidConfig",  # a Config was given a wrong name or value
    "InvalidKernel",  # a function or option that no kernel can have
    "InvalidArgument",  # a call with wrong arguments
    "UnsupportedType",  # a value that cannot be part of a key
    "NotInKernel",  # specialize() outside a host function
    "LaunchFailed",  # the driver rejected a launch
    "PlanDrift",  # a call differs from its plan
    "NativeMissing",  # the native extension is not built
    "UnsupportedVersion",  # Python, torch, Triton or Helion is too old, or the extension another's
]

# What ``tl.program_id`` returns for axes 0, 1 and 2.
_Program = tuple[int, int, int]


class TzeroError(Exception):
    """Base of every error tzero raises on purpose.

    >>> try:
    ...     raise InvalidSetting(name="TZERO_CPU", value="maybe", allowed="'', '0' or '1'")
    ... except TzeroError as error:
    ...     print(type(error).__name__)
    InvalidSetting
    """

    def __reduce__(self) -> tuple[Callable[..., TzeroError], tuple[Any, ...]]:
        # By default a copy calls the class with the message, but the constructors take keywords;
        # so `_restore` makes the copy without calling the constructor.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[TzeroError], args: tuple[Any, ...], facts: dict[str, Any]) -> TzeroError:
    error = kind.__new__(kind, *args)
    error.args = args  # an OSError sets them in its constructor only
    error.__dict__.update(facts)
    return error


class UnsupportedOperation(TzeroError):
    """A kernel uses an operation that the CPU backend does not compile.

    >>> print(UnsupportedOperation(
    ...     operation="tt.elementwise_inline_asm", file="model.py", line=12, kernel="fast_exp",
    ...     advice="Write it with tl.exp2, which every backend has."))
    fast_exp: 'tt.elementwise_inline_asm' at model.py:12 does not compile for the CPU. Write it \
with tl.exp2, which every backend has.
    """

    def __init__(
        self,
        *,
        operation: str,
        advice: str,
        file: str | None = None,
        line: int | None = None,
        kernel: str | None = None,
    ) -> None:
        self.operation, self.advice, self.file = operation, advice, file
        self.line, self.kernel = line, kernel
        super().__init__(
            f"{_subject(kernel)}{operation!r}{_place(file, line)} does not compile for the CPU. "
            f"{advice}"
        )


class CompilerMissing(TzeroError):
    """No C compiler was found, so kernels cannot be compiled for the CPU.

    >>> print(CompilerMissing(searched=["cc", "gcc", "clang"]))
    no C compiler found (looked for: cc, gcc, clang). Install gcc or clang, or run \
`pip install 'tzero-runtime[zig]'` for one that comes as a wheel, or set TZERO_CC to a compiler \
command.
    """

    def __init__(self, *, searched: Sequence[str]) -> None:
        self.searched = tuple(searched)
        super().__init__(
            f"no C compiler found (looked for: {', '.join(self.searched)}). Install gcc or clang, "
            "or run `pip install 'tzero-runtime[zig]'` for one that comes as a wheel, or set "
            "TZERO_CC to a compiler command."
        )


class CompilerFailed(TzeroError):
    """The C compiler rejected the code generated for a kernel; its output is in the message.

    >>> print(CompilerFailed(kernel="add", command=["cc", "-O3", "add.c"],
    ...                      output="add.c:3: error: unknown type name 'tz_f16'"))
    add: the C compiler failed.
      command: cc -O3 add.c
      add.c:3: error: unknown type name 'tz_f16'
    If this is about the command or a flag, set TZERO_CC to another compiler; if it is about the \
code, it is a bug in tzero: please report it with the kernel's source.
    """

    def __init__(self, *, kernel: str, command: Sequence[str], output: str) -> None:
        self.kernel = kernel
        self.command = tuple(command)
        self.output = output
        shown = "\n".join(f"  {line}" for line in output.strip().splitlines())
        super().__init__(
            f"{kernel}: the C compiler failed.\n"
            f"  command: {shlex.join(self.command)}\n"
            f"{shown or '  (no output)'}\n"
            "If this is about the command or a flag, set TZERO_CC to another compiler; if it is "
            "about the code, it is a bug in tzero: please report it with the kernel's source."
        )


class ToolchainMissing(TzeroError):
    """The compiler, or another part that a backend needs, is not on this machine.

    >>> print(ToolchainMissing(backend="hip", searched=["hipcc"],
    ...                        advice="Install hipcc (Debian: apt-get install hipcc)."))
    the hip backend's toolchain was not found (looked for: hipcc). Install hipcc (Debian: apt-get \
install hipcc).
    """

    def __init__(self, *, backend: str, searched: Sequence[str], advice: str) -> None:
        self.backend = backend
        self.searched = tuple(searched)
        self.advice = advice
        super().__init__(
            f"the {backend} backend's toolchain was not found (looked for: "
            f"{', '.join(self.searched)}). {advice}"
        )


class BackendMissing(TzeroError, LookupError):
    (
        """No installed package has a backend of that name.

    >>> print(BackendMissing(name="fortran", known=["cpp", "triton"]))
    no backend is called 'fortran'; there are: cpp, triton. Install the package that has it, or \
reinstall tzero-runtime if it is one of tzero's own.
    """
        ""
    )

    def __init__(self, *, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(
            f"no backend is called {name!r}; there are: {', '.join(self.known) or 'none'}. Install "
            "the package that has it, or reinstall tzero-runtime if it is one of tzero's own."
        )


class CompileFailed(TzeroError):
    """A kernel does not compile. The compiler's own exception is the cause, if it can be pickled;
    otherwise its traceback is in the message.

    >>> print(CompileFailed(kernel="add", problem="NameError: BLOCK is not defined", trace=""))
    add: does not compile: NameError: BLOCK is not defined. Fix the kernel; to debug the compiler \
in this process, set TZERO_COMPILE_WORKERS=1.
    """

    def __init__(self, *, kernel: str, problem: str, trace: str) -> None:
        self.kernel = kernel
        self.problem = problem
        self.trace = trace
        end = "" if problem.endswith((".", "!", "?")) else "."
        where = f"\nIn the worker:\n{trace.rstrip()}" if trace else ""
        super().__init__(
            f"{kernel}: does not compile: {problem}{end} Fix the kernel; to debug the compiler "
            f"in this process, set TZERO_COMPILE_WORKERS=1.{where}"
        )


class WorkerDied(TzeroError):
    """The worker process that compiled a kernel died. Other compiles go on.

    >>> print(WorkerDied(kernel="add", how="killed by SIGKILL (out of memory?)"))
    add: the worker process that compiled it died: killed by SIGKILL (out of memory?). A new one \
replaces it, so other compiles still work; to compile this one in the main process, set \
TZERO_COMPILE_WORKERS=1.
    """

    def __init__(self, *, kernel: str, how: str) -> None:
        self.kernel = kernel
        self.how = how
        super().__init__(
            f"{kernel}: the worker process that compiled it died: {how}. A new one replaces it, so "
            "other compiles still work; to compile this one in the main process, set "
            "TZERO_COMPILE_WORKERS=1."
        )


class CompileTimeout(TzeroError, TimeoutError):
    """A compile reached its time limit and was stopped.

    >>> print(CompileTimeout(kernel="add", seconds=600))
    add: the compile was stopped after 600 s. Set TZERO_COMPILE_TIMEOUT to more seconds, or to 0 \
for no limit.
    """

    def __init__(self, *, kernel: str, seconds: float) -> None:
        self.kernel = kernel
        self.seconds = seconds
        super().__init__(
            f"{kernel}: the compile was stopped after {seconds:g} s. Set TZERO_COMPILE_TIMEOUT to "
            "more seconds, or to 0 for no limit."
        )


class CacheRefused(TzeroError):
    """A cache directory is not private, so anyone could have put code into it.

    >>> print(CacheRefused(path="/data/cache", problem="others may write to it",
    ...                    cure="chmod 700 /data/cache"))
    the cache directory /data/cache is not used: others may write to it. Fix: chmod 700 \
/data/cache, or set TZERO_CACHE_DIR to a directory of your own.
    """

    def __init__(
        self, *, path: str, problem: str, cure: str, setting: str = "TZERO_CACHE_DIR"
    ) -> None:
        self.path = path
        self.problem = problem
        self.cure = cure
        super().__init__(
            f"the cache directory {path} is not used: {problem}. Fix: {cure}, or set {setting} to "
            "a directory of your own."
        )


class BundleRefused(TzeroError, ValueError):
    """A bundle cannot be used: it is damaged, no bundle, or may come from someone else.

    >>> print(BundleRefused(path="app.tzb", problem="it is cut off after 12 bytes",
    ...                     advice="Build it again: tzero bundle build."))
    the bundle app.tzb is not used: it is cut off after 12 bytes. Build it again: tzero bundle \
build.
    """

    def __init__(self, *, path: str, problem: str, advice: str) -> None:
        self.path, self.problem, self.advice = path, problem, advice
        super().__init__(f"the bundle {path} is not used: {problem}. {advice}")


class PretunedDamaged(TzeroError, ValueError):
    """A file or table of pretuned configs cannot be used.

    >>> print(PretunedDamaged(source="pretuned.json", problem="entry 3 has no 'hardware'"))
    pretuned.json cannot be used: entry 3 has no 'hardware'. Correct it, or tune again and write \
a new one.
    """

    def __init__(self, *, source: str, problem: str) -> None:
        self.source = source
        self.problem = problem
        super().__init__(
            f"{source} cannot be used: {problem}. Correct it, or tune again and write a new one."
        )


class TuningFailed(TzeroError):
    """No config of a kernel works; `problems` has the reason for each.

    >>> print(TuningFailed(kernel="matmul", problems={"Config(BLOCK=4096)": "out of memory"}))
    matmul: none of its configs works. Add one that does, or fix what they have in common.
      Config(BLOCK=4096): out of memory
    """

    def __init__(self, *, kernel: str, problems: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.problems = dict(problems)
        rows = [f"\n  {config}: {problem}" for config, problem in list(problems.items())[:_SHOWN]]
        more = len(problems) - len(rows)
        rows += [f"\n  and {more} more"] * (more > 0)
        super().__init__(
            f"{kernel}: none of its configs works. Add one that does, or fix what they have in "
            f"common.{''.join(rows)}"
        )


_SHOWN = 10


class SealBroken(TzeroError, RuntimeError):
    """A call needs a compile, a tuning or a recording, and the process is sealed (`tzero.seal`).

    >>> print(SealBroken(kernel="add", what="compile", difference="n is 7; 8 was covered"))
    add: the process is sealed, and this needs a compile: n is 7; 8 was covered. Cover it before \
tzero.seal, by add.warmup or a call, or allow it by tzero.unseal.
    """

    def __init__(self, *, kernel: str, what: str, difference: str = "") -> None:
        self.kernel, self.what, self.difference = kernel, what, difference
        why = difference or "nothing of this kernel was covered"
        super().__init__(
            f"{kernel}: the process is sealed, and this needs a {what}: {why}. Cover it before "
            f"tzero.seal, by {kernel}.warmup or a call, or allow it by tzero.unseal."
        )


class KernelAssertion(TzeroError, AssertionError, RuntimeError):
    """A ``tl.device_assert`` failed in a kernel on the CPU, or, with ``debug=True``, an integer
    overflowed. It is a ``RuntimeError`` too, which is what torch raises for a GPU's assertion.

    >>> print(KernelAssertion(message="index < size", kernel="gather", file="model.py", line=40,
    ...                       program=(3, 0, 0)))
    gather: device-side assertion failed at model.py:40 in program (3, 0, 0): index < size. The \
launch's output is incomplete; correct the arguments of that program, or the condition.
    """

    def __init__(
        self,
        *,
        message: str,
        kernel: str,
        program: _Program,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        self.message, self.kernel, self.program = message, kernel, program
        self.file, self.line = file, line
        super().__init__(
            f"{kernel}: device-side assertion failed{_place(file, line)} in program {program}: "
            f"{message or '(no message)'}. The launch's output is incomplete; correct the "
            "arguments of that program, or the condition."
        )


class OutOfBounds(TzeroError, IndexError):
    """Checked mode prevented an access outside the tensor that the pointer belongs to.

    ``offset`` counts elements from the pointer that was passed; ``size`` is the number of elements
    from there on, if known.

    >>> print(OutOfBounds(kernel="add", argument="x_ptr", offset=1000, size=1000, file="model.py",
    ...                   line=9, program=(0, 0, 0)))
    add: argument 'x_ptr': element offset 1000 is outside its tensor, which has 1000 elements \
(at model.py:9, program (0, 0, 0)). The access was not made; mask the load or store, or pass a \
larger tensor.
    """

    def __init__(
        self,
        *,
        kernel: str,
        argument: str,
        offset: int,
        program: _Program,
        size: int | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        self.kernel, self.argument, self.offset = kernel, argument, offset
        self.program, self.size, self.file = program, size, file
        self.line = line
        extent = "" if size is None else f", which has {size} elements"
        place = _place(file, line).lstrip()
        where = f"{place}, program {program}" if place else f"program {program}"
        super().__init__(
            f"{kernel}: argument {argument!r}: element offset {offset} is outside its tensor"
            f"{extent} ({where}). The access was not made; mask the load or store, or pass a "
            "larger tensor."
        )


class InvalidSetting(TzeroError, ValueError):
    """An environment variable, or an override of a setting, has a wrong value.

    >>> print(InvalidSetting(name="TZERO_CPU", value="maybe", allowed="'', '0' or '1'"))
    TZERO_CPU is 'maybe'; allowed: '', '0' or '1'. Set it to one of these, or unset it.
    """

    def __init__(self, *, name: str, value: object, allowed: str) -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        super().__init__(
            f"{name} is {value!r}; allowed: {allowed}. Set it to one of these, or unset it."
        )


class InvalidConfig(TzeroError, ValueError):
    """A :class:`tzero.Config` was given a name or a value that it cannot hold.

    >>> print(InvalidConfig(name="BLOCK", value={1, 2}, allowed="a number"))
    a Config cannot hold BLOCK={1, 2}; allowed: a number. Give it one of these.
    """

    def __init__(self, *, name: str, value: object, allowed: str) -> None:
        self.name = name
        self.value = value
        self.allowed = allowed
        super().__init__(
            f"a Config cannot hold {name}={value!r}; allowed: {allowed}. Give it one of these."
        )


class InvalidKernel(TzeroError, TypeError):
    """A host function, or an option of :func:`tzero.kernel`, that no kernel can have.

    >>> print(InvalidKernel(kernel="add", problem="it takes *tensors",
    ...                     advice="Name every parameter."))
    add cannot be a kernel: it takes *tensors. Name every parameter.
    """

    def __init__(self, *, kernel: str, problem: str, advice: str) -> None:
        self.kernel = kernel
        self.problem = problem
        self.advice = advice
        super().__init__(f"{kernel} cannot be a kernel: {problem}. {advice}")


class InvalidArgument(TzeroError, TypeError):
    """A kernel was called with an argument, or with a number of arguments, that it does not take.

    >>> print(InvalidArgument(kernel="add", argument="y", problem="is on cuda:1, but 'x' on cuda:0",
    ...                       advice="Move one of them."))
    add: argument 'y' is on cuda:1, but 'x' on cuda:0. Move one of them.
    """

    def __init__(
        self, *, kernel: str, problem: str, advice: str, argument: str | None = None
    ) -> None:
        self.kernel, self.argument, self.problem = kernel, argument, problem
        self.advice = advice
        subject = "" if argument is None else f"argument {argument!r} "
        super().__init__(f"{kernel}: {subject}{problem}. {advice}")


class UnsupportedType(TzeroError, TypeError):
    """A value has a type that cannot be part of a key. Code that knows the kernel and the argument
    raises :class:`InvalidArgument` instead; `named` is the type with its article.

    >>> print(UnsupportedType(kind="list_iterator"))
    a list_iterator cannot be an argument of a kernel. Pass tensors, numbers, strings, None, \
dtypes, devices, functions, or lists, tuples, dicts, named tuples and dataclasses of these.
    >>> UnsupportedType(kind="object").named
    'an object'
    """

    def __init__(
        self,
        *,
        kind: str,
        advice: str = "Pass tensors, numbers, strings, None, dtypes, devices, functions, or "
        "lists, tuples, dicts, named tuples and dataclasses of these.",
    ) -> None:
        self.kind = kind
        self.advice = advice
        self.named = f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"
        super().__init__(f"{self.named} cannot be an argument of a kernel. {advice}")


class NotInKernel(TzeroError, RuntimeError):
    """`specialize` was called while no host function was running.

    >>> print(NotInKernel(what="specialize"))
    specialize was called outside a kernel. Call it in a host function under @tzero.kernel, or in \
a function that it calls.
    """

    def __init__(self, *, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what} was called outside a kernel. Call it in a host function under @tzero.kernel, "
            "or in a function that it calls."
        )


class LaunchFailed(TzeroError, RuntimeError):
    """The driver rejected a launch, or a graph of those in `together`; TZERO_GRAPHS=0 tells which.

    >>> print(LaunchFailed(kernel="add", name="CUDA_ERROR_INVALID_VALUE", text="invalid argument",
    ...                    grid=(1, 70000, 1), block=128, shared=0))
    add: the driver rejected the launch: CUDA_ERROR_INVALID_VALUE (invalid argument), with a grid \
of (1, 70000, 1), 128 threads a block and 0 bytes of shared memory. Check the grid against the \
device's limits; if an earlier kernel failed, run with CUDA_LAUNCH_BLOCKING=1 to see which.
    """

    def __init__(
        self,
        *,
        kernel: str,
        name: str,
        text: str,
        grid: tuple[int, int, int],
        block: int,
        shared: int,
        together: tuple[str, ...] = (),
    ) -> None:
        self.kernel, self.name, self.text = kernel, name, text
        self.grid, self.block, self.shared, self.together = grid, block, shared, together
        at = f", with a grid of {grid}, {block} threads a block and {shared} bytes of shared memory"
        failed = f"one of {', '.join(together)} in a CUDA graph" if together else "the launch"
        super().__init__(
            f"{kernel}: the driver rejected {failed}: {name} ({text}){'' if together else at}. "
            "Check the grid against the device's limits; if an earlier kernel failed, run with "
            "CUDA_LAUNCH_BLOCKING=1 to see which."
        )


class PlanDrift(TzeroError):
    """A call differs from the plan that was recorded for it. Raised in verify mode
    (``TZERO_VERIFY=1``), which records every call again; and in a replay, if a torch function
    returns other sizes than when it was recorded.

    >>> print(PlanDrift(kernel="add", fact="step 1", before="launch k[(3, 1, 1)](x, t1)",
    ...                 now="launch k[(4, 1, 1)](x, t1)"))
    add: step 1 is not what the plan has: it was launch k[(3, 1, 1)](x, t1), and is launch \
k[(4, 1, 1)](x, t1). The host function depends on something besides its arguments, globals and \
closures: make that an argument, or part of what key= returns.
    """

    def __init__(self, *, kernel: str, fact: str, before: str, now: str) -> None:
        self.kernel, self.fact, self.before = kernel, fact, before
        self.now = now
        super().__init__(
            f"{kernel}: {fact} is not what the plan has: it was {before}, and is {now}. The host "
            "function depends on something besides its arguments, globals and closures: make that "
            "an argument, or part of what key= returns."
        )


class NativeMissing(TzeroError, ImportError):
    """Native launches were requested, but the extension is not built.

    >>> print(NativeMissing())
    tzero was installed without its native extension. Install a C++17 compiler and Python's \
headers (on Debian: g++ and python3-dev) and reinstall tzero-runtime; or set TZERO_TIER=1, which \
launches in Python.
    """

    def __init__(self) -> None:
        super().__init__(
            "tzero was installed without its native extension. Install a C++17 compiler and "
            "Python's headers (on Debian: g++ and python3-dev) and reinstall tzero-runtime; or set "
            "TZERO_TIER=1, which launches in Python."
        )


class UnsupportedVersion(TzeroError, ImportError, RuntimeError):
    """A package is older than the oldest version that tzero supports, or of another kind.

    It is a RuntimeError too because Triton raises one if no driver is usable, and programs that
    probe for a device catch that.

    >>> print(UnsupportedVersion(package="Triton", found="3.5.1", oldest="3.6",
    ...                          advice="run `pip install 'triton>=3.6'`"))
    Triton 3.5.1 is too old for tzero, which needs 3.6 or newer: run `pip install 'triton>=3.6'`.
    """

    def __init__(
        self, *, package: str, found: str, oldest: str, advice: str, problem: str = ""
    ) -> None:
        self.package, self.found, self.oldest, self.advice = package, found, oldest, advice
        why = problem or f"is too old for tzero, which needs {oldest} or newer"
        super().__init__(f"{package} {found} {why}: {advice}.")


def _subject(kernel: str | None) -> str:
    return "" if kernel is None else f"{kernel}: "


def _place(file: str | None, line: int | None) -> str:
    if file is None:
        return ""
    return f" at {file}" if line is None else f" at {file}:{line}"
