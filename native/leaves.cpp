#include "leaves.h"

#include <algorithm>
#include <cstring>

#include "guards.h"

namespace tzero {

namespace {

constexpr int most_depth = 8;

// The kind of a leaf or a container, in the key. Numbers by value have the kinds of constants.
enum Tag : uint64_t {
    is_tensor = 1, is_number, is_constant, is_text, is_bytes, is_dtype, is_list, is_tuple, is_dict,
    is_unread, is_complex, is_size, is_device, is_wrapped, is_held,
};

uint64_t tagged(Tag tag, uint64_t more) { return static_cast<uint64_t>(tag) | more << 8; }

// For the mutation tests: removes from the key of a tensor the facts whose guards are off.
void without_what_is_off(uint64_t *words, size_t count) {
    if (off(Guard::plan_tensor_type)) words[0] &= ~uint64_t{1};
    if (off(Guard::plan_requires_grad)) words[0] &= ~uint64_t{2};
    if (off(Guard::plan_alignment)) words[0] &= ~uint64_t{0xf0};
    if (off(Guard::plan_dtype)) words[0] &= ~uint64_t{0xff00};
    if (off(Guard::plan_keys)) words[1] = 0;
    const size_t strides = 2 + (count - 2) / 2;
    for (size_t k = 2; k < count; ++k) {
        if (off(k < strides ? Guard::plan_sizes : Guard::plan_strides)) words[k] = 0;
    }
}

}  // namespace

bool LeafReader::words(uint64_t one, uint64_t other) {
    if (out_.word_count + 2 > most_words) return false;
    out_.words[out_.word_count++] = one;
    out_.words[out_.word_count++] = other;
    return true;
}

bool LeafReader::start(const Modes &modes) {
    if (off(Guard::plan_modes)) return true;
    out_.words[out_.word_count++] = modes.grad | modes.deterministic << 1;
    return words(modes.included, modes.excluded);
}

Leaf *LeafReader::next(PyObject *value) {
    if (out_.count >= most_leaves) return nullptr;
    out_.word_of[out_.count] = static_cast<uint16_t>(out_.word_count);
    Leaf *leaf = &out_.leaf[out_.count++];
    leaf->object = value;
    leaf->value.kind = Kind::constant_object;  // until it is read
    return leaf;
}

// Keeps an item of a list or a dict alive: it may be removed during the call.
bool LeafReader::take(PyObject *value) {
    if (out_.taken >= most_leaves) return false;
    Py_INCREF(value);
    out_.took[out_.taken++] = value;
    return true;
}

bool LeafReader::tensor(PyObject *value) {
    if (out_.word_count + 1 + most_tensor_words > most_words) return false;
    // The number of an earlier leaf that is the same tensor, from 1; or 0.
    uint64_t same = 0;
    for (size_t k = 0; k < out_.count && same == 0; ++k) {
        if (out_.leaf[k].object == value) same = k + 1;
    }
    Leaf *leaf = next(value);
    if (leaf == nullptr) return false;
    uint64_t *words = out_.words + out_.word_count;
    size_t count = 0;
    leaf->value.kind = Kind::tensor;
    words[0] = tagged(is_tensor, off(Guard::plan_same_tensor) ? 0 : same);
    if (read_tensor_words(tensors_, torch_, value, words + 1, &count, &leaf->value.address) !=
        Reading::done) {
        return false;
    }
    without_what_is_off(words + 1, count);
    out_.word_count += 1 + count;
    return true;
}

bool LeafReader::number(PyObject *value, bool by_value) {
    Leaf *leaf = next(value);
    if (leaf == nullptr) return false;
    static const Parameter plain;  // one without annotations
    if (read_argument(tensors_, plain, value, &leaf->value) != Reading::done) return false;
    if (!by_value) return words(tagged(is_number, static_cast<uint64_t>(leaf->value.kind)),
                                off(Guard::plan_class) ? 0 : leaf->value.bits);
    Argument exact;
    if (read_constant(value, &exact) != Reading::done) return false;
    if (exact.kind == Kind::constant_object) {  // an integer above 63 bits
        if (out_.constant_count >= most_leaves) return false;
        out_.constants[out_.constant_count++] = value;
    }
    return words(tagged(is_constant, static_cast<uint64_t>(exact.kind)),
                 off(Guard::plan_value) ? 0 : exact.bits);
}

// A value that is compared as an object. Comparing these types runs no Python code.
bool LeafReader::object(PyObject *value, uint64_t kind) {
    if (off(Guard::plan_text)) return true;
    const Py_hash_t hash = PyObject_Hash(value);
    if (hash == -1 || out_.constant_count >= most_leaves) {
        PyErr_Clear();
        return false;
    }
    out_.constants[out_.constant_count++] = value;
    return words(kind, static_cast<uint64_t>(hash));
}

// Any other object, of which the key has the type. It is among the constants too, which keeps it
// alive, so that no other type gets its address.
bool LeafReader::unread(PyObject *value) {
    if (next(value) == nullptr || out_.constant_count >= most_leaves) return false;
    out_.has_unread = true;
    PyObject *type = reinterpret_cast<PyObject *>(Py_TYPE(value));
    out_.constants[out_.constant_count++] = type;
    return words(is_unread, reinterpret_cast<uintptr_t>(type));
}

// Whether objects of a type count by identity; as `is_held` in arguments/objects.py. A plan for such
// an object has a guard that it is alive, so that no other one is at its address.
bool LeafReader::is_object(const PyTypeObject *type) const {
    const auto *meta = reinterpret_cast<const PyObject *>(Py_TYPE(type));
    const bool is_plain = Py_IS_TYPE(type, &PyType_Type) || meta == abstract_;
    if (abstract_ == nullptr || !is_plain || type->tp_weaklistoffset == 0) return false;
    PyObject *line = type->tp_mro;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(line); ++k) {
        PyObject *each = PyTuple_GET_ITEM(line, k);
        const auto *base = reinterpret_cast<PyTypeObject *>(each);
        if (base != &PyBaseObject_Type && (base->tp_flags & Py_TPFLAGS_HEAPTYPE) == 0) return false;
    }
    return true;
}

