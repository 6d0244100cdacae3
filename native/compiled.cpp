// Launches of a compiled kernel by itself: `compiled[grid](...)`, as programs with a cache of their
// own make them.
//
//     compiled[grid] ─► OnBound
//     OnBound(x, n, 64) ── every guard holds ──► pack, run
//                       └ one fails: Triton's own function
//
// The binary is given, so that nothing is looked up and nothing of an argument but its value is
// read. A `Bound`, which the compiled kernel's dict holds, has how it is packed. What Triton reads in
// such a launch is compared each time: the launcher and the function of the kernel, its class, the
// launch hooks, the driver.

#include "wrappers.h"

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>

#include "binary.h"
#include "guards.h"
#include "kernel.h"
#include "profilers.h"

namespace tzero {

namespace {

struct Binding {
    std::unique_ptr<Spec> spec;  // null where native code cannot launch the kernel
    std::string refusal;         // why
    Ref kernel, beside;          // the compiled kernel; what counts its launches, or nothing
    // What Triton reads, when it was bound.
    Ref driver, module, function, packed_metadata, run, launch_metadata;
    size_t least = 0;            // the number of arguments that the binary needs
    SeenObject seen;             // the compiled kernel, when that was last compared
    uint64_t generation = 0;     // of the knobs, when hooks and driver were last compared

