// `Run`, which stands in for `run` of Triton's kernel class. It launches natively inside of a
// fallback, and everywhere the kernels that are chosen.
//
//     kernel[grid](...) ─► Run ── in no fallback, not chosen ──► Triton's own `run`
//                           └ else ─► the kernel's `Launchable` ── every guard holds ──► launch
//                                                                └ one fails: Triton's own `run`
//
// Triton's state stays on Triton's kernel. The `Launchable` beside it, which the kernel's dict
// holds, has the keys and binaries. Which launches are native makes no difference but speed, so it
// does no harm if a thread's generators or greenlets run in its fallbacks.

#include "python.h"

#include <cstddef>

#include "fallback.h"
#include "kernel.h"
#include "timestamps.h"

namespace tzero {

namespace {

// A kernel that misses this often is left to Triton if most of its launches miss.
constexpr uint64_t most_misses = 32;

struct Run {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *plain;   // owned, like the rest: Triton's own `run`
    PyObject *type;    // the class of kernels whose launches may be native
    PyObject *beside;  // makes the Launchable of a kernel
    State *state;      // of the module, which the type keeps alive
};

// Copies the attributes of Triton's kernel that launches read, unless its dict is unchanged. -1
// with the Python error set.
int read_attributes(const State &state, PyObject *kernel, PyObject *dict, Launchable *beside) {
    SeenObject &seen = beside->kernel->beside;
    if (seen.is(kernel)) return 0;
    seen.clear();
    SeenObject now;
    now.set(kernel);
    Attributes &attributes = beside->attributes;
    const std::pair<const Ref *, PyObject **> all[] = {
        {&state.names.pre_run_hooks, &attributes.pre_run_hooks},
        {&state.names.debug, &attributes.debug},
        {&state.names.device_caches, &attributes.device_caches},
        {&state.names.used_global_vals, &attributes.used_global_vals},
    };
    for (const auto &[name, out] : all) {
        Ref value = Ref::borrow(PyDict_GetItemWithError(dict, name->get()));
        if (!value && PyErr_Occurred()) return -1;
        Ref gone = Ref::steal(std::exchange(*out, value.release()));
    }
    seen = now;
    return 0;
}

// The Launchable of a kernel; empty with the Python error set.
// A copy of a kernel may hold that of the original.
Ref launchable_of(const Run &run, PyObject *kernel, PyObject *dict) {
    const State &state = *run.state;
    Ref found = Ref::borrow(PyDict_GetItemWithError(dict, state.names.beside.get()));
    if (!found && PyErr_Occurred()) return {};
    auto *type = reinterpret_cast<PyTypeObject *>(state.launchable.get());
    const bool ours = found && PyObject_TypeCheck(found.get(), type) &&
                      reinterpret_cast<Launchable *>(found.get())->kernel->of == kernel;
    if (!ours) {
        found = Ref::steal(PyObject_CallOneArg(run.beside, kernel));
        if (!found) return {};
        if (!PyObject_TypeCheck(found.get(), type)) {
            PyErr_Format(PyExc_TypeError, "expected a Launchable, not %R", found.get());
            return {};
        }
        if (PyDict_SetItem(dict, state.names.beside.get(), found.get()) < 0) return {};
        reinterpret_cast<Launchable *>(found.get())->kernel->of = kernel;
    }
    return found;
}

PyObject *run_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names) {
    const auto *self = reinterpret_cast<Run *>(object);
    const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if ((self->state->choice == 0 && !in_fallback()) || count < 1 ||
        reinterpret_cast<PyObject *>(Py_TYPE(args[0])) != self->type) {
        return PyObject_Vectorcall(self->plain, args, nargsf, names);
    }
    PyObject *kernel = args[0];
    Ref dict = Ref::steal(PyObject_GenericGetDict(kernel, nullptr));
    if (!dict) return nullptr;
    Ref beside = launchable_of(*self, kernel, dict.get());
    if (!beside) return nullptr;
    if (!in_fallback()) {
        const Answer chosen = is_chosen(*self->state, beside.get());
        if (chosen == Answer::error) return nullptr;
        if (chosen == Answer::no) return PyObject_Vectorcall(self->plain, args, nargsf, names);
    }
    auto *launchable = reinterpret_cast<Launchable *>(beside.get());
    if (read_attributes(*self->state, kernel, dict.get(), launchable) < 0) return nullptr;
    Kernel &known = *launchable->kernel;
    const uint64_t launches = ++known.launches;
    const bool is_hopeless = known.misses > most_misses && 2 * known.misses > known.launches;
    if (is_hopeless && leave(*launchable, "most of its launches need another binary") < 0) {
        return nullptr;
    }
    if (is_hopeless || !known.prepared) {
        return PyObject_Vectorcall(self->plain, args, nargsf, names);
    }
    const uint64_t misses = known.misses;
    const Stopwatch watch(known);
    Ref plain = Ref::borrow(self->plain);
    Ref result = Ref::steal(run_launchable(launchable, args + 1, count - 1, names, plain.get()));
    const bool is_launch = known.misses == misses && known.launches >= launches;
    if (result && is_launch) watch.stop(known);  // compiling is not launching
    return result.release();
}

PyObject *run_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *const keywords[] = {"plain", "type", "beside", nullptr};
    PyObject *plain = nullptr, *kernels = nullptr, *beside = nullptr;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O:Run", const_cast<char **>(keywords), &plain,
                                     &PyType_Type, &kernels, &beside)) {
        return nullptr;
    }
    auto *self = reinterpret_cast<Run *>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->call = run_call;
    self->plain = Ref::borrow(plain).release();
    self->type = Ref::borrow(kernels).release();
    self->beside = Ref::borrow(beside).release();
    self->state = state_of(PyType_GetModule(type));
    return reinterpret_cast<PyObject *>(self);
}

