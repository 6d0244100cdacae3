// What a plan reads of torch: everything of a tensor that a host function may look at, but its
// contents; and what torch is set to in a thread.
//
// All of it comes from functions that torch's libraries export, most of them its C shim for compiled
// programs; two are C++ functions, and one a variable. native_plan.py compares each with what torch
// says in Python before any of it is used, and leaves plans to Python where one is missing.
#pragma once

#include "python.h"

#include <cstdint>

#include "arguments.h"

namespace tzero {

// What torch is set to in this thread, as words that are only compared: which dispatch keys are
// on and off beyond the usual (inference mode, transforms, dispatch modes; all zero mostly), whether
// gradients are recorded, and whether torch is to be deterministic, which is for all threads.
struct Modes {
    uint64_t included;
    uint64_t excluded;
    uint64_t grad;
    uint64_t deterministic;
};

class Torch {
  public:
    // Finds the functions in the libraries that torch has loaded: null, or the name of one that is
    // missing.
    const char *open();

    // The modes of this thread. `open` has found everything.
    Modes modes() const;

    bool is_deterministic() const { return deterministic_(context_); }

    // How many torch function modes are on in this thread.
    int64_t function_modes() const { return function_modes_(); }

    // How many threads torch allows; negative where it must be asked in Python.
    int threads() const { return threads_ == nullptr ? -1 : threads_(); }

    int (*dim)(const void *handle, int64_t *out) = nullptr;
    int (*sizes)(const void *handle, const int64_t **out) = nullptr;
    int (*strides)(const void *handle, const int64_t **out) = nullptr;
    bool (*requires_grad)(const void *impl) = nullptr;
    int64_t (*version)(const void *handle) = nullptr;
    void (*bump_version)(const void *handle) = nullptr;

    // Set by configure_plans().
    bool ready = false;
    Py_ssize_t key_set = 0;        // where in a tensor's C++ object its dispatch keys are
    uint64_t plain_keys = 0;       // those that a tensor may have which is read here
    uint64_t plain_included = 0;   // those that may be on, or off, in a thread whose calls are
    uint64_t plain_excluded = 0;   // replayed here
    Py_ssize_t storage = -1;       // where in a tensor's C++ object its storage is,
    Py_ssize_t gradients = -1;     // and what there is about gradients; negative: not known

  private:
    int64_t (*function_modes_)() = nullptr;
    bool (*grad_)() = nullptr;
    const void *context_ = nullptr;  // torch's one
    bool (*deterministic_)(const void *context) = nullptr;
    int (*threads_)() = nullptr;
};

constexpr size_t most_dimensions = 32;
constexpr size_t most_tensor_words = 2 + 2 * most_dimensions;

// Reads a tensor of exactly one of the known types. Its words: type, dtype, device, whether it
// requires gradients, its address modulo 16 and its dimension in the first, of which the upper 16
// bits are free; its dispatch keys, sizes and strides in the others. `not_ours` for a tensor that
// is not plain, such as a sparse or a wrapped one.
Reading read_tensor_words(const Tensors &tensors, const Torch &torch, PyObject *value,
                          uint64_t *words, size_t *count, const void **address);

// Where the tensor's memory is now; false if torch does not say.
bool read_address(const Tensors &tensors, PyObject *value, const void **address);

// Who refers to a tensor in C++: torch's counts for the tensor and for its storage, as words that
// are only compared, which storage that is, and what there is about gradients (nothing, mostly).
struct Uses {
    uint64_t tensor = 0, storage = 0;
    const void *memory = nullptr, *gradients = nullptr;

    bool operator==(const Uses &other) const {
        return tensor == other.tensor && storage == other.storage && memory == other.memory &&
               gradients == other.gradients;
    }
};

Uses read_uses(const Tensors &tensors, const Torch &torch, PyObject *value);

// How often a tensor was written to in place, as torch counts it; not for one of inference mode.
int64_t read_version(const Tensors &tensors, const Torch &torch, PyObject *value);

// Has torch count one more time; not for one of inference mode either.
void bump_version(const Tensors &tensors, const Torch &torch, PyObject *value);

// What is known of a tensor that a step makes.
struct Geometry {
    int32_t dtype = 0;
    int32_t device_type = 0;
    int32_t device_index = 0;
    std::vector<int64_t> sizes_and_strides;  // in one, each of half the length

    // Whether a plain tensor is as this says.
    bool fits(const Tensors &tensors, const Torch &torch, PyObject *value) const;
};

}  // namespace tzero
