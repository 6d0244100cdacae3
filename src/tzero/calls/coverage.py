"""What a process covers: the kernels that it uses, and the configs that its calls have chosen.

Enters: what backends and the tuner have noted. Leaves: a `Coverage`, as a table or as a JSON file;
from such a file, the same. It must not know how a bundle is built, nor who seals.

A file has the source text of kernels and of the functions that run while they compile: reading one
is as trusting as importing a module.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tzero.adapters.triton_launch import GPUTarget
from tzero.backends.triton import carried
from tzero.backends.triton.write_request import Written
from tzero.cache.digest import parse
from tzero.errors import InvalidArgument, PretunedDamaged
from tzero.shown import drawn, first_line, in_cells
from tzero.tune import bundled
from tzero.tune.records import Entry, Pretuned

__all__ = ["Coverage", "coverage"]

SCHEMA = 1
"""Of files; incremented when the format or its meaning changes."""

_PARTS = {
    *("attributes", "constants", "knobs", "name", "options", "signature"),
    *("tables", "target", "variables"),
}
_PLACES = {"files", "libraries"}

_WRONG = (
    *(ValueError, LookupError, TypeError, AttributeError),
    *(RecursionError, SyntaxError, PretunedDamaged),
)
"""What reading a file raises whose contents are wrong: its text may nest without end, too."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The kernels and configs that a process uses; printed as a table.

    >>> print(Coverage((), ()))
    nothing is covered: no kernel was compiled or loaded through tzero
    """

    kernels: tuple[Written, ...]
    """One for each kernel, specialization, set of constants and set of options."""
    configs: tuple[Entry, ...]
    """The configs that were chosen."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, from which `tzero bundle build --coverage` compiles everything.

        ::

            tzero.coverage().save("coverage.json")
        """
        texts = {_short(each.parts["tables"]): each.parts["tables"] for each in self.kernels}
        rows = [
            {
                "name": each.name,
                "parts": {**each.parts, "tables": _short(each.parts["tables"])},
                "places": dict(each.places),
            }
            for each in self.kernels
        ]
        configs = json.loads(Pretuned(self.configs).encode())
        value = {"tzero_coverage": SCHEMA, "texts": texts, "kernels": rows, "configs": configs}
        Path(path).write_text(json.dumps(value, indent=1, sort_keys=True) + "\n", encoding="utf-8")

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Coverage:
        """The coverage of a file; `InvalidArgument` where its contents are wrong.

        ::

            Coverage.read("coverage.json")
        """
        name = os.fspath(path)
        try:
            value = json.loads(Path(path).read_text(encoding="utf-8"))
            if value["tzero_coverage"] != SCHEMA:
                raise ValueError(f"its schema is {value['tzero_coverage']!r}, not {SCHEMA}")
            kernels = tuple(_kernel(row, value["texts"]) for row in value["kernels"])
            configs = Pretuned.decode(json.dumps(value["configs"]).encode(), name).entries
        except _WRONG as error:
            raise InvalidArgument(
                kernel=name,
                problem=f"it is no file of coverage: {type(error).__name__}: {error}",
                advice="Write it again: tzero.coverage().save(path).",
            ) from error
        return Coverage(kernels, configs)

    def __len__(self) -> int:
        return len(self.kernels)

    def __str__(self) -> str:
        if not self.kernels and not self.configs:
            return "nothing is covered: no kernel was compiled or loaded through tzero"
        table = Table("kernel", "target", "arguments", "config", box=None)
        for each in self.kernels:
            target = f"{each.target.backend}:{each.target.arch}"
            table.add_row(Text(each.name), target, Text(_types(each)), "")
        for entry in self.configs:
            cells = (entry.hardware, entry.arguments, repr(entry.config))
            table.add_row(Text(entry.kernel), *map(Text, cells))
        whole = f"{len(self.kernels)} compiled kernels, {len(self.configs)} chosen configs"
        return f"{whole}\n{drawn(table, 200)}"

    __repr__ = first_line
    _repr_pretty_ = in_cells


def coverage() -> Coverage:
    """What this process covers so far: the kernels that were compiled or loaded through tzero, and
    the configs that were chosen. Print it, or save it for `tzero bundle build --coverage`.

    ::

        print(tzero.coverage())
        tzero.coverage().save("coverage.json")
    """
    return Coverage(carried.covered(), bundled.chosen())


def _types(made: Written) -> str:
    words = carried.described(made).items()
    arguments = [(k.removeprefix("argument "), v) for k, v in words if k.startswith("argument ")]
    return ", ".join(f"{k}: {v}" for k, v in arguments)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _kernel(row: Any, texts: Any) -> Written:
    parts = {**row["parts"], "tables": texts[row["parts"]["tables"]]}
    places = dict(row["places"])
    if parts.keys() != _PARTS or places.keys() != _PLACES:
        raise ValueError(f"the kernel {row['name']!r} has other parts")
    for text in (*parts.values(), *places.values()):
        parse(text)
    _check_arguments(row["name"], parse(parts["signature"]), parse(parts["tables"]))
    backend, arch, warp = parse(parts["target"])
    return Written(row["name"], GPUTarget(backend, arch, warp), parts, places)


def _check_arguments(name: str, signature: Any, tables: Any) -> None:
    """Raise unless the types are those of the arguments that the source of the kernel has."""
    (function,) = ast.parse(tables["functions"][0]["source"]).body
    if not isinstance(function, ast.FunctionDef):
        raise ValueError(f"the source of the kernel {name!r} is no function")
    every = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    taken, typed = [each.arg for each in every], [argument for argument, _ in signature]
    if taken != typed:
        raise ValueError(f"the kernel {name!r} takes {taken}, and has types for {typed}")
