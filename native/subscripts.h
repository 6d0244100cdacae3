// What a function reads of a dict that it is given.
#pragma once

#include "python.h"

#include <vector>

namespace tzero {

struct State;

// The names that functions subscript their dict with, by their code. Python finds them
// (src/tzero/launches/subscripts.py).
class Subscripts {
  public:
    Ref find;          // of a code and a position: a tuple, or None
    Ref partial_type;  // functools.partial

    // The names of a function, or a partial call of one, that gets a dict as its next positional
    // argument: a tuple. Empty if it may read more, or with the Python error set.
    Ref of(const State &state, PyObject *function);

  private:
    struct Entry {
        Ref code;
        Py_ssize_t position = 0;
        Ref names;  // or None
    };

    Ref of_code(PyObject *code, Py_ssize_t position);

    static constexpr size_t size = 256;
    std::vector<Entry> entries_;
};

}  // namespace tzero
