"""Errors keep their facts, say what to do, and survive copying and pickling."""

from __future__ import annotations

import copy
import pickle

import pytest

import tzero
from tzero import errors
from tzero.errors import TzeroError

# Each error, what its message must name, and what it must advise.
EACH: list[tuple[TzeroError, list[str], str]] = [
    (
        errors.UnsupportedOperation(
            operation="tt.call", advice="Inline it.", file="k.py", line=3, kernel="k"
        ),
        ["k: ", "tt.call", "k.py:3"],
        "Inline it.",
    ),
    (
        errors.UnsupportedOperation(operation="tt.call", advice="Inline it."),
        ["'tt.call'"],
        "Inline",
    ),
    (
        errors.CompilerMissing(searched=["cc", "gcc"]),
        ["cc, gcc", "tzero-runtime[zig]"],
        "Install gcc",
    ),
    (
        errors.ToolchainMissing(backend="hip", searched=["hipcc"], advice="Install hipcc."),
        ["hip backend", "looked for: hipcc"],
        "Install hipcc.",
    ),
    (errors.BackendMissing(name="x", known=["cpp"]), ["'x'", "there are: cpp"], "Install the"),
    (
        errors.CompileFailed(kernel="k", problem="no BLOCK", trace="line 3\n"),
        ["k: does not compile: no BLOCK.", "In the worker:\nline 3"],
        "Fix the kernel",
    ),
    (errors.PretunedDamaged(source="p.json", problem="torn"), ["p.json", "torn"], "Correct it"),
    (
        errors.TuningFailed(kernel="k", problems={"Config(B=1)": "no memory"}),
        ["k: none of its configs", "Config(B=1): no memory"],
        "Add one that does",
    ),
    (errors.WorkerDied(kernel="k", how="killed by SIGSEGV"), ["k: ", "SIGSEGV"], "set TZERO_"),
    (errors.CompileTimeout(kernel="k", seconds=2.5), ["k: ", "2.5 s"], "Set TZERO_"),
    (
        errors.CacheRefused(path="/c", problem="others may write to it", cure="chmod 700 /c"),
        ["/c is not used: others"],
        "Fix: chmod 700 /c",
    ),
    (
        errors.SealBroken(kernel="k", what="compile", difference="argument 'n' is 7"),
        ["k: ", "needs a compile", "argument 'n' is 7"],
        "k.warmup",
    ),
    (
        errors.BundleRefused(path="/b.tzb", problem="it is cut off", advice="Build it again."),
        ["/b.tzb is not used: it is cut off"],
        "Build it again.",
    ),
    (
        errors.CompilerFailed(kernel="k", command=["cc", "a b.c"], output="bad\nworse\n"),
        ["k: ", "cc 'a b.c'", "  bad\n  worse"],
        "set TZERO_CC",
    ),
    (errors.CompilerFailed(kernel="k", command=["cc"], output=""), ["(no output)"], "report it"),
    (
        errors.KernelAssertion(message="n > 0", kernel="k", file="k.py", line=8, program=(1, 2, 3)),
        ["k: ", "n > 0", "k.py:8", "(1, 2, 3)"],
        "correct the arguments",
    ),
    (
        errors.OutOfBounds(
            kernel="k", argument="x", offset=-1, size=10, file="k.py", line=5, program=(0, 0, 0)
        ),
        ["k: ", "'x'", "offset -1", "10 elements", "k.py:5", "(0, 0, 0)"],
        "mask the load or store",
    ),
    (
        errors.OutOfBounds(kernel="k", argument="x", offset=7, program=(4, 0, 0)),
        ["offset 7", "(program (4, 0, 0))"],
        "mask the load or store",
    ),
    (
        errors.InvalidSetting(name="TZERO_CPU", value="2", allowed="'0' or '1'"),
        ["TZERO_CPU", "'2'", "'0' or '1'"],
        "unset it",
    ),
    (
        errors.InvalidConfig(name="BLOCK", value=[], allowed="a number"),
        ["BLOCK", "[]", "a number"],
        "Give it",
    ),
    (
        errors.InvalidKernel(kernel="k", problem="it takes *xs", advice="Name them."),
        ["k ", "*xs"],
        "Name them.",
    ),
    (
        errors.InvalidArgument(kernel="k", argument="x", problem="is a set", advice="Pass a list."),
        ["k: ", "'x'", "is a set"],
        "Pass a list.",
    ),
    (
        errors.InvalidArgument(kernel="k", problem="missing 'y'", advice="It takes x, y."),
        ["k: missing 'y'"],
        "It takes",
    ),
    (errors.UnsupportedType(kind="set"), ["a set cannot"], "Pass tensors"),
    (
        errors.UnsupportedType(kind="object that holds itself", advice="Pass one that ends."),
        ["an object that holds itself"],
        "Pass one that ends.",
    ),
    (errors.NotInKernel(what="specialize"), ["specialize", "outside a kernel"], "Call it in a"),
    (
        errors.LaunchFailed(
            kernel="k", name="CUDA_ERROR_X", text="no", grid=(1, 2, 3), block=64, shared=5
        ),
        ["k: ", "CUDA_ERROR_X", "(no)", "(1, 2, 3)", "64 threads", "5 bytes"],
        "Check the grid",
    ),
    (
        errors.PlanDrift(kernel="k", fact="step 1", before="launch a", now="launch b"),
        ["k: ", "step 1", "launch a", "launch b"],
        "make that an argument",
    ),
    (
        errors.UnsupportedVersion(package="Triton", found="3.5", oldest="3.6", advice="run pip"),
        ["Triton 3.5 is too old", "needs 3.6"],
        "run pip",
    ),
    (errors.NativeMissing(), ["without its native extension"], "TZERO_TIER=1"),
]
ERRORS = [error for error, _, _ in EACH]


