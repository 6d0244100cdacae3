// The steps of a replay.

#include "replay.h"

#include <algorithm>
#include <cstring>

#include "binary.h"
#include "captures.h"
#include "filling.h"
#include "guards.h"
#include "ring.h"

namespace tzero::plan {

namespace {

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

// Puts formulas into a tuple that nobody else refers to; false with the Python error set.
bool put_into(PyObject *tuple, const Applied &applied, const size_t *formulas) {
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple); ++k) {
        PyObject *each = PyLong_FromLongLong(applied[formulas[k]]);
        if (each == nullptr) return false;
        PyObject *old = PyTuple_GET_ITEM(tuple, k);
        PyTuple_SET_ITEM(tuple, k, each);
        Py_XDECREF(old);
    }
    return true;
}

// Whether the elements of a tensor are one after another in memory; not for one without elements.
bool is_contiguous(const int64_t *sizes_and_strides, size_t dimensions) {
    int64_t expected = 1;
    for (size_t k = dimensions; k-- > 0;) {
        const int64_t size = sizes_and_strides[k];
        if (size != 1 && sizes_and_strides[dimensions + k] != expected) return false;
        expected *= size;
    }
    return true;
}

// Whether nobody else refers to the arguments of an allocation, nor to its sizes and strides.
bool is_unshared(PyObject *arguments) {
    return Py_REFCNT(arguments) == 1 && Py_REFCNT(PyTuple_GET_ITEM(arguments, 0)) == 1 &&
           Py_REFCNT(PyTuple_GET_ITEM(arguments, 1)) == 1;
}

}  // namespace

// Whether a device is the current one. The plan's was when the guards were checked, unless Python
// code has run since.
bool Replay::is_current(int device) const {
    if (!ran_python_ && device == plan_.device) return true;
    return state_.cuda.current_device() == device;
}

// The arguments of an allocation in a plan over sizes: size, stride, and dtype for the quick function.
// Borrowed from `applied_`; null with the Python error set.
PyObject *Replay::sized_arguments(const Allocate &step) const {
    Arguments &made = applied_->allocations[static_cast<size_t>(&step - plan_.allocates.data())];
    if (made.are_current) return made.tuple.get();
    const auto &formulas = plan_.sized->slots[step.slot].sizes_and_strides;
    const size_t dimensions = formulas.size() / 2;
    if (!made.tuple || !is_unshared(made.tuple.get())) {
        const Ref size = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(dimensions)));
        const Ref stride = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(dimensions)));
        if (!size || !stride) return nullptr;
        made.tuple = step.quick ? Ref::steal(PyTuple_Pack(3, size.get(), stride.get(),
                                                          PyTuple_GET_ITEM(step.quick_args.get(), 2)))
                                : Ref::steal(PyTuple_Pack(2, size.get(), stride.get()));
        if (!made.tuple) return nullptr;
    }
    PyObject *tuple = made.tuple.get();
    made.are_current =
        put_into(PyTuple_GET_ITEM(tuple, 0), *applied_, formulas.data()) &&
        put_into(PyTuple_GET_ITEM(tuple, 1), *applied_, formulas.data() + dimensions);
    return made.are_current ? tuple : nullptr;
}

PyObject *Replay::allocated(const Allocate &step) const {
    PyObject *sized = applied_ == nullptr ? nullptr : sized_arguments(step);
    if (applied_ != nullptr && sized == nullptr) return nullptr;
    if (!step.quick || (step.device >= 0 && !is_current(step.device))) {
        Ref two = sized == nullptr ? step.plain_args : Ref::steal(PyTuple_GetSlice(sized, 0, 2));
        if (!two) return nullptr;
        return PyObject_Call(step.plain.get(), two.get(), step.plain_kwargs.get());
    }
    PyObject *args = sized == nullptr ? step.quick_args.get() : sized;
    if (step.direct == nullptr) return PyObject_Call(step.quick.get(), args, nullptr);
    return step.direct(PyCFunction_GET_SELF(step.quick.get()), args);
}

// Whether a plan over sizes makes a tensor without elements in this call.
bool Replay::is_empty(size_t slot) const {
    if (applied_ == nullptr) return false;
    const auto &formulas = plan_.sized->slots[slot].sizes_and_strides;
    return std::any_of(formulas.data(), formulas.data() + formulas.size() / 2,
                       [&](size_t formula) { return (*applied_)[formula] == 0; });
}