    template <typename Each> int each_reference(Each each) {
        for (Ref *ref : {&kernel, &beside, &driver, &module, &function, &packed_metadata, &run,
                         &launch_metadata}) {
            const int result = each(*ref);
            if (result != 0) return result;
        }
        return 0;
    }
};

struct Bound {
    PyObject_HEAD
    Binding *binding;
};

Binding &binding_of(PyObject *object) { return *reinterpret_cast<Bound *>(object)->binding; }

struct OnBound {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *bound, *grid, *subscript;  // owned; the last is the Wrapper that made this
};

Launchable *launchable(const Binding &binding) {
    return reinterpret_cast<Launchable *>(binding.beside.get());
}

// ---- guards -------------------------------------------------------------------------------------

// Whether the class of compiled kernels has its own functions, and the kernel what it was bound
// with. -1 with the Python error set.
int is_as_bound(const State &state, Binding &binding) {
    PyObject *kernel = binding.kernel.get();
    if (binding.seen.is(kernel)) return 1;
    SeenObject now;
    now.set(kernel);
    PyTypeObject *type = Py_TYPE(kernel);
    const Names &names = state.names;
    const bool is_own_class =
        type->tp_getattro == PyObject_GenericGetAttr &&
        _PyType_Lookup(type, names.run.get()) == binding.run.get() &&
        _PyType_Lookup(type, names.launch_metadata.get()) == binding.launch_metadata.get();
    if (!is_own_class && !off(Guard::compiled_class)) return 0;
    Ref dict = Ref::steal(PyObject_GenericGetDict(kernel, nullptr));
    if (!dict) return -1;
    const std::pair<const Ref *, PyObject *> expected[] = {
        {&names.bound_run, binding.spec->launcher.get()},
        {&names.function, binding.function.get()},
        {&names.module, binding.module.get()},
        {&names.packed_metadata, binding.packed_metadata.get()},
        {&names.launch_metadata, nullptr},  // one of its own would be called
    };
    for (const auto &[name, value] : expected) {
        const bool is_same = PyDict_GetItemWithError(dict.get(), name->get()) == value;
        if (PyErr_Occurred()) return -1;
        if (!is_same && !off(Guard::compiled_attributes)) return 0;
    }
    binding.seen = now;
    return 1;
}

// Whether no launch hook is attached, and the driver is the same.
Answer is_quiet(State &state, Binding &binding) {
    if (binding.generation == state.knobs_seen.generation && knobs_unchanged(state)) {
        return Answer::yes;
    }
    if (!knobs_unchanged(state) && look_at_knobs(state) < 0) return Answer::error;
    const uint64_t generation = state.knobs_seen.generation;
    const Answer unhooked = off(Guard::compiled_hooks) ? Answer::yes : no_launch_hooks(state, true);
    if (unhooked != Answer::yes) return unhooked;
    Ref driver = active_driver(state);
    if (!driver) return Answer::error;
    if (driver.get() != binding.driver.get() && !off(Guard::compiled_driver)) return Answer::no;
    binding.generation = generation;
    return Answer::yes;
}

// Reads the first three items of a grid; false for what Triton must read.
bool read_three(PyObject *grid, int32_t size[3]) {
    const bool is_tuple = PyTuple_CheckExact(grid);
    if (!is_tuple && !PyList_CheckExact(grid)) return false;
    if (PySequence_Fast_GET_SIZE(grid) < 3) return false;
    PyObject **items = PySequence_Fast_ITEMS(grid);
    for (int k = 0; k < 3; ++k) {
        if (!PyLong_CheckExact(items[k])) return false;
        int overflow = 0;
        const long number = PyLong_AsLongAndOverflow(items[k], &overflow);
        if (overflow != 0 || number < 0 || number > INT32_MAX) return false;
        size[k] = static_cast<int32_t>(number);
    }
    return true;
}

// ---- launching ----------------------------------------------------------------------------------

// Whether a tensor is on the binary's device; Triton decides about others.
bool is_beside(const Spec &spec, const Argument &tensor) {
    return spec.on_cpu ? place_of(tensor) == on_cpu
                       : place_of(tensor) == on_cuda && device_of(tensor) == spec.device_id;
}

// Writes the arguments into the block of parameters; false if Triton must read one.
bool pack_given(const State &state, const Spec &spec, PyObject *const *args, char *block) {
    Parameter parameter;
    parameter.specialize = false;
    for (const Move &move : spec.moves) {
        Argument argument;
        if (read_argument(state.tensors, parameter, args[move.index], &argument) != Reading::done) {
            return false;
        }
        if (argument.kind == Kind::tensor && !is_beside(spec, argument)) return false;
        if (!put_one(block + move.offset, move.type, argument)) return false;
    }
    return true;
}

// Launches, and returns None. Null with the Python error set, or with a reason why Triton must.
PyObject *launch_bound(State &state, Binding &binding, PyObject *grid, PyObject *const *args,
                       size_t count, const char **reason) {
    *reason = "";
    if (state.recorders != 0) return nullptr;
    const Answer is_unwatched = unwatched(state);
    if (is_unwatched != Answer::yes) return nullptr;
    const Answer quiet = is_quiet(state, binding);
    if (quiet != Answer::yes) {
        *reason = "a launch hook is attached, or the driver was changed";
        return nullptr;
    }
    const int is_same = is_as_bound(state, binding);
    if (is_same <= 0) {
        *reason = "the compiled kernel or its class was changed";
        return nullptr;
    }
    const Spec &spec = *binding.spec;
    int32_t size[3];
    if (!read_three(grid, size)) {
        *reason = "the grid is not three plain integers";
        return nullptr;
    }
    void *stream = nullptr;
    if (!spec.on_cpu) {
        *reason = "another device than the binary's is current";
        if (state.cuda.current_device() != spec.device_id) return nullptr;
        if (state.tensors.api->current_stream(dlpack::cuda, spec.device_id, &stream) != 0) {
            return nullptr;
        }
    }
    alignas(block_alignment) char block[stack_bytes];
    if (count < binding.least || !pack_given(state, spec, args, block)) {
        *reason = "only Python reads an argument of this type, or in this state";
        return nullptr;
    }
    if (!spec.on_cpu) {
        if (run_on_cuda(state, spec, size, stream, block) < 0) return nullptr;
        Py_RETURN_NONE;
    }
    int outcome = 0;
    if (run_on_cpu(state, spec, size, block, is_brief(spec, size), &outcome) < 0) return nullptr;
    if (outcome == 0) Py_RETURN_NONE;
    Ref values = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
    for (size_t k = 0; values && k < count; ++k) {
        PyTuple_SET_ITEM(values.get(), static_cast<Py_ssize_t>(k), Ref::borrow(args[k]).release());
    }
    if (values) raise_from_cpu(spec, outcome, size, values.get());
    return nullptr;
}

PyObject *call_bound(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names) {
    Ref keep = Ref::borrow(object);  // the call may drop the last reference
    const auto *self = reinterpret_cast<OnBound *>(object);
    Binding &binding = binding_of(self->bound);
    auto *made_by = reinterpret_cast<Wrapper *>(self->subscript);
    State &state = *made_by->state;
    const Answer chosen = is_chosen(state, binding.beside.get());
    if (chosen == Answer::error) return nullptr;
    if (chosen == Answer::yes) {
        Kernel &kernel = *launchable(binding)->kernel;
        ++kernel.launches;
        const Stopwatch watch(kernel);
        const char *reason = "a stream is given";
        PyObject *done = nullptr;
        if (names == nullptr || PyTuple_GET_SIZE(names) == 0) {
            const auto count = static_cast<size_t>(PyVectorcall_NARGS(nargsf));
            done = launch_bound(state, binding, self->grid, args, count, &reason);
        }
        if (done != nullptr) watch.stop(kernel);
        if (done != nullptr || PyErr_Occurred()) return done;
        if (leave(*launchable(binding), reason) < 0) return nullptr;
    }
    PyObject *plain[] = {binding.kernel.get(), self->grid};
    Ref runner = Ref::steal(PyObject_Vectorcall(made_by->plain, plain, 2, nullptr));
    return runner ? PyObject_Vectorcall(runner.get(), args, nargsf, names) : nullptr;
}

PyObject *on_bound_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names) {
    const auto *self = reinterpret_cast<OnBound *>(object);
    const State &state = *reinterpret_cast<Wrapper *>(self->subscript)->state;
    const Binding &binding = binding_of(self->bound);
    if (binding.spec == nullptr || !state.profilers.look()) {
        return call_bound(object, args, nargsf, names);
    }
    Ref keep = Ref::borrow(object);
    const Ref range = open_range(state, binding.spec->name.get(), true);
    if (!range) return nullptr;
    PyObject *result = call_bound(object, args, nargsf, names);
    close_range(state, range);
    return result;
}

// The Bound of a compiled kernel, made if there is none; empty with the Python error set. A copy of
// a kernel may hold that of the original.
Ref bound_of(const Wrapper &self, PyObject *kernel, PyObject *dict) {
    const State &state = *self.state;
    Ref found = Ref::borrow(PyDict_GetItemWithError(dict, state.names.beside.get()));
    if (!found && PyErr_Occurred()) return {};
    auto *type = reinterpret_cast<PyTypeObject *>(state.bound.get());
    if (found && Py_TYPE(found.get()) == type && binding_of(found.get()).kernel.get() == kernel) {
        return found;
    }
    found = Ref::steal(PyObject_CallOneArg(self.bind, kernel));
    if (!found) return {};
    if (Py_TYPE(found.get()) != type) {
        PyErr_Format(PyExc_TypeError, "expected a Bound, not %R", found.get());
        return {};
    }
    return PyDict_SetItem(dict, state.names.beside.get(), found.get()) < 0 ? Ref() : found;
}

// ---- OnBound ------------------------------------------------------------------------------------

int on_bound_traverse(PyObject *object, visitproc visit, void *arg) {
    const auto *self = reinterpret_cast<OnBound *>(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->bound);
    Py_VISIT(self->grid);
    Py_VISIT(self->subscript);
    return 0;
}

void on_bound_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    auto *self = reinterpret_cast<OnBound *>(object);
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->bound);
    Py_CLEAR(self->grid);
    Py_CLEAR(self->subscript);
    type->tp_free(object);
    Py_DECREF(type);
}

