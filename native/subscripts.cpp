#include "subscripts.h"

#include <cstdint>
#include <utility>

#include "state.h"

namespace tzero {

Ref Subscripts::of_code(PyObject *code, Py_ssize_t position) {
    if (entries_.empty()) entries_.resize(size);
    const uint64_t mixed =
        (reinterpret_cast<uintptr_t>(code) ^ static_cast<uint64_t>(position)) * 0x9e3779b97f4a7c15u;
    Entry &entry = entries_[mixed >> 32 & (size - 1)];
    if (entry.code.get() != code || entry.position != position) {
        Ref number = Ref::steal(PyLong_FromSsize_t(position));
        if (!number) return {};
        Ref names = Ref::steal(
            PyObject_CallFunctionObjArgs(find.get(), code, number.get(), nullptr));
        if (!names) return {};
        Entry made{Ref::borrow(code), position, names};
        std::swap(entries_[mixed >> 32 & (size - 1)], made);
        return PyTuple_CheckExact(names.get()) ? names : Ref();
    }
    return PyTuple_CheckExact(entry.names.get()) ? entry.names : Ref();
}

Ref Subscripts::of(const State &state, PyObject *function) {
    if (PyFunction_Check(function)) return of_code(PyFunction_GET_CODE(function), 0);
    if (reinterpret_cast<PyObject *>(Py_TYPE(function)) != partial_type.get()) return {};
    Ref inside = Ref::steal(PyObject_GetAttr(function, state.names.func.get()));
    Ref args = inside ? Ref::steal(PyObject_GetAttr(function, state.names.args.get())) : Ref();
    if (!args || !PyFunction_Check(inside.get()) || !PyTuple_CheckExact(args.get())) return {};
    return of_code(PyFunction_GET_CODE(inside.get()), PyTuple_GET_SIZE(args.get()));
}

}  // namespace tzero
