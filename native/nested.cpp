// Arguments that hold others: tuples and named tuples, nested too, and tensor descriptors. Objects
// that Triton takes for pointers are read here, too.
//
//     k[grid](x, (n, (y, 2.0)), descriptor)
//       arguments  x   n   y   2.0   base, sizes, strides, padding
//       key        x   2 items, n, 2 items, y, float   dtype and block of the descriptor
//
// Triton passes the items of a tuple as parameters of their own, and a descriptor on the CPU as its
// base, sizes, strides and flags. The order here is the one that `_leaves` in
// src/tzero/launches/native.py numbers them in. Launches come here if `read_argument` does not know
// an argument, so that others pay nothing.

#include <algorithm>
#include <cstring>

#include "facts.h"
#include "guards.h"

namespace tzero {

namespace {

constexpr int most_depth = 16;

// Whether items are read as those of a tuple: no subclass that computes them.
bool is_plain_tuple(const State &state, PyTypeObject *type) {
    if (type == &PyTuple_Type || reinterpret_cast<PyObject *>(type) == state.torch_size.get()) {
        return true;
    }
    if (!PyType_IsSubtype(type, &PyTuple_Type)) return false;
    return type->tp_iter == PyTuple_Type.tp_iter && type->tp_as_mapping != nullptr &&
           type->tp_as_mapping->mp_subscript == PyTuple_Type.tp_as_mapping->mp_subscript &&
           type->tp_as_sequence != nullptr &&
           type->tp_as_sequence->sq_length == PyTuple_Type.tp_as_sequence->sq_length;
}

// The items of a list or tuple of sizes; empty for anything else.
struct Sizes {
    PyObject **items = nullptr;
    Py_ssize_t count = -1;

    Sizes(const State &state, PyObject *object) {
        if (object == nullptr) return;
        const auto *type = reinterpret_cast<PyObject *>(Py_TYPE(object));
        if (PyList_CheckExact(object) || PyTuple_CheckExact(object) ||
            type == state.torch_size.get()) {
            items = PySequence_Fast_ITEMS(object);
            count = PySequence_Fast_GET_SIZE(object);
        }
    }
};

bool read_size(PyObject *item, int64_t *out) {
    if (!PyLong_CheckExact(item)) return false;
    int overflow = 0;
    *out = PyLong_AsLongLongAndOverflow(item, &overflow);
    return overflow == 0;
}

class Reader {
  public:
    Reader(State &state, NestedFacts *out) : state_(state), facts_(out->facts) {
        unspecialized_.specialize = false;
    }

    Reading option(PyObject *value, int depth) {
        if (!PyTuple_CheckExact(value)) {
            Argument read;
            const Reading reading = read_option(value, &read);
            return reading == Reading::done ? noted(read) : reading;
        }
        if (depth > most_depth || !has_room(0, 1)) return Reading::not_ours;
        facts_.is_nested = true;
        facts_.note(Kind::group, static_cast<uint64_t>(PyTuple_GET_SIZE(value)));
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(value); ++k) {
            const Reading reading = option(PyTuple_GET_ITEM(value, k), depth + 1);
            if (reading != Reading::done) return reading;
        }
        return Reading::done;
    }

    Reading value(PyObject *value, const Parameter &parameter, int depth) {
        PyTypeObject *type = Py_TYPE(value);
        const bool is_common = is_tensor(value) || type == &PyLong_Type || type == &PyFloat_Type;
        if (parameter.constant || is_common) return one(value, parameter);
        if (is_plain_tuple(state_, type)) return tuple(value, depth);
        const auto *kind = reinterpret_cast<PyObject *>(type);
        if (kind == state_.descriptor.get()) return descriptor(value);
        // Triton compiles these in.
        if (kind == state_.constexpr_type.get() || is_callable(type)) return one(value, constant_);
        const Reading reading = one(value, parameter);
        return reading == Reading::not_ours ? lookalike(value, parameter) : reading;
    }

