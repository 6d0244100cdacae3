// Whether guards on names and objects hold. Except for `check`, `kept`, `equal` and `result`, none of
// them runs Python code.

#include "watching.h"

#include <cstdint>

#include "guards.h"
#include "portable.h"

namespace tzero::plan {

namespace {

// Whether an item is the same object, or an equal number or string.
bool is_same_item(PyObject *now, PyObject *before) {
    if (now == before) return true;
    if (Py_TYPE(now) != Py_TYPE(before)) return false;
    if (!PyLong_CheckExact(now) && !PyUnicode_CheckExact(now) && !PyBytes_CheckExact(now)) {
        return false;
    }
    return PyObject_RichCompareBool(now, before, Py_EQ) == 1;  // of these types it does not raise
}

bool has_pairs(PyObject *dict, PyObject *items) {
    if (PyDict_GET_SIZE(dict) * 2 != PyTuple_GET_SIZE(items)) return false;
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t at = 0, k = 0;
    while (PyDict_Next(dict, &at, &key, &value)) {
        if (!is_same_item(key, PyTuple_GET_ITEM(items, k)) ||
            !is_same_item(value, PyTuple_GET_ITEM(items, k + 1))) {
            return false;
        }
        k += 2;
    }
    return true;
}

bool has_items(PyObject *container, PyObject *items) {
    const Py_ssize_t count = PyTuple_GET_SIZE(items);
    if (PyDict_CheckExact(container)) return has_pairs(container, items);
    // Its order is not that of the dict inside it.
    if (PyODict_CheckExact(container)) return count == 0 && PyODict_SIZE(container) == 0;
    if (PyAnySet_CheckExact(container)) {
        if (PySet_GET_SIZE(container) != count) return false;
        Ref each, iterator = Ref::steal(PyObject_GetIter(container));
        for (Py_ssize_t k = 0; iterator && k < count; ++k) {
            each = Ref::steal(PyIter_Next(iterator.get()));
            if (!each || !is_same_item(each.get(), PyTuple_GET_ITEM(items, k))) return false;
        }
        return static_cast<bool>(iterator);
    }
    const bool is_list = PyList_CheckExact(container);
    if ((!is_list && !PyTuple_CheckExact(container)) || Py_SIZE(container) != count) return false;
    for (Py_ssize_t k = 0; k < count; ++k) {
        PyObject *now = is_list ? PyList_GET_ITEM(container, k) : PyTuple_GET_ITEM(container, k);
        if (!is_same_item(now, PyTuple_GET_ITEM(items, k))) return false;
    }
    return true;
}

bool has_item(PyObject *list, PyObject *expected) {
    const Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(expected, 0));
    if (!PyList_CheckExact(list)) return false;
    const Py_ssize_t size = PyList_GET_SIZE(list), at = place < 0 ? size + place : place;
    return at >= 0 && at < size &&
           is_same_item(PyList_GET_ITEM(list, at), PyTuple_GET_ITEM(expected, 1));
}

// Code, defaults, name, and the keyword-only defaults: None, or names and values in turn.
bool has_code(PyObject *function, PyObject *expected) {
    if (!PyFunction_Check(function)) return false;
    PyObject *defaults = PyFunction_GET_DEFAULTS(function);
    if (PyFunction_GET_CODE(function) != PyTuple_GET_ITEM(expected, 0) ||
        (defaults == nullptr ? Py_None : defaults) != PyTuple_GET_ITEM(expected, 1) ||
        reinterpret_cast<PyFunctionObject *>(function)->func_name != PyTuple_GET_ITEM(expected, 2)) {
        return false;
    }
    PyObject *named = PyFunction_GET_KW_DEFAULTS(function), *before = PyTuple_GET_ITEM(expected, 3);
    if (named == nullptr || before == Py_None) return named == nullptr && before == Py_None;
    return PyDict_CheckExact(named) && has_pairs(named, before);
}

int64_t changed_at(const char *path) {
    struct stat found;
    if (file_status(path, &found) != 0) return -1;
#ifdef __APPLE__
    const timespec time = found.st_mtimespec;
#else
    const timespec time = found.st_mtim;
#endif
    return static_cast<int64_t>(time.tv_sec) * 1000000000 + time.tv_nsec;
}

// Paths as bytes, and when each was last changed, in nanoseconds; -1 if it does not exist.
bool are_unchanged(PyObject *expected) {
    for (Py_ssize_t k = 0; k + 1 < PyTuple_GET_SIZE(expected); k += 2) {
        if (changed_at(PyBytes_AS_STRING(PyTuple_GET_ITEM(expected, k))) !=
            PyLong_AsLongLong(PyTuple_GET_ITEM(expected, k + 1))) {
            return false;
        }
    }
    return true;
}

// What a weak reference refers to, if that is alive.
Ref referent(PyObject *reference) {
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = nullptr;
    if (PyWeakref_GetRef(reference, &found) < 0) PyErr_Clear();
    return Ref::steal(found);
#else
    PyObject *found = PyWeakref_CheckRef(reference) ? PyWeakref_GET_OBJECT(reference) : Py_None;
    return found == Py_None ? Ref() : Ref::borrow(found);
#endif
}

// Whether what a weak reference refers to is alive, and has this class and this dict, if any.
bool is_held(PyObject *reference, PyObject *expected) {
    const Ref found = referent(reference);
    if (!found) return false;
    if (reinterpret_cast<PyObject *>(Py_TYPE(found.get())) != PyTuple_GET_ITEM(expected, 0)) {
        return false;
    }
    PyObject *before = PyTuple_GET_ITEM(expected, 1);
    PyObject **own = before == Py_None ? nullptr : _PyObject_GetDictPtr(found.get());
    return before == Py_None || (own != nullptr && *own == before);
}

// Whether an object is still as a guard of these kinds expects; runs no Python code.
bool object_holds(Watch::Kind kind, PyObject *object, PyObject *expected) {
    switch (kind) {
    case Watch::code: return has_code(object, expected);
    case Watch::of_class: return reinterpret_cast<PyObject *>(Py_TYPE(object)) == expected;
    case Watch::own_dict: {
        PyObject **own = _PyObject_GetDictPtr(object);
        return own != nullptr && *own == expected;
    }
    case Watch::bases:
        return PyType_Check(object) &&
               reinterpret_cast<PyTypeObject *>(object)->tp_mro == expected;
    case Watch::held: return is_held(object, expected);
    case Watch::items: return has_items(object, expected);
    case Watch::item: return has_item(object, expected);
    case Watch::files: return are_unchanged(expected);
    default: return false;
    }
}

Answer answered(int truth) {
    return truth < 0 ? Answer::error : truth > 0 ? Answer::yes : Answer::no;
}

}  // namespace

