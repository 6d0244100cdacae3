// Guards on what a host function reads besides its arguments: names, and the objects behind them.
//
// src/tzero/reading/guards.py has the same kinds and explains them.
#pragma once

#include "python.h"

#include "enums.h"
#include "kernel.h"

namespace tzero::plan {

// A guard on a name that the host function reads. Its value is the same object (`same`), an object
// of the same type that compares equal (`equal`), accepted by a function in Python (`check`), or
// the name is not there (`absent`). The others are about an object that keeps its place: a function
// has this code and these defaults (`code`), an object this class (`of_class`), or this dict of its
// own attributes (`own_dict`), a class these bases (`bases`), a container these items (`items`), or
// this item at a place (`item`); a function without arguments returns this value (`result`); files
// were last changed at these times (`files`). An object that is `held` by a weak reference is alive,
// and has this class and this dict. A name that is `kept` is the same object in a dict with room for
// more, or a function accepts it. A `setting` is a `result` of a function of tzero, which only reads.
#define TZERO_GUARD_KINDS(EACH)                                                                   \
    EACH(same) EACH(equal) EACH(check) EACH(absent) EACH(code) EACH(of_class) EACH(own_dict)      \
    EACH(bases) EACH(held) EACH(items) EACH(item) EACH(result) EACH(files) EACH(kept) EACH(setting)
constexpr const char *guard_kind_names[] = {TZERO_GUARD_KINDS(TZERO_ENUMERATOR_NAME)};

struct Watch {
    enum Kind : int { TZERO_GUARD_KINDS(TZERO_ENUMERATOR) count };
    Ref where;  // a dict, or a cell
    Ref name;   // in the dict
    Ref value;
    Ref function;  // of a `check`, or `kept`
    Ref object;    // what a guard on an object is about, which is in a dict of its own
    PyObject **own = nullptr;  // where the object keeps its dict, for `own_dict`
    Kind kind = same;
    bool in_cell = false;
    bool by_version = false;  // it holds while its dict has the same version

    // What the name holds now, borrowed; null if nothing, or with the Python error set.
    PyObject *now() const;

    // Whether it holds, for the kinds of which there are most; if not, `holds` decides.
    bool holds_at_a_glance() const {
        PyObject *about = object.get();
        if (about == nullptr) return false;
        if (kind == of_class) return reinterpret_cast<PyObject *>(Py_TYPE(about)) == value.get();
        if (kind == own_dict) return own != nullptr && *own == value.get();
        if (kind == bases) {
            return PyType_Check(about) &&
                   reinterpret_cast<PyTypeObject *>(about)->tp_mro == value.get();
        }
        return kind == items && PyODict_CheckExact(about) && PyODict_SIZE(about) == 0 &&
               PyTuple_GET_SIZE(value.get()) == 0;
    }

    // Whether the fact still holds. Sets `ran_python` if Python code may have run.
    Answer holds(bool *ran_python) const;

    // What its value should be, in words, if that is not what `holds` expects; else null.
    const char *expected() const;
};

}  // namespace tzero::plan
