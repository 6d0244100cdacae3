"""The arguments of one launch to the facts that select its binary.

    k[grid](x, y, n, BLOCK=64, num_warps=4)
      ── exact types ──► a function generated for those types ──► facts (a tuple), addresses
                      └► the first time: the facts alone, without generating one

Enters: arguments as they are written in a launch. Leaves: facts, equal for two launches only if
Triton would run the same binary for both; and, for a launcher that takes addresses, the arguments
in order with addresses in place of tensors. It must not know what is done with either.

The facts of a tensor are its dtype and whether 16 divides its address (column `launch` of
`tensor_facts`); of an integer, whether it is 1, a multiple of 16, and its width; of a constant, its
type and value; of anything else, Triton's own description. The functions are generated for the same
reason as those of `extract`.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

from tzero.adapters import triton_launch
from tzero.adapters.triton_launch import Parameter
from tzero.arguments.scalars import LAUNCHED

__all__ = ["Reader"]

_MOST_PATTERNS = 256
"""How many functions a kernel keeps; beyond that, Triton's descriptions are used."""

Facts = tuple[Any, ...]
Values = tuple[Any, ...] | None


class Reader:
    """Reads the arguments of one kernel's launches.

    ::

        reader = Reader("add", triton_launch.parameters(add_kernel), backend)
        facts, values = reader.read(x, y, out, n, BLOCK=1024)

    With `addresses`, values are those of all parameters, with addresses in place of tensors, and
    whether a tensor is on the CPU is a fact; but None if an argument is neither a plain tensor nor
    a plain number. Without, values are None.
    """

    def __init__(
        self,
        kernel: str,
        parameters: Sequence[Parameter],
        backend: Any,
        *,
        addresses: bool = False,
    ) -> None:
        self._kernel = kernel
        self.addresses = addresses
        self._alone = triton_launch.cpu_is_alone()
        self.takes = tuple(parameters)
        """The parameters."""
        self._backend = backend
        self._tensors = (
            triton_launch.tensor_types() if triton_launch.plain_alignment(backend) else ()
        )
        self._written: dict[tuple[type, ...], Callable[..., tuple[Facts, Values]]] = {}
        self._numbers = itertools.count()
        self._met: dict[tuple[type, ...], int] = {}  # types, and their number
        self._general: Callable[..., tuple[Facts, Values]] | None = None
        self.reserves = {p.name for p in parameters} & {"grid", "warmup"}
        """Parameters that can only be passed by position: Triton uses their names itself."""
        self.named: Callable[..., dict[str, Any]] = self._write_named()
        """The arguments of a launch by the names of the parameters."""
        self.read: Callable[..., tuple[Facts, Values]] = self._choose
        """Facts and values of a launch. Options are facts too."""

    def _choose(self, *args: Any, **kwargs: Any) -> tuple[Facts, Values]:
        """Read arguments whose types differ from those of the last launch."""
        named = self.named(*args, **kwargs)
        types = tuple(map(type, named.values()))
        found = self._written.get(types)
        if found is None:
            if len(self._met) >= _MOST_PATTERNS and types not in self._met:
                return self._any(*args, **kwargs)
            if types not in self._met:
                return self._first(types, named, kwargs), None
            found = self._written[types] = self._write(types)
        self.read = found
        return found(*args, **kwargs)

    def _first(
        self, types: tuple[type, ...], named: Mapping[str, Any], kwargs: Mapping[str, Any]
    ) -> Facts:
        """The facts of arguments of types that were not met before. Native code makes the next
        launches, so that a function generated for these types would usually not be called again."""
        number = self._met.setdefault(types, next(self._numbers))
        facts: Facts = (number,)
        for kind, parameter, value in zip(types, self.takes, named.values(), strict=True):
            world: dict[str, Any] = {"_tz_type": type, "_tz_value": value}
            code = self._expression(0, parameter._replace(name="_tz_value"), kind, world)
            if code:
                facts += eval(_compiled(code), world)
        options = {name: value for name, value in kwargs.items() if name not in named}
        return facts + _given(options) if options else facts

    def _any(self, *args: Any, **kwargs: Any) -> tuple[Facts, Values]:
        """Read arguments of any types."""
        if self._general is None:
            self._general = self._write(None)
        return self._general(*args, **kwargs)

    def _write_named(self) -> Callable[..., dict[str, Any]]:
        namespace: dict[str, Any] = {}
        items = ", ".join(f"{p.name!r}: {p.name}" for p in self.takes)
        source = f"def named({_signature(self.takes, namespace)}):\n return {{{items}}}"
        exec(compile(source, f"<arguments of {self._kernel}>", "exec"), namespace)
        written: Callable[..., dict[str, Any]] = namespace["named"]
        return written

    def _write(self, types: tuple[type, ...] | None) -> Callable[..., tuple[Facts, Values]]:
        """Generate a function for arguments of these types, or for any."""
        # Names of parameters may hide builtins, so the code uses names with a prefix.
        namespace: dict[str, Any] = {
            "_tz_other": self._choose,
            "_tz_type": type,
            "_tz_given": _given,
        }
        checks, facts = [], []
        for k, parameter in enumerate(self.takes):
            kind = None if types is None else types[k]
            if kind is not None:
                namespace[f"_tz_t{k}"] = kind
                checks.append(f"_tz_type({parameter.name}) is not _tz_t{k}")
            facts.append(self._expression(k, parameter, kind, namespace))
        lines = [f"def read({_signature(self.takes, namespace)}):"]
        if checks:
            again = ", ".join([*_passed_on(self.takes), "**_tz_options"])
            lines += [f" if {' or '.join(checks)}:", f"  return _tz_other({again})"]
        # Stands for the types: each function has its own number.
        number = next(self._numbers) if types is None else self._met[types]
        facts.insert(0, str(number))
        lines += [
            f" _tz_facts = ({''.join(f'{fact}, ' for fact in facts if fact)})",
            " if _tz_options:",
            "  _tz_facts += _tz_given(_tz_options)",
            f" return _tz_facts, {self._values(types)}",
        ]
        exec(compile("\n".join(lines), f"<arguments of {self._kernel}>", "exec"), namespace)
        written: Callable[..., tuple[Facts, Values]] = namespace["read"]
        return written

    def _values(self, types: tuple[type, ...] | None) -> str:
        """Code for the values that a function for these types returns."""
        words = []
        for k, parameter in enumerate(self.takes):
            kind = None if types is None else types[k]
            if not self.addresses or not (
                parameter.constant or kind in (*self._tensors, *LAUNCHED)
            ):
                return "None"
            is_address = kind in self._tensors and not parameter.constant
            words.append(f"_tz_a{k}" if is_address else parameter.name)
        values = f"({''.join(f'{word}, ' for word in words)})"
        known = [word for word in words if word.startswith("_tz_a")]
        # An address of 0 may belong to a meta tensor, or to one whose storage was freed: no values.
        # Without an accelerator, any other address is on the CPU.
        return f"{values} if {' and '.join(known)} else None" if known else values

    def _expression(
        self, k: int, parameter: Parameter, kind: type | None, namespace: dict[str, Any]
    ) -> str:
        """Code for the facts of one argument, as items of a tuple."""
        name = parameter.name
        if parameter.constant:
            return f"_tz_type({name}), {name}" if kind is None else name
        if kind in self._tensors:
            address = f"(_tz_a{k} := {name}.data_ptr())" if self.addresses else f"{name}.data_ptr()"
            place = f", {name}.is_cpu" if self.addresses and not self._alone else ""
            if parameter.specialize:
                return f"{name}.dtype, {address} & 15 == 0{place}"
            return f"{name}.dtype{f', {address} is None' if self.addresses else ''}{place}"
        if kind is int:
            # What is beyond 64 bits fits no type; Triton raises the error.
            signed = f"-0x8000000000000000 <= {name} <= 0x7FFFFFFFFFFFFFFF"
            width = f"-0x80000000 <= {name} <= 0x7FFFFFFF or ({signed}, 0 <= {name} < 1 << 64)"
            special = f", {name} == 1, {name} & 15 == 0" if parameter.specialize else ""
            return f"{width}{special}"
        if kind in LAUNCHED:
            return ""
        namespace["_tz_describe"], namespace["_tz_backend"] = (
            triton_launch.specialization,
            self._backend,
        )
        namespace[f"_tz_p{k}"] = parameter
        return f"_tz_type({name}), _tz_describe(_tz_backend, {name}, _tz_p{k})"


@functools.cache
def _compiled(items: str) -> CodeType:
    """The facts of one argument, for `eval`."""
    return compile(f"({items},)", "<an argument>", "eval")


def _given(options: Mapping[str, Any]) -> Facts:
    """Options as facts: Triton compares their text."""
    return tuple((name, type(value), repr(value)) for name, value in options.items())


def _signature(parameters: Sequence[Parameter], namespace: dict[str, Any]) -> str:
    """The kernel's signature, and options."""
    words = []
    for k, parameter in enumerate(parameters):
        word = parameter.name
        if parameter.keyword_only and "*" not in words:
            words.append("*")
        if parameter.default is not inspect.Parameter.empty:
            namespace[f"_tz_d{k}"] = parameter.default
            word += f"=_tz_d{k}"
        words.append(word)
    return ", ".join([*words, "**_tz_options"])


def _passed_on(parameters: Sequence[Parameter]) -> list[str]:
    return [f"{p.name}={p.name}" if p.keyword_only else p.name for p in parameters]
