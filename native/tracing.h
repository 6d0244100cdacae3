// Blocks of code that a trace function sees, and blocks that none sees.
#pragma once

#include "python.h"

namespace tzero {

struct State;

// Add the types Traced and Untraced and the function `forget_traced`: ``with Traced(function,
// alone):`` sets this thread's trace function and lets no garbage collection begin;
// ``with Untraced():`` suspends the trace and profile functions.
int add_tracing(PyObject *module, State *state);

// Whether calls are traced in such a block now, by any thread.
bool is_traced_anywhere();

}  // namespace tzero