// Whether an output may come from a ring and go into it: not while a CUDA graph is captured, whose
// replays would write to it. `queue` is the stream of its work.
Answer Replay::may_use_again(const Allocate &step, void **queue) {
    // In deterministic mode, torch fills new memory with a known value.
    if (!step.ring || is_empty(step.slot)) return Answer::no;
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
        int64_t wanted[2 * most_dimensions];
        const bool is_sized = applied_ != nullptr && geometry(step.slot, wanted);
        PyObject *used = take_from_ring(state_, step.ring.get(), queue, step.changes,
                                        is_sized ? wanted : nullptr, &address);
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
    size_t bytes = step.bytes;
    if (applied_ != nullptr) {
        int64_t elements = 0;  // known to fit
        elements_of(plan_.sized->slots[step.slot], applied_->values.data(), &elements);
        bytes = static_cast<size_t>(elements) * step.pattern.size();
    }
    const Done done = bytes == 0 && open_ == nullptr ? Done::yes : put_in(step, bytes);
    if (step.version == 0 || done != Done::yes) return done;
    PyObject *tensor = frame_.objects[step.slot];
    if (read_version(state_.tensors, state_.torch, tensor) < step.version) {
        bump_version(state_.tensors, state_.torch, tensor);
    }
    return done;
}

Replay::Done Replay::put_in(const Fill &step, size_t bytes) {
    auto *at = const_cast<char *>(frame_.addresses[step.slot]);
    if (step.device < 0 && bytes <= most_filled_here) {
        fill_memory(at, bytes, step.pattern);
        return Done::yes;
    }
    if (step.device >= 0 && state_.cuda.can_fill(step.pattern) &&
        is_current(step.device)) {
        if (open_ != nullptr) {
            open_->graph->fill(staged_++, at, bytes);
            return Done::yes;
        }
        void *queue = nullptr;
        if (!stream(step.device, &queue)) return Done::error;
        cuda::Result result = 0;
        Py_BEGIN_ALLOW_THREADS
        result = state_.cuda.fill(at, bytes, step.pattern, queue);
        Py_END_ALLOW_THREADS
        if (result == 0) return Done::yes;
        raise_from_cuda(state_, nullptr, result, nullptr);
        return Done::error;
    }
    if (open_ != nullptr && close(Done::yes) != Done::yes) return Done::error;
    // Through `data`, so that torch does not count it; `fill` does.
    Ref data = Ref::steal(PyObject_GetAttr(frame_.objects[step.slot], state_.names.data.get()));
    if (!data) return Done::error;
    Ref done = Ref::steal(PyObject_CallFunctionObjArgs(step.function.get(), data.get(),
                                                       step.number.get(), nullptr));
    return done ? Done::yes : Done::error;
}

// Whether both tensors of a copy have the same sizes, and their elements one after another; and the
// bytes of these.
bool Replay::copied_bytes(const Copy &step, size_t *bytes) const {
    *bytes = step.bytes;
    if (applied_ == nullptr) return true;
    int64_t to[2 * most_dimensions], from[2 * most_dimensions];
    const size_t dimensions = plan_.slots[step.to].geometry.sizes_and_strides.size() / 2;
    if (plan_.slots[step.from].geometry.sizes_and_strides.size() / 2 != dimensions ||
        !geometry(step.to, to) || !geometry(step.from, from) ||
        !std::equal(to, to + dimensions, from)) {
        return false;
    }
    int64_t elements = 0;  // known to fit
    elements_of(plan_.sized->slots[step.to], applied_->values.data(), &elements);
    *bytes = static_cast<size_t>(elements) * step.itemsize;
    return elements == 0 || off(Guard::plan_copy_gaps) ||
           (is_contiguous(to, dimensions) && is_contiguous(from, dimensions));
}

// Whether torch counts the changes of both tensors of a copy as native code does. Outside of
// inference mode it counts some of inference tensors, and refuses others.
bool Replay::is_counted_alike(const Copy &step, PyObject *to, PyObject *from) const {
    const bool is_new = step.allocation >= 0;
    if (state_.torch.view_key == 0) return false;
    if (step.inference) return is_new || is_tracked(state_.tensors, state_.torch, to) == step.counts;
    return is_tracked(state_.tensors, state_.torch, from) &&
           (is_new || is_tracked(state_.tensors, state_.torch, to));
}

