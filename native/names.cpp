#include "names.h"

#include <cstdint>

namespace tzero {

namespace {

size_t mixed(size_t hash, const void *pointer) {
    return (hash ^ reinterpret_cast<uintptr_t>(pointer) >> 4) * 0x9e3779b97f4a7c15u;
}

bool same_objects(const std::vector<Ref> &kept, PyObject *const *given, size_t count) {
    if (kept.size() != count) return false;
    for (size_t k = 0; k < count; ++k) {
        if (kept[k].get() != given[k]) return false;
    }
    return true;
}

// Empty without a Python error if a name occurs twice.
Ref join(PyObject *names, PyObject *const *more, size_t count, bool before) {
    const Py_ssize_t known = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    for (size_t k = 0; k < count; ++k) {
        for (Py_ssize_t j = 0; j < known; ++j) {
            if (same_name(PyTuple_GET_ITEM(names, j), more[k])) return {};
        }
    }
    Ref made = Ref::steal(PyTuple_New(known + static_cast<Py_ssize_t>(count)));
    if (!made) return {};
    Py_ssize_t at = before ? static_cast<Py_ssize_t>(count) : 0;
    for (Py_ssize_t j = 0; j < known; ++j, ++at) {
        PyTuple_SET_ITEM(made.get(), at, Ref::borrow(PyTuple_GET_ITEM(names, j)).release());
    }
    at = before ? 0 : known;
    for (size_t k = 0; k < count; ++k, ++at) {
        PyObject *name = Ref::borrow(more[k]).release();
        if (PyUnicode_CheckExact(name)) PyUnicode_InternInPlace(&name);  // see `same_name`
        PyTuple_SET_ITEM(made.get(), at, name);
    }
    return made;
}

}  // namespace

bool same_names_in(PyObject *one, PyObject *other) {
    if (one == other) return true;
    if (one == nullptr || other == nullptr) return false;
    const Py_ssize_t count = PyTuple_GET_SIZE(one);
    if (count != PyTuple_GET_SIZE(other)) return false;
    for (Py_ssize_t k = 0; k < count; ++k) {
        if (PyTuple_GET_ITEM(one, k) != PyTuple_GET_ITEM(other, k)) return false;
    }
    return true;
}

size_t hash_of_names(PyObject *names) {
    const Py_ssize_t count = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    size_t hash = static_cast<size_t>(count);
    for (Py_ssize_t k = 0; k < count; ++k) hash = mixed(hash, PyTuple_GET_ITEM(names, k));
    return hash;
}

Ref JoinedNames::joined(PyObject *names, PyObject *const *more, size_t count, bool before) {
    if (entries_.empty()) entries_.resize(size);
    size_t hash = hash_of_names(names) + (before ? 1 : 0);
    for (size_t k = 0; k < count; ++k) hash = mixed(hash, more[k]);
    Entry &entry = entries_[hash >> 32 & (size - 1)];
    if (entry.joined && same_names_in(entry.names.get(), names) && entry.before == before &&
        same_objects(entry.more, more, count)) {
        return entry.joined;
    }
    Ref made = join(names, more, count, before);
    if (!made) return {};
    Entry replaced{Ref::borrow(names), {}, before, made};
    for (size_t k = 0; k < count; ++k) replaced.more.push_back(Ref::borrow(more[k]));
    std::swap(entry, replaced);  // what was there is freed when the entry is whole
    return made;
}

}  // namespace tzero