PyMemberDef on_bound_members[] = {
    {"grid", T_OBJECT, offsetof(OnBound, grid), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(OnBound, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot on_bound_slots[] = {
    {Py_tp_doc, const_cast<char *>("A compiled kernel and its grid; calling it launches.")},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_traverse, reinterpret_cast<void *>(on_bound_traverse)},
    {Py_tp_dealloc, reinterpret_cast<void *>(on_bound_dealloc)},
    {Py_tp_members, on_bound_members},
    {0, nullptr},
};

PyType_Spec on_bound_spec = {
    "tzero._native.OnBound",
    sizeof(OnBound),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
        Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    on_bound_slots,
};

// ---- Bound --------------------------------------------------------------------------------------

// Fills in what a launch compares: 0, or -1 with the Python error set.
int bind(const State &state, PyObject *description, PyObject *kernel, Binding *binding) {
    if (PyUnicode_Check(description)) {
        const char *reason = PyUnicode_AsUTF8(description);
        if (reason == nullptr) return -1;
        binding->refusal = reason;
        return 0;
    }
    binding->spec = spec_from(description);
    if (!binding->spec) return -1;
    if (!binding->spec->is_plain || !binding->beside) {
        PyErr_SetString(PyExc_ValueError, "a Bound needs a plain binary, and who counts");
        return -1;
    }
    for (const Move &move : binding->spec->moves) {
        binding->least = std::max(binding->least, move.index + 1);
    }
    binding->driver = active_driver(state);
    binding->module = Ref::steal(PyObject_GetAttr(kernel, state.names.module.get()));
    binding->function = Ref::steal(PyObject_GetAttr(kernel, state.names.function.get()));
    binding->packed_metadata =
        Ref::steal(PyObject_GetAttr(kernel, state.names.packed_metadata.get()));
    return binding->driver && binding->module && binding->function && binding->packed_metadata
               ? 0
               : -1;
}

PyObject *bound_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *const keywords[] = {"kernel", "beside",          "description",
                                           "run",    "launch_metadata", nullptr};
    PyObject *kernel, *beside, *description, *run, *launch_metadata;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOOOO:Bound", const_cast<char **>(keywords),
                                     &kernel, &beside, &description, &run, &launch_metadata)) {
        return nullptr;
    }
    const State &state = *state_of(PyType_GetModule(type));
    auto *counts = reinterpret_cast<PyTypeObject *>(state.launchable.get());
    if (beside != Py_None && !PyObject_TypeCheck(beside, counts)) {
        PyErr_Format(PyExc_TypeError, "beside must be a Launchable or None, not %R", beside);
        return nullptr;
    }
    Ref made = Ref::steal(type->tp_alloc(type, 0));
    if (!made) return nullptr;
    auto *binding = new (std::nothrow) Binding();
    if (binding == nullptr) return PyErr_NoMemory();
    reinterpret_cast<Bound *>(made.get())->binding = binding;
    binding->kernel = Ref::borrow(kernel);
    if (beside != Py_None) binding->beside = Ref::borrow(beside);
    binding->run = Ref::borrow(run);
    binding->launch_metadata = Ref::borrow(launch_metadata);
    try {
        return bind(state, description, kernel, binding) < 0 ? nullptr : made.release();
    } catch (const std::bad_alloc &) {
        return PyErr_NoMemory();
    }
}

