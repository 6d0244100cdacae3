"""Calls of host functions: the order of the stages.

kernel       Kernel: arguments -> key -> bound kernel -> call
bound        BoundKernel: one specialization
bound_table  the table of bound kernels, and what is evicted when it is full
specialize   specialize(): a value that joins the key while a host function runs
native       kernels whose plans are replayed natively
reports      Stats and Explanation
compare      a program's kernels, timed with and without tzero
"""
