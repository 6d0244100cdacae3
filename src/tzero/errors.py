"""Every error tzero raises on purpose; drawn first, so that it can be learned at a glance.

::

    Exception
    └── TzeroError
        ├── UnsupportedOperation   a kernel uses what the backend cannot compile
        ├── CompilerMissing        no C compiler on this machine
        ├── CompilerFailed         the C compiler refused a kernel
        ├── ToolchainMissing       a backend needs what is not here
        ├── BackendMissing         no backend of that name        (also a LookupError)
        ├── CompileFailed          a kernel does not compile; carries the worker's traceback
        ├── WorkerDied             the process that compiled is gone, and how it went
        ├── CompileTimeout         a compile took longer than it may (also a TimeoutError)
        ├── CacheRefused           a cache that someone else could write to
        ├── PretunedDamaged        a file of configs that cannot be used (also a ValueError)
        ├── TuningFailed           no config of a kernel works, and why each does not
        ├── KernelAssertion        tl.device_assert was false     (also an AssertionError)
        ├── OutOfBounds            checked mode caught an access  (also an IndexError)
        ├── InvalidSetting         a variable or override is wrong (also a ValueError)
        ├── InvalidConfig          a Config holds what it cannot   (also a ValueError)
        ├── InvalidKernel          a function or option no kernel can have (also a TypeError)
        ├── InvalidArgument        a call with arguments no kernel takes   (also a TypeError)
        ├── UnsupportedType        a value that cannot be part of a key    (also a TypeError)
        ├── NotInKernel            specialize outside a host function      (also a RuntimeError)
        ├── LaunchFailed           the driver refused a launch             (also a RuntimeError)
        ├── PlanDrift              a call is not what its plan says
        ├── NativeMissing          tier 2 was asked for and is not built   (also an ImportError)
        └── UnsupportedVersion     torch, Triton or Helion is too old      (also an ImportError and
                                   a RuntimeError)

Enters: the facts of one failure, as keyword arguments. Leaves: an exception whose message says
what happened, where, and what to do, and which keeps the facts as attributes. It must not know
about settings, kernels or Triton: everything above raises from here.

Errors cross process boundaries and are deep-copied by Triton, so each of them survives ``pickle``
and ``copy.deepcopy`` with message, attributes and notes intact.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = [
    "BackendMissing",
    "CacheRefused",
    "CompileFailed",
    "CompileTimeout",
    "CompilerFailed",
    "CompilerMissing",
    "InvalidArgument",
    "InvalidConfig",
    "InvalidKernel",
    "InvalidSetting",
    "KernelAssertion",
    "LaunchFailed",
    "NativeMissing",
    "NotInKernel",
    "OutOfBounds",
    "PlanDrift",
    "PretunedDamaged",
    "ToolchainMissing",
    "TuningFailed",
    "TzeroError",
    "UnsupportedOperation",
    "UnsupportedType",
    "UnsupportedVersion",
    "WorkerDied",
]

# A program's place in the launch grid, as ``tl.program_id`` gives it for axes 0, 1, 2.
Program = tuple[int, int, int]


class TzeroError(Exception):
    """Base of every error tzero raises on purpose.

    >>> try:
    ...     raise InvalidSetting(name="TZERO_CPU", value="maybe", allowed="'', '0' or '1'")
    ... except TzeroError as error:
    ...     print(type(error).__name__)
    InvalidSetting
    """

    def __reduce__(self) -> tuple[Callable[..., TzeroError], tuple[Any, ...]]:
        # The default would call the class with the finished message, but the constructors take
        # keyword facts; so the copy is put together without running the constructor.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(kind: type[TzeroError], args: tuple[Any, ...], facts: dict[str, Any]) -> TzeroError:
    error = kind.__new__(kind, *args)
    error.args = args  # an OSError takes them in its constructor only
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
        self.operation = operation
        self.advice = advice
        self.file = file
        self.line = line
        self.kernel = kernel
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
    """The C compiler refused the code generated for a kernel; its words are in the message.

    >>> print(CompilerFailed(kernel="add", command=["cc", "-O3", "add.c"],
    ...                      output="add.c:3: error: unknown type name 'tz_f16'"))
    add: the C compiler failed.
      command: cc -O3 add.c
      add.c:3: error: unknown type name 'tz_f16'
    If the words are about the command or a flag, set TZERO_CC to another compiler; if they are \
