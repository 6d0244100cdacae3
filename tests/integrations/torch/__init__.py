"""PyTorch: torch.compile, operators, autograd, tracers, modes, processes."""
