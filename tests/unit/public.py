"""The public modules and their names: what the tests pin, and what the API page lists."""

from __future__ import annotations

import tzero
import tzero.arguments.key
import tzero.backends.cpp
import tzero.backends.cpp_pybinding
import tzero.backends.cuda
import tzero.backends.cutedsl
import tzero.backends.halide
import tzero.backends.hip
import tzero.cache
import tzero.cli
import tzero.compile
import tzero.errors
import tzero.events
import tzero.integrations.helion
import tzero.integrations.ray
import tzero.measure
import tzero.plans.outputs
import tzero.settings
import tzero.versions

__all__ = ["ERRORS", "PUBLIC"]

ERRORS = [
    "BackendMissing",
    "BundleRefused",
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
    "SealBroken",
    "ToolchainMissing",
    "TuningFailed",
    "TzeroError",
    "UnsupportedOperation",
    "UnsupportedType",
    "UnsupportedVersion",
    "WorkerDied",
]
PUBLIC = {
    tzero: [
        *ERRORS,
        "BoundKernel",
        "Config",
        "ConstExpr",
        "JitKernel",
        "Kernel",
        "Precompiled",
        "Range",
        "Space",
        "Spec",
        "Warmed",
        "__version__",
        "build_bundle",
        "constant",
        "fleet",
        "coverage",
        "install",
        "installed",
        "jit",
        "kernel",
        "load_bundle",
        "multi_kernel",
        "pause_tuning",
        "precompile",
        "pretuned",
        "seal",
        "ship",
        "specialize",
        "uninstall",
        "unload_bundle",
        "unseal",
        "wait_for_tuning",
        "warmup",
    ],
    tzero.backends.cpp: ["Cpp", "CppKernel", "backend", "kernel"],
    tzero.backends.cpp_pybinding: ["CppFunction", "CppPybinding", "backend", "function"],
    tzero.backends.cuda: ["Cuda", "CudaKernel", "backend", "kernel"],
    tzero.backends.cutedsl: ["CuteDsl", "CuteFunction", "backend", "function"],
    tzero.backends.halide: ["Halide", "HalideFunction", "backend", "function"],
    tzero.backends.hip: ["Hip", "HipKernel", "backend", "kernel"],
    tzero.cache: ["Found", "Layers", "Store", "stores"],
    tzero.cli: ["app", "main"],
    tzero.compile: [
        "Artifact",
        "AsyncCompile",
        "CompileStats",
        "Cost",
        "On",
        "Queue",
        "Request",
        "on",
        "queue",
        "service",
        "top",
        "warm_pool",
    ],
    tzero.errors: ERRORS,
    tzero.events: ["Event", "Kind", "Observer", "emit", "hushed", "observe", "watched"],
    tzero.arguments.key: [
        "Key",
        "Options",
        "UnsupportedType",
        "constant",
        "difference",
        "part",
        "text",
    ],
    tzero.measure: ["Record", "Span", "active", "nanoseconds", "recording"],
    tzero.plans.outputs: ["Ring", "Stats", "clear", "stats"],
    tzero.settings: [
        "Changes",
        "Settings",
        "applied",
        "current",
        "launches_watched_by",
        "names",
        "now",
        "override",
        "read",
        "variables",
    ],
    tzero.integrations.ray: ["Cluster", "executor"],
    tzero.integrations.helion: ["install", "installed", "is_kernel", "uninstall", "wrap"],
    tzero.versions: [
        "SUPPORTED",
        "Supported",
        "how_to_get",
        "installed",
        "is_free_threaded",
        "is_newer_than_tested",
        "is_too_old",
        "order",
        "require",
        "require_same",
    ],
}
"""The modules that users import, with their names."""
