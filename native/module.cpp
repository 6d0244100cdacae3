// tzero._native: the extension module. See DESIGN.md for ownership, the GIL and failures.
//
// Enters: the interpreter, through multi-phase initialisation, and once the objects of torch, Triton
// and tzero that launches read (`configure`). Leaves: a module object that owns all its state, so
// that a second interpreter, or a second import, gets a module of its own.

#include "python.h"

#include <new>

#include "guards.h"
#include "state.h"

#ifndef TZERO_VERSION
#error "TZERO_VERSION is given by setup.py: the version of the package this is built for"
#endif

namespace tzero {

State *state_of(PyObject *module) { return static_cast<State *>(PyModule_GetState(module)); }

namespace {

PyObject *version(PyObject *module, PyObject *) {
    return Ref(state_of(module)->version).release();
}

// The table of functions that a tensor type offers; null with the Python error set.
const dlpack::ExchangeApi *exchange_api(PyObject *capsule) {
    auto *api = static_cast<const dlpack::ExchangeApi *>(
        PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    if (api == nullptr) return nullptr;
    const dlpack::Header *header = &api->header;
    while (header != nullptr && header->major != dlpack::major_version) header = header->previous;
    api = reinterpret_cast<const dlpack::ExchangeApi *>(header);
    if (api == nullptr || api->tensor_from_object == nullptr) {
        PyErr_SetString(PyExc_ImportError, "this torch offers no DLPack exchange API of version 1");
        return nullptr;
    }
    return api;
}

PyObject *configure(PyObject *module, PyObject *args, PyObject *kwargs) {
    static const char *const keywords[] = {
        "tensor", "parameter", "exchange_api", "knobs", "more_knobs", "hook_chain", "runtime_knobs", "driver",
        "driver_slot", "events", "observers", "watched", "log_cache", "debug_level", "get_num_threads",
        "launch_failed", "cuda_driver", "handle", nullptr};
    PyObject *tensor, *parameter, *capsule, *knobs, *more_knobs, *hook_chain, *runtime_knobs, *driver, *driver_slot;
    PyObject *events, *observers, *watched, *log_cache, *debug_level, *get_num_threads, *launch_failed;
    PyObject *cuda_driver;
    Py_ssize_t handle = -1;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "$O!O!OO!O!OOOUO!UOO!O!OOO!n:configure", const_cast<char **>(keywords),
            &PyType_Type, &tensor, &PyType_Type, &parameter, &capsule, &PyDict_Type, &knobs,
            &PyTuple_Type, &more_knobs, &hook_chain, &runtime_knobs, &driver, &driver_slot, &PyDict_Type, &events,
            &observers, &watched, &PyDict_Type, &log_cache, &PyLong_Type, &debug_level, &get_num_threads,
            &launch_failed, &PyType_Type, &cuda_driver, &handle)) {
        return nullptr;
    }
    State *state = state_of(module);
    const dlpack::ExchangeApi *api = exchange_api(capsule);
    if (api == nullptr) return nullptr;
    state->tensor_type = Ref::borrow(tensor);
    state->parameter_type = Ref::borrow(parameter);
    state->exchange_capsule = Ref::borrow(capsule);
    state->tensors.tensor = reinterpret_cast<PyTypeObject *>(tensor);
    state->tensors.parameter = reinterpret_cast<PyTypeObject *>(parameter);
    state->tensors.api = api;
    state->tensors.handle = state->tensors.shim.open() ? handle : -1;
    state->knobs = Ref::borrow(knobs);
    state->more_knobs = Ref::borrow(more_knobs);
    state->hook_chain = Ref::borrow(hook_chain);
    state->runtime_knobs = Ref::borrow(runtime_knobs);
    state->driver = Ref::borrow(driver);
    state->driver_slot = Ref::borrow(driver_slot);
    state->events = Ref::borrow(events);
    state->names.observers = Ref::borrow(observers);
    state->watched = Ref::borrow(watched);
    state->log_cache = Ref::borrow(log_cache);
    state->debug_level = Ref::borrow(debug_level);
    state->get_num_threads = Ref::borrow(get_num_threads);
    state->launch_failed = Ref::borrow(launch_failed);
    state->cuda_driver = Ref::borrow(cuda_driver);
    state->configured = true;
    Py_RETURN_NONE;
}

PyObject *open_cuda(PyObject *module, PyObject *) {
    return PyBool_FromLong(state_of(module)->cuda.open());
}

#ifdef TZERO_MUTABLE
PyObject *set_guards_off(PyObject *, PyObject *names) {
    uint32_t chosen = 0;
    for (uint32_t k = 0; k < static_cast<uint32_t>(Guard::count); ++k) {
        Ref name = Ref::steal(PyUnicode_FromString(guard_names[k]));
        if (!name) return nullptr;
        const int is_in = PySequence_Contains(names, name.get());
        if (is_in < 0) return nullptr;
        if (is_in) chosen |= 1u << k;
    }
    guards_off = chosen;
    Py_RETURN_NONE;
}
#endif

int intern(Ref &name, const char *text) {
    name = Ref::steal(PyUnicode_InternFromString(text));
    return name ? 0 : -1;
}

int exec(PyObject *module) {
    State *state = new (state_of(module)) State();
    state->version = Ref::steal(PyUnicode_FromString(TZERO_VERSION));
    if (!state->version) return -1;
    Names &names = state->names;
    const std::pair<Ref *, const char *> all[] = {
        {&names.runtime, "runtime"},
        {&names.compilation, "compilation"},
        {&names.debug, "debug"},
        {&names.instrumentation_mode, "instrumentation_mode"},
        {&names.add_stages_inspection_hook, "add_stages_inspection_hook"},
        {&names.launch_enter_hook, "launch_enter_hook"},
        {&names.launch_exit_hook, "launch_exit_hook"},
        {&names.calls, "calls"},
        {&names.get_current_device, "get_current_device"},
        {&names.get_current_stream, "get_current_stream"},
        {&names.launch, "_launch_in_python"},
        {&names.launched, "_launched"},
        {&names.finish, "_finish"},
        {&names.run_plain, "_run_plain"},
    };
    for (const auto &[name, text] : all) {
        if (intern(*name, text) < 0) return -1;
    }
    return add_types(module, state);
}

// What Python may refer back to this module through; the rest is strings.
template <typename Visitor> int each_reference(State &state, Visitor visit) {
    for (Ref *each : {&state.launchable, &state.launching, &state.tensor_type,
                      &state.parameter_type, &state.exchange_capsule, &state.knobs,
                      &state.more_knobs, &state.hook_chain, &state.runtime_knobs, &state.driver, &state.events,
                      &state.watched, &state.log_cache, &state.get_num_threads,
                      &state.launch_failed, &state.cuda_driver, &state.runtime.object, &state.runtime.debug,
                      &state.runtime.stages_hook, &state.runtime.enter_hook,
                      &state.runtime.exit_hook, &state.runtime.enter_dict,
                      &state.runtime.exit_dict}) {
        const int result = visit(*each);
        if (result != 0) return result;
    }
    return 0;
}

int traverse(PyObject *module, visitproc visit, void *arg) {
    State *state = state_of(module);
    if (state == nullptr) return 0;
    return each_reference(*state, [&](Ref &each) {
        Py_VISIT(each.get());
        return 0;
    });
}

int clear(PyObject *module) {
    State *state = state_of(module);
    if (state == nullptr) return 0;
    state->configured = false;
    return each_reference(*state, [](Ref &each) {
        each.clear();
        return 0;
    });
}

void release(void *module) {
    State *state = state_of(static_cast<PyObject *>(module));
    if (state != nullptr) state->~State();
}

// The tables below are read by CPython through pointers to non-const; nothing writes them.
PyMethodDef methods[] = {
    {"version", version, METH_NOARGS,
     PyDoc_STR("version()\n--\n\nThe version of tzero this extension was built for.")},
    {"configure",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(configure)),
     METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("configure(**objects)\n--\n\nSay which objects launches read.")},
    {"open_cuda", open_cuda, METH_NOARGS,
     PyDoc_STR("open_cuda()\n--\n\nOpen CUDA's driver; False where there is none.")},
#ifdef TZERO_MUTABLE
    {"guards_off", set_guards_off, METH_O,
     PyDoc_STR("guards_off(names)\n--\n\nTake these guards out, and put all others back.")},
#endif
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void *>(exec)},
    {0, nullptr},
};

}  // namespace

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

}  // namespace tzero

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&tzero::definition); }
