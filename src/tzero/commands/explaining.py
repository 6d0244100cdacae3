"""`tzero explain`: calls a function as a kernel, and explains how its calls are made.

Enters: ``module:function`` or ``file.py:function``, and the arguments of a call as text. Leaves: an
`Explanation`. It must not know how calls are made.
"""

from __future__ import annotations

import ast
import importlib
import runpy
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from tzero.errors import InvalidArgument

__all__ = ["explain"]

CALLS = 3
"""How often the function is called before the next call is explained: bound, recorded, replayed."""


def explain(place: str, arguments: str = "") -> Any:
    """Call a function of a module or a file three times, and explain the next call. What it raises
    is raised here.

    ::

        print(explain("package.ops:softmax", "torch.randn(8, 64), dim=-1"))

    The arguments are Python code, which sees the names of the module, `torch`, and `device`, where
    Triton's kernels run.
    """
    if not arguments:
        _check_source(place)
    function, names = _found(place)
    kernel = _as_kernel(function, place)
    given = _arguments(arguments, names)
    if not arguments:
        _check_takes_none(kernel, place)
    for _ in range(CALLS):
        args, kwargs = given()
        kernel(*args, **kwargs)
    args, kwargs = given()
    return kernel.explain(*args, **kwargs)


Given = tuple[tuple[Any, ...], dict[str, Any]]


def _arguments(text: str, names: dict[str, Any]) -> Callable[[], Given]:
    """What computes the arguments of a call from their text, anew for each call."""
    try:
        code = compile(f"(lambda *args, **kwargs: (args, kwargs))({text})", "--call", "eval")
    except SyntaxError as error:
        problem = f"--call {text!r} is no Python: {error.msg}"
        raise _invalid(problem, "Write what stands between the parentheses of a call") from error

    def given() -> Given:
        try:
            found: Given = eval(code, names)
        except Exception as error:
            problem = f"--call {text!r} raises {type(error).__name__}: {error}"
            raise _invalid(problem, "It sees the names of the module, torch and device") from error
        return found

    return given


def _check_takes_none(kernel: Any, place: str) -> None:
    """Refuse a function that needs arguments, where none are given."""
    try:
        kernel.explain()
    except InvalidArgument as error:
        raise _needs(place, f"{error.advice[:1].lower()}{error.advice[1:-1]}") from error


def _needs(place: str, what: str) -> InvalidArgument:
    advice = "Give those of a call, such as --call 'torch.randn(8, 64), 2.0'"
    return _invalid(f"{place} needs arguments: {what}", advice)


def _check_source(place: str) -> None:
    """Refuse a function that needs arguments before anything runs, if its source alone says so: it
    is defined once, below nothing, and nothing that may add arguments is around it."""
    where, _, name = place.rpartition(":")
    text = _source_of(where)
    try:
        body = ast.parse(text).body if text else []
    except SyntaxError:
        return  # running the file says so
    found = [each for each in body if isinstance(each, ast.FunctionDef) and each.name == name]
    if len(found) != 1 or any(ast.unparse(d) != "tzero.kernel" for d in found[0].decorator_list):
        return
    if any(name in _assigned(each) for each in body):
        return
    given = found[0].args
    names = [each.arg for each in (*given.posonlyargs, *given.args)]
    needed = names[: len(names) - len(given.defaults)]
    only = zip(given.kwonlyargs, given.kw_defaults, strict=True)
    needed += [each.arg for each, default in only if default is None]
    if needed:
        raise _needs(place, f"it takes {', '.join(needed)}")


def _source_of(where: str) -> str:
    """The source of a file, or of a module that is found without importing a package."""
    if not where.endswith(".py"):
        spec = None if "." in where else PathFinder.find_spec(where, [str(Path.cwd()), *sys.path])
        where = "" if spec is None or not spec.has_location else str(spec.origin)
    path = Path(where)
    if path.suffix != ".py" or not path.is_file():
        return ""
    return path.read_text(encoding="utf-8", errors="replace")


def _assigned(statement: ast.stmt) -> set[str]:
    """The names that a statement assigns, imports or deletes, functions left out."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return set() if isinstance(statement, ast.FunctionDef) else {statement.name}
    found = {
        each.id
        for each in ast.walk(statement)
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)
    }
    for each in ast.walk(statement):
        if isinstance(each, ast.alias):
            found.add((each.asname or each.name).partition(".")[0])
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(each.name)
    return found


def _found(place: str) -> tuple[Any, dict[str, Any]]:
    """The function, and the names that its arguments may use."""
    import torch
    import triton

    where, colon, path = place.rpartition(":")
    if not colon or not where or not path:
        raise _invalid(f"{place!r} names no function", "Write module:function or file.py:function")
    if where.endswith(".py"):
        if not Path(where).is_file():
            raise _invalid(f"there is no file {where!r}", "Give the path of a Python file")
        sys.path.insert(0, str(Path(where).resolve().parent))
        names = runpy.run_path(where, run_name=Path(where).stem)
    else:
        sys.path.insert(0, str(Path.cwd()))
        names = dict(vars(_imported(where)))
    first, *rest = path.split(".")
    found = names.get(first, _nothing)
    for name in rest:
        found = getattr(found, name, _nothing)
    if found is _nothing:
        raise _invalid(f"{where} has no {path!r}", "Give the name of a function in it")
    names.setdefault("torch", torch)
    names.setdefault("device", triton.runtime.driver.active.get_active_torch_device())
    return found, names


_nothing = object()


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # a module that this one imports
        advice = "Give one that Python finds from here, or file.py:function"
        raise _invalid(f"there is no module {name!r}", advice) from error


def _as_kernel(function: Any, place: str) -> Any:
    from tzero.api.decorators import kernel
    from tzero.calls.kernel import Kernel

    if isinstance(function, Kernel):
        return function
    if isinstance(function, type) or not callable(function) or hasattr(function, "arg_names"):
        kind = type(function).__name__
        what = f"a Triton kernel ({kind})" if hasattr(function, "arg_names") else f"of type {kind}"
        problem = f"{place} is {what}, not a function that launches kernels"
        raise _invalid(problem, "Give the function that calls kernel[grid](...)")
    return kernel(function)


def _invalid(problem: str, advice: str) -> InvalidArgument:
    return InvalidArgument(kernel="explain", problem=problem, advice=f"{advice}.")
