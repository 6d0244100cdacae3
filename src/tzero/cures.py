"""What to do about a fallback: one table of reasons, and what to change for each.

Enters: the reason of a fallback, as an event or `explain` has it. Leaves: the row that fits. It
must not know who falls back. The docs' table is written from it, and a test finds every reason in
the source and demands a row for it.
"""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

__all__ = ["CURES", "Cure", "cure"]


class Cure(NamedTuple):
    """A kind of reason: the words that tell it, and what to change.

    >>> cure("not replayed: it reads the value of a tensor (Tensor.item), at a.py:3").kind
    'a value of a tensor'
    """

    kind: str
    words: tuple[str, ...]
    """Regular expressions, one of which matches somewhere in the reason."""
    why: str
    change: str
    passes: bool = False
    """Whether the next call may be replayed without any change."""

    @property
    def advice(self) -> str:
        """What to change, for where there are no links.

        >>> Cure("a kind", (), "", "read it ([Helion](helion.md))").advice
        'read it (docs/helion.md)'
        """
        return re.sub(r"\[[^]]*\]\(([^)]*)\)", r"docs/\1", self.change)


CURES = (
    Cure(
        "a part of a step that is no CUDA graph",
        (r"not as a CUDA graph", r"is not in a CUDA graph"),
        "CUDA or torch refuses to capture it, or what it depends on moves all the time",
        "nothing: it is made step by step; [Whole steps](steps.md) says what graphs hold",
    ),
    Cure(
        "a value of a tensor",
        (
            r"it reads the value of a tensor",
            r"size of the result of .* (may )?depends? on values",
            r"which its arguments do not determine",
        ),
        "the next call may have other values, and what was done cannot be undone",
        "compute on the device (`torch.where`, a kernel), read values before the first launch, or "
        "split the function there",
    ),
    Cure(
        "an unknown operator",
        (r"is unknown: register a fake kernel", r"whose operators tzero does not see"),
        "tzero does not know the sizes of what a custom operator returns",
        "register a fake kernel for it with `torch.library.register_fake`",
    ),
    Cure(
        "side effects",
        (
            r"it assigns the (global|nonlocal|attribute)",
            r"it (changes|advances) ",
            r"it adds an item to",
            r"which may change it",
            r"has side effects or",
            r"it logs with",
            r"it changes torch's modes",
            r"it sets .*, a context variable",
            r"it defines a class, or runs a module",
            r"whose cleanup no replay runs",
        ),
        "a replay would leave them out",
        "move them to the caller, or return the value",
    ),
    Cure(
        "arguments changed in place",
        (
            r"changes the (items or the )?geometry of",
            r"changes while it runs",
        ),
        "plans have no such step",
        "change sizes and items outside of the function",
    ),
    Cure(
        "hidden state",
        (
            r"gives access to hidden state",
            r"whose reads tzero does not see",
            r"is not in Python",
            r"what it has cached",
            r"has cached a tensor",
            r"nothing that it reads holds what",
            r"whose results are cached",
            r"which \w+ computes",
            r"has hooks",
            r"which Helion compiles",
            r"is compiled by torch\.compile",
            r"a kind of ",
            r"what it reads besides its arguments changes all the time",
        ),
        "a replay would not see that it changes",
        "call it outside and pass the result; if it is constant for the process, mark it with "
        "`tzero.constant`",
    ),
    Cure(
        "values without a guard",
        (
            r"tzero cannot see changes of",
            r"as a value$",
            r"a class with a metaclass",
            r"an attribute added to",
            r"of a module that was not initialized",
            r"which raises",
            r"it reads .*, which has no value",
            r"raises an exception",
            r"by `is`",
            r"in a way that has no guard",
            r"a class pattern",
            r"with a name that is not a string",
            r"it spreads a",
            r"cannot be found",
            r"it may read",
            r"a class that is no dataclass",
            r"of an object whose changes",
        ),
        "no guard could notice that the value changes",
        "pass plain values: numbers, strings, tuples, tensors, functions",
    ),
    Cure(
        "a new object among the arguments",
        (r"is recorded when it is repeated",),
        "an object that is made for each call would have each of them recorded",
        "nothing if the next calls get the same object; else pass its tensors and numbers",
    ),
    Cure(
        "an argument that a plan would keep alive",
        (r"a plan would keep it alive",),
        "a plan holds what it has read, and must not hold an argument that the program may drop",
        "let the function find the object in a global or a closure, or remove the reference to it",
    ),
    Cure(
        "imports",
        (r"it imports", r"has replaced __import__"),
        "an import runs a module, which may do anything",
        "import at the top of the file",
    ),
    Cure(
        "no plain function",
        (
            r"is not a plain Python function",
            r"has builtins of its own",
            r"whose body runs after the call",
            r"it executes ",
            r"its bytecode is not understood",
        ),
        "its code cannot be followed",
        "decorate the Python function that launches kernels",
    ),
    Cure(
        "functions of torch that were replaced",
        (r"the program has replaced (torch|X)",),
        "torch shows functions to a recording by their names, and would show another one",
        "replace each by a Python function of its own, which is not in the place of another",
    ),
    Cure(
        "caught exceptions",
        (r"it catches an exception",),
        "a replay makes the steps that worked, and not the one that failed",
        "test the condition before, instead of catching",
    ),
    Cure(
        "constants with tensors",
        (r"which tzero\.constant marks",),
        "a constant is computed once, and a tensor's values may change",
        "give and return plain values, or do not mark it",
    ),
    Cure(
        "gradients",
        (r"computes gradients", r"with a tensor that requires a gradient"),
        "autograd keeps state between calls",
        "put forward and backward into a `torch.autograd.Function`, each half a kernel "
        "([Kernels inside PyTorch](pytorch.md))",
    ),
    Cure(
        "an argument without a key",
        (r"^(not replayed: )?argument (?!.*has the type)", r"an argument cannot be part of a key"),
        "nothing tells two values of that type apart",
        "pass what the function reads of it; a dataclass of plain values works",
    ),
    Cure(
        "an argument that is also a global",
        (r"that a global or a closure holds too",),
        "a plan could not tell which of the two was meant",
        "pass it, or read the global, not both",
    ),
    Cure(
        "another device",
        (r"on another device than the current one",),
        "Triton launches on the current device, whatever the tensors are on",
        "call it inside `with torch.cuda.device(x.device):`",
    ),
    Cure(
        "torch is looking",
        (
            r"a torch (function|dispatch) mode is on",
            r"a transform of torch\.func",
            r" follows$",
            r"outside of any torch function",
        ),
        "a mode has to see each operator",
        "nothing: it lasts as long as the mode; to be traced, make the function an operator "
        "([Kernels inside PyTorch](pytorch.md))",
        passes=True,
    ),
    Cure(
        "for this call",
        (
            r"an autotuner times",
            r"a debugger or coverage tool traces it",
            r"another thread's call is being followed",
            r"a cached function that missed",
            r"no such call was recorded yet",
            r"recorded only when it is repeated",
        ),
        "the call cannot be recorded now",
        "nothing: a later call is recorded",
        passes=True,
    ),
    Cure(
        "other code in the middle of a call",
        (r"ran in the middle of it",),
        "a hook, a finalizer, a signal handler or the Python code of an operator ran during the "
        "call, and a replay would leave it out",
        "nothing if it ran by chance: a later call is recorded; else call it outside of the "
        "function",
        passes=True,
    ),
    Cure(
        "recording failed",
        (r"recording it failed",),
        "an error of tzero; the call itself was right",
        "please report it, with the whole message",
    ),
    Cure(
        "hooks and observers",
        (
            r"hook .*is (attached|set)",
            r"an observer",
            r"a hook on the compiler's stages is set",
            r"profilers show no ranges",
        ),
        "whoever looks at each launch gets each launch",
        "detach the hook or end the profiler when you have measured",
        passes=True,
    ),
    Cure(
        "another driver, or Triton's interpreter",
        (
            r"the active driver has been changed",
            r"active driver is not CUDA's",
            r"interpreter is on",
            r"the CPU backend checks every access",
            r"driver library cannot be opened",
            r"compiled kernels by themselves",
        ),
        "native code knows Triton's driver for CUDA, and tzero's for the CPU",
        "unset `TRITON_INTERPRET` and `TZERO_CPU_CHECK`; `tzero doctor` looks at the rest",
    ),
    Cure(
        "no native code",
        (r"is not installed|not built|C\+\+ extension|tzero is disabled|at tier 0",),
        "the extension is missing, or switched off",
        "`tzero doctor` says why, and what to install",
    ),
    Cure(
        "Helion makes the call",
        (r"left to Helion", r"Helion makes its calls"),
        "this kernel or this Helion does something that tzero's calls do not",
        "see [Helion](helion.md) for each reason",
    ),
    Cure(
        "compiled in this process",
        (r"Triton compiles it in this process",),
        "the kernel cannot be sent to a worker",
        "keep the settings and hooks of Triton's compiler as they are ([Caching](caching.md))",
    ),
    Cure(
        "what native code does not read",
        (
            r"has the type",
            r"scratch memory",
            r"launch attribute",
            r"launch attribute that is not known",
            r"tensor descriptor",
            r"tensor map",
            r"another device than the binary",
            r"more than ",
            r"is (in|on) ",
            r"is filled with",
            r"is given ",
            r"no attribute .* of its own",
            r"computes its attribute",
            r"it makes a ",
            r"cannot count references",
            r"not those that Triton binds",
            r"specializes on more of a tensor",
            r"collects several arguments",
            r"a name that tzero reserves",
            r"cannot be read",
            r"compiled from no function",
        ),
        "the launch or the plan has something that native code has no place for",
        "Python or Triton makes it instead; fewer arguments, or plain ones, make it native",
    ),
)
"""In this order: the first row that fits counts."""


@functools.lru_cache(1024)
def cure(reason: str) -> Cure | None:
    """The row for a reason; None where there is none.

    >>> cure("not replayed: a torch function mode is on").passes
    True
    >>> cure("something else") is None
    True
    """
    for each in CURES:
        if any(re.search(words, reason) for words in each.words):
            return each
    return None
