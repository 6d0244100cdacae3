"""Calls of host functions: from arguments to a key, a bound kernel and a result.

stages       the order of the stages, in one place: arguments -> key -> bound kernel -> run
kernel       Kernel: the methods that users call
ordering     arguments in the order of the parameters, defaults filled in
bound        BoundKernel: one specialization, its config and its plans
bound_table  the table of bound kernels, and what is evicted when it is full
specialize   specialize(): a value that joins the key while a host function runs; noting adds it
native       kernels whose plans are replayed natively
as_written   kernels that run the host function, where native code is missing
tally        counts, and events of misses; reports and explain: Stats and Explanation
by_name      kernels are copied and pickled by reference
compare      a program's kernels, timed with and without tzero
"""
