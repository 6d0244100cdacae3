"""The Triton CPU backend: one case for each operation and dtype, programs, checked mode."""