about the code, it is a fault of tzero: please report it with the kernel's source.
    """

    def __init__(self, *, kernel: str, command: Sequence[str], output: str) -> None:
        self.kernel = kernel
        self.command = tuple(command)
        self.output = output
        words = "\n".join(f"  {line}" for line in output.strip().splitlines())
        super().__init__(
            f"{kernel}: the C compiler failed.\n"
            f"  command: {shlex.join(self.command)}\n"
            f"{words or '  (it said nothing)'}\n"
            "If the words are about the command or a flag, set TZERO_CC to another compiler; if "
            "they are about the code, it is a fault of tzero: please report it with the kernel's "
            "source."
        )


class ToolchainMissing(TzeroError):
    """What a backend needs, most often its compiler, is not on this machine.

    >>> print(ToolchainMissing(backend="hip", searched=["hipcc"],
    ...                        advice="Install hipcc (Debian: apt-get install hipcc)."))
    the hip backend needs what was not found (looked for: hipcc). Install hipcc (Debian: apt-get \
install hipcc).
    """

    def __init__(self, *, backend: str, searched: Sequence[str], advice: str) -> None:
        self.backend = backend
        self.searched = tuple(searched)
        self.advice = advice
        super().__init__(
            f"the {backend} backend needs what was not found (looked for: "
            f"{', '.join(self.searched)}). {advice}"
        )


class BackendMissing(TzeroError, LookupError):
    (
        """No installed package offers a backend of that name.

    >>> print(BackendMissing(name="fortran", known=["cpp", "triton"]))
    no backend is called 'fortran'; there are: cpp, triton. Install the package that has it, or \
reinstall tzero-runtime if it is one of its own.
    """
        ""
    )

    def __init__(self, *, name: str, known: Sequence[str]) -> None:
        self.name = name
        self.known = tuple(known)
        super().__init__(
            f"no backend is called {name!r}; there are: {', '.join(self.known) or 'none'}. Install "
            "the package that has it, or reinstall tzero-runtime if it is one of its own."
        )


class CompileFailed(TzeroError):
    """A kernel does not compile. The compiler's own exception is the cause where it could travel,
    and its traceback is in the message where not.

    >>> print(CompileFailed(kernel="add", problem="NameError: BLOCK is not defined", trace=""))
    add: it does not compile: NameError: BLOCK is not defined. Mend the kernel; to debug the \
compiler in this process, set TZERO_COMPILE_WORKERS=1.
    """

    def __init__(self, *, kernel: str, problem: str, trace: str) -> None:
        self.kernel = kernel
        self.problem = problem
        self.trace = trace
        end = "" if problem.endswith((".", "!", "?")) else "."
        where = f"\nIn the worker:\n{trace.rstrip()}" if trace else ""
        super().__init__(
            f"{kernel}: it does not compile: {problem}{end} Mend the kernel; to debug the compiler "
            f"in this process, set TZERO_COMPILE_WORKERS=1.{where}"
        )


class WorkerDied(TzeroError):
    """The worker process that compiled a kernel ended before it was done. Others go on.

    >>> print(WorkerDied(kernel="add", how="killed by SIGKILL (out of memory?)"))
    add: the worker process that compiled it was lost: killed by SIGKILL (out of memory?). A new \
one takes its place, so the next compile works; to compile this one in the main process, set \
TZERO_COMPILE_WORKERS=1.
    """

    def __init__(self, *, kernel: str, how: str) -> None:
        self.kernel = kernel
        self.how = how
        super().__init__(
            f"{kernel}: the worker process that compiled it was lost: {how}. A new one takes its "
            "place, so the next compile works; to compile this one in the main process, set "
            "TZERO_COMPILE_WORKERS=1."
        )


class CompileTimeout(TzeroError, TimeoutError):
    """A compile took longer than it may, and was stopped.

    >>> print(CompileTimeout(kernel="add", seconds=600))
    add: its compile was stopped after 600 s. Set TZERO_COMPILE_TIMEOUT to more seconds, or to 0 \
for no limit.
    """

    def __init__(self, *, kernel: str, seconds: float) -> None:
        self.kernel = kernel
        self.seconds = seconds
        super().__init__(
            f"{kernel}: its compile was stopped after {seconds:g} s. Set TZERO_COMPILE_TIMEOUT to "
            "more seconds, or to 0 for no limit."
        )


class CacheRefused(TzeroError):
    """A cache directory is not private, so what it holds could be anyone's code.

    >>> print(CacheRefused(path="/data/cache", problem="others may write to it",
    ...                    cure="chmod 700 /data/cache"))
    the cache directory /data/cache is not used: others may write to it. Cure: chmod 700 \
