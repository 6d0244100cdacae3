"""Other people's kernels, called through tzero: one module for each library.

Enters: kernels of a library that compiles them itself. Leaves: tzero's kernels over them. Nothing
here is imported before it is asked for, and no library is imported but the one that is meant.
"""
