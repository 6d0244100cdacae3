// What a launch reads besides its arguments: hooks, knobs, the driver, globals, Triton's cache.
//
// Everything is read on every launch, or its version compared: nothing assumes that a hook stays
// absent or a knob unset. The order is Triton's, so that a change made by one step is seen by the
// next.

#include "guards.h"
#include "kernel.h"

namespace tzero {

namespace {

constexpr size_t most_environments = 64;

Ref attribute(PyObject *object, const Ref &name) {
    return Ref::steal(PyObject_GetAttr(object, name.get()));
}

// The current value of a group of triton.knobs.
Ref knob_group(const State &state, const Ref &name) {
    Ref group = Ref::borrow(PyDict_GetItemWithError(state.knobs.get(), name.get()));
    if (!group && !PyErr_Occurred()) {
        PyErr_Format(PyExc_AttributeError, "triton.knobs has no %U", name.get());
    }
    return group;
}

// The dict of an ordinary chain of hooks, which has its list of calls; nothing for other hooks.
Ref dict_of_chain(const State &state, const Ref &hook) {
    if (reinterpret_cast<PyObject *>(Py_TYPE(hook.get())) != state.hook_chain.get()) return Ref();
    return Ref::steal(PyObject_GenericGetDict(hook.get(), nullptr));
}

// Reads triton.knobs.runtime, unless its own dict is empty and its class has the same version as
// before: then nothing has changed. -1 with the Python error set.
int read_runtime(State &state) {
    Ref group = knob_group(state, state.names.runtime);
    if (!group) return -1;
    RuntimeKnobs &known = state.runtime;
    const unsigned version = Py_TYPE(group.get())->tp_version_tag;
    bool is_plain = false;  // a subclass may compute its attributes
    if (reinterpret_cast<PyObject *>(Py_TYPE(group.get())) == state.runtime_knobs.get()) {
        Ref own = Ref::steal(PyObject_GenericGetDict(group.get(), nullptr));
        if (!own) return -1;
        is_plain = PyDict_CheckExact(own.get()) && PyDict_GET_SIZE(own.get()) == 0;
    }
    if (is_plain && version != 0 && version == known.version && group.get() == known.object.get()) {
        return 0;
    }
    Ref debug = attribute(group.get(), state.names.debug);
    Ref stages = attribute(group.get(), state.names.add_stages_inspection_hook);
    Ref enter = attribute(group.get(), state.names.launch_enter_hook);
    Ref exit = attribute(group.get(), state.names.launch_exit_hook);
    if (!debug || !stages || !enter || !exit) return -1;
    known.version = 0;  // invalid until complete: releasing the old values may run Python code
    known.object = std::move(group);
    known.debug = std::move(debug);
    known.stages_hook = std::move(stages);
    known.enter_hook = std::move(enter);
    known.exit_hook = std::move(exit);
    known.enter_dict = dict_of_chain(state, known.enter_hook);
    known.exit_dict = dict_of_chain(state, known.exit_hook);
    if (PyErr_Occurred()) return -1;
    known.version = is_plain ? version : 0;
    return 0;
}

Answer hook_is_empty(const State &state, const Ref &hook, const Ref &dict) {
    if (hook.get() == Py_None) return Answer::yes;
    if (!dict || reinterpret_cast<PyObject *>(Py_TYPE(hook.get())) != state.hook_chain.get()) {
        return Answer::no;
    }
    PyObject *calls = PyDict_GetItemWithError(dict.get(), state.names.calls.get());
    if (calls == nullptr) return PyErr_Occurred() ? Answer::error : Answer::no;
    return PyList_CheckExact(calls) && PyList_GET_SIZE(calls) == 0 ? Answer::yes : Answer::no;
}

Answer same(PyObject *one, PyObject *other) {
    if (one == other) return Answer::yes;
    if (Py_TYPE(one) != Py_TYPE(other)) return Answer::no;
    const int equal = PyObject_RichCompareBool(one, other, Py_EQ);
    return equal < 0 ? Answer::error : equal > 0 ? Answer::yes : Answer::no;
}

// Calls `take` with each value of the environment until it returns false; -1 with the Python error
// set. The runtime knobs have been read before.
template <typename Take>
int each_value(const State &state, const Attributes &attributes, Take take) {
    Ref compilation = knob_group(state, state.names.compilation);
    if (!compilation) return -1;
    Ref driver = attribute(state.driver.get(), state.driver_slot);
    Ref mode = attribute(compilation.get(), state.names.instrumentation_mode);
    if (!driver || !mode) return -1;
    if (!take(off(Guard::driver) ? Py_None : driver.get())) return 0;
    // Triton gets device and stream from these two functions of CUDA's driver, which may be
    // replaced.
    if (!off(Guard::driver) &&
        reinterpret_cast<PyObject *>(Py_TYPE(driver.get())) == state.cuda_driver.get()) {
        for (const Ref *name : {&state.names.get_current_device, &state.names.get_current_stream}) {
            Ref asked = attribute(driver.get(), *name);
            if (!asked) return -1;
            if (!take(asked.get())) return 0;
        }
    }
    if (!take(off(Guard::own_debug) ? Py_None : attributes.debug)) return 0;
    if (!take(off(Guard::knob_debug) ? Py_None : state.runtime.debug.get())) return 0;
    if (!take(off(Guard::knob_instrumentation) ? Py_None : mode.get())) return 0;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(state.more_knobs.get()); ++k) {
        Ref name = Ref::borrow(PyTuple_GET_ITEM(state.more_knobs.get(), k));
        Ref value = attribute(compilation.get(), name);
        if (!value) return -1;
        if (!take(value.get())) return 0;
    }
    return 0;
}

// Whether all values are identical to those of an environment, which is the usual case.
Answer is_environment(const State &state, const Attributes &attributes,
                      const Environment &environment) {
    size_t k = 0;
    const int failed = each_value(state, attributes, [&](PyObject *value) {
        if (k >= environment.count || environment.values[k].get() != value) return false;
        ++k;
        return true;
    });
    if (failed < 0) return Answer::error;
    return k == environment.count ? Answer::yes : Answer::no;
}

// Whether an attribute is a plain value in the object's dict or its class's: then it cannot change
// unless one of these does.
bool is_plain_attribute(PyObject *object, const Ref &name) {
    if (Py_TYPE(object)->tp_getattro != PyObject_GenericGetAttr) return false;
    PyObject *found = _PyType_Lookup(Py_TYPE(object), name.get());
    return found == nullptr || Py_TYPE(found)->tp_descr_get == nullptr;
}

// Keeps the list of a chain of hooks and its dict's version; neither if there is no hook. False for
// another kind of hook.
bool see_hook(const State &state, const Ref &hook, const Ref &dict, Seen *seen, Ref *calls) {
    *calls = Ref();
    seen->clear();
    if (hook.get() == Py_None) return true;
    if (!dict || reinterpret_cast<PyObject *>(Py_TYPE(hook.get())) != state.hook_chain.get()) {
        return false;
    }
    seen->set(version_of(dict.get()));
    *calls = Ref::borrow(PyDict_GetItemWithError(dict.get(), state.names.calls.get()));
    return *calls && PyList_CheckExact(calls->get());
}

bool hook_unchanged(const Ref &calls, const Ref &dict, const Seen &seen) {
    return !calls || (dict && seen.is(dict.get()) && PyList_GET_SIZE(calls.get()) == 0);
}

// The number or text that a value is, or that a `tl.constexpr` holds and compares; else null.
PyObject *compared(const State &state, PyObject *value) {
    if (reinterpret_cast<PyObject *>(Py_TYPE(value)) == state.constexpr_type.get()) {
        PyObject *differs = _PyType_Lookup(Py_TYPE(value), state.names.differs.get());
        if (differs == nullptr || differs != state.constexpr_differs.get()) return nullptr;
        PyObject **dict = _PyObject_GetDictPtr(value);
        if (dict == nullptr || *dict == nullptr) return nullptr;
        value = PyDict_GetItemWithError(*dict, state.names.value.get());
        if (value == nullptr) {
            PyErr_Clear();
            return nullptr;
        }
    }
    const bool is_plain = PyLong_CheckExact(value) || PyUnicode_CheckExact(value) ||
                          PyBool_Check(value) || PyFloat_CheckExact(value);
    return is_plain ? value : nullptr;
}

// Whether two values are equal numbers or texts of one type, or constants that hold such. Runs no
// Python code; false means "maybe not".
bool surely_equal(const State &state, PyObject *one, PyObject *other) {
    if (Py_TYPE(one) != Py_TYPE(other)) return false;
    PyObject *left = compared(state, one), *right = compared(state, other);
    if (left == nullptr || right == nullptr || Py_TYPE(left) != Py_TYPE(right)) return false;
    if (left == right && !PyFloat_CheckExact(left)) return true;  // a NaN differs from itself
    Ref equal = Ref::steal(PyObject_RichCompare(left, right, Py_EQ));
    if (!equal) PyErr_Clear();
    return equal.get() == Py_True;
}

// Whether there is no observer, and the logger is not at debug level. The logger caches its answers
// by level, and empties the cache when a level changes; `watched` fills it.
Answer asked_unwatched(const State &state) {
    PyObject *observers = PyDict_GetItemWithError(state.events.get(), state.names.observers.get());
    if (observers == nullptr || !PyTuple_CheckExact(observers)) return Answer::no;
    if (PyTuple_GET_SIZE(observers) != 0) return Answer::no;
    PyObject *known = PyDict_GetItemWithError(state.log_cache.get(), state.debug_level.get());
    if (known == Py_False) return Answer::yes;
    if (known == Py_True) return Answer::no;
    if (PyErr_Occurred()) return Answer::error;
    Ref watched = Ref::steal(PyObject_CallNoArgs(state.watched.get()));
    if (!watched) return Answer::error;
    return watched.get() == Py_False ? Answer::yes : Answer::no;
}

}  // namespace

