"""What a config is chosen for: the keys under which it is remembered and shipped.

Enters: a kernel's name and source digest, the text of its arguments, a device. Leaves: `Facts`,
which gives the strict key of the local cache and the loose key of shipped files. It must not know
how a config is found.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import triton

from tzero.adapters import triton_compile
from tzero.cache.digest import cpu_model
from tzero.config import Config
from tzero.cpu import toolchain
from tzero.errors import CompilerFailed, CompilerMissing
from tzero.tune import records
from tzero.tune.records import Answer, Entry, Pretuned
from tzero.versions import TZERO

__all__ = ["Facts", "hardware_of"]


@dataclass(frozen=True, slots=True)
class Facts:
    """The call that a config is chosen for.

    >>> Facts("add", "ab12", "f32[4]", "cuda:sm_90", "NVIDIA H200").strict[:21]
    '{"arguments":"f32[4]"'
    """

    kernel: str
    source: str
    arguments: str
    hardware: str
    device: str
    shapes: tuple[tuple[int, ...], ...] = ()
    """The shapes that are timed; with dynamic shapes, `arguments` does not contain them."""
    judged: str = ""
    """How results are compared, as text."""

    @property
    def strict(self) -> str:
        """The key in the local cache: everything that can change which config is right and
        fastest."""
        return records.strict(
            source=self.source,
            arguments=self.arguments,
            hardware=self.hardware,
            device=self.device,
            judged=self.judged,
            shapes=str(self.shapes),
            triton=triton.__version__,
            torch=str(torch.__version__),
            compiler=_compiler_of(self.hardware),
            cpu=cpu_model(),
            tzero=TZERO,
        )

    def find(self, known: Pretuned) -> Answer:
        """The config that a shipped file has for exactly this call."""
        return known.find(
            kernel=self.kernel,
            source=self.source,
            arguments=self.arguments,
            hardware=self.hardware,
        )

    def entry(self, config: Config, shapes: Iterable[Sequence[int]]) -> Entry:
        """A config for this call, to be shipped."""
        return Entry(
            self.kernel,
            self.source,
            self.arguments,
            self.hardware,
            config,
            tuple(tuple(each) for each in shapes),
        )


def _compiler_of(hardware: str) -> str:
    """The compiler of kernels for this hardware, which decides how fast each config is."""
    if not hardware.startswith("cpu"):
        return triton_compile.tools_stamp(hardware.partition(":sm_")[2])
    try:
        return toolchain.find().fingerprint
    except (CompilerMissing, CompilerFailed):
        return "none"  # the host function may need none; a launch raises


def hardware_of(device: torch.device) -> tuple[str, str]:
    """The hardware class of a device, and details that only the strict key contains."""
    if device.type != "cuda":
        return (
            records.cpu_class(),
            f"{platform.machine()} {os.cpu_count()} {torch.get_num_threads()}",
        )
    found = torch.cuda.get_device_properties(device)
    if torch.version.hip:
        return f"hip:{found.gcnArchName.partition(':')[0]}", found.name
    return records.cuda_class(found.major, found.minor), found.name
