#include "subscripts.h"

#include "state.h"

namespace tzero {

Ref Subscripts::of_code(PyObject *code, Py_ssize_t position) {
    const Key key{code, position};
    auto found = entries_.find(key);
    if (found == entries_.end()) {
        Ref number = Ref::steal(PyLong_FromSsize_t(position));
        if (!number) return {};
        Ref names = Ref::steal(
            PyObject_CallFunctionObjArgs(find.get(), code, number.get(), nullptr));
        if (!names) return {};
        Entries full;  // let go of at the end
        if (entries_.size() >= most) full.swap(entries_);
        found = entries_.insert_or_assign(key, Entry{Ref::borrow(code), names}).first;
    }
    const Ref &names = found->second.names;
    return PyTuple_CheckExact(names.get()) ? names : Ref();
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
