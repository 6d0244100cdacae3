// Shows the events of one thread to a trace function by `sys.monitoring`; monitoring.h says why.
//
// The events belong to the process, so callbacks pass over those of other threads. While a callback
// runs, and in a block that is not traced, CPython makes no others in this thread.

#include "monitoring.h"

#ifdef TZERO_MONITORING

#include <unordered_map>

namespace tzero {

namespace {

// What is shown now, and to whom. One thread's at most: CPython 3.12 crashes when the instructions of
// code are exchanged that another thread traces. Guarded by the GIL.
struct Shown {
    PyThreadState *thread = nullptr;
    Py_tracefunc function = nullptr;
    Ref object;
    long tool = -1;
    std::unordered_map<PyObject *, Ref> codes;  // whose instructions are shown
};
Shown shown;

// Show an event to the trace function, whose error is the program's, as with `sys.settrace`.
PyObject *show(int event) {
    if (shown.thread != PyThreadState_Get() || shown.function == nullptr) Py_RETURN_NONE;
    Ref frame = Ref::borrow(reinterpret_cast<PyObject *>(PyEval_GetFrame()));
    Ref object = shown.object;
    if (!frame) Py_RETURN_NONE;
    if (shown.function(object.get(), reinterpret_cast<PyFrameObject *>(frame.get()), event, nullptr) < 0) {
        shown.function = nullptr;
        return nullptr;
    }
    Py_RETURN_NONE;
}

PyObject *begins(PyObject *, PyObject *) {
    return show(PyTrace_CALL);
}

PyObject *ends(PyObject *, PyObject *) {
    return show(PyTrace_RETURN);
}

PyObject *runs(PyObject *, PyObject *) {
    return show(PyTrace_OPCODE);
}

PyMethodDef on_begin = {"begins", begins, METH_VARARGS, nullptr};
PyMethodDef on_end = {"ends", ends, METH_VARARGS, nullptr};
PyMethodDef on_instruction = {"runs", runs, METH_VARARGS, nullptr};

// An event, what is called for it, and whether only for the code that is named.
struct Event {
    const char *name;
    PyMethodDef *callback;
    bool is_local;
};
const Event all_events[] = {
    {"PY_START", &on_begin, false},  {"PY_RESUME", &on_begin, false}, {"PY_THROW", &on_begin, false},
    {"PY_UNWIND", &on_end, false},   {"PY_RETURN", &on_end, true},    {"PY_YIELD", &on_end, true},
    {"INSTRUCTION", &on_instruction, true},
};

// `sys.monitoring`, borrowed; null with the Python error set if it is gone.
PyObject *monitoring() {
    PyObject *found = PySys_GetObject("monitoring");
    if (found == nullptr) PyErr_SetString(PyExc_RuntimeError, "sys.monitoring is gone");
    return found;
}

// The number of an event; -1 with the Python error set on failure.
long number_of(PyObject *events, const char *name) {
    Ref found = Ref::steal(PyObject_GetAttrString(events, name));
    return found ? PyLong_AsLong(found.get()) : -1;
}

// All events that are local, or all that are not, added up; -1 with the Python error set on failure.
long all_of(bool is_local) {
    PyObject *module = monitoring();
    Ref events = module == nullptr ? Ref() : Ref::steal(PyObject_GetAttrString(module, "events"));
    if (!events) return -1;
    long sum = 0;
    for (const Event &each : all_events) {
        if (each.is_local != is_local) continue;
        const long number = number_of(events.get(), each.name);
        if (number < 0) return -1;
        sum |= number;
    }
    return sum;
}

// Call a function of `sys.monitoring` with what a format says; 0, or -1 with the Python error set.
template <typename... Args> int tell(const char *name, const char *format, Args... args) {
    PyObject *module = monitoring();
    if (module == nullptr) return -1;
    return Ref::steal(PyObject_CallMethod(module, name, format, args...)) ? 0 : -1;
}

// Take a number that no other tool has: 1; 0 if there is none, -1 with the Python error set.
int take_tool() {
    PyObject *module = monitoring();
    if (module == nullptr) return -1;
    for (const long tool : {4L, 3L}) {  // the others are for debuggers and the like
        Ref name = Ref::steal(PyObject_CallMethod(module, "get_tool", "l", tool));
        if (!name) return -1;
        if (name.get() != Py_None) continue;
        if (tell("use_tool_id", "ls", tool, "tzero") < 0) return -1;
        shown.tool = tool;
        return 1;
    }
    return 0;
}

// Register what is called for each event, or nothing.
int register_all(bool is_on) {
    PyObject *module = monitoring();
    Ref events = module == nullptr ? Ref() : Ref::steal(PyObject_GetAttrString(module, "events"));
    if (!events) return -1;
    for (const Event &each : all_events) {
        const long number = number_of(events.get(), each.name);
        if (number < 0) return -1;
        Ref callback = is_on ? Ref::steal(PyCFunction_New(each.callback, nullptr)) : Ref::borrow(Py_None);
        if (!callback) return -1;
        if (tell("register_callback", "llO", shown.tool, number, callback.get()) < 0) return -1;
    }
    return 0;
}

}  // namespace

int begin_monitoring(Py_tracefunc function, PyObject *object) {
    if (shown.thread != nullptr) return 0;
    const int taken = take_tool();
    if (taken <= 0) return taken;
    shown.thread = PyThreadState_Get();
    shown.function = function;
    shown.object = Ref::borrow(object);
    const long events = all_of(false);
    if (events >= 0 && register_all(true) == 0 && tell("set_events", "ll", shown.tool, events) == 0) {
        return 1;
    }
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    if (end_monitoring() < 0) PyErr_WriteUnraisable(nullptr);
    PyErr_Restore(type, value, trace);
    return -1;
}

int end_monitoring() {
    Shown ended;
    std::swap(ended, shown);
    shown.tool = ended.tool;  // that `register_all` and the like tell of
    int done = tell("set_events", "ll", ended.tool, 0L);
    for (const auto &each : ended.codes) {
        if (done == 0) done = tell("set_local_events", "lOl", ended.tool, each.first, 0L);
    }
    if (done == 0) done = register_all(false);
    if (done == 0) done = tell("free_tool_id", "l", ended.tool);
    shown.tool = -1;
    return done;
}

bool is_monitored() {
    return shown.thread == PyThreadState_Get();
}

PyThreadState *monitored_thread() {
    return shown.thread;
}

int monitor_code_of(PyFrameObject *frame) {
    Ref code = Ref::steal(reinterpret_cast<PyObject *>(PyFrame_GetCode(frame)));
    if (!shown.codes.try_emplace(code.get(), code).second) return 0;
    const long events = all_of(true);
    return events < 0 ? -1 : tell("set_local_events", "lOl", shown.tool, code.get(), events);
}

}  // namespace tzero

#endif
