// The two types of a native launch. `Launchable` is the base of a kernel class in Python, with
// `k[grid]` and `run`. `Launching` is the result of `k[grid]`: a kernel and a grid, whose call
// enters no Python frame.

#include "python.h"

#include <cstddef>
#include <cstring>
#include <new>

#include "kernel.h"
#include "names.h"
#include "tracing.h"

namespace tzero {

namespace {

constexpr Py_ssize_t most_grids = 1024;

struct Launching {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *kernel;  // owned; a Launchable
    PyObject *grid;    // owned
    int32_t size[3];
    bool known;
};

Kernel *kernel_of(PyObject *object) { return reinterpret_cast<Launchable *>(object)->kernel; }

inline __attribute__((always_inline)) PyObject *guarded_launch(Call &call) {
    if (Py_EnterRecursiveCall(" while launching a kernel")) return nullptr;
    PyObject *result = nullptr;
    try {
        result = launch(call);
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
    }
    Py_LeaveRecursiveCall();
    return result;
}

// Launches in a range that profilers show.
__attribute__((noinline)) PyObject *shown_launch(Call &call) {
    const State &state = *call.kernel->state;
    PyObject *of = call.kernel->of;
    const Ref range =
        open_launch_range(state, of == nullptr ? reinterpret_cast<PyObject *>(call.self) : of);
    if (!range) return nullptr;
    PyObject *result = guarded_launch(call);
    close_range(state, range);
    return result;
}

inline PyObject *observed_launch(Call &call) {
    return call.kernel->state->profilers.look() ? shown_launch(call) : guarded_launch(call);
}

// ---- Launching ----------------------------------------------------------------------------------

PyObject *launching_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names) {
    auto *self = reinterpret_cast<Launching *>(object);
    Call call{reinterpret_cast<Launchable *>(self->kernel),
              kernel_of(self->kernel),
              {self->grid, {self->size[0], self->size[1], self->size[2]}, self->known},
              args,
              PyVectorcall_NARGS(nargsf),
              names,
              false};
    return observed_launch(call);
}

int launching_traverse(PyObject *object, visitproc visit, void *arg) {
    auto *self = reinterpret_cast<Launching *>(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->kernel);
    Py_VISIT(self->grid);
    return 0;
}

int launching_clear(PyObject *object) {
    auto *self = reinterpret_cast<Launching *>(object);
    Py_CLEAR(self->kernel);
    Py_CLEAR(self->grid);
    return 0;
}

void launching_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    launching_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

PyMemberDef launching_members[] = {
    {"kernel", T_OBJECT, offsetof(Launching, kernel), READONLY, nullptr},
    {"grid", T_OBJECT, offsetof(Launching, grid), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Launching, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot launching_slots[] = {
    {Py_tp_doc, const_cast<char *>("A kernel and its grid; calling it launches.")},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_traverse, reinterpret_cast<void *>(launching_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(launching_clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(launching_dealloc)},
    {Py_tp_members, launching_members},
    {0, nullptr},
};

PyType_Spec launching_spec = {
    "tzero._native.Launching",
    sizeof(Launching),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
        Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    launching_slots,
};

PyObject *launching_new(const State &state, PyObject *kernel, PyObject *grid, const int32_t *size) {
    auto *type = reinterpret_cast<PyTypeObject *>(state.launching.get());
    auto *self = reinterpret_cast<Launching *>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->call = launching_call;
    Py_INCREF(kernel);
    self->kernel = kernel;
    Py_INCREF(grid);
    self->grid = grid;
    self->known = size != nullptr;
    if (size != nullptr) std::memcpy(self->size, size, sizeof self->size);
    return reinterpret_cast<PyObject *>(self);
}

// ---- Launchable ---------------------------------------------------------------------------------

PyObject *launchable_new(PyTypeObject *type, PyObject *, PyObject *) {
    PyObject *module = PyType_GetModuleByDef(type, &definition);
    if (module == nullptr) return nullptr;
    PyObject *object = type->tp_alloc(type, 0);
    if (object == nullptr) return nullptr;
    auto *kernel = new (std::nothrow) Kernel();
    if (kernel == nullptr) {
        Py_DECREF(object);
        return PyErr_NoMemory();
    }
    kernel->state = state_of(module);
    reinterpret_cast<Launchable *>(object)->kernel = kernel;
    return object;
}

int launchable_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    auto *self = reinterpret_cast<Launchable *>(object);
    Py_VISIT(self->attributes.pre_run_hooks);
    Py_VISIT(self->attributes.debug);
    Py_VISIT(self->attributes.device_caches);
    Py_VISIT(self->attributes.used_global_vals);
    const Kernel *kernel = kernel_of(object);
    if (kernel == nullptr) return 0;
    for (const Parameter &parameter : kernel->parameters) Py_VISIT(parameter.fallback.get());
    for (const auto &environment : kernel->environments) {
        for (size_t k = 0; k < environment->count; ++k) Py_VISIT(environment->values[k].get());
    }
    Py_VISIT(kernel->debug.get());
    Py_VISIT(kernel->grids.get());
    Py_VISIT(kernel->last_launching.get());
    return kernel->specs.visit(visit, arg);
}

int launchable_clear(PyObject *object) {
    auto *self = reinterpret_cast<Launchable *>(object);
    Py_CLEAR(self->attributes.pre_run_hooks);
    Py_CLEAR(self->attributes.debug);
    Py_CLEAR(self->attributes.device_caches);
    Py_CLEAR(self->attributes.used_global_vals);
    Kernel *kernel = kernel_of(object);
    if (kernel == nullptr) return 0;
    kernel->specs.clear();
    kernel->generation = 0;
    kernel->debug.clear();
    kernel->grids.clear();
    kernel->last_launching.clear();
    std::vector<std::unique_ptr<Environment>> environments;
    environments.swap(kernel->environments);
    std::vector<Parameter> parameters;
    parameters.swap(kernel->parameters);
    kernel->prepared = false;
    return 0;
}

void launchable_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    launchable_clear(object);
    delete std::exchange(reinterpret_cast<Launchable *>(object)->kernel, nullptr);
    type->tp_free(object);
    Py_DECREF(type);
}

// k[grid]. The Launching of a grid of integers is cached. Where a call is followed, its integers are
// known by the objects that hold them, so that an equal grid would not do.
PyObject *launchable_subscript(PyObject *object, PyObject *grid) {
    Kernel *kernel = kernel_of(object);
    PyObject *last = kernel->last_launching.get();
    if (last != nullptr && reinterpret_cast<Launching *>(last)->grid == grid) {
        Py_INCREF(last);
        return last;
    }
    int32_t size[3];
    if (!PyTuple_CheckExact(grid) || !read_grid(grid, size)) {
        return launching_new(*kernel->state, object, grid, nullptr);
    }
    if (!kernel->grids) {
        kernel->grids = Ref::steal(PyDict_New());
        if (!kernel->grids) return nullptr;
    }
    PyObject *found = PyDict_GetItemWithError(kernel->grids.get(), grid);
    if (found != nullptr && !is_traced_anywhere()) {
        Py_INCREF(found);
        return found;
    }
    if (PyErr_Occurred()) return nullptr;
    Ref made = Ref::steal(launching_new(*kernel->state, object, grid, size));
    if (!made) return nullptr;
    if (PyDict_GET_SIZE(kernel->grids.get()) >= most_grids) PyDict_Clear(kernel->grids.get());
    if (PyDict_SetItem(kernel->grids.get(), grid, made.get()) < 0) return nullptr;
    kernel->last_launching = made;
    return made.release();
}

// Triton's own entry, which autotuners call.
PyObject *launchable_run(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *names) {
    return run_launchable(reinterpret_cast<Launchable *>(object), args, nargs, names, nullptr);
}

// _prepare(parameters, most): called once, before the first launch.
PyObject *launchable_prepare(PyObject *object, PyObject *args) {
    PyObject *given = nullptr;
    Py_ssize_t most = 0;
    if (!PyArg_ParseTuple(args, "O!n:_prepare", &PyTuple_Type, &given, &most)) return nullptr;
    if (static_cast<size_t>(PyTuple_GET_SIZE(given)) > most_parameters) {
        PyErr_Format(PyExc_ValueError,
                     "the kernel has %zd parameters, and native launches take at most %zu",
                     PyTuple_GET_SIZE(given), most_parameters);
        return nullptr;
    }
    Kernel *kernel = kernel_of(object);
    std::vector<Parameter> parameters;
    if (read_parameters(given, &parameters) < 0) return nullptr;
    kernel->parameters = std::move(parameters);
    kernel->most_specs = static_cast<size_t>(most > 0 ? most : 1);
    kernel->prepared = kernel->state->configured;
    Py_RETURN_NONE;
}

// _counts(): launches of a kernel of Triton's, those that missed, why others were left to Triton
// and how often, how many were timed, and the nanoseconds that these took.
PyObject *launchable_counts(PyObject *object, PyObject *) {
    const Kernel &kernel = *kernel_of(object);
    Ref left = Ref::steal(PyDict_New());
    for (const auto &[reason, count] : kernel.left) {
        Ref number = Ref::steal(PyLong_FromUnsignedLongLong(count));
        if (!left || !number || PyDict_SetItemString(left.get(), reason.c_str(), number.get()) < 0) {
            return nullptr;
        }
    }
    using Number = unsigned long long;
    return Py_BuildValue("KKNKK", Number{kernel.launches}, Number{kernel.misses}, left.release(),
                         Number{kernel.sampled}, Number{kernel.nanoseconds});
}

// _runs(): of each binary that was launched on CUDA what `graph::described` says of it.
PyObject *launchable_runs(PyObject *object, PyObject *) {
    std::vector<std::shared_ptr<graph::Site>> sites;  // first: describing one may run any code
    for (const Spec *spec : kernel_of(object)->specs.all()) {
        if (spec->site) sites.push_back(spec->site);
    }
    Ref made = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(sites.size())));
    for (size_t k = 0; made && k < sites.size(); ++k) {
        PyObject *each = graph::described(*sites[k], 1, 0, 0);
        if (each == nullptr) return nullptr;
        PyTuple_SET_ITEM(made.get(), static_cast<Py_ssize_t>(k), each);
    }
    return made.release();
}