  private:
    bool has_room(size_t arguments, size_t notes) const {
        return facts_.count + arguments <= most_parameters &&
               facts_.word_count + 2 * notes <= NestedFacts::most_words &&
               facts_.constant_count < most_parameters;
    }

    Reading noted(const Argument &argument) {
        if (!has_room(0, 1)) return Reading::not_ours;
        facts_.note(argument);
        return Reading::done;
    }

    bool is_callable(PyTypeObject *type) const {
        return PyType_IsSubtype(type, reinterpret_cast<PyTypeObject *>(state_.jit_callable.get()));
    }

    // A value that holds no others.
    Reading one(PyObject *value, const Parameter &parameter) {
        if (!has_room(1, 1)) return Reading::not_ours;
        Argument &argument = facts_.arguments[facts_.count];
        const Reading reading = read_argument(state_.tensors, parameter, value, &argument);
        if (reading != Reading::done) return reading;
        ++facts_.count;
        return noted(argument);
    }

    // The addresses of objects are read again before the launch, as Triton does.
    Reading lookalike(PyObject *value, const Parameter &parameter) {
        if (!has_room(1, 2)) return Reading::not_ours;
        Argument &argument = facts_.arguments[facts_.count];
        PyObject *dtype = nullptr;
        const Reading reading = read_lookalike(state_, parameter, value, &argument, &dtype);
        if (reading != Reading::done) return reading;
        ++facts_.count;
        if (dtype != nullptr) {
            facts_.is_nested = facts_.runs_python = true;
            if (!off(Guard::dtype)) facts_.note(Kind::lookalike, reinterpret_cast<uintptr_t>(dtype));
        }
        return noted(argument);
    }

    // Triton specializes items on their values, whatever the parameter says.
    Reading tuple(PyObject *value, int depth) {
        if (depth > most_depth || !has_room(0, 2)) return Reading::not_ours;
        facts_.is_nested = true;
        const Py_ssize_t count = PyTuple_GET_SIZE(value);
        if (!off(Guard::tuple_shape)) {
            facts_.note(Kind::group, static_cast<uint64_t>(count));
            if (!PyTuple_CheckExact(value)) note_class(Py_TYPE(value));
        }
        for (Py_ssize_t k = 0; k < count; ++k) {
            const Reading reading = this->value(PyTuple_GET_ITEM(value, k), item_, depth + 1);
            if (reading != Reading::done) return reading;
        }
        return Reading::done;
    }

    void note_class(PyTypeObject *type) {
        Argument made{};
        made.kind = Kind::constant_object;
        made.bits = reinterpret_cast<uintptr_t>(type);
        made.object = reinterpret_cast<PyObject *>(type);
        facts_.note(made);
    }

    // Whether the attributes of a descriptor are the entries of its dict.
    bool has_plain_attributes(PyTypeObject *type) {
        const unsigned version = type->tp_version_tag;
        if (version != 0 && version == state_.descriptor_version) return true;
        if (type->tp_getattro != PyObject_GenericGetAttr) return false;
        for (const Ref *name : {&state_.names.base, &state_.names.shape, &state_.names.strides,
                                &state_.names.block_shape, &state_.names.padding,
                                &state_.names.round_f32_to_tf32}) {
            PyObject *hides = _PyType_Lookup(type, name->get());
            if (hides != nullptr && Py_TYPE(hides)->tp_descr_set != nullptr) return false;
        }
        state_.descriptor_version = type->tp_version_tag;
        return true;
    }

