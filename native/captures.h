// The CUDA graphs of one part of a plan: captured by Python, launched here with the addresses of each
// call.
//
//     addresses ──► a graph for these ──► parameters set ──► launched, after all others of the device
//                   └ none: Python captures one, or says that there will be none
//
// A graph is for some addresses that it does not let change, such as those of weights, and for the
// alignment of the others, from which libraries choose kernels.
#pragma once

#include "python.h"

#include <cstdint>

#include "state.h"

namespace tzero {

// Whether an object is a `Captures`.
bool is_captures(const State &state, PyObject *object);

enum class Captured {
    launched,
    missing,  // no graph is for these addresses; one may be captured
    refused,  // and none will be
    error,    // with the Python error set
};

// Launches a graph with these addresses of inputs and outputs, as many as the object was made for.
Captured launch_captured(PyObject *captures, const uint64_t *addresses, void *stream);

// Captures a graph in Python for some tensors, a tuple: `missing` if there is one now.
Captured capture(PyObject *captures, PyObject *tensors);

// Makes the type; 0, or -1 with the Python error set.
int add_captures(PyObject *module, State *state);

}  // namespace tzero
