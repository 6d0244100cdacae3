#include "fields.h"

namespace tzero {

void Fields::wrong(const char *name, const char *expected) const {
    const Ref found = any(name);
    PyErr_Format(PyExc_TypeError, "%s.%s must be %s, not %R", Py_TYPE(object_.get())->tp_name, name,
                 expected, found.get());
    throw Malformed{};
}

Ref Fields::any(const char *name) const {
    Ref found = Ref::steal(PyObject_GetAttrString(object_.get(), name));
    if (found) return found;
    if (PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Format(PyExc_TypeError, "%s has no field %s, which native code reads",
                     Py_TYPE(object_.get())->tp_name, name);
    }
    throw Malformed{};
}

Ref Fields::optional(const char *name) const {
    Ref found = any(name);
    return found.get() == Py_None ? Ref() : found;
}

Ref Fields::checked(const char *name, PyTypeObject *type, const char *expected) const {
    Ref found = any(name);
    if (Py_TYPE(found.get()) != type) wrong(name, expected);
    return found;
}

Ref Fields::tuple(const char *name) const { return checked(name, &PyTuple_Type, "a tuple"); }
Ref Fields::bytes(const char *name) const { return checked(name, &PyBytes_Type, "bytes"); }

Ref Fields::text(const char *name) const {
    Ref found = any(name);
    if (!PyUnicode_Check(found.get())) wrong(name, "a str");
    return found;
}

Ref Fields::dict(const char *name) const {
    Ref found = any(name);
    if (!PyDict_Check(found.get())) wrong(name, "a dict");
    return found;
}

bool Fields::flag(const char *name) const {
    return checked(name, &PyBool_Type, "a bool").get() == Py_True;
}

Ref Fields::number(const char *name) const {
    Ref found = any(name);
    Ref exact = Ref::steal(PyNumber_Index(found.get()));
    if (!exact) {
        PyErr_Clear();
        wrong(name, "an int");
    }
    return exact;
}

int64_t Fields::integer(const char *name, int64_t least, int64_t most) const {
    const Ref found = number(name);
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(found.get(), &overflow);
    if (overflow == 0 && value >= least && value <= most) return value;
    PyErr_Format(PyExc_ValueError, "%s.%s must be from %lld to %lld, not %R",
                 Py_TYPE(object_.get())->tp_name, name, static_cast<long long>(least),
                 static_cast<long long>(most), found.get());
    throw Malformed{};
}

size_t Fields::index(const char *name, size_t count) const {
    return static_cast<size_t>(integer(name, 0, static_cast<int64_t>(count) - 1));
}

Py_ssize_t Fields::optional_index(const char *name, size_t count) const {
    return optional(name) ? static_cast<Py_ssize_t>(index(name, count)) : -1;
}

uintptr_t Fields::address(const char *name) const {
    const Ref found = number(name);
    const unsigned long long value = PyLong_AsUnsignedLongLong(found.get());
    if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred()) {
        PyErr_Clear();
        wrong(name, "an address");
    }
    return value;
}

int64_t integer_from(PyObject *item) {
    const long long value = PyLong_AsLongLong(item);
    if (value == -1 && PyErr_Occurred()) throw Malformed{};
    return value;
}

}  // namespace tzero
