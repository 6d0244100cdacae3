"""Launches of Triton kernels by tzero.

tiers         which class a kernel gets: Triton's own, Python, native
python        one launch in Python, with every guard; the twin of native/
native        kernels whose launches are native; a compiled kernel as numbers
ahead         what a host function would launch, compiled ahead of the call
current_call  the host function that a thread is running
"""
