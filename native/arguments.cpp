#include "arguments.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "fields.h"
#include "guards.h"
#include "library.h"
#include "names.h"
#include "reading.h"

namespace tzero {

namespace {

constexpr size_t most_forms = 64;

bool see_through_dlpack(const Tensors &tensors, PyObject *value, SeenTensor *out) {
    dlpack::Tensor tensor;
    if (tensors.api->tensor_from_object(value, &tensor) != 0) {
        PyErr_Clear();  // Python reads the tensor again, and reports what is wrong with it
        return false;
    }
    const int64_t *sizes = tensor.shape, *end = sizes + tensor.ndim;
    if (tensor.data == nullptr && std::find(sizes, end, 0) == end) return false;  // as above
    const auto &dtype = tensor.dtype;
    *out = {reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset,
            uint32_t{dtype.code} << 24 | uint32_t{dtype.bits} << 16 | dtype.lanes,
            place_from_dlpack(tensor.device.type), tensor.device.id};
    return true;
}

Reading read_tensor(const Tensors &tensors, const Parameter &parameter, PyObject *value,
                    Argument *out) {
    SeenTensor seen;
    if (!(tensors.handle >= 0 ? see_through_shim(tensors, value, &seen)
                              : see_through_dlpack(tensors, value, &seen))) {
        return Reading::not_ours;
    }
    out->kind = Kind::tensor;
    out->bits = bits_of(seen, parameter.specialize && parameter.align);
    out->address = reinterpret_cast<const void *>(seen.address);
    return Reading::done;
}

// The key of an integer: its width, and what Triton specializes on.
Reading read_integer(const Parameter &parameter, PyObject *value, Argument *out) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    uint64_t pattern = static_cast<uint64_t>(number);
    uint64_t width = bits_32;
    out->is_unsigned = false;
    if (overflow < 0) return Reading::not_ours;
    if (overflow > 0) {
        pattern = PyLong_AsUnsignedLongLong(value);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            return Reading::not_ours;
        }
        out->is_unsigned = true;
        width = bits_64_unsigned;
    } else if (number < INT32_MIN || number > INT32_MAX) {
        width = bits_64;
    }
    out->kind = Kind::integer;
    out->bits = bits_of(pattern, width, parameter.specialize, parameter.align);
    out->integer = static_cast<int64_t>(pattern);
    return Reading::done;
}

bool same_names(PyObject *one, PyObject *other) {
    if (one == other) return true;
    if (one == nullptr || other == nullptr) return false;
    if (PyTuple_GET_SIZE(one) != PyTuple_GET_SIZE(other)) return false;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(one); ++k) {
        if (!same_name(PyTuple_GET_ITEM(one, k), PyTuple_GET_ITEM(other, k))) return false;
    }
    return true;
}

}  // namespace

