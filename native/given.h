// A call of a kernel as CPython hands it over, and as its host function takes it.
#pragma once

#include <vector>

#include "arguments.h"
#include "leaves.h"
#include "python.h"

namespace tzero {

// A call. `written` is the call that it was made from by `gather`, if it was.
struct Given {
    PyObject *self;
    PyObject *const *arguments;  // positional, then named
    Py_ssize_t positional;
    PyObject *names;
    const Given *written = nullptr;

    Py_ssize_t count() const {
        return positional + (names == nullptr ? 0 : PyTuple_GET_SIZE(names));
    }
};

// The argument of a parameter.
inline PyObject *argument_of(const std::vector<Parameter> &parameters, const Given &given,
                             const Form &form, size_t k) {
    const Py_ssize_t place = form.place[k];
    return place < 0 ? parameters[k].fallback.get() : given.arguments[place];
}

// The arguments of a call in the order of the parameters, as a tuple: what the host function gets.
// Empty with the Python error set.
Ref ordered(const std::vector<Parameter> &parameters, const LeafTypes &types, const Given &given,
            const Form &form);

// Positional arguments as a tuple, named ones as a dict. False with the Python error set.
bool collect(const Given &given, Ref *args, Ref *kwargs);

// Which parameters of a host function are `*rest` and `**more`; -1 if there is none.
struct Variadic {
    Py_ssize_t rest = -1, more = -1;
    Py_ssize_t fixed = 0;  // how many arguments can be given by position besides `*rest`

    bool any() const { return rest >= 0 || more >= 0; }
};

Variadic variadic_of(const std::vector<Parameter> &parameters);

// A call in which what `*rest` and `**more` take is a tuple and a dict under their names.
struct Gathered {
    Given given{};
    std::vector<PyObject *> arguments;
    Ref names, rest, more;
};

// False with the Python error set.
bool gather(const std::vector<Parameter> &parameters, const Variadic &variadic,
            const Given &written, Gathered *out);

}  // namespace tzero
