"""The only home of private parts of torch and Triton.

    triton_launch   Triton's launch path, version by version
    triton_compile  how Triton compiles, version by version
    torch_modes     what torch is set to in a thread: grad mode, dispatch modes, transforms
    torch_layout    where a tensor keeps what native code reads, found by probing
    intercept       launches of this thread, shown to a recorder before they are made

A new version of Triton or torch is adapted here. `tests/unit/test_layers.py` forbids private names
of both everywhere else; Helion's are in `tzero.integrations.helion`.
"""