    Reading descriptor(PyObject *value) {
        if (!has_plain_attributes(Py_TYPE(value))) return Reading::not_ours;
        Ref dict = Ref::steal(PyObject_GenericGetDict(value, nullptr));
        if (!dict) return Reading::error;
        const Names &names = state_.names;
        auto field = [&dict](const Ref &name) {
            return PyDict_GetItemWithError(dict.get(), name.get());
        };
        PyObject *base = field(names.base), *padding = field(names.padding);
        PyObject *rounds = field(names.round_f32_to_tf32);
        const Sizes shape(state_, field(names.shape)), strides(state_, field(names.strides));
        const Sizes block(state_, field(names.block_shape));
        if (PyErr_Occurred()) return Reading::error;
        const bool is_whole = base != nullptr && is_tensor(base) && padding != nullptr &&
                              PyUnicode_CheckExact(padding) && shape.count > 0 &&
                              strides.count == shape.count && block.count == shape.count &&
                              (rounds == nullptr || PyBool_Check(rounds));
        const auto rank = static_cast<size_t>(std::max<Py_ssize_t>(shape.count, 0));
        if (!is_whole || !has_room(2 * rank + 3, rank + 4)) return Reading::not_ours;
        facts_.is_nested = true;
        const Reading reading = one(base, unspecialized_);
        if (reading != Reading::done) return reading;
        facts_.note(Kind::descriptor, rank);
        if (!note_block(block) || !add_sizes(shape) || !add_sizes(strides)) return Reading::not_ours;
        add_flag(PyUnicode_CompareWithASCIIString(padding, "nan") == 0);
        add_flag(rounds == Py_True);
        facts_.note(Kind::boolean, rounds == Py_True);
        return Reading::done;
    }

    bool is_tensor(PyObject *value) const {
        return Py_TYPE(value) == state_.tensors.tensor || Py_TYPE(value) == state_.tensors.parameter;
    }

    bool note_block(const Sizes &block) {
        if (off(Guard::descriptor_block)) return true;
        for (Py_ssize_t k = 0; k < block.count; ++k) {
            int64_t size = 0;
            if (!read_size(block.items[k], &size)) return false;
            facts_.note(Kind::constant_integer, static_cast<uint64_t>(size));
        }
        return true;
    }

    bool add_sizes(const Sizes &sizes) {
        for (Py_ssize_t k = 0; k < sizes.count; ++k) {
            Argument &argument = facts_.arguments[facts_.count++];
            argument = {};
            argument.kind = Kind::integer;
            if (!read_size(sizes.items[k], &argument.integer)) return false;
        }
        return true;
    }

    void add_flag(bool is_set) {
        Argument &argument = facts_.arguments[facts_.count++];
        argument = {};
        argument.kind = Kind::boolean;
        argument.integer = is_set;
    }

    State &state_;
    Facts &facts_;
    Parameter item_, unspecialized_;
    const Parameter constant_{Ref(), Ref(), true};
};

}  // namespace

Reading read_nested(const Call &call, const Form &form, uint64_t first, NestedFacts *out) {
    Reader reader(*call.kernel->state, out);
    out->facts.words[out->facts.word_count++] = first;
    const auto &parameters = call.kernel->parameters;
    for (size_t k = 0; k < parameters.size(); ++k) {
        const Reading reading = reader.value(value_of(call, form, k), parameters[k], 0);
        if (reading != Reading::done) return reading;
    }
    for (Py_ssize_t place : form.options) {
        const Reading reading = reader.option(call.arguments[place], 0);
        if (reading != Reading::done) return reading;
    }
    return Reading::done;
}

Reading read_nested_again(const Call &call, const Form &form, Facts *facts) {
    NestedFacts now;
    const Reading reading = read_nested(call, form, facts->words[0], &now);
    if (reading != Reading::done) return reading;
    const bool is_same =
        now.facts.word_count == facts->word_count && now.facts.count == facts->count &&
        std::equal(now.words, now.words + now.facts.word_count, facts->words) &&
        now.facts.constant_count == facts->constant_count &&
        std::equal(now.constants, now.constants + now.facts.constant_count, facts->constants);
    if (!is_same) return Reading::not_ours;
    std::copy(now.arguments, now.arguments + now.facts.count, facts->arguments);
    return Reading::done;
}

}  // namespace tzero