int bound_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    auto *self = reinterpret_cast<Bound *>(object);
    if (self->binding == nullptr) return 0;
    if (self->binding->spec) {
        const int result = self->binding->spec->visit(visit, arg);
        if (result != 0) return result;
    }
    return self->binding->each_reference([&](Ref &each) {
        Py_VISIT(each.get());
        return 0;
    });
}

// Cycles go through the compiled kernel, whose dict is cleared too; what launches is whole until
// then.
void bound_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    delete std::exchange(reinterpret_cast<Bound *>(object)->binding, nullptr);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject *bound_deepcopy(PyObject *object, PyObject *) { return Ref::borrow(object).release(); }

PyObject *bound_reduce(PyObject *, PyObject *) {
    return Py_BuildValue("O()", reinterpret_cast<PyObject *>(Py_TYPE(Py_None)));
}

PyMethodDef bound_methods[] = {
    {"__deepcopy__", bound_deepcopy, METH_O,
     PyDoc_STR("__deepcopy__($self, memo, /)\n--\n\nItself: a copy of the kernel is bound again.")},
    {"__reduce__", bound_reduce, METH_NOARGS,
     PyDoc_STR("__reduce__($self, /)\n--\n\nNone, in the place of this.")},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot bound_slots[] = {
    {Py_tp_doc, const_cast<char *>("Bound(kernel, beside, description, run, launch_metadata)\n--\n\n"
                                   "How a compiled kernel is launched by itself.")},
    {Py_tp_new, reinterpret_cast<void *>(bound_new)},
    {Py_tp_traverse, reinterpret_cast<void *>(bound_traverse)},
    {Py_tp_dealloc, reinterpret_cast<void *>(bound_dealloc)},
    {Py_tp_methods, bound_methods},
    {0, nullptr},
};

PyType_Spec bound_spec = {
    "tzero._native.Bound",
    sizeof(Bound),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    bound_slots,
};

}  // namespace

PyObject *compiled_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names) {
    auto *self = reinterpret_cast<Wrapper *>(object);
    const State &state = *self->state;
    if (PyVectorcall_NARGS(nargsf) != 2 || names != nullptr || state.recorders != 0 ||
        state.choice == 0 || reinterpret_cast<PyObject *>(Py_TYPE(args[0])) != self->type) {
        return left_to_triton(self, args, nargsf, names);
    }
    Ref dict = Ref::steal(PyObject_GenericGetDict(args[0], nullptr));
    if (!dict) return nullptr;
    PyObject *module = PyDict_GetItemWithError(dict.get(), state.names.module.get());
    if (module == nullptr || module == Py_None) {  // Triton loads it, or raises
        if (PyErr_Occurred()) return nullptr;
        return left_to_triton(self, args, nargsf, names);
    }
    Ref bound = bound_of(*self, args[0], dict.get());
    if (!bound) return nullptr;
    const Binding &binding = binding_of(bound.get());
    if (!binding.spec) {
        if (binding.beside) {
            ++launchable(binding)->kernel->launches;
            if (leave(*launchable(binding), binding.refusal.c_str()) < 0) return nullptr;
        }
        return left_to_triton(self, args, nargsf, names);
    }
    auto *type = reinterpret_cast<PyTypeObject *>(state.on_bound.get());
    auto *made = reinterpret_cast<OnBound *>(type->tp_alloc(type, 0));
    if (made == nullptr) return nullptr;
    made->call = on_bound_call;
    made->bound = bound.release();
    made->grid = Ref::borrow(args[1]).release();
    made->subscript = Ref::borrow(object).release();
    return reinterpret_cast<PyObject *>(made);
}

int add_compiled(PyObject *module, State *state) {
    state->bound = Ref::steal(PyType_FromModuleAndSpec(module, &bound_spec, nullptr));
    state->on_bound = Ref::steal(PyType_FromModuleAndSpec(module, &on_bound_spec, nullptr));
    if (!state->bound || !state->on_bound) return -1;
    if (PyModule_AddObjectRef(module, "Bound", state->bound.get()) < 0) return -1;
    return PyModule_AddObjectRef(module, "OnBound", state->on_bound.get());
}

}  // namespace tzero
