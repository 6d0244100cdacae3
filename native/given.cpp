#include "given.h"

#include <algorithm>

namespace tzero {

namespace {

bool starts_with_star(PyObject *name) {
    return PyUnicode_GET_LENGTH(name) > 0 && PyUnicode_READ_CHAR(name, 0) == '*';
}

bool is_named(const std::vector<Parameter> &parameters, PyObject *name) {
    return std::any_of(parameters.begin(), parameters.end(), [&](const Parameter &each) {
        return !starts_with_star(each.name.get()) && PyUnicode_Compare(each.name.get(), name) == 0;
    });
}

}  // namespace

bool collect(const Given &given, Ref *args, Ref *kwargs) {
    const Given &call = given.written == nullptr ? given : *given.written;
    *args = Ref::steal(PyTuple_New(call.positional));
    *kwargs = Ref::steal(PyDict_New());
    if (!*args || !*kwargs) return false;
    for (Py_ssize_t k = 0; k < call.positional; ++k) {
        Py_INCREF(call.arguments[k]);
        PyTuple_SET_ITEM(args->get(), k, call.arguments[k]);
    }
    for (Py_ssize_t k = call.positional; k < call.count(); ++k) {
        PyObject *name = PyTuple_GET_ITEM(call.names, k - call.positional);
        if (PyDict_SetItem(kwargs->get(), name, call.arguments[k]) < 0) return false;
    }
    return true;
}

Ref ordered(const std::vector<Parameter> &parameters, const LeafTypes &types, const Given &given,
            const Form &form) {
    Ref made = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(parameters.size())));
    for (size_t k = 0; made && k < parameters.size(); ++k) {
        PyObject *value = argument_of(parameters, given, form, k);
        if (Py_TYPE(value) == types.constant) {
            value = PyObject_GetAttr(value, types.value);
            if (value == nullptr) return {};
        } else {
            Py_INCREF(value);
        }
        PyTuple_SET_ITEM(made.get(), static_cast<Py_ssize_t>(k), value);
    }
    return made;
}

Variadic variadic_of(const std::vector<Parameter> &parameters) {
    Variadic found;
    for (size_t k = 0; k < parameters.size(); ++k) {
        PyObject *name = parameters[k].name.get();
        const auto at = static_cast<Py_ssize_t>(k);
        if (!parameters[k].keyword_only) found.fixed = at + 1;
        if (!starts_with_star(name)) continue;
        const bool twice = PyUnicode_GET_LENGTH(name) > 1 && PyUnicode_READ_CHAR(name, 1) == '*';
        (twice ? found.more : found.rest) = at;
    }
    return found;
}

bool gather(const std::vector<Parameter> &parameters, const Variadic &variadic,
            const Given &written, Gathered *out) {
    const Py_ssize_t most = variadic.rest >= 0 ? variadic.fixed : written.positional;
    const Py_ssize_t positional = std::min(written.positional, most);
    std::vector<PyObject *> names;
    out->arguments.assign(written.arguments, written.arguments + positional);
    for (Py_ssize_t k = written.positional; k < written.count(); ++k) {
        PyObject *name = PyTuple_GET_ITEM(written.names, k - written.positional);
        if (variadic.more < 0 || is_named(parameters, name)) {
            names.push_back(name);
            out->arguments.push_back(written.arguments[k]);
            continue;
        }
        if (!out->more) out->more = Ref::steal(PyDict_New());
        if (!out->more || PyDict_SetItem(out->more.get(), name, written.arguments[k]) < 0) {
            return false;
        }
    }
    if (written.positional > positional) {
        out->rest = Ref::steal(PyTuple_New(written.positional - positional));
        if (!out->rest) return false;
        for (Py_ssize_t k = positional; k < written.positional; ++k) {
            Py_INCREF(written.arguments[k]);
            PyTuple_SET_ITEM(out->rest.get(), k - positional, written.arguments[k]);
        }
        names.push_back(parameters[variadic.rest].name.get());
        out->arguments.push_back(out->rest.get());
    }
    if (out->more) {
        names.push_back(parameters[variadic.more].name.get());
        out->arguments.push_back(out->more.get());
    }
    if (!names.empty()) {
        out->names = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(names.size())));
        if (!out->names) return false;
        for (size_t k = 0; k < names.size(); ++k) {
            Py_INCREF(names[k]);
            PyTuple_SET_ITEM(out->names.get(), static_cast<Py_ssize_t>(k), names[k]);
        }
    }
    out->given = {written.self, out->arguments.data(), positional, out->names.get(), &written};
    return true;
}

}  // namespace tzero
