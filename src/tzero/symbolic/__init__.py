"""Sizes as formulas: what a plan computes anew for each size of its arguments.

Enters: integers of a recorded call, by where they come from. Leaves: formulas and conditions. It
must not know frames, tensors or plans.
"""
