// A description that Python gives, read by the names of its fields.
//
// Enters: an object with attributes, such as a frozen dataclass. Leaves: its values, checked.
// Kernels, binaries and plans are described when they are first seen, so nothing here runs on a
// hit.
#pragma once

#include "python.h"

#include <cstdint>
#include <exception>

namespace tzero {

// Thrown with the Python error set. Whoever was handed the description catches it.
struct Malformed : std::exception {};

// Each function throws `Malformed` if the field is missing or of another type. The error names the
// description's class, the field, what was expected and what was found.
class Fields {
  public:
    explicit Fields(PyObject *object) : object_(Ref::borrow(object)) {}

    Ref any(const char *name) const;
    Ref optional(const char *name) const;  // empty for None
    Ref text(const char *name) const;
    Ref tuple(const char *name) const;
    Ref dict(const char *name) const;
    Ref bytes(const char *name) const;
    bool flag(const char *name) const;

    // An integer from `least` to `most`.
    int64_t integer(const char *name, int64_t least, int64_t most) const;

    // An integer from 0 to `count` - 1; the second is -1 for None.
    size_t index(const char *name, size_t count) const;
    Py_ssize_t optional_index(const char *name, size_t count) const;

    // An address, as an integer.
    uintptr_t address(const char *name) const;

    // Calls `each` with every item of a tuple.
    template <typename Each> void for_each(const char *name, Each each) const {
        const Ref items = tuple(name);
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(items.get()); ++k) {
            each(PyTuple_GET_ITEM(items.get(), k));
        }
    }

    // Raises: the field is not what is expected.
    [[noreturn]] void wrong(const char *name, const char *expected) const;

  private:
    Ref checked(const char *name, PyTypeObject *type, const char *expected) const;
    Ref number(const char *name) const;

    Ref object_;
};

// An item of a tuple as an integer; throws `Malformed` with the Python error set.
int64_t integer_from(PyObject *item);

}  // namespace tzero