// Whether native code copies in this call; otherwise torch does, which shows the copy to profilers,
// and uses several threads for a large one. But a tensor from a ring has the count of its changes
// already: torch would count them twice.
bool Replay::may_copy(const Copy &step, size_t bytes) const {
    PyObject *from = frame_.objects[step.from], *to = frame_.objects[step.to];
    const bool is_new = step.allocation >= 0;
    if (from == nullptr || (!is_new && to == nullptr)) return false;
    const bool was_counted = !is_new && step.version != 0 &&
                             read_version(state_.tensors, state_.torch, to) >= step.version;
    if (is_profiled_ && !was_counted) return false;
    if (step.device < 0 ? bytes > most_filled_here && !was_counted
                        : !state_.cuda.can_copy() || !is_current(step.device)) {
        return false;
    }
    if (!is_counted_alike(step, to, from)) return false;
    if (!off(Guard::plan_copy_tangents) &&
        (has_tangent(state_.tensors, state_.torch, from) ||
         (!is_new && has_tangent(state_.tensors, state_.torch, to)))) {
        return false;
    }
    if (!ran_python_ || off(Guard::plan_copy_changed)) return true;
    return has_geometry(step.from, from) && (is_new || has_geometry(step.to, to));
}

// Reads where both tensors of a copy are; whether they are there, and have no memory in common.
bool Replay::read_ends(const Copy &step, size_t bytes, const void **to, const void **from) const {
    if (!read_address(state_.tensors, frame_.objects[step.to], to) ||
        !read_address(state_.tensors, frame_.objects[step.from], from)) {
        return false;
    }
    if (bytes == 0 || off(Guard::plan_copy_apart)) return true;
    const auto first = reinterpret_cast<uintptr_t>(*to), other = reinterpret_cast<uintptr_t>(*from);
    return first != 0 && other != 0 && (first < other ? other - first : first - other) >= bytes;
}

// Copies a tensor. A new target is allocated first, and has no memory in common with the source.
Replay::Done Replay::copy(const Copy &step, Py_ssize_t number) {
    const void *to = nullptr, *from = nullptr;
    size_t bytes = 0;
    const bool is_new = step.allocation >= 0;
    const bool may = copied_bytes(step, &bytes) && may_copy(step, bytes) &&
                     (is_new || read_ends(step, bytes, &to, &from));
    if (!may) {
        if (open_ != nullptr && close(Done::yes) != Done::yes) return Done::error;
        return call(step.call, number);
    }
    if (is_new) {
        const Done made = allocate(plan_.allocates[static_cast<size_t>(step.allocation)]);
        if (made != Done::yes) return made;
        if (!read_ends(step, bytes, &to, &from)) {
            PyErr_SetString(PyExc_RuntimeError, "a tensor that is copied has no memory any more");
            return Done::error;
        }
    }
    const Done done = put_copy(step, const_cast<void *>(to), from, bytes);
    if (done != Done::yes || !step.counts) return done;
    PyObject *tensor = frame_.objects[step.to];
    if (step.version == 0 || read_version(state_.tensors, state_.torch, tensor) < step.version) {
        bump_version(state_.tensors, state_.torch, tensor);
    }
    return done;
}

Replay::Done Replay::put_copy(const Copy &step, void *to, const void *from, size_t bytes) {
    if (open_ != nullptr && step.device >= 0) {
        open_->graph->copy(staged_++, to, from, bytes);
        return Done::yes;
    }
    if (bytes == 0) return Done::yes;
    if (step.device < 0) {
        copy_memory(static_cast<char *>(to), static_cast<const char *>(from), bytes);
        return Done::yes;
    }
    void *queue = nullptr;
    if (!stream(step.device, &queue)) return Done::error;
    cuda::Result result = 0;
    Py_BEGIN_ALLOW_THREADS
    result = state_.cuda.copy(reinterpret_cast<uint64_t>(to), reinterpret_cast<uint64_t>(from),
                              bytes, queue);
    Py_END_ALLOW_THREADS
    if (result == 0) return Done::yes;
    raise_from_cuda(state_, nullptr, result, nullptr);
    return Done::error;
}

