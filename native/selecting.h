// Which hint is nearest to sizes that native code has computed.
//
// selecting.cpp has the Python class `Nearest`, and says what hints are.
#pragma once

#include "python.h"

#include <cstdint>
#include <vector>

namespace tzero {

struct State;

// Whether an object is a `Nearest`.
bool is_nearest(const State &state, PyObject *object);

// How many hints it has.
size_t hint_count(PyObject *nearest);

// The number of the hint that is nearest to tensors of these ranks, with these sizes in order; -1
// is an unknown size.
size_t nearest_hint(PyObject *nearest, const std::vector<Py_ssize_t> &ranks,
                    const std::vector<int64_t> &sizes);

}  // namespace tzero
