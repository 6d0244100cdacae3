// The tensors of one allocation in a plan, reused once nobody else holds them.
//
// src/tzero/plans/outputs.py is the counterpart in Python, and explains when a tensor is free. Here
// each condition is read from memory: torch counts the references to a tensor's C++ object and to
// its storage in the second word of each. If both words are unchanged, nobody else holds the
// tensor.
#pragma once

#include "python.h"

#include <cstdint>

#include "state.h"

namespace tzero {

// Makes the type; 0, or -1 with the Python error set.
int add_ring(PyObject *module, State *state);

// A free tensor of the ring, and its address; null if there is none. `stream` is that of its next
// work; `changes` is how often the plan changes the tensor in place; `wanted` are the sizes and
// strides that it must have, or null if all tensors of the ring have the same.
PyObject *take_from_ring(const State &state, PyObject *ring, void *stream, int64_t changes,
                         const int64_t *wanted, const void **address);

// Adds a new tensor that nobody else holds yet; 0, or -1 with the Python error set.
int add_to_ring(const State &state, PyObject *ring, PyObject *tensor, void *stream);

}  // namespace tzero
