"""The decorators, with their options checked.

decorators  `tzero.kernel` and `tzero.jit`
variants    `tzero.multi_kernel`
options     what `tzero.kernel` accepts, checked when a kernel is made
"""
