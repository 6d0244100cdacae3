"""Kernels of other libraries, called through tzero: one package for each library.

Enters: kernels that a library compiles itself. Leaves: tzero kernels that wrap them. Each package
is imported only when it is used, and imports only its own library.
"""