PyMethodDef launchable_methods[] = {
    {"_runs", launchable_runs, METH_NOARGS,
     PyDoc_STR("_runs($self, /)\n--\n\nThe launches of each binary on CUDA, and the CUDA graphs "
               "they became; the fields of a Run.")},
    {"_counts", launchable_counts, METH_NOARGS,
     PyDoc_STR("_counts($self, /)\n--\n\nHow often a kernel of Triton's was launched, missed, and "
               "left to Triton by reason; how many launches were timed, and their nanoseconds.")},
    {"run", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(launchable_run)),
     METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("run($self, /, *args, grid, warmup, **kwargs)\n--\n\nTriton's own entry.")},
    {"_prepare", launchable_prepare, METH_VARARGS,
     PyDoc_STR("_prepare($self, parameters, most, /)\n--\n\nSet the parameters, each a "
               "ParameterDescription, and the most binaries to keep.")},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef launchable_members[] = {
    {"pre_run_hooks", T_OBJECT_EX, offsetof(Launchable, attributes.pre_run_hooks), 0, nullptr},
    {"debug", T_OBJECT_EX, offsetof(Launchable, attributes.debug), 0, nullptr},
    {"device_caches", T_OBJECT_EX, offsetof(Launchable, attributes.device_caches), 0, nullptr},
    {"used_global_vals", T_OBJECT_EX, offsetof(Launchable, attributes.used_global_vals), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot launchable_slots[] = {
    {Py_tp_doc, const_cast<char *>("The base class of kernels that are launched natively.")},
    {Py_tp_new, reinterpret_cast<void *>(launchable_new)},
    {Py_tp_traverse, reinterpret_cast<void *>(launchable_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(launchable_clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(launchable_dealloc)},
    {Py_mp_subscript, reinterpret_cast<void *>(launchable_subscript)},
    {Py_tp_methods, launchable_methods},
    {Py_tp_members, launchable_members},
    {0, nullptr},
};

PyType_Spec launchable_spec = {
    "tzero._native.Launchable",
    sizeof(Launchable),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    launchable_slots,
};

}  // namespace

PyObject *run_launchable(Launchable *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names,
                         PyObject *plain) {
    Kernel *kernel = self->kernel;
    Call call{self, kernel, {nullptr, {0, 0, 0}, false}, args, nargs, names, true, plain};
    const Names &known = kernel->state->names;
    bool warmup = true;
    const Py_ssize_t named = names == nullptr ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t k = 0; k < named; ++k) {
        PyObject *name = PyTuple_GET_ITEM(names, k);
        if (same_name(name, known.grid.get())) call.grid.object = args[nargs + k];
        if (same_name(name, known.warmup.get())) warmup = args[nargs + k] != Py_False;
    }
    if (warmup || call.grid.object == nullptr) {
        if (plain != nullptr) {
            --kernel->launches;  // this is none
            return PyObject_Vectorcall(plain, args - 1, static_cast<size_t>(nargs) + 1, names);
        }
        Ref method = Ref::steal(PyObject_GetAttr(reinterpret_cast<PyObject *>(self),
                                                 kernel->state->names.run_plain.get()));
        if (!method) return nullptr;
        return PyObject_Vectorcall(method.get(), args, static_cast<size_t>(nargs), names);
    }
    call.grid.known = read_grid(call.grid.object, call.grid.size);
    return observed_launch(call);
}

int add_types(PyObject *module, State *state) {
    state->launching = Ref::steal(PyType_FromModuleAndSpec(module, &launching_spec, nullptr));
    if (!state->launching) return -1;
    state->launchable = Ref::steal(PyType_FromModuleAndSpec(module, &launchable_spec, nullptr));
    if (!state->launchable) return -1;
    if (PyModule_AddObjectRef(module, "Launching", state->launching.get()) < 0) return -1;
    return PyModule_AddObjectRef(module, "Launchable", state->launchable.get());
}

}  // namespace tzero
