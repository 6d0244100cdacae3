// Whether the guards of a plan's kernels hold.
//
// They are those of a launch (launch.cpp), and `holds` checks all of them: a dozen look-ups in
// dicts. It keeps the versions of the dicts and classes it reads. While these are unchanged, so is
// the answer.

#include "guards.h"
#include "plan.h"

namespace tzero::plan {

namespace {

bool is_plain_value(PyObject *value) {
    return PyLong_CheckExact(value) || PyUnicode_CheckExact(value) || PyBool_Check(value) ||
           PyFloat_CheckExact(value) || value == Py_None || PyType_Check(value) ||
           PyFunction_Check(value) || PyModule_Check(value);
}

// Keeps the versions of a tl.constexpr around a plain value; false if the object is not one.
bool see_constant(const State &state, const Function &function, PyObject *object) {
    if (object == nullptr || reinterpret_cast<PyObject *>(Py_TYPE(object)) != state.constexpr_type.get()) {
        return false;
    }
    SeenObject seen;
    seen.set(object);
    if (!seen.known()) return false;
    PyObject *value = PyDict_GetItemWithError(*_PyObject_GetDictPtr(object), state.names.value.get());
    if (value == nullptr || !is_plain_value(value)) {
        PyErr_Clear();
        return false;
    }
    function.constants.emplace_back(Ref::borrow(object), seen);
    return true;
}

// Keeps the versions of the globals that a kernel was compiled with, before they are compared.
void see_globals(const State &state, const Function &function, PyObject *used) {
    function.used_globals.clear();
    function.globals.clear();
    function.constants.clear();
    if (used == nullptr || !PyDict_CheckExact(used)) return;
    PyObject *key = nullptr, *entry = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(used, &at, &key, &entry)) {
        if (!PyTuple_CheckExact(entry) || PyTuple_GET_SIZE(entry) != 2) return;
        PyObject *value = PyTuple_GET_ITEM(entry, 0), *dict = PyTuple_GET_ITEM(entry, 1);
        if (!PyDict_CheckExact(dict)) return;
        if (!is_plain_value(value)) {
            if (!PyTuple_CheckExact(key) || PyTuple_GET_SIZE(key) != 2) return;
            PyObject *now = PyDict_GetItemWithError(dict, PyTuple_GET_ITEM(key, 0));
            if (now == nullptr) PyErr_Clear();
            // For other values `!=` must be evaluated on each call.
            if (!see_constant(state, function, value) || !see_constant(state, function, now)) return;
        }
        Seen seen;
        seen.set(version_of(dict));
        function.globals.emplace_back(Ref::borrow(dict), seen);
    }
    function.used_globals.set(version_of(used));
}

bool globals_unchanged(const Function &function, PyObject *used) {
    if (off(Guard::plan_globals)) return true;
    if (used == nullptr || !function.used_globals.is(used)) return false;
    for (const auto &[dict, seen] : function.globals) {
        if (!seen.is(dict.get())) return false;
    }
    for (const auto &[constant, seen] : function.constants) {
        if (!seen.is(constant.get())) return false;
    }
    return true;
}

// The attributes of a kernel; null if they may have changed since they were read.
const Attributes *known_attributes(const Function &function) {
    if (function.is_launchable) {
        return &reinterpret_cast<Launchable *>(function.object.get())->attributes;
    }
    const bool same = off(Guard::plan_attributes) || function.attributes.is(function.object.get());
    return same ? &function.own : nullptr;
}

bool unchanged(const State &state, const Plan &plan, const Applied *applied,
               const Function &function) {
    if (function.generation != state.knobs_seen.generation) return false;
    const Attributes *attributes = known_attributes(function);
    if (attributes == nullptr) return false;
    PyObject *hooks = attributes->pre_run_hooks;
    if (!off(Guard::plan_run_hooks) &&
        (hooks == nullptr || !PyList_CheckExact(hooks) || PyList_GET_SIZE(hooks) != 0)) {
        return false;
    }
    if (attributes->debug == nullptr || attributes->debug != function.debug.get()) return false;
    for (const size_t at : function.launches) {
        if (!is_kept_still(*attributes, *plan.launched(at, applied).spec) && !off(Guard::plan_cache)) {
            return false;
        }
    }
    return globals_unchanged(function, attributes->used_global_vals);
}

// Checks everything, and keeps the versions of what was read.
Answer holds(State &state, const Plan &plan, const Applied *applied, const Function &function) {
    function.generation = 0;
    const uint64_t generation = state.knobs_seen.generation;
    SeenObject seen;
    seen.set(function.object.get());
    AttributesOf read;
    if (read.read(state, function) < 0) return Answer::error;
    const Attributes &attributes = read.get();
    const Answer plain = no_run_hooks(state, attributes);
    if (plain != Answer::yes) return plain;
    Ref debug = Ref::borrow(attributes.debug);
    const Answer environment = environment_holds(state, attributes, function.environment);
    if (environment != Answer::yes) return environment;
    for (const size_t at : function.launches) {
        const Answer kept = is_kept(attributes, *plan.launched(at, applied).spec);
        if (kept == Answer::no) plan.outdated = true;
        if (kept != Answer::yes) return kept;
    }
    see_globals(state, function, attributes.used_global_vals);
    const Answer globals = globals_hold(state, attributes);
    if (globals != Answer::yes) return globals;
    if (!function.is_launchable) {
        function.attributes = seen;
        function.own = attributes;
    }
    function.debug = std::move(debug);
    function.generation = generation;
    return Answer::yes;
}

}  // namespace

int AttributesOf::read(const State &state, const Function &function) {
    if (function.is_launchable) {
        attributes_ = &reinterpret_cast<Launchable *>(function.object.get())->attributes;
        return 0;
    }
    Ref dict = Ref::steal(PyObject_GenericGetDict(function.object.get(), nullptr));
    if (!dict) return -1;
    const std::pair<const Ref *, PyObject **> all[] = {
        {&state.names.pre_run_hooks, &own_.pre_run_hooks},
        {&state.names.debug, &own_.debug},
        {&state.names.device_caches, &own_.device_caches},
        {&state.names.used_global_vals, &own_.used_global_vals},
    };
    size_t k = 0;
    for (const auto &[name, out] : all) {
        kept_[k] = Ref::borrow(PyDict_GetItemWithError(dict.get(), name->get()));
        if (!kept_[k] && PyErr_Occurred()) return -1;
        *out = kept_[k++].get();
    }
    attributes_ = &own_;
    return 0;
}

Answer may_launch(State &state, const Plan &plan, const Applied *applied) {
    if (plan.launches.empty()) return Answer::yes;
    bool all_known =
        knobs_unchanged(state) || (off(Guard::plan_knobs) && state.knobs_seen.generation != 0);
    if (!all_known && look_at_knobs(state) < 0) return Answer::error;
    for (const Function &function : plan.functions) {
        if (all_known && unchanged(state, plan, applied, function)) continue;
        all_known = false;  // because `holds` may run Python code
        const Answer answer = holds(state, plan, applied, function);
        if (answer != Answer::yes) return answer;
    }
    if (!all_known) {
        const Answer unhooked = no_launch_hooks(state, true);
        if (unhooked != Answer::yes) return unhooked;
    }
    const Spec &spec = *plan.launches.front().spec;  // Python ensures that all have one device
    if (!spec.on_cpu && !off(Guard::device) && state.cuda.current_device() != spec.device_id) {
        return Answer::no;
    }
    return Answer::yes;
}

}  // namespace tzero::plan
