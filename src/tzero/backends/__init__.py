"""Compilers that the compile service finds by name; one module or package each.

The main road: kernels that `tzero.kernel` records, replays and launches.

    triton         Triton kernels, for CUDA, HIP and the CPU
    cpp            C++ for the CPU, launched over a grid
    cuda           CUDA C++, launched over a grid
    c_source       shared by C-like languages: declarations, requests, running a compiler
    source_kernel  shared by C-like languages: ``k[grid](...)``, arguments checked and packed

Beside it: these compile through the same service, and some can be called like a function, but their
calls are not replayed. No other module of tzero imports them; users do, and the service finds them
by entry point (`pyproject.toml`, group ``tzero.backends``).

    hip            HIP C++; compiles only
    cutedsl        functions in NVIDIA's CuTe DSL
    halide         Halide pipelines for the CPU
    cpp_pybinding  C++ functions called with Python's values

A new backend is a module with an object that has `compile` (see `tzero.compile.backend`), and an
entry point.
"""