/data/cache, or set TZERO_CACHE_DIR to a directory of your own.
    """

    def __init__(self, *, path: str, problem: str, cure: str) -> None:
        self.path = path
        self.problem = problem
        self.cure = cure
        super().__init__(
            f"the cache directory {path} is not used: {problem}. Cure: {cure}, or set "
            "TZERO_CACHE_DIR to a directory of your own."
        )


class PretunedDamaged(TzeroError, ValueError):
    """A file, or a table, of pretuned configs that cannot be used, and what is wrong with it.

    >>> print(PretunedDamaged(source="pretuned.json", problem="entry 3 has no 'hardware'"))
    pretuned.json cannot be used: entry 3 has no 'hardware'. Correct it, or tune again and write \
it anew.
    """

    def __init__(self, *, source: str, problem: str) -> None:
        self.source = source
        self.problem = problem
        super().__init__(
            f"{source} cannot be used: {problem}. Correct it, or tune again and write it anew."
        )


class TuningFailed(TzeroError):
    """No config of a kernel can be used; `problems` has the reason for each.

    >>> print(TuningFailed(kernel="matmul", problems={"Config(BLOCK=4096)": "out of memory"}))
    matmul: none of its configs can be used. Give it one that works, or correct what they have in \
common.
      Config(BLOCK=4096): out of memory
    """

    def __init__(self, *, kernel: str, problems: Mapping[str, str]) -> None:
        self.kernel = kernel
        self.problems = dict(problems)
        rows = [f"\n  {config}: {problem}" for config, problem in list(problems.items())[:_SHOWN]]
        more = len(problems) - len(rows)
        rows += [f"\n  and {more} more"] * (more > 0)
        super().__init__(
            f"{kernel}: none of its configs can be used. Give it one that works, or correct what "
            f"they have in common.{''.join(rows)}"
        )


_SHOWN = 10


class KernelAssertion(TzeroError, AssertionError):
    """A ``tl.device_assert`` was false while a kernel ran on the CPU.

    >>> print(KernelAssertion(message="index < size", kernel="gather", file="model.py", line=40,
    ...                       program=(3, 0, 0)))
    gather: device_assert failed at model.py:40 in program (3, 0, 0): index < size. What the \
launch wrote is incomplete; correct the arguments of that program, or the condition.
    """

    def __init__(
        self,
        *,
        message: str,
        kernel: str,
        program: Program,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        self.message = message
        self.kernel = kernel
        self.program = program
        self.file = file
        self.line = line
        super().__init__(
            f"{kernel}: device_assert failed{_place(file, line)} in program {program}: "
            f"{message or '(no message)'}. What the launch wrote is incomplete; correct the "
            "arguments of that program, or the condition."
        )


class OutOfBounds(TzeroError, IndexError):
    """Checked mode stopped an access outside the tensor it came from, before it happened.

    ``offset`` counts elements from the pointer that was passed; ``size``, where it is known, is
    how many elements there are from there.

    >>> print(OutOfBounds(kernel="add", argument="x_ptr", offset=1000, size=1000, file="model.py",
    ...                   line=9, program=(0, 0, 0)))
    add: argument 'x_ptr': element offset 1000 is outside its tensor, which has 1000 elements \
