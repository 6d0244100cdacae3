// A replay: the guards, the steps in order, and the result.
//
//     guards ── hold ──► allocate, fill, view, call, launch ──► result
//       └ fail: nothing is done      └ a kernel's guards fail: `_resume` does the rest in Python
//
// A replay creates no Python objects except tensors and the arguments and results of torch's
// functions.

#include "plan.h"

#include <algorithm>
#include <cstring>

#include "binary.h"
#include "filling.h"
#include "guards.h"
#include "ring.h"

namespace tzero::plan {

namespace {

// The tensors of one replay, by slot; on the stack of `replay`. A slot that only launches use may
// have an address and no object.
struct Frame {
    PyObject *objects[most_slots];  // owned, or null
    const char *addresses[most_slots];
    size_t count;

    explicit Frame(size_t slots) : count(slots) { std::fill_n(objects, count, nullptr); }
    Frame(const Frame &) = delete;
    Frame &operator=(const Frame &) = delete;
    ~Frame() {
        for (size_t k = 0; k < count; ++k) Py_XDECREF(objects[k]);
    }

    void set(size_t slot, PyObject *owned, const void *address) {
        Py_XSETREF(objects[slot], owned);
        addresses[slot] = static_cast<const char *>(address);
    }
};

uint64_t bits_of(PyObject *number) {
    const double value = PyFloat_AS_DOUBLE(number);
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Whether two results are the same number: 0.0 and -0.0 are not, and NaN is itself.
bool is_same_number(PyObject *now, PyObject *before) {
    if (now == before) return true;
    if (Py_TYPE(now) != Py_TYPE(before)) return false;
    if (PyFloat_CheckExact(now)) return bits_of(now) == bits_of(before);
    return PyLong_CheckExact(now) && PyObject_RichCompareBool(now, before, Py_EQ) == 1;
}

class Replay {
  public:
    Replay(State &state, PyObject *self, const Plan &plan, const Leaves &leaves, Frame &frame)
        : state_(state), self_(self), plan_(plan), leaves_(leaves), frame_(frame) {}

    Replayed run(Ref *result);

    // Checks all guards, before the first step; `done` if they hold.
    Replayed ready();

  private:
    enum class Done { yes, resume, differs, error };

    Answer watches_hold();
    Answer watched_tensors_hold();
    bool load_arguments();
    bool shares_tables() const;
    bool is_given(PyObject *value, int depth) const;

    Done step(const Step &step);
    PyObject *allocated(const Allocate &step) const;
    Done allocate(const Allocate &step);
    Done fill(const Fill &step);
    Done put_in(const Fill &step);
    Ref called(const Call &step);
    Done call(const Call &step, Py_ssize_t number);
    Done read(const Call &step);
    Done launch(const Launch &step);
    Done view(const View &step);

    bool is_current(int device) const;
    Answer may_use_again(const Allocate &step, void **queue);
    bool stream(int device, void **out);
    bool refresh();
    Ref value(const Value &value) const;
    Ref nest(const Value &value) const;
    bool destructure(const Value &value, PyObject *given);
    bool put(size_t slot, PyObject *given);
    Ref resumed(Py_ssize_t number) const;

    State &state_;
    PyObject *self_;
    const Plan &plan_;
    const Leaves &leaves_;
    Frame &frame_;
    void *stream_ = nullptr;
    bool knows_stream_ = false;
    bool ran_python_ = false;  // since the launch guards were checked
};

// ---- guards -------------------------------------------------------------------------------------

Answer Replay::watches_hold() {
    const bool unchanged =
        off(Guard::plan_versions) ||
        std::all_of(plan_.namespaces.begin(), plan_.namespaces.end(),
                    [](const Namespace &each) { return each.seen.is(each.dict.get()); });
    uint64_t before[most_namespaces];
    if (!unchanged) {
        for (size_t k = 0; k < plan_.namespaces.size(); ++k) {
            before[k] = version_of(plan_.namespaces[k].dict.get());
        }
    }
    for (const Watch &watch : plan_.watches) {
        if (unchanged && watch.by_version) continue;
        const Answer answer = watch.holds(&ran_python_);
        if (answer != Answer::yes) return answer;
    }
    if (!unchanged) {
        for (size_t k = 0; k < plan_.namespaces.size(); ++k) {
            plan_.namespaces[k].seen.set(before[k]);
        }
    }
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
    // An argument that is also a global tensor W: the host function may test `x is W`.
    for (const Slot &slot : plan_.slots) {
        if (slot.watch < 0 || off(Guard::plan_global_arguments)) continue;
        const PyObject *held = plan_.watches[slot.watch].value.get();
        for (size_t k = 0; k < leaves_.count; ++k) {
            if (leaves_.leaf[k].object == held) return false;
        }
    }
    return plan_.tables.empty() || leaves_.container_count == 0 ||
           off(Guard::plan_global_containers) || !shares_tables();
}

// Whether an argument is, or contains, a list, tuple or dict that the host function also reads.
bool Replay::shares_tables() const {
    return std::any_of(plan_.tables.begin(), plan_.tables.end(), [&](size_t at) {
        const Watch &watch = plan_.watches[at];
        PyObject *now = watch.now();
        if (now == nullptr) PyErr_Clear();
        return now == nullptr || is_given(now, 0);
    });
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

// ---- steps --------------------------------------------------------------------------------------

// Whether a device is the current one. The plan's was when the guards were checked, unless Python
// code has run since.
bool Replay::is_current(int device) const {
    if (!ran_python_ && device == plan_.device) return true;
    return state_.cuda.current_device() == device;
}

PyObject *Replay::allocated(const Allocate &step) const {
    if (!step.quick || (step.device >= 0 && !is_current(step.device))) {
        return PyObject_Call(step.plain.get(), step.plain_args.get(), step.plain_kwargs.get());
    }
    if (step.direct == nullptr) {
        return PyObject_Call(step.quick.get(), step.quick_args.get(), nullptr);
    }
    return step.direct(PyCFunction_GET_SELF(step.quick.get()), step.quick_args.get());
}

// Whether an output may come from a ring and go into it: not while a CUDA graph is captured, whose
// replays would write to it. `queue` is the stream of its work.
Answer Replay::may_use_again(const Allocate &step, void **queue) {
    // In deterministic mode, torch fills new memory with a known value.
    if (!step.ring) return Answer::no;
    if (state_.torch.is_deterministic() && !off(Guard::pool_deterministic)) return Answer::no;
    if (step.device < 0) return Answer::yes;
    if (!is_current(step.device)) return Answer::no;
    if (!stream(step.device, queue)) return Answer::error;
    // The default stream cannot be captured.
    return *queue != nullptr && state_.cuda.is_capturing(*queue) ? Answer::no : Answer::yes;
}

Replay::Done Replay::allocate(const Allocate &step) {
    void *queue = nullptr;
    const Answer again = may_use_again(step, &queue);
    if (again == Answer::error) return Done::error;
    if (again == Answer::yes) {
        const void *address = nullptr;
        PyObject *used = take_from_ring(state_, step.ring.get(), queue, step.changes, &address);
        if (used != nullptr) {
            frame_.set(step.slot, used, address);
            return Done::yes;
        }
    }
    Ref made = Ref::steal(allocated(step));
    if (!made) return Done::error;
    const void *address = nullptr;
    if (Py_TYPE(made.get()) != state_.tensors.tensor ||
        !read_address(state_.tensors, made.get(), &address)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "torch.empty_strided returned something else than a plain torch.Tensor");
        return Done::error;
    }
    if (again == Answer::yes && add_to_ring(state_, step.ring.get(), made.get(), queue) < 0) {
        return Done::error;
    }
    frame_.set(step.slot, made.release(), address);
    return Done::yes;
}

// Fills a tensor, and increments its version if the host function's fill does. A tensor from a ring
// may have that version already: nobody has seen the tensor since.
Replay::Done Replay::fill(const Fill &step) {
    const Done done = step.bytes == 0 ? Done::yes : put_in(step);
    if (step.version == 0 || done != Done::yes) return done;
    PyObject *tensor = frame_.objects[step.slot];
    if (read_version(state_.tensors, state_.torch, tensor) < step.version) {
        bump_version(state_.tensors, state_.torch, tensor);
    }
    return done;
}

Replay::Done Replay::put_in(const Fill &step) {
    auto *at = const_cast<char *>(frame_.addresses[step.slot]);
    if (step.device < 0 && step.bytes <= most_filled_here) {
        fill_memory(at, step.bytes, step.pattern);
        return Done::yes;
    }
    if (step.device >= 0 && state_.cuda.can_fill(step.pattern) &&
        is_current(step.device)) {
        void *queue = nullptr;
        if (!stream(step.device, &queue)) return Done::error;
        cuda::Result result = 0;
        Py_BEGIN_ALLOW_THREADS
        result = state_.cuda.fill(at, step.bytes, step.pattern, queue);
        Py_END_ALLOW_THREADS
        if (result == 0) return Done::yes;
        PyErr_Format(PyExc_RuntimeError, "CUDA could not fill a tensor: %s (%s)",
                     state_.cuda.name_of(result), state_.cuda.text_of(result));
        return Done::error;
    }
    // Through `data`, so that torch does not count it; `fill` does.
    Ref data = Ref::steal(PyObject_GetAttr(frame_.objects[step.slot], state_.names.data.get()));
    if (!data) return Done::error;
    Ref done = Ref::steal(PyObject_CallFunctionObjArgs(step.function.get(), data.get(),
                                                       step.number.get(), nullptr));
    return done ? Done::yes : Done::error;
}

Replay::Done Replay::view(const View &step) {
    if (step.is_tensor) {
        PyObject *made = view_of(state_.tensors, state_.torch, frame_.objects[step.base],
                                 plan_.slots[step.slot].geometry.sizes_and_strides, step.elements);
        if (made == nullptr) return PyErr_Occurred() ? Done::error : Done::resume;
        Py_XSETREF(frame_.objects[step.slot], made);
    }
    frame_.addresses[step.slot] =
        step.is_empty ? nullptr : frame_.addresses[step.base] + step.offset;
    return Done::yes;
}

Replay::Done Replay::launch(const Launch &step) {
    if (ran_python_) {
        const Answer answer =
            off(Guard::plan_asked_again) ? Answer::yes : may_launch(state_, plan_);
        if (answer == Answer::error) return Done::error;
        if (answer == Answer::no || !refresh()) return Done::resume;
        ran_python_ = false;
    }
    const Spec &spec = *step.spec;
    alignas(16) char block[stack_bytes];
    std::memcpy(block, step.block.data(), step.block.size());
    for (const Pointer &pointer : step.pointers) {
        const char *address = frame_.addresses[pointer.slot];
        if (pointer.aligned && (reinterpret_cast<uintptr_t>(address) & 15) != 0 &&
            !off(Guard::plan_aligned)) {
            return Done::resume;
        }
        std::memcpy(block + pointer.offset, &address, sizeof address);
    }
    for (const Number &number : step.numbers) {
        const Argument &value = leaves_.leaf[number.leaf].value;
        if (!put_one(block + number.offset, number.type, value)) return Done::resume;
    }
    if (!spec.on_cpu) {
        void *queue = nullptr;
        if (!stream(spec.device_id, &queue)) return Done::error;
        return run_on_cuda(state_, spec, step.grid, queue, block) < 0 ? Done::error : Done::yes;
    }
    int outcome = 0;
    if (run_on_cpu(state_, spec, step.grid, block, &outcome) < 0) return Done::error;
    if (outcome == 0) return Done::yes;
    Ref values = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(step.args.size())));
    for (size_t k = 0; values && k < step.args.size(); ++k) {
        Ref each = value(step.args[k]);
        if (!each) return Done::error;
        PyTuple_SET_ITEM(values.get(), static_cast<Py_ssize_t>(k), each.release());
    }
    if (values) raise_from_cpu(spec, outcome, step.grid, values.get());
    return Done::error;
}

// Calls a function of torch; null with the Python error set.
Ref Replay::called(const Call &step) {
    Ref kept[most_arguments];
    PyObject *args[most_arguments + 1] = {nullptr};  // CPython may use the first
    const size_t count = step.args.size();
    for (size_t k = 0; k < count; ++k) {
        kept[k] = value(step.args[k]);
        if (!kept[k]) return Ref();
        args[k + 1] = kept[k].get();
    }
    const size_t named =
        step.keywords ? static_cast<size_t>(PyTuple_GET_SIZE(step.keywords.get())) : 0;
    ran_python_ = true;
    knows_stream_ = false;
    return Ref::steal(PyObject_Vectorcall(step.function.get(), args + 1,
                                          (count - named) | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                          step.keywords.get()));
}

// Reads the value of a tensor, and compares it with the one that the plan is for.
Replay::Done Replay::read(const Call &step) {
    const Ref given = called(step);
    if (!given) return Done::error;
    const bool is_same =
        off(Guard::plan_read) || is_same_number(given.get(), step.result.object.get());
    return is_same ? Done::yes : Done::differs;
}

Replay::Done Replay::call(const Call &step, Py_ssize_t number) {
    Ref given = called(step);
    if (!given) return Done::error;
    if (destructure(step.result, given.get())) return Done::yes;
    if (PyErr_Occurred()) return Done::error;
    // It is too late to make the call in Python instead: `_drifted` raises.
    Ref at = Ref::steal(PyLong_FromSsize_t(number));
    if (!at) return Done::error;
    Ref said = Ref::steal(PyObject_CallMethodObjArgs(self_, state_.names.drifted.get(),
                                                     plan_.object.get(), at.get(), given.get(),
                                                     nullptr));
    if (said) PyErr_SetString(PyExc_RuntimeError, "_drifted must raise");
    return Done::error;
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
               !plan_.slots[slot].geometry.fits(state_.tensors, state_.torch, given)) {
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
    const bool is_tuple = PyTuple_Check(given);
    const auto count = static_cast<Py_ssize_t>(value.items.size());
    if (value.kind == Value::dict || value.kind == Value::scalar ||
        (!is_tuple && !PyList_Check(given)) || Py_SIZE(given) != count) {
        return false;
    }
    for (Py_ssize_t k = 0; k < count; ++k) {
        PyObject *item = is_tuple ? PyTuple_GET_ITEM(given, k) : PyList_GET_ITEM(given, k);
        if (!destructure(value.items[static_cast<size_t>(k)], item)) return false;
    }
    return true;
}

Replay::Done Replay::step(const Step &step) {
    switch (step.kind) {
    case Step::allocate: return allocate(plan_.allocates[step.at]);
    case Step::fill: return fill(plan_.fills[step.at]);
    case Step::view: return view(plan_.views[step.at]);
    case Step::call: return call(plan_.calls[step.at], step.number);
    case Step::read: return read(plan_.calls[step.at]);
    default: return launch(plan_.launches[step.at]);
    }
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
    if (of.kind == Value::sequence) {
        return Ref::steal(PyObject_CallOneArg(of.object.get(), made.get()));
    }
    return made;
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
    const Answer launchable = may_launch(state_, plan_);
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
    for (const Step &each : plan_.steps) {
        const Done done = step(each);
        if (done == Done::yes) continue;
        if (done == Done::error) return Replayed::error;
        if (done == Done::differs) return Replayed::stale;
        *result = resumed(each.number);
        return *result ? Replayed::done : Replayed::error;
    }
    *result = value(plan_.result);
    return *result ? Replayed::done : Replayed::error;
}

}  // namespace

Replayed may_replay(State &state, PyObject *self, const Plan &plan, const Leaves &leaves) {
    Frame frame(plan.slots.size());
    return Replay(state, self, plan, leaves, frame).ready();
}

Replayed replay(State &state, PyObject *self, const Plan &plan, const Leaves &leaves, Ref *result) {
    Frame frame(plan.slots.size());
    return Replay(state, self, plan, leaves, frame).run(result);
}

}  // namespace tzero::plan
