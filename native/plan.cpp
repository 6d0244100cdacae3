// A replay: the guards, the steps in order, and the result. The steps are in steps.cpp.
//
//     guards ── hold ──► allocate, fill, view, call, launch ──► result
//       └ fail: nothing is done      └ a kernel's guards fail: `_resume` does the rest in Python
//
// A replay creates no Python objects except tensors and the arguments and results of torch's
// functions.

#include "plan.h"

#include <algorithm>
#include <cstring>

#include "guards.h"
#include "replay.h"

namespace tzero::plan {

namespace {

// Whether a dict holds lists, tuples or dicts.
bool holds_containers(PyObject *dict) {
    PyObject *key = nullptr, *item = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &item)) {
        if (is_container(item)) return true;
    }
    return false;
}

}  // namespace

// ---- guards -------------------------------------------------------------------------------------

Answer Replay::watches_hold() {
    const bool unchanged =
        off(Guard::plan_versions) ||
        std::all_of(plan_.namespaces.begin(), plan_.namespaces.end(),
                    [](const Namespace &each) { return each.seen.is(each.dict.get()); });
    is_unchanged_ = unchanged;
    if (unchanged) {
        for (const size_t k : plan_.unversioned) {
            if (plan_.watches[k].holds_at_a_glance()) continue;
            const Answer answer = plan_.watches[k].holds(&ran_python_);
            if (answer != Answer::yes) return answer;
        }
        return watched_tensors_hold();
    }
    uint64_t before[most_namespaces];
    for (size_t k = 0; k < plan_.namespaces.size(); ++k) {
        before[k] = version_of(plan_.namespaces[k].dict.get());
    }
    for (const Watch &watch : plan_.watches) {
        const Answer answer = watch.holds(&ran_python_);
        if (answer != Answer::yes) return answer;
    }
    for (size_t k = 0; k < plan_.namespaces.size(); ++k) plan_.namespaces[k].seen.set(before[k]);
    return watched_tensors_hold();
}

// Whether the tensors in globals and closures have the same keys; their addresses may differ.
Answer Replay::watched_tensors_hold() {
    for (const size_t k : plan_.watched) {
        const Slot &slot = plan_.slots[k];
        PyObject *tensor = plan_.watches[slot.watch].value.get();
        uint64_t words[most_tensor_words];
        size_t count = 0;
        const void *address = nullptr;
        if (read_tensor_words(state_.tensors, state_.torch, tensor, words, &count, &address) !=
                Reading::done ||
            (!off(Guard::plan_global_tensors) &&
             (count != slot.words.size() ||
              std::memcmp(words, slot.words.data(), count * sizeof words[0]) != 0))) {
            return Answer::no;
        }
        Py_INCREF(tensor);
        frame_.set(k, tensor, address);
    }
    return Answer::yes;
}

// ---- tensors ------------------------------------------------------------------------------------

bool Replay::load_arguments() {
    for (const auto &[slot, at] : plan_.arguments) {
        const Leaf &leaf = leaves_.leaf[at];
        if (leaf.value.kind != Kind::tensor) return false;
        Py_INCREF(leaf.object);
        frame_.set(slot, leaf.object, leaf.value.address);
    }
    if (!are_bare()) return false;
    // An argument that is also a global tensor W: the host function may test `x is W`.
    for (size_t k = 0; k < leaves_.count && !plan_.held.empty(); ++k) {
        if (!off(Guard::plan_global_arguments) &&
            std::binary_search(plan_.held.begin(), plan_.held.end(), leaves_.leaf[k].object)) {
            return false;
        }
    }
    return plan_.tables.empty() || leaves_.container_count == 0 ||
           off(Guard::plan_global_containers) || !shares_tables();
}

// Whether no argument has an attribute in the place of one that was read of its class, or that was
// not there.
bool Replay::are_bare() const {
    for (const Bare &each : plan_.bare) {
        PyObject *put = attributes_of(leaves_.leaf[each.leaf].object);
        for (Py_ssize_t k = 0; put != nullptr && k < PyTuple_GET_SIZE(each.names.get()); ++k) {
            const int has = PyDict_Contains(put, PyTuple_GET_ITEM(each.names.get(), k));
            if (has < 0) PyErr_Clear();
            if (has != 0 && !off(Guard::plan_bare)) return false;
        }
    }
    return true;
}

// Whether an argument is, or contains, a list, tuple or dict that the host function also reads.
bool Replay::shares_tables() const {
    return std::any_of(plan_.tables.begin(), plan_.tables.end(),
                       [&](const Table &each) { return shares(each); });
}

bool Replay::shares(const Table &table) const {
    const Watch &watch = plan_.watches[table.watch];
    PyObject *now = is_unchanged_ && watch.by_version ? watch.value.get() : watch.now();
    if (now == nullptr) PyErr_Clear();
    if (now == nullptr) return true;
    if (!PyDict_CheckExact(now)) return is_given(now, 0);
    if (table.flat.is(now)) {
        PyObject *const *end = leaves_.containers + leaves_.container_count;
        return std::find(leaves_.containers, end, now) != end;
    }
    const uint64_t before = version_of(now);
    if (is_given(now, 0)) return true;
    if (!holds_containers(now)) table.flat.set(before);
    return false;
}

