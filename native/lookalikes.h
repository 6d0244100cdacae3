// Objects that are no tensors and no plain numbers, but that Triton takes for such.
//
// A pointer to Triton is whatever has `data_ptr()`, and a float each subclass of float. Whether a
// class is either is asked of Python once (src/tzero/adapters/triton_lookalikes.py). What an object
// points at is read as Triton reads it: by its `dtype`, and by a call of its `data_ptr`.
#pragma once

#include "python.h"

#include <array>
#include <cstdint>

#include "arguments.h"

namespace tzero {

struct State;

enum class Likeness : uint8_t { none, pointer, number, error };

class Lookalikes {
  public:
    Ref find;                  // of a class: "pointer", "number" or None
    Ref dtype_type;            // torch.dtype
    Ref device_type;           // torch.device

    // What Triton takes objects of a class for; `error` with the Python error set.
    Likeness of(PyTypeObject *type);

  private:
    struct Known {
        PyTypeObject *type = nullptr;  // borrowed: a version is of one class only
        unsigned version = 0;
        Likeness likeness = Likeness::none;
    };

    std::array<Known, 16> known_;
};

// Reads such an object. `dtype` is that of a pointer, borrowed from torch, which keeps it, and null
// for a number. As `read_argument`; it runs Python code.
Reading read_lookalike(State &state, const Parameter &parameter, PyObject *value, Argument *out,
                       PyObject **dtype);

}  // namespace tzero
