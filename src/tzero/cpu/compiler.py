"""The Triton backend: TTIR in, shared object out.

Enters: Triton's module objects and launch options. Leaves: the stages `ttir`, `c` and `so`, and
the metadata that the launcher reads. Triton finds `CPUBackend` by scanning this module for the one
concrete backend class. It must not know what the IR means (`lower`) or how C is compiled
(`toolchain`).
"""

from __future__ import annotations

import functools
import hashlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from triton.backends.compiler import BaseBackend, GPUTarget

from tzero import locks, settings
from tzero.cpu import e4b15, sealing, toolchain, triton_compat, ttir
from tzero.cpu.lower import lower

_HERE = Path(__file__).parent
_RUNTIME = _HERE / "runtime"
LONG_SOURCE = 60_000
"""Longer C text (sorting networks) is compiled with -O1: -O3 takes seconds and gains nothing."""


@dataclass(frozen=True)
class CPUOptions:
    """Launch options. Options for a GPU's threads and pipelines are accepted and ignored."""

    num_warps: int = 1
    num_ctas: int = 1
    num_stages: int = 1
    warp_size: int = 1
    maxnreg: int | None = None
    ir_override: str | None = None
    enable_fp_fusion: bool = True
    launch_cooperative_grid: bool = False
    launch_pdl: bool = False
    supported_fp8_dtypes: tuple[str, ...] = (
        "fp8e4nv",
        "fp8e5",
        "fp8e4b8",
        "fp8e5b16",
        "fp8e4b15",
    )
    deprecated_fp8_dot_operand_dtypes: tuple[str, ...] = ()
    default_dot_input_precision: str = "ieee"
    allowed_dot_input_precisions: tuple[str, ...] = ("ieee", "tf32", "tf32x3", "bf16x3", "bf16x6")
    max_num_imprecise_acc_default: int = 0
    extern_libs: tuple[tuple[str, str], ...] = ()
    debug: bool = False
    backend_name: str = "cpu"
    sanitize_overflow: bool = True
    arch: str = ""
    instrumentation_mode: str = ""
    fpsan_homomorphic_casts: bool = False
    cpu_check: bool = False

    def hash(self) -> str:
        """Digest of all options."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()


@functools.cache
def backend_digest() -> str:
    """Digest of this backend's sources, so that a change in them misses Triton's cache."""
    digest = hashlib.sha256()
    for path in sorted(_HERE.rglob("*")):
        if path.suffix in (".py", ".h", ".c"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


class CPUBackend(BaseBackend):
    """Compiles for the machine it runs on."""

    @property
    def binary_ext(self) -> str:
        """File extension of the object in Triton's cache. With TRITON_STORE_BINARY_ONLY Triton
        keeps only the extensions of GPU binaries, so the object takes one of those."""
        return "hsaco" if triton_compat.stores_binaries_only() else "so"

    @staticmethod
    def supports_target(target: GPUTarget) -> bool:
        """Whether `tzero.cpu.driver` reports this target."""
        return bool(target.backend == "cpu")

    @locks.cached_property
    def _hash(self) -> str:
        return f"tzero-{backend_digest()}-{toolchain.find().fingerprint}-{self.target.arch}"

    def identity(self) -> str:
        """Everything that decides the object besides source and options."""
        return f"{self._hash}-{self.binary_ext}"

    def hash(self) -> str:
        """What Triton's cache is keyed by besides source and options: `identity`, and who can have
        sealed the entry."""
        return f"{self.identity()}-{sealing.fingerprint(triton_compat.cache_directory())}"

    def parse_options(self, options: Mapping[str, Any]) -> CPUOptions:
        """Options from a launch's keywords. Those that only GPUs have are taken and mean nothing:
        they are attributes, which Triton asks for, but no fields, so that binaries are the same."""
        known = {f.name for f in fields(CPUOptions)}
        given = {k: v for k, v in options.items() if k in known and v is not None}
        check = bool(given.get("cpu_check")) or settings.current().cpu_check
        # The checks of overflow are assertions: without those, Triton would build them in vain.
        overflow = bool(given.get("sanitize_overflow", True) and given.get("debug"))
        made = CPUOptions(**{**given, "cpu_check": check, "sanitize_overflow": overflow})
        vars(made).update(dict.fromkeys(triton_compat.gpu_options() - known))
        return made

    def pack_metadata(self, metadata: Any) -> tuple[int, int, int]:
        """Metadata that Triton passes to the launcher with the arguments."""
        return (metadata.num_warps, metadata.num_ctas, metadata.shared)

    def get_codegen_implementation(self, options: CPUOptions) -> dict[str, Callable[..., Any]]:
        """Hooks of Triton's front end: `tl.dot` accepts any size; conversions that it lacks."""
        return {
            "min_dot_size": lambda lhs, rhs: (1, 1, 1),
            "convert_custom_types": e4b15.convert,
        }

    def get_module_map(self) -> dict[str, ModuleType]:
        """Resolve `tl.extra.libdevice` to NVIDIA's functions; `libdevice.py` maps them to C."""
        from triton.language.extra.cuda import libdevice

        return {"triton.language.extra.libdevice": libdevice}

    def load_dialects(self, context: Any) -> None:
        """Load nothing: TTIR uses only Triton's own dialects."""

    def add_stages(
        self, stages: dict[str, Callable[..., Any]], options: CPUOptions, language: Any = None
    ) -> None:
        """Register the stages; Triton runs them in order and caches each result."""
        stages["ttir"] = lambda module, metadata: triton_compat.optimize_ttir(module)
        stages["c"] = lambda module, metadata: _c(module, metadata, options)
        stages[self.binary_ext] = lambda source, metadata: _sealed_so(source, metadata, options)


def _c(module: Any, metadata: dict[str, Any], options: CPUOptions) -> str:
    lowered = lower(ttir.read_module(module), options.cpu_check)
    if lowered.unchecked:
        where = ", ".join(sorted({str(place) for place in lowered.unchecked}))
        warnings.warn(
            f"{lowered.name}: checked mode cannot check pointers loaded from memory or made from "
            f"integers ({where}); those accesses run unchecked.",
            stacklevel=2,
        )
    metadata.update(
        name=lowered.name,
        shared=1,  # there is no shared memory, but host code divides by its size
        cpu_params=lowered.params,
        cpu_scratch=lowered.scratch,
        cpu_work=lowered.work,
        cpu_sites=[list(asdict(site).values()) for site in lowered.sites],
    )
    return lowered.source


def _sealed_so(source: str, metadata: dict[str, Any], options: CPUOptions) -> bytes:
    binary = _so(source, metadata, options)
    sealing.seal(metadata, binary, triton_compat.cache_directory())
    return binary


def _so(source: str, metadata: dict[str, Any], options: CPUOptions) -> bytes:
    contract = "fast" if options.enable_fp_fusion else "off"
    level = 1 if len(source) > LONG_SOURCE else 3
    return toolchain.find().build(
        source,
        metadata["name"],
        include_dirs=[_RUNTIME],
        extra_flags=[f"-ffp-contract={contract}", "-fno-strict-aliasing"],
        optimization=level,
    )