Replay::Done Replay::view(const View &step) {
    const bool nothing = applied_ == nullptr ? step.is_empty : is_empty(step.slot);
    int64_t elements = step.elements;
    Py_ssize_t offset = step.offset;
    if (applied_ != nullptr) {
        elements = (*applied_)[plan_.sized->slots[step.slot].offset];
        offset = elements * step.itemsize;
    }
    if (step.is_tensor) {
        const auto &recorded = plan_.slots[step.slot].geometry.sizes_and_strides;
        int64_t now[2 * most_dimensions];
        const bool is_sized = applied_ != nullptr && geometry(step.slot, now);
        PyObject *made = view_of(state_.tensors, state_.torch, frame_.objects[step.base],
                                 is_sized ? now : recorded.data(), recorded.size() / 2, elements);
        if (made == nullptr) return PyErr_Occurred() ? Done::error : Done::resume;
        Py_XSETREF(frame_.objects[step.slot], made);
    }
    frame_.addresses[step.slot] = nothing ? nullptr : frame_.addresses[step.base] + offset;
    return Done::yes;
}

// Writes the parameters of a launch; false if Python must make it.
bool Replay::packed(const Launch &step, char *block) const {
    if (block != step.block.data()) std::copy_n(step.block.data(), step.block.size(), block);
    for (const Pointer &pointer : step.pointers) {
        const char *address = frame_.addresses[pointer.slot];
        if (pointer.aligned && (reinterpret_cast<uintptr_t>(address) & 15) != 0 &&
            !off(Guard::plan_aligned)) {
            return false;
        }
        std::memcpy(block + pointer.offset, &address, sizeof address);
    }
    for (const Number &number : step.numbers) {
        const Argument &value = leaves_.leaf[number.leaf].value;
        if (!put_one(block + number.offset, number.type, value)) return false;
    }
    for (const Computed &each : step.computed) {
        Argument value = {};
        value.kind = Kind::integer;
        value.integer = (*applied_)[each.formula];
        if (!put_one(block + each.offset, each.type, value)) return false;
    }
    return true;
}

// Raises the error of a launch on the CPU.
Replay::Done Replay::failed(const Launch &step, const int32_t grid[3], int outcome) const {
    Ref values = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(step.args.size())));
    for (size_t k = 0; values && k < step.args.size(); ++k) {
        Ref each = value(step.args[k]);
        if (!each) return Done::error;
        PyTuple_SET_ITEM(values.get(), static_cast<Py_ssize_t>(k), each.release());
    }
    if (values) raise_from_cpu(*step.spec, outcome, grid, values.get());
    return Done::error;
}

Replay::Done Replay::launch(size_t number) {
    if (ran_python_) {
        const Answer answer =
            off(Guard::plan_asked_again) ? Answer::yes : may_launch(state_, plan_, applied_);
        if (answer == Answer::error) return Done::error;
        if (answer == Answer::no || !refresh()) return Done::resume;
        ran_python_ = false;
    }
    const Launch &step = plan_.launched(number, applied_);
    const int32_t *grid = step.grid;
    int32_t sized[3];
    if (applied_ != nullptr) {
        for (size_t k = 0; k < 3; ++k) {  // known to fit
            sized[k] = static_cast<int32_t>((*applied_)[plan_.sized->launches[number].grid[k]]);
        }
        grid = sized;
    }
    if (open_ == nullptr) return plain_launch(step, grid);
    if (!packed(step, open_->graph->block(staged_))) return Done::resume;
    open_->graph->grid(staged_++, grid);
    return Done::yes;
}

Replay::Done Replay::plain_launch(const Launch &step, const int32_t grid[3]) {
    const Spec &spec = *step.spec;
    if (spec.on_cpu) return launch_on_cpu(step, grid);
    alignas(block_alignment) char block[stack_bytes];
    if (!packed(step, block)) return Done::resume;
    void *queue = nullptr;
    if (!stream(spec.device_id, &queue)) return Done::error;
    return run_on_cuda(state_, spec, grid, queue, block) < 0 ? Done::error : Done::yes;
}

Replay::Done Replay::launch_on_cpu(const Launch &step, const int32_t grid[3]) {
    alignas(block_alignment) char room[stack_bytes];
    const bool brief = is_brief(*step.spec, grid);
    char *block = brief ? step.block.data() : room;
    if (!packed(step, block)) return Done::resume;
    int outcome = 0;
    if (run_on_cpu(state_, *step.spec, grid, block, brief, &outcome) < 0) return Done::error;
    return outcome == 0 ? Done::yes : failed(step, grid, outcome);
}