bool knobs_unchanged(const State &state) {
    const KnobsSeen &seen = state.knobs_seen;
    return seen.valid && seen.module.is(state.knobs.get()) &&
           seen.runtime.is(state.runtime.object.get()) &&
           seen.compilation.is(seen.compilation_object.get()) &&
           seen.driver.is(state.driver.get()) &&
           (!seen.active_object || seen.active.is(seen.active_object.get())) &&
           hook_unchanged(seen.enter_calls, state.runtime.enter_dict, seen.enter) &&
           hook_unchanged(seen.exit_calls, state.runtime.exit_dict, seen.exit);
}

int look_at_knobs(State &state) {
    KnobsSeen &seen = state.knobs_seen;
    seen.valid = false;
    ++seen.generation;
    const uint64_t module = version_of(state.knobs.get());
    if (module == 0) return 0;
    if (seen.computed != 0 && seen.compilation_object &&
        seen.computed == Py_TYPE(seen.compilation_object.get())->tp_version_tag) {
        return 0;
    }
    if (read_runtime(state) < 0) return -1;
    Ref compilation = knob_group(state, state.names.compilation);
    if (!compilation) return -1;
    seen.module.set(module);
    seen.runtime.set(state.runtime.object.get());
    seen.compilation.set(compilation.get());
    seen.driver.set(state.driver.get());
    seen.compilation_object = compilation;
    Ref active = attribute(state.driver.get(), state.driver_slot);
    if (!active) return -1;
    const bool is_cuda =
        reinterpret_cast<PyObject *>(Py_TYPE(active.get())) == state.cuda_driver.get();
    bool plain = is_plain_attribute(state.driver.get(), state.driver_slot) &&
                 is_plain_attribute(compilation.get(), state.names.instrumentation_mode);
    for (const Ref *name : {&state.names.debug, &state.names.add_stages_inspection_hook,
                            &state.names.launch_enter_hook, &state.names.launch_exit_hook}) {
        plain = plain && is_plain_attribute(state.runtime.object.get(), *name);
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(state.more_knobs.get()); ++k) {
        Ref name = Ref::borrow(PyTuple_GET_ITEM(state.more_knobs.get(), k));
        plain = plain && is_plain_attribute(compilation.get(), name);
    }
    if (is_cuda) {
        seen.active.set(active.get());
        plain = plain && seen.active.known() &&
                is_plain_attribute(active.get(), state.names.get_current_device) &&
                is_plain_attribute(active.get(), state.names.get_current_stream);
    }
    seen.active_object = is_cuda ? active : Ref();
    seen.computed = plain ? 0 : Py_TYPE(compilation.get())->tp_version_tag;
    const RuntimeKnobs &runtime = state.runtime;
    seen.valid = plain && seen.runtime.known() && seen.compilation.known() && seen.driver.known() &&
                 see_hook(state, runtime.enter_hook, runtime.enter_dict, &seen.enter,
                          &seen.enter_calls) &&
                 see_hook(state, runtime.exit_hook, runtime.exit_dict, &seen.exit, &seen.exit_calls);
    return PyErr_Occurred() ? -1 : 0;
}

