// Blocks of code that a trace function sees, and blocks that none sees, for
// `tzero.adapters.python_frames`.
//
// `with` calls the methods of these types without a chance for a signal handler to raise in between,
// so that a block that began always ends: no interrupt leaves a trace function set or garbage
// collection off.

#include "tracing.h"

namespace tzero {

namespace {

// How many blocks are traced now, of all threads and of this one, and whether the first of them
// turned garbage collection off. Guarded by the GIL.
int traced_anywhere = 0;
thread_local int traced_here = 0;
bool stopped_collection = false;

void begin_block() {
    if (traced_anywhere++ == 0) stopped_collection = PyGC_Disable() != 0;
    ++traced_here;
}

void collect_again() {
    if (traced_anywhere == 0 && stopped_collection) {
        stopped_collection = false;
        PyGC_Enable();
    }
}

void end_block() {
    --traced_anywhere;
    --traced_here;
    collect_again();
}

// Returns whether the trace function was set.
bool set_trace(PyObject *function) {
    PyObject *settrace = PySys_GetObject("settrace");  // borrowed
    if (settrace == nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "sys.settrace is gone");
        return false;
    }
    Ref keep = Ref::borrow(settrace);
    return static_cast<bool>(Ref::steal(PyObject_CallOneArg(settrace, function)));
}

struct Traced {
    PyObject_HEAD
    PyObject *function;
    int alone;
    int entered;
};

Traced *traced(PyObject *self) {
    return reinterpret_cast<Traced *>(self);
}

PyObject *traced_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *function = nullptr;
    int alone = 0;
    if (kwargs != nullptr && PyDict_GET_SIZE(kwargs) != 0) {
        PyErr_SetString(PyExc_TypeError, "Traced() takes no keyword arguments");
        return nullptr;
    }
    if (!PyArg_ParseTuple(args, "Op:Traced", &function, &alone)) return nullptr;
    PyObject *self = type->tp_alloc(type, 0);
    if (self == nullptr) return nullptr;
    traced(self)->function = Ref::borrow(function).release();
    traced(self)->alone = alone;
    return self;
}

PyObject *traced_enter(PyObject *self, PyObject *) {
    Traced *block = traced(self);
    if (block->function == nullptr || block->entered != 0) {
        PyErr_SetString(PyExc_RuntimeError, "a block is traced once");
        return nullptr;
    }
    if (block->alone != 0 && traced_anywhere > traced_here) Py_RETURN_FALSE;
    begin_block();
    if (!set_trace(block->function)) {
        end_block();
        return nullptr;
    }
    block->entered = 1;
    Py_RETURN_TRUE;
}

PyObject *traced_exit(PyObject *self, PyObject *) {
    Traced *block = traced(self);
    if (block->entered == 0) Py_RETURN_NONE;
    block->entered = 0;
    const bool unset = set_trace(Py_None);
    end_block();
    if (!unset) return nullptr;
    Py_RETURN_NONE;
}

int traced_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(traced(self)->function);
    return 0;
}

int traced_clear(PyObject *self) {
    Py_CLEAR(traced(self)->function);
    return 0;
}

void traced_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    traced_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

PyMethodDef traced_methods[] = {
    {"__enter__", traced_enter, METH_NOARGS,
     PyDoc_STR("__enter__($self, /)\n--\n\nTrace this thread, and say whether that is done.")},
    {"__exit__", traced_exit, METH_VARARGS,
     PyDoc_STR("__exit__($self, /, *exception)\n--\n\nTrace this thread no longer.")},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot traced_slots[] = {
    {Py_tp_doc, const_cast<char *>("Traced(function, alone, /)\n--\n\n"
                                   "A block in which a function traces this thread.")},
    {Py_tp_methods, traced_methods},
    {Py_tp_new, reinterpret_cast<void *>(traced_new)},
    {Py_tp_traverse, reinterpret_cast<void *>(traced_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(traced_clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(traced_dealloc)},
    {0, nullptr},
};

PyType_Spec traced_spec = {
    "tzero._native.Traced", sizeof(Traced), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    traced_slots,
};

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

// In a forked child only the forking thread is left.
PyObject *forget_traced(PyObject *, PyObject *) {
    traced_anywhere = traced_here;
    collect_again();
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"forget_traced", forget_traced, METH_NOARGS,
     PyDoc_STR("forget_traced($module, /)\n--\n\nForget the traced blocks of other threads.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

int add_tracing(PyObject *module) {
    Ref traced = Ref::steal(PyType_FromModuleAndSpec(module, &traced_spec, nullptr));
    Ref untraced = Ref::steal(PyType_FromModuleAndSpec(module, &untraced_spec, nullptr));
    if (!traced || PyModule_AddObjectRef(module, "Traced", traced.get()) < 0) return -1;
    if (!untraced || PyModule_AddObjectRef(module, "Untraced", untraced.get()) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace tzero
