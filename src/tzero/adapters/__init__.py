"""The only home of private parts of torch and Triton.

    triton_launch    Triton's launch path: which binary a launch runs, and how it is launched
    triton_compile   Triton's compiler: what decides its output, kernels made from text
    torch_internals  private functions and attributes of torch, under names of our own
    torch_layout     where in a tensor native code reads sizes, strides and the like, by probing
    torch_modes      torch's state in a thread: grad mode, dispatch modes, transforms, tracers
    intercept        shows the launches of a thread to a recorder before they are made

`tests/unit/test_layers.py` forbids private names of torch and Triton everywhere else. The CPU
backend's part of Triton is `tzero.cpu.triton_compat`; Helion's is `tzero.integrations.helion`.

Adding a version of Triton:

1. Raise `newest` in `tzero.versions` and the pin in `constraints-newest.txt`, and what
   `tests/unit/test_packaging.py` then asks for; run ``make test-newest``.
2. `tests/adapters/test_triton_launch.py` fails first: it parses the installed Triton's launch path
   and names every knob, driver method or attribute that is not known. Adapt `triton_launch`.
3. `tests/backends/test_triton_*.py` fail next, where compiling changed. Adapt `triton_compile`.
4. `tests/cpu` fails where the IR or the driver interface changed. Adapt `tzero.cpu`.
5. Code for one version says so in a comment ("since 3.9") and asks ``hasattr``, not the version
   number, where it can.

Adding a version of torch:

1. Raise `newest` in `tzero.versions` and the pins in both constraints files; run ``make test``.
2. A missing private name fails at import of `torch_internals` or `torch_modes`.
3. `torch_layout.configure` compares each offset that it finds with what torch says in Python.
   `tests/native/test_native_plan.py` fails if it returns a reason instead of an empty string.
"""