Answer unwatched(State &state) {
    if (state.unwatched[0].is(state.events.get()) && state.unwatched[1].is(state.log_cache.get())) {
        return Answer::yes;
    }
    const uint64_t events = version_of(state.events.get());
    const uint64_t cache = version_of(state.log_cache.get());
    const Answer answer = asked_unwatched(state);
    if (answer == Answer::yes) {
        state.unwatched[0].set(events);
        state.unwatched[1].set(cache);
    }
    return answer;
}

Answer no_run_hooks(State &state, const Attributes &attributes) {
    PyObject *hooks = attributes.pre_run_hooks;
    if (!off(Guard::pre_run_hooks) &&
        (hooks == nullptr || !PyList_CheckExact(hooks) || PyList_GET_SIZE(hooks) != 0)) {
        return Answer::no;
    }
    if (attributes.debug == nullptr) return Answer::no;  // it was deleted: Triton reports it
    if (read_runtime(state) < 0) return Answer::error;
    if (!off(Guard::stages_hook) && state.runtime.stages_hook.get() != Py_None) return Answer::no;
    return Answer::yes;
}

Answer no_launch_hooks(State &state, bool again) {
    if (off(Guard::launch_hooks)) return Answer::yes;
    if (again && read_runtime(state) < 0) return Answer::error;
    const RuntimeKnobs &runtime = state.runtime;
    const Answer enter = hook_is_empty(state, runtime.enter_hook, runtime.enter_dict);
    if (enter != Answer::yes) return enter;
    return hook_is_empty(state, runtime.exit_hook, runtime.exit_dict);
}

