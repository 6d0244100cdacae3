"""Launches of Triton kernels by tzero.

    tiers         which class a kernel gets: Triton's own, `PythonJit`, `NativeJit`
    python        launches in Python, with every check; what native/ does, in readable form
    native        kernels that native code launches; the description of a binary for it
    ahead         compiles ahead of time what a host function would launch
    current_call  the host function that a thread is running

Where a launch attribute (threads, shared memory, cluster, cooperative, PDL) is packed:

1. `tzero.adapters.triton_launch.cuda_launch` reads it from Triton's metadata.
2. `native.described` passes it to native code; native/binary.cpp (`read_cuda`) decodes it.
3. native/cuda.cpp (`Driver::launch`) packs it into the driver's launch configuration.

Arguments are packed by native/spec.cpp, at the offsets that `native.described` computes. In Python,
`python.finish` calls the binary's launcher, which packs both: Triton's on a GPU,
`tzero.cpu.launcher` on the CPU.
"""
