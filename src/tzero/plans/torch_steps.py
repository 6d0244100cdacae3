"""What one torch function did to tensors, as steps of a plan.

    empty, zeros, full ──► Allocate, Fill
    view, t, chunk     ──► View
    everything else    ──► Call

Enters: a torch function that has returned, its arguments and result, and the operators that ran in
it. Leaves: steps and slots, or `NotAStep`. It must not know launches or host functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch

from tzero.adapters import torch_modes
from tzero.adapters.torch_internals import in_c, is_straight, is_thin, names_in
from tzero.plans import copies, effects, in_mode, torch_ops
from tzero.plans.call_sizes import TorchSizes
from tzero.plans.in_mode import InMode
from tzero.plans.plan import (
    Allocate,
    Call,
    Constant,
    Copied,
    Fill,
    Launch,
    Read,
    Step,
    Tensor,
    Value,
    View,
    tensors_in,
)
from tzero.plans.sizes import Sizes
from tzero.plans.slots import Slots
from tzero.plans.values import NotAStep, NotYet, is_inexact, tensors_of
from tzero.reading.attributes import class_dict
from tzero.reading.guards import Absent, Guard, Result, Same, Setting

__all__ = ["TorchSteps"]


class TorchSteps:
    """Adds the steps of one call's torch functions to `steps`, and what they read of torch's
    settings to `guards`. `line` returns the host function's. With `sizes`, the call is recorded for
    other sizes too."""

    def __init__(
        self,
        slots: Slots,
        steps: list[Step],
        line: Callable[[], int],
        guards: list[Guard],
        sizes: Sizes | None = None,
    ) -> None:
        self.slots = slots
        self._sizes = sizes
        self.steps = steps
        self.modes = torch_modes.dispatch()
        """torch's modes when the call began."""
        self.acted = False
        """Whether something was done that may outlive the call; from then on no value is read."""
        self._line = line
        self._guards = guards
        self._computing = torch_modes.Computing.now()
        self._casting = torch_modes.casting()
        self._others: dict[torch_modes.Computing, Any] = {}  # other modes, as dispatch keys
        self._cast: set[int] = set()  # slots of weights whose casts a block of autocast keeps
        if any(self._computing.casts):
            self._guard_casting()
        self._bases: dict[int, int] = {}  # of slots that are views: what each is a view of

    def has_known_alignment(self, tensor: torch.Tensor) -> bool:
        """Whether each call of a plan gives a tensor the same address modulo 16: an argument, new
        memory, or a view of these."""
        slot = self._root(tensor)
        if slot is None:
            return False
        return slot in self.slots.made or self.slots.all[slot].leaf is not None

    def note(
        self,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        ran: list[torch_ops.Ran],
    ) -> None:
        """A torch function has returned; `ran` are the operators that ran in it."""
        name, own = torch_ops.named(func), torch_ops.is_own(func)
        if own and torch_ops.is_read(name):
            self._read(func, name, args, kwargs, result)
            return
        sizes = self._of(func, args, kwargs)
        if own and name == "result_type":  # of a number it is the default dtype
            self._default_dtype()
            return
        if not own and not torch_ops.is_among(func, ran):
            raise NotAStep(f"{name} is made of others, and tzero does not see what it reads")
        if not self.acted and effects.reads_value(result, ran):
            call = self._call(func, name, args, kwargs, sizes)
            self.steps.append(Read(call, result, call.line))
            return
        self.acted = self.acted or any(map(effects.acts, ran))
        why = torch_ops.obstacle(name, result, ran)
        given = tensors_of((*args, *kwargs.values()))
        if name.endswith("tensor_split") and len(given) > 1:
            why = f"{name} reads the values of a tensor"
        if why:
            raise NotAStep(why)
        found = tensors_of(result)
        if own and len(found) == 1 and result is found[0]:
            if not ran and self.slots.has(result):
                self._returned_itself(name, sizes)
                return
            if self._allocated(result, ran, sizes) or self._filled(result, ran, sizes):
                return
        call = self._call(func, name, args, kwargs, sizes)
        fresh = [tensor for tensor in found if not self.slots.has(tensor)]
        _check_plain(name, fresh)
        inexact = any(map(is_inexact, fresh)) and kwargs.get("dtype") is None
        if inexact and not any(map(is_inexact, given)):
            self._default_dtype()
        casts = any(torch_modes.Computing.now().casts) or isinstance(call.function, InMode)
        if is_thin(func) and not casts and self._lowered(func, args, kwargs, found, ran, sizes):
            return
        several = result is not found[0] if found else False
        if several and len(given) > 1:
            pass  # they may be views of different tensors
        elif own and fresh and all(self._is_view(tensor, call, ran) for tensor in fresh):
            self._views(call, result, ran, sizes)
            return
        slots = [self.slots.add(tensor, f"t{len(self.slots.all)}") for tensor in fresh]
        if sizes is not None:
            sizes.called(slots, ran)
        made = self.slots.value(result, f"the result of {name}")
        self.steps.append(self._completed(call, made, result, ran, args, kwargs))

    def _completed(
        self,
        call: Call,
        made: Value,
        result: Any,
        ran: Sequence[torch_ops.Ran],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Call:
        """A call with its result as a value, and with what a CUDA graph of it has to know."""
        given = tensors_of((*args, *kwargs.values()))
        mode = torch_modes.Computing.now()
        cut = effects.cut(ran) or in_mode.cut(self._computing, mode, given)
        if mode.grad and any(tensor.requires_grad for tensor in given):
            cut = cut or f"autograd records {call.name}"
        writes, unseen = map(self._roots, (effects.changed(ran), effects.changed_unseen(ran)))
        made_by = call.function, call.name, call.args, call.kwargs
        copied = None if cut else self._copied(call.function, result, ran)
        return Call(*made_by, made, call.line, cut, writes, unseen, copied)

    def _copied(self, function: Any, result: Any, ran: Sequence[torch_ops.Ran]) -> Copied | None:
        pair = copies.copied(function, result, ran)
        if pair is None:
            return None
        target, source = map(self.slots.of, pair[:2])
        if target is None or source is None:
            return None
        uncounted = torch.is_inference_mode_enabled() and pair.target.is_inference()
        counts = not (pair.is_new or uncounted)
        return Copied(target, source, pair.is_new, counts)

    def _roots(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        return tuple(slot for each in tensors if (slot := self._root(each)) is not None)

    def _root(self, tensor: torch.Tensor) -> int | None:
        """The slot of a tensor, or of that which it is a view of."""
        slot = self.slots.of(tensor)
        return None if slot is None else self._based(slot)

    def _based(self, slot: int) -> int:
        while slot in self._bases:
            slot = self._bases[slot]
        return slot

    def _read(
        self, func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """A function has read what the key determines."""
        for tensor in tensors_of((*args, *kwargs.values())):
            self.slots.value(tensor, f"what {name} reads")
        if self._sizes is not None and not TorchSizes.is_announced(self._sizes, args, kwargs):
            TorchSizes(self._sizes, func, args, kwargs).read(result)

    def _of(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TorchSizes | None:
        """The sizes of a torch function that has returned; None if the call is recorded for these
        sizes alone."""
        return None if self._sizes is None else TorchSizes(self._sizes, func, args, kwargs)

    def _returned_itself(self, name: str, sizes: TorchSizes | None) -> None:
        """A function has returned its argument, as `contiguous` does of a contiguous tensor."""
        if name.endswith("_") and not name.endswith("__"):  # requires_grad_, share_memory_
            raise NotAStep(f"{name} changes a tensor in a way that plans do not support")
        if sizes is not None:
            sizes.returned_itself()

    def _default_dtype(self) -> None:
        if not any(guard.text == _DEFAULT for guard in self._guards):
            now = torch.get_default_dtype()
            self._guards.append(Result.of(_DEFAULT, torch.get_default_dtype, now))

    def _guard_names(self, function: FunctionType) -> None:
        """Guard what a Python function of torch calls: a program may replace it."""
        for name in names_in(function):
            for text, own in (("torch.Tensor", class_dict(torch.Tensor)), ("torch", vars(torch))):
                guard: Guard = Absent(f"no {text}.{name}", own, name)
                if name in own:
                    guard = Same(f"{text}.{name}", own, name, own[name])
                if guard not in self._guards:
                    self._guards.append(guard)

    def _lowered(
        self,
        func: FunctionType,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        found: list[torch.Tensor],
        ran: list[torch_ops.Ran],
        sizes: TorchSizes | None,
    ) -> bool:
        """Record the operators that ran in a Python function of torch, in place of the function;
        returns whether they do all that it does. `found` are the tensors that it returned."""
        if any(tensor.requires_grad for tensor in tensors_of((*args, *kwargs.values()))):
            return False
        outcomes = torch_ops.outcomes(ran, found, self.slots.has)
        if outcomes is None:
            return False
        self._guard_names(func)
        target = None if sizes is None else sizes.broadcast()
        if sizes is not None and target is None:  # its code may decide by sizes
            sizes.pin(tensors=not is_straight(func))
        for each, tensor in zip(ran, outcomes, strict=True):
            inner = self._of(each.operator, each.args, each.kwargs)
            if inner is not None and target is not None:
                inner.expand_to(target)
            call = self._call(in_c(each.operator), each.name, each.args, each.kwargs, inner)
            if self._is_view(tensor, call, [each]):
                self._views(call, tensor, [each], inner)
            else:
                slot = self.slots.add(tensor, f"t{len(self.slots.all)}")
                if inner is not None:
                    inner.called([slot], [each])
                made = Tensor(slot)
                made_by = self._completed(call, made, tensor, [each], each.args, each.kwargs)
                self.steps.append(made_by)
        return True

    def _call(
        self,
        func: Any,
        name: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        sizes: TorchSizes | None = None,
    ) -> Call:
        values = tuple(self.slots.value(arg, f"an argument of {name}") for arg in args)
        named = tuple((k, self.slots.value(v, f"an argument of {name}")) for k, v in kwargs.items())
        if sizes is not None:
            values, named = sizes.valued(values, named)
        now: tuple[Any, ...] = torch_modes.dispatch()
        wanted: tuple[Any, ...] = self.modes
        given = tensors_of((*args, *kwargs.values()))
        if not any(tensor.requires_grad for tensor in given):
            now, wanted = now[:2], wanted[:2]  # without gradients their mode does not matter
        mode = torch_modes.Computing.now()
        is_cast_else = mode.casts != self._computing.casts or mode.keeps != self._computing.keeps
        if now != wanted or is_cast_else:
            func = self._in_mode(func, mode, given)
        return Call(func, name, values, named, Constant(None), self._line())

    def _in_mode(
        self, func: Any, mode: torch_modes.Computing, given: Sequence[torch.Tensor]
    ) -> InMode:
        """A function that was called in another mode than the host function."""
        why = in_mode.why_not(self._computing, mode, given)
        if why:
            raise NotAStep(why)
        self._others[mode] = torch_modes.dispatch()
        if any((*mode.casts, *self._computing.casts)):
            self._guard_casting()
        if in_mode.is_kept(mode, given) and not self._computing.keeps:
            self._cast.update(self._roots([each for each in given if each.requires_grad]))
        return InMode(func, mode)

    def _guard_casting(self) -> None:
        guard = Setting.of(_CASTING, torch_modes.casting, self._casting)
        if guard not in self._guards:
            self._guards.append(guard)

    def why_not_in_modes(self) -> str:
        """Why calls in other modes cannot be repeated, now that the host function has returned, in
        the mode in which it was called; usually empty."""
        for mode, keys in self._others.items():
            with mode.entered():
                if torch_modes.dispatch() != keys:
                    return "it calls torch in a mode that tzero does not know"
        for step in self.steps if self._cast else ():
            slots = {*step.writes, *step.unseen} if isinstance(step, Call) else set()
            if isinstance(step, Launch):
                slots = {slot for value in step.args for slot in tensors_in(value)}
            if any(self._based(slot) in self._cast for slot in slots):
                return in_mode.KEEPS
        return ""

    def _allocated(
        self, tensor: torch.Tensor, ran: list[torch_ops.Ran], sizes: TorchSizes | None
    ) -> bool:
        """Record a tensor if it is new memory, uninitialized or filled with one number; returns
        whether it is."""
        if len(ran) != 1 or self.slots.has(tensor) or not torch_ops.is_plain(tensor):
            return False
        filling = torch_ops.allocates(ran[0])
        if filling is None:
            return False
        if tensor.is_inference() != self._computing.inference:
            return False
        if ran[0].arguments.get("dtype") is None and not ran[0].of_tensor:
            self._default_dtype()
        slot = self.slots.add(tensor, f"t{len(self.slots.all)}")
        self.slots.made.add(slot)
        if sizes is not None:
            sizes.made(slot)
        self.steps.append(Allocate(slot, self._line()))
        if filling is not torch_ops.NOTHING:
            self.steps.append(Fill(slot, filling, self._line()))
        return True

    def _filled(
        self, tensor: torch.Tensor, ran: list[torch_ops.Ran], sizes: TorchSizes | None
    ) -> bool:
        """Record that a tensor allocated in this call was filled with one number; returns whether
        it was."""
        slot = self.slots.of(tensor)
        if len(ran) != 1 or slot not in self.slots.made or ran[0].args[0] is not tensor:
            return False
        number = torch_ops.fills(ran[0])
        if number is torch_ops.NOTHING:
            return False
        # In inference mode it may not count as a change.
        if torch_modes.dispatch()[:2] != self.modes[:2]:
            return False
        assert slot is not None
        if sizes is not None:
            sizes.pin(tensors=False)
        values: tuple[Value, ...] = (Tensor(slot), Constant(number))
        fill = torch.Tensor.fill_
        call = Call(fill, "Tensor.fill_", values, (), Tensor(slot), self._line())
        self.steps.append(call)
        return True

    def _is_view(self, tensor: torch.Tensor, call: Call, ran: list[torch_ops.Ran]) -> bool:
        base = _base(call)
        if base is None or not ran or not all(torch_ops.is_geometry(each) for each in ran):
            return False
        if any(torch_ops.is_absolute(each) for each in ran) and base not in self.slots.made:
            return False
        return torch_ops.shares_memory(tensor, self.slots.tensors[base])

    def _views(
        self, call: Call, result: Any, ran: list[torch_ops.Ran], sizes: TorchSizes | None
    ) -> None:
        """Record one or several views of a tensor."""
        base = _base(call)
        assert base is not None
        several = not isinstance(result, torch.Tensor)
        is_strided = not several and all(map(torch_ops.is_strided, ran))
        is_strided = is_strided and not isinstance(call.function, InMode)
        for k, tensor in enumerate(result if several else [result]):
            if self.slots.has(tensor):
                continue
            offset = tensor.storage_offset() - self.slots.tensors[base].storage_offset()
            slot = self.slots.add(tensor, f"t{len(self.slots.all)}")
            function: Any = torch_ops.Picked(call.function, k) if several else call.function
            name = f"{call.name}[{k}]" if several else call.name
            if sizes is not None:
                sizes.viewed(slot, base, offset, several)
            made = Call(function, name, call.args, call.kwargs, Tensor(slot), call.line)
            self._bases[slot] = base
            is_plain = not tensor.is_conj() and not tensor.is_neg()
            self.steps.append(
                View(slot, base, offset, made, call.line, is_strided=is_strided and is_plain)
            )


_DEFAULT = "torch's default dtype"
_CASTING = "what autocast casts to"


def _check_plain(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise `NotAStep` if a function has made a tensor that plans do not support."""
    odd = next(filter(None, map(torch_ops.oddity, tensors)), "")
    if odd == "FakeTensor":
        raise NotYet(f"{name} makes a fake tensor, as compilers do at a first call")
    if odd:
        raise NotAStep(f"{name} returns a {odd} tensor")


def _base(call: Call) -> int | None:
    """The slot of the tensor that a call is a method of, if it is one."""
    first = call.args[0] if call.args else None
    return first.slot if isinstance(first, Tensor) else None