// Launches in a range that profilers show.
Replay::Done Replay::shown_launch(size_t number) {
    const Launch &step = plan_.launched(number, applied_);
    const Ref range = open_launch_range(state_, plan_.functions[step.function].object.get());
    if (!range) return Done::error;
    ran_python_ = true;
    const Done done = launch(number);
    close_range(state_, range);
    ran_python_ = true;
    return done;
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

// The tensors that a part is given: inputs, then outputs.
Ref Replay::tensors(const Part &part) const {
    Ref made = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(part.inputs.size() + part.outputs.size())));
    Py_ssize_t at = 0;
    auto put = [&](size_t slot) {
        PyObject *object = frame_.objects[slot] == nullptr ? Py_None : frame_.objects[slot];
        Py_INCREF(object);
        PyTuple_SET_ITEM(made.get(), at++, object);
    };
    if (!made) return made;
    for (const size_t slot : part.inputs) put(slot);
    for (const size_t output : part.outputs) put(plan_.allocates[output].slot);
    return made;
}

// Launches a graph of a part, or has it captured first; `no` if there is none for this call.
Replay::Done Replay::captured(const Part &part, void *queue, Answer *answer) {
    *answer = Answer::no;
    if (!part.is_native) {  // a function in Python does what a graph would do
        const Ref given = tensors(part);
        if (!given) return Done::error;
        ran_python_ = true;
        const Ref said = Ref::steal(PyObject_CallOneArg(part.captures.get(), given.get()));
        if (!said) return Done::error;
        if (said.get() == Py_True) *answer = Answer::yes;
        return Done::yes;
    }
    uint64_t addresses[most_slots];
    auto address_of = [&](size_t slot) { return reinterpret_cast<uint64_t>(frame_.addresses[slot]); };
    for (int attempt = 0; attempt < 2; ++attempt) {
        size_t count = 0;
        for (const size_t slot : part.inputs) addresses[count++] = address_of(slot);
        for (const size_t output : part.outputs) {
            addresses[count++] = address_of(plan_.allocates[output].slot);
        }
        Captured found = launch_captured(part.captures.get(), addresses, queue);
        if (found == Captured::missing && attempt == 0) {
            const Ref given = tensors(part);
            if (!given) return Done::error;
            ran_python_ = true;
            found = capture(part.captures.get(), given.get());
            if (found == Captured::missing && !refresh()) return Done::yes;
        }
        if (found == Captured::error) return Done::error;
        if (found == Captured::launched) *answer = Answer::yes;
        if (found != Captured::missing) return Done::yes;
    }
    return Done::yes;
}

// Makes the steps of a part as one graph, if there is one; else they follow one by one.
Replay::Done Replay::part(const Part &part, bool *is_made) {
    if (ran_python_) {
        const Answer answer = may_launch(state_, plan_, applied_);
        if (answer == Answer::error) return Done::error;
        if (answer == Answer::no || !refresh()) return Done::resume;
        ran_python_ = false;
    }
    void *queue = nullptr;
    if (part.device >= 0) {
        if (state_.cuda.current_device() != part.device) return Done::yes;
        if (!stream(part.device, &queue)) return Done::error;
    }
    for (const size_t output : part.outputs) {
        const Done done = allocate(plan_.allocates[output]);
        if (done != Done::yes) return done;
    }
    Answer answer = Answer::no;
    const Done done = captured(part, queue, &answer);
    if (done != Done::yes) return done;
    if (answer != Answer::yes) {
        for (const size_t output : part.outputs) {
            frame_.set(plan_.allocates[output].slot, nullptr, nullptr);
        }
        return Done::yes;
    }
    for (const size_t slot : part.writes) {
        if (part.is_native) bump_version(state_.tensors, state_.torch, frame_.objects[slot]);
    }
    *is_made = true;
    for (const size_t k : part.again) {
        const Done again = step(plan_.steps[k]);
        if (again != Done::yes) return again;
    }
    return Done::yes;
}

Replay::Done Replay::step(const Step &step) {
    switch (step.kind) {
    case Step::allocate: return allocate(plan_.allocates[step.at]);
    case Step::fill: return fill(plan_.fills[step.at]);
    case Step::copy: return copy(plan_.copies[step.at], step.number);
    case Step::view: return view(plan_.views[step.at]);
    case Step::call: return call(plan_.calls[step.at], step.number);
    case Step::read: return read(plan_.calls[step.at]);
    default: return is_profiled_ ? shown_launch(step.at) : launch(step.at);
    }
}

}  // namespace tzero::plan