Answer same_environment(const Environment &one, const Environment &other) {
    if (one.count != other.count) return Answer::no;
    for (size_t k = 0; k < one.count; ++k) {
        const Answer answer = same(one.values[k].get(), other.values[k].get());
        if (answer != Answer::yes) return answer;
    }
    return Answer::yes;
}

Answer environment_now(Kernel *kernel, const Attributes &attributes, size_t *out) {
    const State &state = *kernel->state;
    if (kernel->environment < kernel->environments.size()) {
        const Environment &latest = *kernel->environments[kernel->environment];
        const Answer answer = is_environment(state, attributes, latest);
        if (answer == Answer::error) return answer;
        if (answer == Answer::yes) {
            *out = kernel->environment;
            return Answer::yes;
        }
    }
    Environment now;
    if (read_environment(state, attributes, &now) < 0) return Answer::error;
    const size_t count = kernel->environments.size();
    for (size_t k = 0; k < count; ++k) {
        const Answer answer = same_environment(now, *kernel->environments[k]);
        if (answer == Answer::error) return answer;
        if (answer == Answer::yes) {
            *out = kernel->environment = k;
            return Answer::yes;
        }
    }
    if (kernel->environments.size() >= most_environments) return Answer::no;
    kernel->environments.push_back(std::make_unique<Environment>(std::move(now)));
    *out = kernel->environment = kernel->environments.size() - 1;
    return Answer::yes;
}

int read_environment(const State &state, const Attributes &attributes, Environment *out) {
    out->count = 0;
    return each_value(state, attributes, [&](PyObject *value) {
        out->values[out->count++] = Ref::borrow(value);
        return out->count < most_environment_values;
    });
}

Answer environment_holds(const State &state, const Attributes &attributes,
                         const Environment &environment) {
    const Answer answer = is_environment(state, attributes, environment);
    if (answer != Answer::no) return answer;
    Environment now;
    if (read_environment(state, attributes, &now) < 0) return Answer::error;
    return same_environment(now, environment);
}

