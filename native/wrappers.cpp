// Launches through what Triton puts around a kernel: `kernel[grid]`, autotuners and heuristics.
//
//     kernel[grid](x, n) ─► OnGrid ─► kernel.run(x, n, grid=grid, warmup=False)
//                                       ├ an autotuner, tuned: its config's arguments, then fn.run
//                                       ├ heuristics: what they compute, then fn.run
//                                       └ a kernel: Run (running.cpp)
//
// Each does what Triton's function of that name does, without a Python frame. Nothing is kept of an
// autotuner but names: its cache, its configs and their fields are read in each launch. What does
// not look as expected, a key that is not tuned yet, and all launches that a recorder sees are left
// to Triton's function.

#include "wrappers.h"

#include <alloca.h>

#include <cstddef>
#include <iterator>
#include <new>
#include <string_view>

#include "guards.h"

namespace tzero {

namespace {

Wrapper *wrapper(PyObject *object) { return reinterpret_cast<Wrapper *>(object); }

// Whether no class attribute hides one of these entries of an object's dict.
bool hides_nothing(PyTypeObject *type, const Names &names) {
    for (const Ref *each : {&names.configs, &names.arg_names, &names.keys, &names.cache, &names.fn,
                            &names.values, &names.nargs, &names.best_config}) {
        if (_PyType_Lookup(type, each->get()) != nullptr) return false;
    }
    return type->tp_getattro == PyObject_GenericGetAttr &&
           type->tp_setattro == PyObject_GenericSetAttr;
}

// ---- kernel[grid] -------------------------------------------------------------------------------

struct OnGrid {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *kernel, *grid, *subscript;  // owned; the last is the Wrapper that made this
    PyObject *dict, *weak;                // as functions have them; null until used
};

PyObject *on_grid_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names) {
    Ref keep = Ref::borrow(object);  // the call may drop the last reference
    const auto *self = reinterpret_cast<OnGrid *>(object);
    Wrapper *made_by = wrapper(self->subscript);
    const State &state = *made_by->state;
    PyObject *own[] = {state.names.grid.get(), state.names.warmup.get()};
    Ref all = state.recorders != 0 ? Ref() : made_by->names->joined(names, own, 2, true);
    if (!all) {
        if (PyErr_Occurred()) return nullptr;
        PyObject *plain[] = {self->kernel, self->grid};
        Ref made = Ref::steal(PyObject_Vectorcall(made_by->plain, plain, 2, nullptr));
        return made ? PyObject_Vectorcall(made.get(), args, nargsf, names) : nullptr;
    }
    const Py_ssize_t positional = PyVectorcall_NARGS(nargsf);
    const size_t count = given(positional, names);
    auto **space = static_cast<PyObject **>(alloca((count + 4) * sizeof(PyObject *)));
    PyObject **to = space + 1;
    *to++ = self->kernel;
    to = std::copy(args, args + positional, to);
    *to++ = self->grid;
    *to++ = Py_False;
    std::copy(args + positional, args + count, to);
    return PyObject_VectorcallMethod(
        state.names.run.get(), space + 1,
        static_cast<size_t>(positional + 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, all.get());
}

// What is not found here is asked of the function that Triton returns, such as its name and its
// signature: `inspect` goes on to `__wrapped__`.
PyObject *on_grid_getattr(PyObject *object, PyObject *name) {
    PyObject *found = PyObject_GenericGetAttr(object, name);
    if (found != nullptr || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    const auto *self = reinterpret_cast<OnGrid *>(object);
    PyObject *plain[] = {self->kernel, self->grid};
    Ref made =
        Ref::steal(PyObject_Vectorcall(wrapper(self->subscript)->plain, plain, 2, nullptr));
    if (!made) return nullptr;
    if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) return made.release();
    return PyObject_GetAttr(made.get(), name);
}

int on_grid_traverse(PyObject *object, visitproc visit, void *arg) {
    const auto *self = reinterpret_cast<OnGrid *>(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->dict);
    Py_VISIT(self->kernel);
    Py_VISIT(self->grid);
    Py_VISIT(self->subscript);
    return 0;
}

int on_grid_clear(PyObject *object) {
    auto *self = reinterpret_cast<OnGrid *>(object);
    Py_CLEAR(self->kernel);
    Py_CLEAR(self->grid);
    Py_CLEAR(self->subscript);
    Py_CLEAR(self->dict);
    return 0;
}

void on_grid_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (reinterpret_cast<OnGrid *>(object)->weak != nullptr) PyObject_ClearWeakRefs(object);
    on_grid_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

PyMemberDef on_grid_members[] = {
    {"kernel", T_OBJECT, offsetof(OnGrid, kernel), READONLY, nullptr},
    {"grid", T_OBJECT, offsetof(OnGrid, grid), READONLY, nullptr},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(OnGrid, call), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(OnGrid, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(OnGrid, weak), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot on_grid_slots[] = {
    {Py_tp_doc, const_cast<char *>("A kernel and its grid; calling it launches.")},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_getattro, reinterpret_cast<void *>(on_grid_getattr)},
    {Py_tp_traverse, reinterpret_cast<void *>(on_grid_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(on_grid_clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(on_grid_dealloc)},
    {Py_tp_members, on_grid_members},
    {0, nullptr},
};

PyType_Spec on_grid_spec = {
    "tzero._native.OnGrid",
    sizeof(OnGrid),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
        Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    on_grid_slots,
};

PyObject *subscript_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names) {
    Wrapper *self = wrapper(object);
    if (PyVectorcall_NARGS(nargsf) != 2 || names != nullptr || self->state->recorders != 0 ||
        !self->state->on_grid) {
        return left_to_triton(self, args, nargsf, names);
    }
    auto *type = reinterpret_cast<PyTypeObject *>(self->state->on_grid.get());
    auto *made = reinterpret_cast<OnGrid *>(type->tp_alloc(type, 0));
    if (made == nullptr) return nullptr;
    made->call = on_grid_call;
    made->kernel = Ref::borrow(args[0]).release();
    made->grid = Ref::borrow(args[1]).release();
    made->subscript = Ref::borrow(object).release();
    return reinterpret_cast<PyObject *>(made);
}

// ---- heuristics ---------------------------------------------------------------------------------

// What a launch reads of heuristics.
struct Heuristics {
    Ref values, arg_names;
};

// Whether they look as expected; false with the Python error set for an error.
bool read_heuristics(const Names &names, PyObject *dict, Heuristics *out) {
    *out = {Ref::borrow(entry(dict, names.values, &PyDict_Type)),
            Ref::borrow(entry(dict, names.arg_names, &PyList_Type))};
    if (PyErr_Occurred() || !out->values || !out->arg_names) return false;
    PyObject *name = nullptr;
    Py_ssize_t at = 0, count = 0;
    while (PyDict_Next(out->values.get(), &at, &name, nullptr)) {
        if (!PyUnicode_CheckExact(name)) return false;
        ++count;
    }
    return count <= static_cast<Py_ssize_t>(Passed::most_added);
}

// The value of an argument by its name, as Triton's dict of all has it; null if there is none.
PyObject *value_named(const Passed &passed, PyObject *arg_names, PyObject *name) {
    for (size_t k = passed.count(); k-- > passed.positional();) {
        if (same_name(passed.name(k), name)) return passed.at(k);
    }
    const size_t known = static_cast<size_t>(PyList_GET_SIZE(arg_names)) + 1;
    for (size_t k = std::min(passed.positional(), known); k-- > 1;) {
        if (same_name(PyList_GET_ITEM(arg_names, static_cast<Py_ssize_t>(k) - 1), name)) {
            return passed.at(k);
        }
    }
    return nullptr;
}

// A dict of some arguments by name.
Ref some_of(const Passed &passed, PyObject *arg_names, PyObject *names) {
    Ref made = Ref::steal(PyDict_New());
    for (Py_ssize_t k = 0; made && k < PyTuple_GET_SIZE(names); ++k) {
        PyObject *name = PyTuple_GET_ITEM(names, k);
        PyObject *value = value_named(passed, arg_names, name);
        // Where it is missing, the function raises.
        if (value != nullptr && PyDict_SetItem(made.get(), name, value) < 0) made.clear();
    }
    return made;
}

// The dicts that functions of heuristics get. Triton makes one of all arguments for each. Here the
// next one gets the same, with the result in it, unless the function has changed or kept it; and
// one that is known to read only some names gets these.
class Dicts {
  public:
    Dicts(State &state, const Heuristics &read) : state_(state), read_(read) {}

    // The result of a function; empty with the Python error set.
    Ref call(PyObject *function, const Passed &passed) {
        const Ref names = state_.subscripts.of(state_, function);
        if (PyErr_Occurred()) return {};
        if (names) {
            Ref some = some_of(passed, read_.arg_names.get(), names.get());
            return some ? Ref::steal(PyObject_CallOneArg(function, some.get())) : Ref();
        }
        if (!all_) all_ = as_dict(passed, read_.arg_names.get(), passed.count());
        if (!all_) return {};
        Seen before;
        before.set(version_of(all_.get()));
        Ref result = Ref::steal(PyObject_CallOneArg(function, all_.get()));
        const bool is_ours = off(Guard::heuristics_dict) ||
                             (Py_REFCNT(all_.get()) == 1 && before.is(all_.get()));
        if (!is_ours) all_.clear();
        return result;
    }

    int add(PyObject *name, PyObject *value) {
        return all_ ? PyDict_SetItem(all_.get(), name, value) : 0;
    }

  private:
    State &state_;
    const Heuristics &read_;
    Ref all_;
};

// Calls each function with the arguments by name, and adds its result to them. 0, or -1 with the
// Python error set. `results` keeps what replaces an argument that was given.
int compute(State &state, const Heuristics &read, Passed *passed, Ref *results) {
    PyObject *values = read.values.get(), *next_name = nullptr, *next = nullptr;
    const Py_ssize_t size = PyDict_GET_SIZE(values);
    Py_ssize_t at = 0;
    Dicts dicts(state, read);
    for (size_t k = 0; PyDict_Next(values, &at, &next_name, &next); ++k) {
        Ref name = Ref::borrow(next_name), function = Ref::borrow(next);
        results[k] = dicts.call(function.get(), *passed);
        if (!results[k]) return -1;
        if (PyDict_GET_SIZE(values) != size) {
            PyErr_SetString(PyExc_RuntimeError, "dictionary changed size during iteration");
            return -1;
        }
        size_t place = passed->positional();
        while (place < passed->count() && !same_name(passed->name(place), name.get())) ++place;
        if (place < passed->count()) {
            passed->replace(place, results[k].get());
        } else {
            passed->add(name.get(), results[k].get());
        }
        if (dicts.add(name.get(), results[k].get()) < 0) return -1;
    }
    return 0;
}

PyObject *heuristics_call(PyObject *object, PyObject *const *args, size_t nargsf,
                          PyObject *names) {
    Wrapper *self = wrapper(object);
    const State &state = *self->state;
    const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (count < 1 || state.recorders != 0) return left_to_triton(self, args, nargsf, names);
    Ref dict = plain_dict(self, args[0]);
    Heuristics read;
    if (!dict || !read_heuristics(state.names, dict.get(), &read)) {
        return PyErr_Occurred() ? nullptr : left_to_triton(self, args, nargsf, names);
    }
    Ref results[Passed::most_added];
    Passed passed(TZ_SPACE(given(count, names)), args, count, names);
    if (compute(*self->state, read, &passed, results) < 0) return nullptr;
    Ref all = passed.names(*self->names);  // none occurs twice: what was given is replaced
    Ref fn = all ? Ref::steal(PyObject_GetAttr(args[0], state.names.fn.get())) : Ref();
    return fn ? passed.run(state, all.get(), fn.get()) : nullptr;
}

// ---- the types ----------------------------------------------------------------------------------

struct Kind {
    const char *name;
    vectorcallfunc call;
};

constexpr Kind kinds[] = {
    {"subscript", subscript_call},
    {"heuristics", heuristics_call},
    {"tuned", tuned_call},
    {"compiled", compiled_call},
};

PyObject *wrapper_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *const keywords[] = {"kind",       "plain",  "type",   "config",
                                           "all_kwargs", "fields", "launch", "bind", nullptr};
    const char *kind = nullptr;
    PyObject *plain = nullptr, *around = nullptr, *config = nullptr, *all_kwargs = nullptr,
             *fields = nullptr, *launch = nullptr, *bind = nullptr;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sOO!|O!OO!OO:Wrapper",
                                     const_cast<char **>(keywords), &kind, &plain, &PyType_Type,
                                     &around, &PyType_Type, &config, &all_kwargs, &PyTuple_Type,
                                     &fields, &launch, &bind)) {
        return nullptr;
    }
    const Kind *found = std::find_if(std::begin(kinds), std::end(kinds), [kind](const Kind &each) {
        return std::string_view(each.name) == kind;
    });
    const bool is_whole =
        found != std::end(kinds) && (found->call != compiled_call || bind != nullptr) &&
        (found->call != tuned_call || (config != nullptr && all_kwargs != nullptr &&
                                       fields != nullptr && launch != nullptr));
    if (!is_whole) {
        PyErr_Format(PyExc_ValueError, "%s is no kind of wrapper, or something is missing", kind);
        return nullptr;
    }
    auto *self = reinterpret_cast<Wrapper *>(type->tp_alloc(type, 0));
    if (self == nullptr) return nullptr;
    self->call = found->call;
    self->plain = Ref::borrow(plain).release();
    self->type = Ref::borrow(around).release();
    self->config = Ref::borrow(config).release();
    self->all_kwargs = Ref::borrow(all_kwargs).release();
    self->fields = Ref::borrow(fields).release();
    self->launch = Ref::borrow(launch).release();
    self->bind = Ref::borrow(bind).release();
    self->names = new (std::nothrow) JoinedNames();
    self->forms = new (std::nothrow) std::vector<std::shared_ptr<const TunedForm>>();
    self->expanded = new (std::nothrow) std::vector<Expanded>();
    self->tuners = new (std::nothrow) std::vector<KnownTuner>();
    self->state = state_of(PyType_GetModule(type));
    if (self->names == nullptr || self->forms == nullptr || self->expanded == nullptr ||
        self->tuners == nullptr) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return reinterpret_cast<PyObject *>(self);
}

// As for a function: an attribute of a class that is a method of its instances.
PyObject *wrapper_get(PyObject *object, PyObject *instance, PyObject *) {
    if (instance == nullptr || instance == Py_None) return Ref::borrow(object).release();
    return PyMethod_New(object, instance);
}

// What is not found here is asked of Triton's own function; see `Run` in running.cpp.
PyObject *wrapper_getattr(PyObject *object, PyObject *name) {
    if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) {
        return Ref::borrow(wrapper(object)->plain).release();
    }
    if (PyUnicode_CompareWithASCIIString(name, "__module__") != 0) {  // the type has one
        PyObject *found = PyObject_GenericGetAttr(object, name);
        if (found != nullptr || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
        PyErr_Clear();
    }
    return PyObject_GetAttr(wrapper(object)->plain, name);
}

int wrapper_traverse(PyObject *object, visitproc visit, void *arg) {
    const Wrapper *self = wrapper(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->plain);
    Py_VISIT(self->type);
    Py_VISIT(self->config);
    Py_VISIT(self->all_kwargs);
    Py_VISIT(self->launch);
    Py_VISIT(self->bind);
    return 0;
}

// Not `plain`: the class that this is an attribute of may be used until the very end.
int wrapper_clear(PyObject *object) {
    Py_CLEAR(wrapper(object)->type);
    return 0;
}

void wrapper_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    Wrapper *self = wrapper(object);
    PyObject_GC_UnTrack(object);
    for (PyObject **each : {&self->plain, &self->type, &self->config, &self->all_kwargs,
                            &self->fields, &self->launch, &self->bind}) {
        Py_CLEAR(*each);
    }
    delete std::exchange(self->names, nullptr);
    delete std::exchange(self->forms, nullptr);
    delete std::exchange(self->expanded, nullptr);
    delete std::exchange(self->tuners, nullptr);
    type->tp_free(object);
    Py_DECREF(type);
}

