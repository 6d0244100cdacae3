// Launches a binary whose parameters are packed in a block of bytes.
//
// The caller has chosen the binary and checked its guards, and has written the parameters where the
// spec's moves say. Launch attributes are packed in cuda.cpp, `Driver::launch`.
#pragma once

#include "python.h"

#include <memory>

#include "spec.h"
#include "state.h"

namespace tzero {

// The bytes before the parameters in a block for the CPU: tz_packed of
// src/tzero/cpu/runtime/pool.h.
constexpr size_t head_bytes = 32;

// Room for the parameters of any binary, and for the head.
constexpr size_t stack_bytes = head_bytes + parameter_bytes * (most_parameters + 1) +
                               cuda::most_maps * (cuda::map_bytes + cuda::map_alignment);

// How a block of parameters must be aligned.
constexpr size_t block_alignment = cuda::map_alignment;

// Makes a spec of a BinaryDescription, a class of src/tzero/launches/native.py. Null with the
// Python error set.
std::unique_ptr<Spec> spec_from(PyObject *description);

// Whether a launch on the CPU is so short that it keeps the GIL. It runs on one thread.
bool is_brief(const Spec &spec, const int32_t grid[3]);

// Runs a binary on the CPU: 0 and its outcome, which is 0 for success; -1 with the Python error
// set. `brief` is what `is_brief` says.
int run_on_cpu(const State &state, const Spec &spec, const int32_t grid[3], char *block, bool brief,
               int *outcome);

// Sets the Python error for an outcome other than 0; `values` is the tuple of the arguments.
void raise_from_cpu(const Spec &spec, int outcome, const int32_t grid[3], PyObject *values);

// Sets the Python error for what CUDA said of a launch; without a spec, of a fill.
void raise_from_cuda(const State &state, const Spec *spec, cuda::Result result,
                     const int32_t grid[3]);

// Queues a binary on a stream, with its scratch memory if it needs any; 0, or -1 with the Python
// error set.
int run_on_cuda(const State &state, const Spec &spec, const int32_t grid[3], void *stream,
                char *block, const Scratch &scratch = no_scratch);

}  // namespace tzero
