"""Other libraries around kernels."""