int read_knobs(State &state, Environment *out) {
    if (read_runtime(state) < 0) return -1;
    return read_environment(state, {nullptr, Py_None, nullptr, nullptr}, out);
}

Answer is_kept(const Attributes &attributes, Spec &spec) {
    if (off(Guard::cache)) return Answer::yes;
    PyObject *devices = attributes.device_caches;
    if (devices == nullptr || !PyDict_Check(devices)) return Answer::no;
    if (is_kept_still(attributes, spec)) return Answer::yes;
    const uint64_t version = version_of(devices), kernels = version_of(spec.table.get());
    PyObject *caches = PyDict_GetItemWithError(devices, spec.device.get());
    if (caches != spec.caches.get()) return PyErr_Occurred() ? Answer::error : Answer::no;
    PyObject *kernel = PyDict_GetItemWithError(spec.table.get(), spec.key.get());
    if (kernel != spec.kernel.get()) return PyErr_Occurred() ? Answer::error : Answer::no;
    spec.device_caches.set(version);
    spec.kernels.set(kernels);
    return Answer::yes;
}

bool is_kept_still(const Attributes &attributes, const Spec &spec) {
    PyObject *devices = attributes.device_caches;
    return devices != nullptr && PyDict_Check(devices) && spec.device_caches.is(devices) &&
           spec.kernels.is(spec.table.get());
}

Ref active_driver(const State &state) { return attribute(state.driver.get(), state.driver_slot); }

// Compares with `!=`, as Triton does.
Answer globals_hold(const State &state, const Attributes &attributes) {
    if (off(Guard::globals)) return Answer::yes;
    Ref used = Ref::borrow(attributes.used_global_vals);
    if (!used || !PyDict_CheckExact(used.get())) return Answer::no;
    PyObject *key = nullptr, *entry = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(used.get(), &at, &key, &entry)) {
        Ref keep_key = Ref::borrow(key), keep_entry = Ref::borrow(entry);
        if (!PyTuple_CheckExact(key) || PyTuple_GET_SIZE(key) != 2 || !PyTuple_CheckExact(entry) ||
            PyTuple_GET_SIZE(entry) != 2 || !PyDict_CheckExact(PyTuple_GET_ITEM(entry, 1))) {
            return Answer::no;
        }
        PyObject *value = PyTuple_GET_ITEM(entry, 0);
        Ref now = Ref::borrow(
            PyDict_GetItemWithError(PyTuple_GET_ITEM(entry, 1), PyTuple_GET_ITEM(key, 0)));
        if (!now) return PyErr_Occurred() ? Answer::error : Answer::no;
        if (surely_equal(state, now.get(), value)) continue;
        Ref differs = Ref::steal(PyObject_RichCompare(now.get(), value, Py_NE));
        if (!differs) return Answer::error;
        const int truth = PyObject_IsTrue(differs.get());
        if (truth != 0) return truth < 0 ? Answer::error : Answer::no;
    }
    return Answer::yes;
}

bool globals_are_same(const State &state, const Attributes &attributes) {
    PyObject *used = attributes.used_global_vals, *key = nullptr, *entry = nullptr;
    if (used == nullptr || !PyDict_CheckExact(used)) return false;
    Py_ssize_t at = 0;
    while (PyDict_Next(used, &at, &key, &entry)) {
        if (!PyTuple_CheckExact(key) || PyTuple_GET_SIZE(key) != 2 || !PyTuple_CheckExact(entry) ||
            PyTuple_GET_SIZE(entry) != 2 || !PyDict_CheckExact(PyTuple_GET_ITEM(entry, 1)) ||
            !PyUnicode_CheckExact(PyTuple_GET_ITEM(key, 0))) {
            return false;
        }
        PyObject *value = PyTuple_GET_ITEM(entry, 0);
        PyObject *now = PyDict_GetItemWithError(PyTuple_GET_ITEM(entry, 1), PyTuple_GET_ITEM(key, 0));
        if (now == nullptr || !surely_equal(state, now, value)) return false;
    }
    return true;
}

}  // namespace tzero