// A list, tuple or dict: the number of an earlier one that is the same object, from 1, and its
// size.
bool LeafReader::container(PyObject *value, uint64_t tag, Py_ssize_t size) {
    PyObject **end = out_.containers + out_.container_count;
    PyObject **at = std::find(out_.containers, end, value);
    const uint64_t same = at == end || off(Guard::plan_same_container)
                              ? 0
                              : static_cast<uint64_t>(at - out_.containers) + 1;
    if (off(Guard::plan_container)) tag = is_list;
    if (out_.container_count >= most_leaves) return false;
    out_.containers[out_.container_count++] = value;
    return words(tag | same << 8, static_cast<uint64_t>(size));
}

bool LeafReader::items(PyObject *value, int depth) {
    const bool is_a_list = PyList_CheckExact(value);
    const Py_ssize_t count = Py_SIZE(value);
    if (!container(value, is_a_list ? is_list : is_tuple, count)) return false;
    for (Py_ssize_t k = 0; k < count; ++k) {
        PyObject *each = is_a_list ? PyList_GET_ITEM(value, k) : PyTuple_GET_ITEM(value, k);
        if (!take(each) || !item(each, true, depth + 1)) return false;
    }
    return true;
}

bool LeafReader::pairs(PyObject *value, int depth) {
    if (!container(value, is_dict, PyDict_GET_SIZE(value))) return false;
    PyObject *key = nullptr, *each = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(value, &at, &key, &each)) {
        if (!PyUnicode_CheckExact(key) || !take(key) || !object(key, is_text)) return false;
        if (!take(each) || !item(each, true, depth + 1)) return false;
    }
    return true;
}

// By its bits: two that are equal may differ in the sign of a zero.
bool LeafReader::complex(PyObject *value) {
    const Py_complex number = PyComplex_AsCComplex(value);
    uint64_t parts[2];
    std::memcpy(parts, &number, sizeof parts);
    if (next(value) == nullptr) return false;
    if (off(Guard::plan_other_value)) return true;
    return words(is_complex, parts[0]) && words(is_complex, parts[1]);
}

