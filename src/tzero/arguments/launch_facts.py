"""The arguments of one launch to what decides its binary.

    k[grid](x, y, n, BLOCK=64, num_warps=4)
      ── exact types ──► a function written for that pattern ──► facts (a tuple), addresses

Enters: arguments as they are written in a call. Leaves: facts, equal for two launches only if
Triton would run the same binary for both; and, for a launcher that takes addresses, the arguments
in order with addresses in place of tensors. It must not know what is done with either.

Of a tensor: its dtype and whether 16 divides its address. Of an integer: whether it is one, a
multiple of 16, and how wide. Of a constant: its type and itself. Of anything else that Triton
takes: Triton's own description of it. The functions are written as `extract` writes those
for keys, and for the same reason.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from tzero.adapters import triton_launch
from tzero.adapters.triton_launch import Parameter

__all__ = ["Reader"]

_MOST_PATTERNS = 256
"""How many patterns of types a kernel keeps functions for; beyond, Triton's description serves."""

_PLAIN = (int, float, bool, type(None))

Facts = tuple[Any, ...]
Values = tuple[Any, ...] | None


class Reader:
    """Reads the arguments of one kernel's launches.

    ::

        reader = Reader("add", triton_side.parameters(add_kernel), backend)
        facts, values = reader.read(x, y, out, n, BLOCK=1024)

    With `addresses`, values are those of all parameters, with addresses in place of tensors, and
    whether these are the CPU's is a fact; but None where an argument is neither a plain tensor nor
    a plain number. Without, they are None always.
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
        self._parameters = tuple(parameters)
        self._backend = backend
        self._tensors = (
            triton_launch.tensor_types() if triton_launch.plain_alignment(backend) else ()
        )
        self._written: dict[tuple[type, ...], Callable[..., tuple[Facts, Values]]] = {}
        self._numbers = itertools.count()
        self._any = self._write(None)
        self.reserves = {p.name for p in parameters} & {"grid", "warmup"}
        """Parameters that only a place can give: the names are Triton's own."""
        self.named: Callable[..., dict[str, Any]] = self._write_named()
        """The arguments of a launch by the names of the parameters."""
        self.read: Callable[..., tuple[Facts, Values]] = self._choose
        """Facts and values of a launch. Options, which are no parameters, are facts too."""

    def _choose(self, *args: Any, **kwargs: Any) -> tuple[Facts, Values]:
        """Read arguments whose types are not those of the call before."""
        types = tuple(map(type, self.named(*args, **kwargs).values()))
        found = self._written.get(types)
        if found is None:
            if len(self._written) >= _MOST_PATTERNS:
                return self._any(*args, **kwargs)
            found = self._written[types] = self._write(types)
        self.read = found
        return found(*args, **kwargs)

    def _write_named(self) -> Callable[..., dict[str, Any]]:
        world: dict[str, Any] = {}
        items = ", ".join(f"{p.name!r}: {p.name}" for p in self._parameters)
        source = f"def named({_signature(self._parameters, world)}):\n return {{{items}}}"
        exec(compile(source, f"<arguments of {self._kernel}>", "exec"), world)
        written: Callable[..., dict[str, Any]] = world["named"]
        return written

    def _write(self, types: tuple[type, ...] | None) -> Callable[..., tuple[Facts, Values]]:
        """A function for arguments of these types, or for any."""
        # The names of parameters hide builtins, and so the functions use names of their own.
        world: dict[str, Any] = {
            "_tz_other": self._choose,
            "_tz_type": type,
            "_tz_given": _given,
        }
        checks, facts = [], []
        for k, parameter in enumerate(self._parameters):
            kind = None if types is None else types[k]
            if kind is not None:
                world[f"_tz_t{k}"] = kind
                checks.append(f"_tz_type({parameter.name}) is not _tz_t{k}")
            facts.append(self._expression(k, parameter, kind, world))
        lines = [f"def read({_signature(self._parameters, world)}):"]
        if checks:
            again = ", ".join([*_passed_on(self._parameters), "**_tz_options"])
            lines += [f" if {' or '.join(checks)}:", f"  return _tz_other({again})"]
        # One number stands for all the types; each function has its own.
        facts.insert(0, str(next(self._numbers)))
        lines += [
            f" _tz_facts = ({''.join(f'{fact}, ' for fact in facts if fact)})",
            " if _tz_options:",
            "  _tz_facts += _tz_given(_tz_options)",
            f" return _tz_facts, {self._values(types)}",
        ]
        exec(compile("\n".join(lines), f"<arguments of {self._kernel}>", "exec"), world)
        written: Callable[..., tuple[Facts, Values]] = world["read"]
        return written

    def _values(self, types: tuple[type, ...] | None) -> str:
        """What a function for these types returns as values."""
        words = []
        for k, parameter in enumerate(self._parameters):
            kind = None if types is None else types[k]
            if not self.addresses or not (parameter.constant or kind in (*self._tensors, *_PLAIN)):
                return "None"
            is_address = kind in self._tensors and not parameter.constant
            words.append(f"_tz_a{k}" if is_address else parameter.name)
        values = f"({''.join(f'{word}, ' for word in words)})"
        known = [word for word in words if word.startswith("_tz_a")]
        # Without an accelerator, memory that is somewhere is the CPU's; what is nowhere may be a
        # meta tensor's, and with one it may be that of a tensor whose elements are not there.
        return f"{values} if {' and '.join(known)} else None" if known else values

    def _expression(
        self, k: int, parameter: Parameter, kind: type | None, world: dict[str, Any]
    ) -> str:
        """What makes the facts of one argument, as items of a tuple."""
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
            # What is beyond all of these fits no type; Triton then says so.
            signed = f"-0x8000000000000000 <= {name} <= 0x7FFFFFFFFFFFFFFF"
            width = f"-0x80000000 <= {name} <= 0x7FFFFFFF or ({signed}, 0 <= {name} < 1 << 64)"
            special = f", {name} == 1, {name} & 15 == 0" if parameter.specialize else ""
            return f"{width}{special}"
        if kind in _PLAIN:
            return ""
        world["_tz_describe"], world["_tz_backend"] = triton_launch.specialization, self._backend
        world[f"_tz_p{k}"] = parameter
        return f"_tz_type({name}), _tz_describe(_tz_backend, {name}, _tz_p{k})"


def _given(options: dict[str, Any]) -> Facts:
    """Options as facts: Triton takes them by their text."""
    return tuple((name, type(value), repr(value)) for name, value in options.items())


def _signature(parameters: Sequence[Parameter], world: dict[str, Any]) -> str:
    """A signature that takes what the kernel's takes, and options."""
    words = []
    for k, parameter in enumerate(parameters):
        word = parameter.name
        if parameter.keyword_only and "*" not in words:
            words.append("*")
        if parameter.default is not inspect.Parameter.empty:
            world[f"_tz_d{k}"] = parameter.default
            word += f"=_tz_d{k}"
        words.append(word)
    return ", ".join([*words, "**_tz_options"])


def _passed_on(parameters: Sequence[Parameter]) -> list[str]:
    return [f"{p.name}={p.name}" if p.keyword_only else p.name for p in parameters]