bool TorchShim::open() {
    const Library library("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    return library && library.find("aoti_torch_get_data_ptr", data) &&
           library.find("aoti_torch_get_dtype", dtype) &&
           library.find("aoti_torch_get_device_type", device_type) &&
           library.find("aoti_torch_get_device_index", device_index) &&
           library.find("aoti_torch_get_numel", numel);
}

int read_parameters(PyObject *descriptions, std::vector<Parameter> *out) {
    try {
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(descriptions); ++k) {
            const Fields fields(PyTuple_GET_ITEM(descriptions, k));
            Parameter parameter;
            parameter.name = fields.text("name");
            if (fields.flag("has_default")) parameter.fallback = fields.any("default");
            parameter.constant = fields.flag("constant");
            parameter.specialize = fields.flag("specialize");
            parameter.align = fields.flag("align");
            parameter.keyword_only = fields.flag("keyword_only");
            out->push_back(std::move(parameter));
        }
    } catch (const Malformed &) {
        return -1;
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

Reading read_argument(const Tensors &tensors, const Parameter &parameter, PyObject *value,
                      Argument *out) {
    if (parameter.constant) return read_constant(value, out);
    PyTypeObject *type = Py_TYPE(value);
    out->object = nullptr;
    if (type == tensors.tensor || type == tensors.parameter) {
        return read_tensor(tensors, parameter, value, out);
    }
    if (type == &PyLong_Type) return read_integer(parameter, value, out);
    out->bits = 0;
    if (type == &PyFloat_Type) {
        out->kind = Kind::floating;
        out->floating = PyFloat_AS_DOUBLE(value);
        return Reading::done;
    }
    if (type == &PyBool_Type) {
        out->kind = Kind::boolean;
        out->integer = value == Py_True;
        out->is_unsigned = false;
        return Reading::done;
    }
    if (value == Py_None) {
        out->kind = Kind::none;
        return Reading::done;
    }
    if (off(Guard::tensor_type) && PyType_IsSubtype(type, tensors.tensor)) {
        return read_tensor(tensors, parameter, value, out);
    }
    return Reading::not_ours;
}

Reading read_constant(PyObject *value, Argument *out) {
    out->object = nullptr;
    out->bits = 0;
    if (off(Guard::constants)) {
        out->kind = Kind::constant_none;
        return Reading::done;
    }
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyLong_Type) {
        int overflow = 0;
        const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        if (overflow == 0) {
            out->kind = Kind::constant_integer;
            out->bits = static_cast<uint64_t>(number);
            return Reading::done;
        }
    }
    if (type == &PyBool_Type) {
        out->kind = Kind::constant_boolean;
        out->bits = value == Py_True;
        return Reading::done;
    }
    if (value == Py_None) {
        out->kind = Kind::constant_none;
        return Reading::done;
    }
    if (type == &PyFloat_Type) {
        const double number = PyFloat_AS_DOUBLE(value);
        out->kind = Kind::constant_floating;
        std::memcpy(&out->bits, &number, sizeof number);
        return Reading::done;
    }
    const Py_hash_t hash = PyObject_Hash(value);
    if (hash == -1) {
        if (!PyErr_ExceptionMatches(PyExc_Exception)) return Reading::error;
        PyErr_Clear();  // Triton reports a constant without a hash
        return Reading::not_ours;
    }
    out->kind = Kind::constant_object;
    out->bits = static_cast<uint64_t>(hash);
    out->object = value;
    return Reading::done;
}

Reading read_option(PyObject *value, Argument *out) {
    const PyTypeObject *type = Py_TYPE(value);
    const bool is_plain = type == &PyLong_Type || type == &PyBool_Type || type == &PyFloat_Type ||
                          type == &PyUnicode_Type || value == Py_None;
    return is_plain ? read_constant(value, out) : Reading::not_ours;
}

bool make_form(const std::vector<Parameter> &parameters, Py_ssize_t positional, PyObject *names,
               Reserved reserved, Form *out) {
    const auto count = static_cast<Py_ssize_t>(parameters.size());
    if (positional > count) return false;
    out->positional = positional;
    out->names = Ref::borrow(names);
    out->place.assign(parameters.size(), -1);
    out->options.clear();
    for (Py_ssize_t k = 0; k < positional; ++k) {
        if (parameters[k].keyword_only) return false;
        out->place[k] = k;
    }
    const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t n = 0; n < named; ++n) {
        PyObject *name = PyTuple_GET_ITEM(names, n);
        const bool is_grid = PyUnicode_CompareWithASCIIString(name, "grid") == 0;
        if (reserved != Reserved::nothing &&
            (is_grid || PyUnicode_CompareWithASCIIString(name, "warmup") == 0)) {
            if (reserved == Reserved::refused) return false;
            (is_grid ? out->grid : out->warmup) = positional + n;
            continue;
        }
        Py_ssize_t found = -1;
        for (Py_ssize_t k = 0; k < count && found < 0; ++k) {
            if (PyUnicode_Compare(parameters[k].name.get(), name) == 0) found = k;
        }
        if (found < 0) {
            out->options.push_back(positional + n);
        } else if (out->place[found] >= 0) {
            return false;  // given twice
        } else {
            out->place[found] = positional + n;
        }
    }
    if (reserved == Reserved::taken && (out->grid < 0 || out->warmup < 0)) return false;
    for (Py_ssize_t k = 0; k < count; ++k) {
        if (out->place[k] < 0 && !parameters[k].fallback) return false;  // missing
    }
    return true;
}

const Form *Forms::find(const std::vector<Parameter> &parameters, Py_ssize_t positional,
                        PyObject *names, Reserved reserved, size_t *number, const char **reason) {
    if (names != nullptr && PyTuple_GET_SIZE(names) == 0) names = nullptr;
    for (size_t k = 0; k < forms_.size(); ++k) {
        const Form &form = *forms_[k];
        if (form.positional == positional && (form.grid >= 0) == (reserved == Reserved::taken) &&
            same_names(form.names.get(), names)) {
            *number = k;
            return &form;
        }
    }
    if (forms_.size() >= most_forms) {
        *reason = "it is called with too many combinations of positional and keyword arguments";
        return nullptr;
    }
    if (parameters.size() + (names ? PyTuple_GET_SIZE(names) : 0) > most_parameters) {
        *reason = "it is called with more arguments and options than native code reads";
        return nullptr;
    }
    auto made = std::make_unique<Form>();
    if (!make_form(parameters, positional, names, reserved, made.get())) return nullptr;
    forms_.push_back(std::move(made));
    *number = forms_.size() - 1;
    return forms_.back().get();
}

}  // namespace tzero