(at model.py:9, program (0, 0, 0)). Nothing was touched there; mask the load or store, or pass a \
larger tensor.
    """

    def __init__(
        self,
        *,
        kernel: str,
        argument: str,
        offset: int,
        program: Program,
        size: int | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.argument = argument
        self.offset = offset
        self.program = program
        self.size = size
        self.file = file
        self.line = line
        extent = "" if size is None else f", which has {size} elements"
        place = _place(file, line).lstrip()
        where = f"{place}, program {program}" if place else f"program {program}"
        super().__init__(
            f"{kernel}: argument {argument!r}: element offset {offset} is outside its tensor"
            f"{extent} ({where}). Nothing was touched there; mask the load or store, or pass a "
            "larger tensor."
        )


class InvalidSetting(TzeroError, ValueError):
    """An environment variable, or an override of a setting, has a value that means nothing.

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
    """A host function, or an option of :func:`tzero.kernel`, cannot be made a kernel of.

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
    """A kernel was called with an argument, or a number of arguments, that it does not take.

    >>> print(InvalidArgument(kernel="add", argument="y", problem="is on cuda:1, but 'x' on cuda:0",
    ...                       advice="Move one of them."))
    add: argument 'y' is on cuda:1, but 'x' on cuda:0. Move one of them.
    """

    def __init__(
        self, *, kernel: str, problem: str, advice: str, argument: str | None = None
    ) -> None:
        self.kernel = kernel
        self.argument = argument
        self.problem = problem
        self.advice = advice
        subject = "" if argument is None else f"argument {argument!r} "
        super().__init__(f"{kernel}: {subject}{problem}. {advice}")


class UnsupportedType(TzeroError, TypeError):
    """A value is of a type that cannot be part of a key. Who knows the kernel and the argument
    makes an :class:`InvalidArgument` of it; `named` is the kind of value with its article.

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
    """`specialize` was called while no kernel's host function was running.

    >>> print(NotInKernel(what="specialize"))
    specialize was called outside a kernel. Call it in a host function under @tzero.kernel, or in \
what that calls.
    """

    def __init__(self, *, what: str) -> None:
        self.what = what
        super().__init__(
            f"{what} was called outside a kernel. Call it in a host function under @tzero.kernel, "
            "or in what that calls."
        )


class LaunchFailed(TzeroError, RuntimeError):
    """The driver refused to launch a kernel.

    >>> print(LaunchFailed(kernel="add", name="CUDA_ERROR_INVALID_VALUE", text="invalid argument",
    ...                    grid=(1, 70000, 1), block=128, shared=0))
    add: the driver refused the launch: CUDA_ERROR_INVALID_VALUE (invalid argument), with a grid \
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
    ) -> None:
        self.kernel = kernel
        self.name = name
        self.text = text
        self.grid = grid
        self.block = block
        self.shared = shared
        super().__init__(
            f"{kernel}: the driver refused the launch: {name} ({text}), with a grid of {grid}, "
            f"{block} threads a block and {shared} bytes of shared memory. Check the grid against "
            "the device's limits; if an earlier kernel failed, run with CUDA_LAUNCH_BLOCKING=1 to "
            "see which."
        )


class PlanDrift(TzeroError):
    """A call did something else than the plan that was made of the same call before. Raised in
    verify mode (``TZERO_VERIFY=1``), where every call is recorded again; and in a replay, where a
    function of torch's returns other sizes than when it was recorded.

    >>> print(PlanDrift(kernel="add", fact="step 1", before="launch k[(3, 1, 1)](x, t1)",
    ...                 now="launch k[(4, 1, 1)](x, t1)"))
    add: step 1 is not what the plan has: launch k[(4, 1, 1)](x, t1), and it was launch \
k[(3, 1, 1)](x, t1). The host function depends on something besides its arguments, globals and \
closures: make that an argument, or part of what key= returns.
    """

    def __init__(self, *, kernel: str, fact: str, before: str, now: str) -> None:
        self.kernel = kernel
        self.fact = fact
        self.before = before
        self.now = now
        super().__init__(
            f"{kernel}: {fact} is not what the plan has: {now}, and it was {before}. The host "
            "function depends on something besides its arguments, globals and closures: make that "
            "an argument, or part of what key= returns."
        )


class NativeMissing(TzeroError, ImportError):
    """Native launches were asked for, and the extension is not built.

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
    """A package that tzero works with is older than any that it supports.

    It is a RuntimeError too because Triton raises one where no driver is usable, and programs that
    look for a device catch that.

    >>> print(UnsupportedVersion(package="Triton", found="3.5.1", oldest="3.6",
    ...                          advice="run `pip install 'triton>=3.6'`"))
    Triton 3.5.1 is too old for tzero, which needs 3.6 or newer: run `pip install 'triton>=3.6'`.
    """

    def __init__(self, *, package: str, found: str, oldest: str, advice: str) -> None:
        self.package = package
        self.found = found
        self.oldest = oldest
        self.advice = advice
        super().__init__(
            f"{package} {found} is too old for tzero, which needs {oldest} or newer: {advice}."
        )


def _subject(kernel: str | None) -> str:
    return "" if kernel is None else f"{kernel}: "


def _place(file: str | None, line: int | None) -> str:
    if file is None:
        return ""
    return f" at {file}" if line is None else f" at {file}:{line}"