PyObject *Watch::now() const {
    if (object) return object.get();
    return in_cell ? PyCell_GET(where.get()) : PyDict_GetItemWithError(where.get(), name.get());
}

Answer Watch::holds(bool *ran_python) const {
    if (off(Guard::plan_names)) return Answer::yes;
    const Ref found = Ref::borrow(now());
    if (!found && PyErr_Occurred()) return Answer::error;
    if (kind == absent) return found ? Answer::no : Answer::yes;
    if (!found) return Answer::no;
    PyObject *before = value.get();
    switch (kind) {
    case same: return found.get() == before ? Answer::yes : Answer::no;
    case equal:
        if (found.get() == before) return Answer::yes;
        if (Py_TYPE(found.get()) != Py_TYPE(before)) return Answer::no;
        *ran_python = true;
        return answered(PyObject_RichCompareBool(found.get(), before, Py_EQ));
    case kept:
        if (found.get() != PyTuple_GET_ITEM(before, 0)) return Answer::no;
        if (PyDict_GET_SIZE(where.get()) < PyLong_AsSsize_t(PyTuple_GET_ITEM(before, 1))) {
            return Answer::yes;
        }
        [[fallthrough]];
    case check: {
        *ran_python = true;
        const Ref said = Ref::steal(PyObject_CallOneArg(function.get(), found.get()));
        return said ? answered(PyObject_IsTrue(said.get())) : Answer::error;
    }
    case result: *ran_python = true; [[fallthrough]];
    case setting: {
        const Ref said = Ref::steal(PyObject_CallNoArgs(found.get()));
        if (!said) return Answer::error;
        return is_same_item(said.get(), before) ? Answer::yes : Answer::no;
    }
    default: return object_holds(kind, found.get(), before) ? Answer::yes : Answer::no;
    }
}

const char *Watch::expected() const {
    PyObject *expects = value.get();
    const Py_ssize_t size = PyTuple_CheckExact(expects) ? PyTuple_GET_SIZE(expects) : -1;
    if (kind == code) {
        if (size != 4) return "a tuple of four";
        PyObject *named = PyTuple_GET_ITEM(expects, 3);
        if (named != Py_None && (!PyTuple_CheckExact(named) || PyTuple_GET_SIZE(named) % 2 != 0)) {
            return "names and values of keyword-only defaults, or None";
        }
    }
    if (kind == item && (size != 2 || !PyLong_CheckExact(PyTuple_GET_ITEM(expects, 0)))) {
        return "a place and an item";
    }
    if (kind == kept &&
        (in_cell || size != 2 || !PyLong_CheckExact(PyTuple_GET_ITEM(expects, 1)))) {
        return "an object in a dict, and a size";
    }
    if (kind == own_dict && !PyDict_CheckExact(expects)) return "a dict";
    if (kind == held && size != 2) return "a class, and a dict or None";
    if ((kind == items || kind == bases) && size < 0) return "a tuple";
    if (kind == files) {
        bool fits = size >= 0 && size % 2 == 0;
        for (Py_ssize_t k = 0; fits && k < size; k += 2) {
            fits = PyBytes_CheckExact(PyTuple_GET_ITEM(expects, k)) &&
                   PyLong_CheckExact(PyTuple_GET_ITEM(expects, k + 1));
        }
        if (!fits) return "paths and times";
    }
    return nullptr;
}

}  // namespace tzero::plan
