"""Each compiler: what it compiles, what it rejects, and its kernels where they can run."""