// A torch.Size is a leaf: plans do not walk it. Its items may be symbols, while something is traced.
bool LeafReader::size(PyObject *value) {
    const Py_ssize_t count = PyTuple_GET_SIZE(value);
    for (Py_ssize_t k = 0; k < count; ++k) {
        if (!PyLong_CheckExact(PyTuple_GET_ITEM(value, k))) return unread(value);
    }
    if (next(value) == nullptr) return false;
    if (off(Guard::plan_other_value)) return true;
    if (!words(is_size, static_cast<uint64_t>(count))) return false;
    for (Py_ssize_t k = 0; k < count; ++k) {
        const long long item = PyLong_AsLongLong(PyTuple_GET_ITEM(value, k));
        if (item == -1 && PyErr_Occurred()) {
            PyErr_Clear();
            return false;
        }
        if (!words(is_size, static_cast<uint64_t>(item))) return false;
    }
    return true;
}

// A device without an index is the current one, so that the key has its number; of other devices
// than CPU, meta and CUDA only Python knows it.
bool LeafReader::device(PyObject *value) {
    Ref index = Ref::steal(PyObject_GetAttr(value, types_.index));
    Ref type = index.get() == Py_None ? Ref::steal(PyObject_GetAttr(value, types_.type)) : Ref();
    if (PyErr_Occurred()) {
        PyErr_Clear();
        return unread(value);
    }
    uint64_t current = 0;
    if (type && PyUnicode_CompareWithASCIIString(type.get(), "cuda") == 0) {
        const int found = cuda_.current_device();
        if (found < 0) return unread(value);
        current = static_cast<uint64_t>(found) + 1;
    } else if (type && PyUnicode_CompareWithASCIIString(type.get(), "cpu") != 0 &&
               PyUnicode_CompareWithASCIIString(type.get(), "meta") != 0) {
        return unread(value);
    }
    if (next(value) == nullptr) return false;
    if (off(Guard::plan_other_value)) return true;
    return object(value, tagged(is_device, current));
}

// A leaf that is neither a tensor, a number nor a container.
bool LeafReader::other(PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyUnicode_Type || type == &PyBytes_Type) {
        if (next(value) == nullptr) return false;
        return object(value, type == &PyUnicode_Type ? is_text : is_bytes);
    }
    // Of each of these torch has one object for each value, and never frees it.
    if (type == types_.dtype || type == types_.layout || type == types_.memory_format) {
        if (next(value) == nullptr) return false;
        return words(is_dtype,
                     off(Guard::plan_dtype_value) ? 0 : reinterpret_cast<uintptr_t>(value));
    }
    if (type == &PyComplex_Type) return complex(value);
    if (type == types_.size) return size(value);
    if (type == types_.device) return device(value);
    if (!is_object(type)) return unread(value);
    if (next(value) == nullptr) return false;
    return words(is_held, off(Guard::plan_object) ? 0 : reinterpret_cast<uintptr_t>(value));
}

bool LeafReader::item(PyObject *value, bool by_value, int depth) {
    PyTypeObject *type = Py_TYPE(value);
    if (type == tensors_.tensor || type == tensors_.parameter) return tensor(value);
    if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type || value == Py_None) {
        return number(value, by_value);
    }
    if (depth < most_depth) {
        if (type == &PyList_Type || type == &PyTuple_Type) return items(value, depth);
        if (type == &PyDict_Type) return pairs(value, depth);
    }
    if (type == types_.constant && depth == 0) return wrapped(value);
    return other(value);
}

// A compile-time constant: it counts by value, and holds no other values that a plan could walk.
bool LeafReader::constant(PyObject *value) {
    const PyTypeObject *type = Py_TYPE(value);
    if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type || value == Py_None) {
        return number(value, true);
    }
    if (type == tensors_.tensor || type == tensors_.parameter) return unread(value);
    return other(value);
}

// A ConstExpr, which the host function gets unwrapped.
bool LeafReader::wrapped(PyObject *value) {
    Ref inner = Ref::steal(PyObject_GetAttr(value, types_.value));
    if (!inner) {
        PyErr_Clear();
        return unread(value);
    }
    return words(is_wrapped, 0) && take(inner.get()) && constant(inner.get());
}

bool LeafReader::read(PyObject *value, bool by_value, bool is_constant) {
    if (!is_constant) return item(value, by_value, 0);
    return Py_TYPE(value) == types_.constant ? wrapped(value) : constant(value);
}

}  // namespace tzero