bool Replay::is_given(PyObject *value, int depth) const {
    constexpr int most_depth = 8;
    if (!is_container(value)) return false;
    PyObject *const *end = leaves_.containers + leaves_.container_count;
    const bool is_list = PyList_CheckExact(value);
    if (is_list || PyTuple_CheckExact(value)) {
        if (!is_list && PyTuple_GET_SIZE(value) == 0) return false;  // a singleton
        if (depth >= most_depth || std::find(leaves_.containers, end, value) != end) return true;
        for (Py_ssize_t k = 0; k < Py_SIZE(value); ++k) {
            PyObject *item = is_list ? PyList_GET_ITEM(value, k) : PyTuple_GET_ITEM(value, k);
            if (is_given(item, depth + 1)) return true;
        }
        return false;
    }
    if (depth >= most_depth || std::find(leaves_.containers, end, value) != end) return true;
    PyObject *key = nullptr, *item = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(value, &at, &key, &item)) {
        if (is_given(item, depth + 1)) return true;
    }
    return false;
}

// Reads all addresses again, after Python code ran that may have changed them.
bool Replay::refresh() {
    for (size_t k = 0; k < frame_.count; ++k) {
        if (frame_.objects[k] == nullptr || off(Guard::plan_addresses)) continue;
        const void *address = nullptr;
        if (!read_address(state_.tensors, frame_.objects[k], &address)) return false;
        frame_.addresses[k] = static_cast<const char *>(address);
    }
    return true;
}

bool Replay::stream(int device, void **out) {
    if (!knows_stream_) {
        if (state_.tensors.api->current_stream(dlpack::cuda, device, &stream_) != 0) return false;
        knows_stream_ = true;
    }
    *out = stream_;
    return true;
}

// ---- values -------------------------------------------------------------------------------------

Ref Replay::value(const Value &value) const {
    switch (value.kind) {
    case Value::tensor: {
        PyObject *object = frame_.objects[value.index];
        return Ref::borrow(object == nullptr ? Py_None : object);
    }
    case Value::scalar: return Ref::borrow(leaves_.leaf[value.index].object);
    case Value::constant: return value.object;
    case Value::formula: return Ref::steal(PyLong_FromLongLong((*applied_)[value.index]));
    default: return nest(value);
    }
}

Ref Replay::nest(const Value &of) const {
    const auto count = static_cast<Py_ssize_t>(of.items.size());
    if (of.kind == Value::dict) {
        Ref made = Ref::steal(PyDict_New());
        for (size_t k = 0; made && k < of.items.size(); ++k) {
            Ref item = value(of.items[k]);
            if (!item || PyDict_SetItem(made.get(), of.names[k].get(), item.get()) < 0) return {};
        }
        return made;
    }
    const bool is_list = of.kind == Value::list;
    Ref made = Ref::steal(is_list ? PyList_New(count) : PyTuple_New(count));
    for (Py_ssize_t k = 0; made && k < count; ++k) {
        Ref item = value(of.items[static_cast<size_t>(k)]);
        if (!item) return Ref();
        if (is_list) {
            PyList_SET_ITEM(made.get(), k, item.release());
        } else {
            PyTuple_SET_ITEM(made.get(), k, item.release());
        }
    }
    if (!made) return made;
    if (of.kind == Value::slice) {
        return Ref::steal(PySlice_New(PyTuple_GET_ITEM(made.get(), 0),
                                      PyTuple_GET_ITEM(made.get(), 1),
                                      PyTuple_GET_ITEM(made.get(), 2)));
    }
    if (of.kind == Value::sequence) {
        return Ref::steal(PyObject_CallOneArg(of.object.get(), made.get()));
    }
    return made;
}

// The sizes and strides of a slot in a call of a plan over sizes; false if nothing depends on them.
bool Replay::geometry(size_t slot, int64_t *out) const {
    const SizedSlot &sized = plan_.sized->slots[slot];
    for (const size_t formula : sized.sizes_and_strides) *out++ = (*applied_)[formula];
    return sized.known;
}

bool Replay::has_geometry(size_t slot, PyObject *tensor) const {
    const Geometry &recorded = plan_.slots[slot].geometry;
    if (applied_ == nullptr) return recorded.fits(state_.tensors, state_.torch, tensor);
    int64_t now[2 * most_dimensions];
    const bool known = geometry(slot, now);
    return recorded.fits(state_.tensors, state_.torch, tensor, known ? now : nullptr);
}

