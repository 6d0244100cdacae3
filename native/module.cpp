// tzero._native: the extension module. See DESIGN.md for ownership, the GIL and failures.
//
// Enters: the interpreter, through multi-phase initialisation. Leaves: a module object that owns
// all its state, so that a second interpreter, or a second import, gets a module of its own.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifndef TZERO_VERSION
#error "TZERO_VERSION is given by setup.py: the version of the package this is built for"
#endif

namespace {

struct State {
    PyObject *version;  // owned; str
};

// CPython hands out zeroed memory of m_size bytes; a State is valid in it from the first moment.
State *state_of(PyObject *module) { return static_cast<State *>(PyModule_GetState(module)); }

PyObject *version(PyObject *module, PyObject *) {
    PyObject *text = state_of(module)->version;
    Py_INCREF(text);
    return text;
}

int exec(PyObject *module) {
    State *state = state_of(module);
    state->version = PyUnicode_FromString(TZERO_VERSION);
    return state->version == nullptr ? -1 : 0;
}

int traverse(PyObject *module, visitproc visit, void *arg) {
    Py_VISIT(state_of(module)->version);
    return 0;
}

int clear(PyObject *module) {
    Py_CLEAR(state_of(module)->version);
    return 0;
}

void release(void *module) { clear(static_cast<PyObject *>(module)); }

// The three tables below are read by CPython through pointers to non-const; nothing writes them.
PyMethodDef methods[] = {
    {"version", version, METH_NOARGS,
     PyDoc_STR("version()\n--\n\nThe version of tzero this extension was built for.")},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void *>(exec)},
    {0, nullptr},
};

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "tzero._native",
    PyDoc_STR("The native half of tzero; everything in it has a twin in Python."),
    sizeof(State),
    methods,
    slots,
    traverse,
    clear,
    release,
};

}  // namespace

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&definition); }
