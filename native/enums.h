// Enums whose numbers Python uses too. Each is declared from a list of names, so that the module
// can export the same names and numbers (module.cpp), and Python needs no copy of them.
//
//     #define TZERO_COLOURS(EACH) EACH(red) EACH(green)
//     enum Colour : int { TZERO_COLOURS(TZERO_ENUMERATOR) count };
//     constexpr const char *colour_names[] = {TZERO_COLOURS(TZERO_ENUMERATOR_NAME)};
#pragma once

#include "python.h"

#define TZERO_ENUMERATOR(name) name,
#define TZERO_ENUMERATOR_NAME(name) #name,

namespace tzero {

// Adds a read-only dict to the module: the names of an enum, each with its number. 0, or -1
// with the Python error set.
template <size_t count>
int add_enum(PyObject *module, const char *name, const char *const (&names)[count]) {
    Ref numbers = Ref::steal(PyDict_New());
    if (!numbers) return -1;
    for (size_t k = 0; k < count; ++k) {
        Ref number = Ref::steal(PyLong_FromSize_t(k));
        if (!number || PyDict_SetItemString(numbers.get(), names[k], number.get()) < 0) return -1;
    }
    Ref view = Ref::steal(PyDictProxy_New(numbers.get()));
    return view ? PyModule_AddObjectRef(module, name, view.get()) : -1;
}

}  // namespace tzero