PyMemberDef wrapper_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Wrapper, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot wrapper_slots[] = {
    {Py_tp_doc, const_cast<char *>("Wrapper(kind, plain, type, config=None, all_kwargs=None, "
                                   "fields=None, launch=None, bind=None)\n--\n\n"
                                   "A native function in the place of one of Triton's.")},
    {Py_tp_new, reinterpret_cast<void *>(wrapper_new)},
    {Py_tp_call, reinterpret_cast<void *>(PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void *>(wrapper_get)},
    {Py_tp_getattro, reinterpret_cast<void *>(wrapper_getattr)},
    {Py_tp_traverse, reinterpret_cast<void *>(wrapper_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(wrapper_clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(wrapper_dealloc)},
    {Py_tp_members, wrapper_members},
    {0, nullptr},
};

PyType_Spec wrapper_spec = {
    "tzero._native.Wrapper",
    sizeof(Wrapper),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
        Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_IMMUTABLETYPE,
    wrapper_slots,
};

}  // namespace

// An empty dict with room for this many entries, where CPython offers that.
static PyObject *new_dict(size_t count) {
#if PY_VERSION_HEX < 0x030D0000
    return _PyDict_NewPresized(static_cast<Py_ssize_t>(count));
#else
    (void)count;
    return PyDict_New();
#endif
}

PyObject *left_to_triton(const Wrapper *self, PyObject *const *args, size_t nargsf,
                         PyObject *names) {
    Ref plain = Ref::borrow(self->plain);
    return PyObject_Vectorcall(plain.get(), args, nargsf, names);
}

Ref plain_dict(Wrapper *self, PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    if (type != self->approved || type->tp_version_tag != self->version || self->version == 0) {
        auto *base = reinterpret_cast<PyTypeObject *>(self->type);
        if (!PyType_IsSubtype(type, base) || !hides_nothing(type, self->state->names)) return {};
        self->approved = type;
        self->version = type->tp_version_tag;
    }
    return Ref::steal(PyObject_GenericGetDict(object, nullptr));
}

PyObject *entry(PyObject *dict, const Ref &name, PyTypeObject *type) {
    PyObject *found = PyDict_GetItemWithError(dict, name.get());
    return found != nullptr && (type == nullptr || Py_TYPE(found) == type) ? found : nullptr;
}

Ref as_dict(const Passed &passed, PyObject *arg_names, size_t count) {
    Ref made = Ref::steal(new_dict(count));
    const size_t known = static_cast<size_t>(PyList_GET_SIZE(arg_names)) + 1;
    for (size_t k = 1; made && k < count; ++k) {
        if (k >= known && k < passed.positional()) continue;
        PyObject *name = k < passed.positional()
                             ? PyList_GET_ITEM(arg_names, static_cast<Py_ssize_t>(k) - 1)
                             : passed.name(k);
        if (PyDict_SetItem(made.get(), name, passed.at(k)) < 0) made.clear();
    }
    return made;
}

PyObject *Passed::launch(PyObject *function, PyObject *tuner, PyObject *config) {
    Ref args = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(positional_) - 1));
    Ref kwargs = Ref::steal(PyDict_New());
    if (!args || !kwargs) return nullptr;
    for (size_t k = 1; k < positional_; ++k) {
        PyTuple_SET_ITEM(args.get(), static_cast<Py_ssize_t>(k) - 1, Ref::borrow(at(k)).release());
    }
    for (size_t k = positional_; k < positional_ + named_; ++k) {
        if (PyDict_SetItem(kwargs.get(), name(k), at(k)) < 0) return nullptr;
    }
    return PyObject_CallFunctionObjArgs(function, tuner, config, args.get(), kwargs.get(), nullptr);
}

int add_wrappers(PyObject *module, State *state) {
    state->on_grid = Ref::steal(PyType_FromModuleAndSpec(module, &on_grid_spec, nullptr));
    if (!state->on_grid) return -1;
    Ref type = Ref::steal(PyType_FromModuleAndSpec(module, &wrapper_spec, nullptr));
    if (!type || PyModule_AddObjectRef(module, "OnGrid", state->on_grid.get()) < 0) return -1;
    return PyModule_AddObjectRef(module, "Wrapper", type.get());
}

}  // namespace tzero
