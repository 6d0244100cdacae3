"""Adapters of torch and Triton, on the installed versions."""
