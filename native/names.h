// Names of arguments, joined: those of a call, and some more.
#pragma once

#include "python.h"

#include <vector>

namespace tzero {

// Keeps the tuples that were joined, because CPython and `Forms` compare tuples of names by
// identity first.
class JoinedNames {
  public:
    // The names of a call (a tuple, or null for none) and others, before or after them. Empty
    // without a Python error if a name occurs twice; empty with it on errors.
    Ref joined(PyObject *names, PyObject *const *more, size_t count, bool before);

  private:
    struct Entry {
        Ref names;
        std::vector<Ref> more;
        bool before = false;
        Ref joined;
    };

    static constexpr size_t size = 256;
    std::vector<Entry> entries_;
};

// Whether two names are the same text. Names in code are interned: then the same text is the same
// object.
inline bool same_name(PyObject *one, PyObject *other) {
    if (one == other) return true;
    if (!PyUnicode_Check(one) || !PyUnicode_Check(other)) return false;
    if (PyUnicode_CHECK_INTERNED(one) && PyUnicode_CHECK_INTERNED(other)) return false;
    return PyUnicode_Compare(one, other) == 0;
}

// Whether two tuples of names, or nulls for none, have the same objects. A call with many arguments
// has a new tuple each time.
bool same_names_in(PyObject *one, PyObject *other);

// A hash of the objects in such a tuple.
size_t hash_of_names(PyObject *names);

}  // namespace tzero
