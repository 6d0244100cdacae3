"""Kernels: binding, eviction, `specialize`, events, `tzero bench`."""
