// A binary that is launched: from what Python says of it, with its parameters in a block of bytes.
//
// Who calls this has decided that the binary is the one to launch, and written the parameters where
// the spec's moves say.
#pragma once

#include "python.h"

#include <memory>

#include "spec.h"
#include "state.h"

namespace tzero {

// Room for the parameters of any binary, and for what stands before them on the CPU.
constexpr size_t stack_bytes = 32 + 8 * most_arguments + 8;

// What a spec needs of what Python says about a launch: see `described` of native_launch.py. Null
// with the Python error set.
std::unique_ptr<Spec> spec_from(PyObject *said);

// Runs a binary on the CPU: 0 and how it went, of which 0 is well; -1 with the Python error set.
int run_on_cpu(const State &state, const Spec &spec, const int32_t grid[3], char *block,
               int *outcome);

// Sets the Python error for another outcome; `values` are the launch's arguments, a tuple.
void raise_from_cpu(const Spec &spec, int outcome, const int32_t grid[3], PyObject *values);

// Queues a binary on a stream; 0, or -1 with the Python error set.
int run_on_cuda(const State &state, const Spec &spec, const int32_t grid[3], void *stream,
                char *block);

}  // namespace tzero
