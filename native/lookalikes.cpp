#include "lookalikes.h"

#include "reading.h"
#include "state.h"

namespace tzero {

namespace {

// What an exception of the program's own code means: Triton runs that code too, and reports it.
Reading after_error() {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return Reading::error;
    PyErr_Clear();
    return Reading::not_ours;
}

bool is_text(PyObject *object, const char *text) {
    return PyUnicode_Check(object) && PyUnicode_CompareWithASCIIString(object, text) == 0;
}

// Where an object says that it is. On CUDA the driver is asked whether that address is the one by
// which the device reads it, as Triton asks.
Reading read_place(const State &state, PyObject *device, SeenTensor *seen) {
    Ref type = Ref::steal(PyObject_GetAttr(device, state.names.type.get()));
    if (!type) return after_error();
    if (is_text(type.get(), "cpu")) {
        seen->place = on_cpu;
        return Reading::done;
    }
    if (!is_text(type.get(), "cuda")) return Reading::not_ours;
    Ref index = Ref::steal(PyObject_GetAttr(device, state.names.index.get()));
    if (!index) return after_error();
    uint64_t address = 0;
    if (!PyLong_CheckExact(index.get()) ||
        state.memory.device_address(seen->address, &address) != 0 || address != seen->address) {
        return Reading::not_ours;
    }
    seen->place = on_cuda;
    seen->device = static_cast<int32_t>(PyLong_AsLong(index.get()));
    return Reading::done;
}

Reading read_pointer(State &state, const Parameter &parameter, PyObject *value, Argument *out,
                     PyObject **dtype_out) {
    Ref dtype = Ref::steal(PyObject_GetAttr(value, state.names.dtype.get()));
    Ref device = dtype ? Ref::steal(PyObject_GetAttr(value, state.names.device.get())) : Ref();
    Ref number =
        device ? Ref::steal(PyObject_CallMethodNoArgs(value, state.names.data_ptr.get())) : Ref();
    if (!number) return after_error();
    const Lookalikes &known = state.lookalikes;
    if (reinterpret_cast<PyObject *>(Py_TYPE(dtype.get())) != known.dtype_type.get() ||
        reinterpret_cast<PyObject *>(Py_TYPE(device.get())) != known.device_type.get() ||
        !PyLong_CheckExact(number.get())) {
        return Reading::not_ours;
    }
    SeenTensor seen{};
    seen.address = PyLong_AsUnsignedLongLong(number.get());
    if (PyErr_Occurred()) return after_error();
    if (seen.address == 0) return Reading::not_ours;  // Triton knows whether that is an error
    const Reading place = read_place(state, device.get(), &seen);
    if (place != Reading::done) return place;
    out->kind = Kind::tensor;
    out->bits = bits_of(seen, parameter.specialize && parameter.align);
    out->address = reinterpret_cast<const void *>(seen.address);
    *dtype_out = dtype.get();
    return Reading::done;
}

}  // namespace

Likeness Lookalikes::of(PyTypeObject *type) {
    if (type->tp_getattro != PyObject_GenericGetAttr) return Likeness::none;
    Known &kept = known_[reinterpret_cast<uintptr_t>(type) >> 6 & (known_.size() - 1)];
    const unsigned version = type->tp_version_tag;
    if (version != 0 && kept.type == type && kept.version == version) return kept.likeness;
    Ref said = Ref::steal(PyObject_CallOneArg(find.get(), reinterpret_cast<PyObject *>(type)));
    if (!said) return Likeness::error;
    const Likeness found = is_text(said.get(), "pointer")  ? Likeness::pointer
                           : is_text(said.get(), "number") ? Likeness::number
                                                           : Likeness::none;
    kept = {type, type->tp_version_tag, found};
    return found;
}

Reading read_lookalike(State &state, const Parameter &parameter, PyObject *value, Argument *out,
                       PyObject **dtype) {
    PyTypeObject *type = Py_TYPE(value);
    *dtype = nullptr;
    // Those that were not read are in a state that Triton reports.
    if (type == state.tensors.tensor || type == state.tensors.parameter) return Reading::not_ours;
    out->object = nullptr;
    switch (state.lookalikes.of(type)) {
    case Likeness::pointer: return read_pointer(state, parameter, value, out, dtype);
    case Likeness::number:
        out->kind = Kind::floating;
        out->bits = 0;
        out->floating = PyFloat_AS_DOUBLE(value);
        return Reading::done;
    case Likeness::error: return Reading::error;
    default: return Reading::not_ours;
    }
}

}  // namespace tzero