def test_the_table_has_every_error() -> None:
    classes = {getattr(errors, name) for name in errors.__all__} - {TzeroError}
    assert {type(error) for error in ERRORS} == classes


def test_every_error_is_exported_in_the_order_of_the_classes() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    assert [each.__name__ for each in classes if issubclass(each, TzeroError)] == errors.__all__
    assert all(getattr(tzero, name) is getattr(errors, name) for name in errors.__all__)


@pytest.mark.parametrize(("error", "facts", "advice"), EACH)
def test_a_message_names_the_facts_and_says_what_to_do(
    error: TzeroError, facts: list[str], advice: str
) -> None:
    message = str(error)
    assert [fact for fact in facts if fact not in message] == []
    assert advice in message


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_survives_pickle(error: TzeroError, protocol: int) -> None:
    assert_equal_errors(pickle.loads(pickle.dumps(error, protocol)), error)


@pytest.mark.parametrize("error", ERRORS)
def test_an_error_survives_copies(error: TzeroError) -> None:
    assert_equal_errors(copy.copy(error), error)
    assert_equal_errors(copy.deepcopy(error), error)


def test_notes_survive_copying_and_pickling() -> None:
    error = errors.CompilerMissing(searched=["cc"])
    error.add_note("while compiling k")
    assert copy.deepcopy(error).__notes__ == ["while compiling k"]
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["while compiling k"]


def test_a_copy_shares_no_mutable_state() -> None:
    error = errors.CompilerMissing(searched=["cc"])
    error.add_note("first")
    for twin in (copy.copy(error), copy.deepcopy(error)):
        twin.add_note("second")
    assert copy.deepcopy(error).__notes__[0] == "first"


def test_errors_are_also_the_built_in_exceptions_that_fit() -> None:
    assert issubclass(errors.KernelAssertion, AssertionError)
    assert issubclass(errors.KernelAssertion, RuntimeError)
    assert issubclass(errors.OutOfBounds, IndexError)
    assert issubclass(errors.InvalidSetting, ValueError)
    assert all(isinstance(error, TzeroError) for error in ERRORS)


def assert_equal_errors(twin: TzeroError, error: TzeroError) -> None:
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)
