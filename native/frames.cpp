// The value stack of a running Python frame, and blocks of code that no trace function sees, for
// `tzero.adapters.python_frames`.
//
// CPython has no API for it, so the layout of a frame is written down here for each release. Each
// call checks that the code object is where it should be.

#include "frames.h"

#include <cstdint>

namespace tzero {

namespace {

#if PY_VERSION_HEX < 0x030C0000
struct Activation {
    PyObject *function, *globals, *builtins, *locals;
    PyCodeObject *code;
    void *frame, *previous, *instruction;
    int top;
    bool is_entry;
    char owner;
    PyObject *values[1];  // locals, cells, then the stack
};
#elif PY_VERSION_HEX < 0x030E0000
struct Activation {
    PyCodeObject *code;
    void *previous;
    PyObject *function, *globals, *builtins, *locals;
    void *frame, *instruction;
    int top;
    uint16_t return_offset;
    char owner;
    PyObject *values[1];
};
#else
#define TZERO_NO_FRAMES
struct Activation {  // what is read of one, where the layout is known
    PyObject *function;
    PyCodeObject *code;
    PyObject *values[1];
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
    if (found == nullptr || reinterpret_cast<PyObject *>(found->code) != code.get()) {
        PyErr_SetString(PyExc_SystemError, "the layout of frames is not known");
        return nullptr;
    }
    return found;
}

// `with` calls both methods without a chance for a signal handler to raise in between, so that they
// are always in balance.
PyObject *untraced_enter(PyObject *, PyObject *) {
    PyThreadState_EnterTracing(PyThreadState_Get());
    Py_RETURN_NONE;
}

PyObject *untraced_exit(PyObject *, PyObject *) {
    PyThreadState *thread = PyThreadState_Get();
    if (thread->tracing <= 0) {
        PyErr_SetString(PyExc_RuntimeError, "this block was not entered");
        return nullptr;
    }
    PyThreadState_LeaveTracing(thread);
    Py_RETURN_NONE;
}

PyMethodDef untraced_methods[] = {
    {"__enter__", untraced_enter, METH_NOARGS,
     PyDoc_STR("__enter__($self, /)\n--\n\nSuspend this thread's trace and profile functions.")},
    {"__exit__", untraced_exit, METH_VARARGS,
     PyDoc_STR("__exit__($self, /, *exception)\n--\n\nLet them see frames again.")},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot untraced_slots[] = {
    {Py_tp_methods, untraced_methods},
    {Py_tp_new, reinterpret_cast<void *>(PyType_GenericNew)},
    {0, nullptr},
};

PyType_Spec untraced_spec = {
    "tzero._native.Untraced", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, untraced_slots,
};

}  // namespace

int add_untraced(PyObject *module) {
    Ref type = Ref::steal(PyType_FromModuleAndSpec(module, &untraced_spec, nullptr));
    return type ? PyModule_AddObjectRef(module, "Untraced", type.get()) : -1;
}

PyObject *frame_operands(PyObject *, PyObject *args) {
    PyObject *frame = nullptr, *empty = nullptr;
    int depth = 0, count = 0;
    if (!PyArg_ParseTuple(args, "OiiO:frame_operands", &frame, &depth, &count, &empty)) {
        return nullptr;
    }
    Activation *found = activation_of(frame);
    if (found == nullptr) return nullptr;
    if (count < 0 || count > depth || depth > found->code->co_stacksize) {
        PyErr_SetString(PyExc_ValueError, "the stack is not that deep");
        return nullptr;
    }
    Ref made = Ref::steal(PyTuple_New(count));
    PyObject **end = found->values + found->code->co_nlocalsplus + depth;
    for (int k = 0; made && k < count; ++k) {
        PyObject *value = end[k - count] == nullptr ? empty : end[k - count];
        Py_INCREF(value);
        PyTuple_SET_ITEM(made.get(), k, value);
    }
    return made.release();
}

PyObject *frame_function(PyObject *, PyObject *frame) {
    Activation *found = activation_of(frame);
    if (found == nullptr) return nullptr;
    PyObject *function = found->function;
    if (function == nullptr) Py_RETURN_NONE;
    Py_INCREF(function);
    return function;
}

}  // namespace tzero
