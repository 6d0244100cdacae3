// The value stack of a running Python frame, for `tzero.adapters.python_frames`.
//
// CPython has no API for it, so the layout of a frame is written down here for each release. Each
// call checks that the code object is where it should be.

#include "frames.h"

#include <cstdint>

namespace tzero {

namespace {

// A reference as a frame holds it.
#if PY_VERSION_HEX < 0x030E0000
using Slot = PyObject *;
PyObject *object_in(Slot slot) { return slot; }
#else
// The lowest bit says that the frame only borrows the object; two bits, that it is a small number
// of the interpreter's own.
using Slot = uintptr_t;
PyObject *object_in(Slot slot) {
    constexpr Slot borrowed = 1, number = 3;
    return (slot & number) == number ? nullptr : reinterpret_cast<PyObject *>(slot & ~borrowed);
}
#endif

#if PY_VERSION_HEX < 0x030C0000
struct Activation {
    Slot function;
    PyObject *globals, *builtins, *locals;
    Slot code;
    void *frame, *previous, *instruction;
    int top;
    bool is_entry;
    char owner;
    Slot values[1];  // locals, cells, then the stack
};
#elif PY_VERSION_HEX < 0x030E0000
struct Activation {
    Slot code;
    void *previous;
    Slot function;
    PyObject *globals, *builtins, *locals;
    void *frame, *instruction;
    int top;
    uint16_t return_offset;
    char owner;
    Slot values[1];
};
#elif PY_VERSION_HEX < 0x030F0000
struct Activation {
    Slot code;
    void *previous;
    Slot function;
    PyObject *globals, *builtins, *locals;
    void *frame, *instruction, *top;
    uint16_t return_offset;
    char owner;
    uint8_t visited;
    Slot values[1];
};
#else
#define TZERO_NO_FRAMES
struct Activation {  // what is read of one, where the layout is known
    Slot code, function;
    Slot values[1];
};
#endif

struct Frame {
    PyObject_HEAD
    void *back;
    Activation *activation;
};

// Null with the Python error set if the layout is another one.
Activation *activation_of(PyObject *object) {
    if (!PyFrame_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "not a frame");
        return nullptr;
    }
#ifdef TZERO_NO_FRAMES
    Activation *found = nullptr;
#else
    Activation *found = reinterpret_cast<Frame *>(object)->activation;
#endif
    Ref code = Ref::steal(
        reinterpret_cast<PyObject *>(PyFrame_GetCode(reinterpret_cast<PyFrameObject *>(object))));
    if (found == nullptr || object_in(found->code) != code.get()) {
        PyErr_SetString(PyExc_SystemError, "the layout of frames is not known");
        return nullptr;
    }
    return found;
}

}  // namespace

PyObject *frame_values(PyObject *frame, int depth, int count, PyObject *empty) {
    Activation *found = activation_of(frame);
    if (found == nullptr) return nullptr;
    const auto *code = reinterpret_cast<PyCodeObject *>(object_in(found->code));
    if (count < 0 || count > depth || depth > code->co_stacksize) {
        PyErr_SetString(PyExc_ValueError, "the stack is not that deep");
        return nullptr;
    }
    Ref made = Ref::steal(PyTuple_New(count));
    const Slot *end = found->values + code->co_nlocalsplus + depth;
    for (int k = 0; made && k < count; ++k) {
        PyObject *value = object_in(end[k - count]);
        if (value == nullptr) value = empty;
        Py_INCREF(value);
        PyTuple_SET_ITEM(made.get(), k, value);
    }
    return made.release();
}

PyObject *frame_operands(PyObject *, PyObject *args) {
    PyObject *frame = nullptr, *empty = nullptr;
    int depth = 0, count = 0;
    if (!PyArg_ParseTuple(args, "OiiO:frame_operands", &frame, &depth, &count, &empty)) {
        return nullptr;
    }
    return frame_values(frame, depth, count, empty);
}

PyObject *frame_function(PyObject *, PyObject *frame) {
    Activation *found = activation_of(frame);
    if (found == nullptr) return nullptr;
    PyObject *function = object_in(found->function);
    if (function == nullptr) Py_RETURN_NONE;
    Py_INCREF(function);
    return function;
}

}  // namespace tzero
