"""Compiled kernels, kept by what they were made of."""