// Puts a tensor that a call returned into its slot. False if it is not as recorded: an existing
// tensor must be the same object, a new one must be new and have the recorded geometry.
bool Replay::put(size_t slot, PyObject *given) {
    const PyObject *known = frame_.objects[slot];
    if (off(Guard::plan_result)) {
        // accept anything
    } else if (known != nullptr) {
        if (known != given) return false;
    } else if (Py_TYPE(given) != state_.tensors.tensor ||
               std::find(frame_.objects, frame_.objects + frame_.count, given) !=
                   frame_.objects + frame_.count ||
               !has_geometry(slot, given)) {
        return false;
    }
    const void *address = nullptr;
    if (!read_address(state_.tensors, given, &address)) return false;
    Py_INCREF(given);
    frame_.set(slot, given, address);
    return true;
}

// Puts the tensors of a call's result into their slots; false if the result is not as recorded, or
// with the Python error set.
bool Replay::destructure(const Value &value, PyObject *given) {
    if (value.kind == Value::tensor) return put(value.index, given);
    if (value.kind == Value::constant) {
        PyObject *before = value.object.get();
        if (given == before) return true;
        return Py_TYPE(given) == Py_TYPE(before) &&
               PyObject_RichCompareBool(given, before, Py_EQ) > 0;
    }
    if (value.kind == Value::formula) {
        int overflow = 0;
        return PyLong_CheckExact(given) &&
               PyLong_AsLongLongAndOverflow(given, &overflow) == (*applied_)[value.index] &&
               overflow == 0;
    }
    const bool is_tuple = PyTuple_Check(given);
    const auto count = static_cast<Py_ssize_t>(value.items.size());
    if (value.kind == Value::dict || value.kind == Value::scalar || value.kind == Value::slice ||
        (!is_tuple && !PyList_Check(given)) || Py_SIZE(given) != count) {
        return false;
    }
    for (Py_ssize_t k = 0; k < count; ++k) {
        PyObject *item = is_tuple ? PyTuple_GET_ITEM(given, k) : PyList_GET_ITEM(given, k);
        if (!destructure(value.items[static_cast<size_t>(k)], item)) return false;
    }
    return true;
}

// Does the rest of the call in Python, from step `number` on.
Ref Replay::resumed(Py_ssize_t number) const {
    Ref slots = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(frame_.count)));
    Ref leaves = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(leaves_.count)));
    Ref at = Ref::steal(PyLong_FromSsize_t(number));
    if (!slots || !leaves || !at) return Ref();
    for (size_t k = 0; k < frame_.count; ++k) {
        PyObject *object = frame_.objects[k] == nullptr ? Py_None : frame_.objects[k];
        Py_INCREF(object);
        PyTuple_SET_ITEM(slots.get(), static_cast<Py_ssize_t>(k), object);
    }
    for (size_t k = 0; k < leaves_.count; ++k) {
        Py_INCREF(leaves_.leaf[k].object);
        PyTuple_SET_ITEM(leaves.get(), static_cast<Py_ssize_t>(k), leaves_.leaf[k].object);
    }
    return Ref::steal(PyObject_CallMethodObjArgs(self_, state_.names.resume.get(),
                                                 plan_.object.get(), at.get(), slots.get(),
                                                 leaves.get(), nullptr));
}

Replayed Replay::ready() {
    const Answer watched = watches_hold();
    if (watched != Answer::yes) return watched == Answer::no ? Replayed::stale : Replayed::error;
    if (!load_arguments()) return Replayed::elsewhere;
    const Answer launchable = may_launch(state_, plan_, applied_);
    if (launchable == Answer::error) return Replayed::error;
    if (launchable == Answer::no) return plan_.outdated ? Replayed::stale : Replayed::elsewhere;
    if (ran_python_) {
        if (!refresh()) return Replayed::elsewhere;
        ran_python_ = false;
    }
    return Replayed::done;
}

Replayed Replay::run(Ref *result) {
    const Replayed is_ready = ready();
    if (is_ready != Replayed::done) return is_ready;
    for (size_t k = 0; k < plan_.steps.size(); ++k) {
        const Step &each = plan_.steps[k];
        bool is_made = false;
        const Done done = each.kind == Step::part ? part(plan_.parts[each.at], &is_made) : in_order(each);
        if (is_made) k = plan_.parts[each.at].after - 1;
        if (done == Done::yes) continue;
        if (done == Done::error) return Replayed::error;
        if (done == Done::differs) return Replayed::stale;
        *result = resumed(each.number);
        return *result ? Replayed::done : Replayed::error;
    }
    *result = value(plan_.result);
    return *result ? Replayed::done : Replayed::error;
}

Replayed may_replay(State &state, PyObject *self, const Plan &plan, const Leaves &leaves,
                    const Applied *applied) {
    Frame frame(plan.slots.size());
    return Replay(state, self, plan, leaves, applied, false, frame).ready();
}

Replayed replay(State &state, PyObject *self, const Plan &plan, const Leaves &leaves,
                const Applied *applied, bool is_profiled, Ref *result) {
    Frame frame(plan.slots.size());
    const Replayed how = Replay(state, self, plan, leaves, applied, is_profiled, frame).run(result);
    if (!state.graphs.has_news()) return how;
    return state.graphs.report() < 0 ? Replayed::error : how;
}

}  // namespace tzero::plan
