// What a function reads of a dict that it is given.
#pragma once

#include "python.h"

#include <cstddef>
#include <functional>
#include <unordered_map>

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
    struct Key {
        PyObject *code;  // the entry keeps it alive
        Py_ssize_t position;
        bool operator==(const Key &other) const {
            return code == other.code && position == other.position;
        }
    };
    struct Hash {
        size_t operator()(const Key &key) const {
            return std::hash<PyObject *>()(key.code) ^ static_cast<size_t>(key.position);
        }
    };
    struct Entry {
        Ref code;
        Ref names;  // or None
    };
    using Entries = std::unordered_map<Key, Entry, Hash>;

    Ref of_code(PyObject *code, Py_ssize_t position);

    static constexpr size_t most = 4096;  // of functions: a library has some hundreds
    Entries entries_;
};

}  // namespace tzero
