// Blocks of code that a trace function sees, and blocks that none sees, for
// `tzero.adapters.python_frames`.
//
// No interrupt leaves a trace function set or garbage collection off: a block that began always ends.
// Up to CPython 3.13 `with` calls the methods of these types without a chance for a signal handler to
// raise in between. Since 3.14 one may raise after `__enter__`, so that `__exit__` is not called:
// then a traced block ends when its object goes, and blocks that were not traced end with the traced
// one around them.

#include "tracing.h"

#include <algorithm>
#include <iterator>

#include "following.h"
#include "monitoring.h"
#include "state.h"

namespace tzero {

namespace {

// How many blocks are traced now, of all threads and of this one, and the thresholds of garbage
// collections that the first of them found, if it has stopped these. Guarded by the GIL.
int traced_anywhere = 0;
thread_local int traced_here = 0;
bool stopped_collection = false;
int thresholds[3] = {0, 0, 0};

// Read the thresholds; -1 with the Python error set on failure.
int read_thresholds(const State &state, int (&found)[3]) {
    Ref now = Ref::steal(PyObject_CallNoArgs(state.get_threshold.get()));
    if (!now) return -1;
    return PyArg_ParseTuple(now.get(), "iii", &found[0], &found[1], &found[2]) ? 0 : -1;
}

int set_thresholds(const State &state, int first, int second, int third) {
    Ref done = Ref::steal(
        PyObject_CallFunction(state.set_threshold.get(), "iii", first, second, third));
    return done ? 0 : -1;
}

// Let no collection begin. Not by `gc.disable`: a thread that finds collections disabled, and does
// so itself for a while, would leave them so when this block has ended.
int stop_collection(const State &state) {
    int now[3];
    if (read_thresholds(state, now) < 0) return -1;
    if (now[0] == 0) return 0;
    if (set_thresholds(state, 0, now[1], now[2]) < 0) return -1;
    std::copy(std::begin(now), std::end(now), std::begin(thresholds));
    stopped_collection = true;
    return 0;
}

// Let collections begin again, if no block is left, and nobody has set other thresholds since.
int collect_again(const State &state) {
    if (traced_anywhere != 0 || !stopped_collection) return 0;
    stopped_collection = false;
    int now[3];
    if (read_thresholds(state, now) < 0) return -1;
    if (now[0] != 0) return 0;
    return set_thresholds(state, thresholds[0], now[1], now[2]);
}

int begin_block(const State &state) {
    if (traced_anywhere == 0 && stop_collection(state) < 0) return -1;
    ++traced_anywhere;
    ++traced_here;
    return 0;
}

int end_block(const State &state) {
    --traced_anywhere;
    --traced_here;
    return collect_again(state);
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

// An event of a frame for a Follower. After an error it sees no more.
int follow_or_end(PyObject *object, PyFrameObject *frame, int event, PyObject *value) {
    Ref keep = Ref::borrow(object);
    if (follow(object, frame, event, value) == 0) return 0;
    PyObject *type = nullptr, *error = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &error, &trace);
    PyEval_SetTrace(nullptr, nullptr);
    PyErr_Restore(type, error, trace);
    return -1;
}

// Let a Follower see this thread's frames; returns whether it does, else with the Python error set.
bool follow_frames(PyObject *object) {
    const int monitored = begin_monitoring(follow, object);
    if (monitored != 0) return monitored > 0;
#ifdef TZERO_MONITORING
    // CPython 3.12 shows instructions only if some frame had this set before.
    PyObject *frame = reinterpret_cast<PyObject *>(PyEval_GetFrame());  // borrowed
    if (frame != nullptr && PyObject_SetAttrString(frame, "f_trace_opcodes", Py_True) < 0) return false;
#endif
    PyEval_SetTrace(follow_or_end, object);
    return true;
}

struct Traced {
    PyObject_HEAD
    PyObject *function;
    int alone;
    int entered;
    bool is_monitored;      // by `sys.monitoring`, not by a trace function
    PyThreadState *thread;  // that has entered it
    int untraced;           // how many blocks that are not traced are around it
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
    const State &state = *state_of(PyType_GetModule(Py_TYPE(self)));
    const bool follows = is_follower(state, block->function);
    if (follows && is_monitored()) Py_RETURN_FALSE;  // there is one follower at a time
    if (begin_block(state) < 0) return nullptr;
    if (!(follows ? follow_frames(block->function) : set_trace(block->function))) {
        PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
        PyErr_Fetch(&type, &value, &trace);
        if (end_block(state) < 0) PyErr_WriteUnraisable(self);
        PyErr_Restore(type, value, trace);
        return nullptr;
    }
    block->is_monitored = follows && is_monitored();
    block->thread = PyThreadState_Get();
    block->untraced = block->thread->tracing;
    block->entered = 1;
    Py_RETURN_TRUE;
}

PyObject *traced_exit(PyObject *self, PyObject *) {
    Traced *block = traced(self);
    if (block->entered == 0) Py_RETURN_NONE;
    block->entered = 0;
    while (block->thread->tracing > block->untraced) PyThreadState_LeaveTracing(block->thread);
    const bool unset = block->is_monitored ? end_monitoring() == 0 : set_trace(Py_None);
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    const bool ended = end_block(*state_of(PyType_GetModule(Py_TYPE(self)))) == 0;
    if (!unset) {
        if (!ended) PyErr_WriteUnraisable(nullptr);
        PyErr_Restore(type, value, trace);
    }
    if (!unset || !ended) return nullptr;
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

// End a block whose `__exit__` was not called. In another thread its trace function is out of reach.
void end_abandoned(PyObject *self) {
    if (traced(self)->entered == 0 || traced(self)->thread != PyThreadState_Get()) return;
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    if (!Ref::steal(traced_exit(self, nullptr))) PyErr_WriteUnraisable(nullptr);
    PyErr_Restore(type, value, trace);
}

void traced_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    end_abandoned(self);
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
PyObject *forget_traced(PyObject *module, PyObject *) {
    traced_anywhere = traced_here;
    if (monitored_thread() != nullptr && !is_monitored() && end_monitoring() < 0) return nullptr;
    if (collect_again(*state_of(module)) < 0) return nullptr;
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"forget_traced", forget_traced, METH_NOARGS,
     PyDoc_STR("forget_traced($module, /)\n--\n\nForget the traced blocks of other threads.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool is_traced_anywhere() { return traced_anywhere != 0; }

int add_tracing(PyObject *module, State *state) {
    Ref gc = Ref::steal(PyImport_ImportModule("gc"));
    if (!gc) return -1;
    state->get_threshold = Ref::steal(PyObject_GetAttrString(gc.get(), "get_threshold"));
    state->set_threshold = Ref::steal(PyObject_GetAttrString(gc.get(), "set_threshold"));
    if (!state->get_threshold || !state->set_threshold) return -1;
    Ref traced = Ref::steal(PyType_FromModuleAndSpec(module, &traced_spec, nullptr));
    Ref untraced = Ref::steal(PyType_FromModuleAndSpec(module, &untraced_spec, nullptr));
    if (!traced || PyModule_AddObjectRef(module, "Traced", traced.get()) < 0) return -1;
    if (!untraced || PyModule_AddObjectRef(module, "Untraced", untraced.get()) < 0) return -1;
    return PyModule_AddFunctions(module, functions);
}

}  // namespace tzero
