// The tensors of one allocation in a plan, handed out again once nobody holds them.
//
// src/tzero/pool.py says when a tensor is free, and is the twin. Here each of those questions is a
// look at memory: torch counts the references to a tensor's C++ object and to its storage in their
// second word, which is as it was exactly when nobody else holds either.
#pragma once

#include "python.h"

#include <cstdint>

#include "state.h"

namespace tzero {

// Makes the type; 0, or -1 with the Python error set.
int add_ring(PyObject *module, State *state);

// A tensor of the ring that nobody else has, and its address; null where there is none. `stream` is
// where its next work goes; `changes`, how often the plan that made it has changed it in place since.
PyObject *take_from_ring(const State &state, PyObject *ring, void *stream, int64_t changes,
                         const void **address);

// Keeps a tensor that was made just now, and that nobody else has yet; 0, or -1 with the error set.
int add_to_ring(const State &state, PyObject *ring, PyObject *tensor, void *stream);

}  // namespace tzero