// As for a function: an attribute of a class that is a method of its instances.
PyObject *run_get(PyObject *object, PyObject *instance, PyObject *) {
    if (instance == nullptr || instance == Py_None) return Ref::borrow(object).release();
    return PyMethod_New(object, instance);
}

// What is not found here is asked of Triton's own function, such as its name. `__wrapped__` is that
// function, which has the source; it is no member, because `inspect` would ask the class for it.
PyObject *run_getattr(PyObject *object, PyObject *name) {
    if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) {
        return Ref::borrow(reinterpret_cast<Run *>(object)->plain).release();
    }
    if (PyUnicode_CompareWithASCIIString(name, "__module__") != 0) {  // the type has one
        PyObject *found = PyObject_GenericGetAttr(object, name);
        if (found != nullptr || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
        PyErr_Clear();
    }
    return PyObject_GetAttr(reinterpret_cast<Run *>(object)->plain, name);
}

int run_traverse(PyObject *object, visitproc visit, void *arg) {
    const auto *self = reinterpret_cast<Run *>(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->plain);
    Py_VISIT(self->type);
    Py_VISIT(self->beside);
    return 0;
}

// Not `plain`: the class that this is an attribute of may be used until the very end.
int run_clear(PyObject *object) {
    Py_CLEAR(reinterpret_cast<Run *>(object)->type);
    return 0;
}

void run_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    auto *self = reinterpret_cast<Run *>(object);
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->plain);
    Py_CLEAR(self->type);
    Py_CLEAR(self->beside);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject *run_beside_of(PyObject *object, PyObject *kernel) {
    Ref dict = Ref::steal(PyObject_GenericGetDict(kernel, nullptr));
    return dict ? launchable_of(*reinterpret_cast<Run *>(object), kernel, dict.get()).release()
                : nullptr;
}

PyMethodDef run_methods[] = {
    {"beside_of", run_beside_of, METH_O,
     PyDoc_STR("beside_of($self, kernel, /)\n--\n\nWhat stands beside a kernel, made if need be.")},
    {nullptr, nullptr, 0, nullptr},
};

PyObject *run_choice(PyObject *object, void *) {
    return PyLong_FromUnsignedLongLong(reinterpret_cast<Run *>(object)->state->choice);
}

int run_choose(PyObject *object, PyObject *value, void *) {
    if (value == nullptr) {
        PyErr_SetString(PyExc_AttributeError, "choice cannot be deleted");
        return -1;
    }
    const unsigned long long choice = PyLong_AsUnsignedLongLong(value);
    if (PyErr_Occurred()) return -1;
    reinterpret_cast<Run *>(object)->state->choice = choice;
    return 0;
}

PyGetSetDef run_getset[] = {
    {"choice", run_choice, run_choose,
     PyDoc_STR("The number of the choice of kernels that are launched natively; 0 for none."),
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMemberDef run_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Run, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot run_slots[] = {
    {Py_tp_doc, const_cast<char *>("Run(plain, type, beside)\n--\n\n"
                                   "`run` of a class of kernels, native in fallbacks.")},
    {Py_tp_new, reinterpret_cast<void *>(run_new)},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void *>(run_get)},
    {Py_tp_getattro, reinterpret_cast<void *>(run_getattr)},
    {Py_tp_traverse, reinterpret_cast<void *>(run_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(run_clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(run_dealloc)},
    {Py_tp_members, run_members},
    {Py_tp_getset, run_getset},
    {Py_tp_methods, run_methods},
    {0, nullptr},
};

PyType_Spec run_spec = {
    "tzero._native.Run",
    sizeof(Run),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
        Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_IMMUTABLETYPE,
    run_slots,
};

constexpr uint64_t timed_every = 32;  // launches

}  // namespace

Stopwatch::Stopwatch(const Kernel &kernel)
    : start_(kernel.launches % timed_every == 0 ? now() : 0) {}

void Stopwatch::stop(Kernel &kernel) const {
    if (start_ == 0) return;
    ++kernel.sampled;
    kernel.nanoseconds += now() - start_;
}

Answer is_chosen(const State &state, PyObject *beside) {
    Kernel &kernel = *reinterpret_cast<Launchable *>(beside)->kernel;
    if (kernel.choice != state.choice) {
        const uint64_t choice = state.choice;
        Ref said = Ref::steal(PyObject_CallMethod(beside, "_chosen", nullptr));
        const int chosen = said ? PyObject_IsTrue(said.get()) : -1;
        if (chosen < 0) return Answer::error;
        kernel.choice = choice;
        kernel.chosen = chosen != 0;
    }
    return kernel.chosen ? Answer::yes : Answer::no;
}

int add_run(PyObject *module) {
    Ref type = Ref::steal(PyType_FromModuleAndSpec(module, &run_spec, nullptr));
    if (!type) return -1;
    return PyModule_AddObjectRef(module, "Run", type.get());
}

}  // namespace tzero
