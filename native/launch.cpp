// One launch, from CPython's arguments to the driver.
//
//     k[grid](x, n, BLOCK=64) ─► key ─► spec ── guards hold ──► pack, launch, return the kernel
//                                        └ none: Python's `_launched` lets Triton launch and
//                                          describes the binary, which is kept under this key
//
// Launches that cannot be decided here are made in Python: with a hook attached, an argument of
// another type, an observer. src/tzero/launches/python.py has the same guards, and explains them.

#include "python.h"

#include <alloca.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "binary.h"
#include "facts.h"
#include "guards.h"
#include "names.h"

namespace tzero {

namespace {

// Calls a method of the kernel with the grid, a tuple of the positional arguments, a dict of the
// named ones, and the reason if there is one.
PyObject *in_python(const Call &call, const Ref &method, const char *reason = nullptr) {
    Ref args = Ref::steal(PyTuple_New(call.positional));
    Ref kwargs = Ref::steal(PyDict_New());
    if (!args || !kwargs) return nullptr;
    for (Py_ssize_t k = 0; k < call.positional; ++k) {
        Py_INCREF(call.arguments[k]);
        PyTuple_SET_ITEM(args.get(), k, call.arguments[k]);
    }
    const Py_ssize_t named = call.names == nullptr ? 0 : PyTuple_GET_SIZE(call.names);
    for (Py_ssize_t k = 0; k < named; ++k) {
        PyObject *name = PyTuple_GET_ITEM(call.names, k);
        if (call.is_run && (PyUnicode_CompareWithASCIIString(name, "grid") == 0 ||
                            PyUnicode_CompareWithASCIIString(name, "warmup") == 0)) {
            continue;
        }
        PyObject *value = call.arguments[call.positional + k];
        if (PyDict_SetItem(kwargs.get(), name, value) < 0) return nullptr;
    }
    Ref why;
    if (reason != nullptr) {
        why = Ref::steal(PyUnicode_FromString(reason));
        if (!why) return nullptr;
    }
    return PyObject_CallMethodObjArgs(reinterpret_cast<PyObject *>(call.self), method.get(),
                                      call.grid.object, args.get(), kwargs.get(), why.get(),
                                      nullptr);
}

// Python launches, and reports the reason unless it is empty.
PyObject *handed_over(const Call &call, const char *reason) {
    if (call.plain != nullptr) {
        if (leave(*call.self, reason) < 0) return nullptr;
        return PyObject_Vectorcall(call.plain, call.arguments - 1,
                                   static_cast<size_t>(call.positional) + 1, call.names);
    }
    return in_python(call, call.kernel->state->names.launch, reason);
}

// `first` is the first word of the key.
Reading read_facts(const Call &call, const Form &form, uint64_t first, Facts *out) {
    const auto &parameters = call.kernel->parameters;
    const Tensors &tensors = call.kernel->state->tensors;
    out->words[out->word_count++] = first;
    out->count = parameters.size();
    for (size_t k = 0; k < parameters.size(); ++k) {
        Argument &argument = out->arguments[k];
        const Reading reading =
            read_argument(tensors, parameters[k], value_of(call, form, k), &argument);
        if (reading != Reading::done) return reading;
        if (off(Guard::defaults) && parameters[k].fallback) continue;
        out->note(argument);
    }
    for (Py_ssize_t place : form.options) {
        if (off(Guard::options)) break;
        Argument option;
        const Reading reading = read_option(call.arguments[place], &option);
        if (reading != Reading::done) return reading;
        out->note(option);
    }
    return Reading::done;
}

// Reads the addresses of tensors again, after Python code ran that may have changed them.
Reading read_addresses(const Call &call, const Form &form, Facts *facts) {
    if (facts->is_nested) return read_nested_again(call, form, facts);
    const auto &parameters = call.kernel->parameters;
    for (size_t k = 0; k < parameters.size(); ++k) {
        if (facts->arguments[k].kind != Kind::tensor) continue;
        const Reading reading = read_argument(call.kernel->state->tensors, parameters[k],
                                              value_of(call, form, k), &facts->arguments[k]);
        if (reading != Reading::done) return reading;
    }
    return Reading::done;
}

// Whether every tensor is on the binary's device; Triton decides about others.
bool on_device(const Spec &spec, const Facts &facts) {
    for (size_t k = 0; k < facts.count; ++k) {
        const Argument &argument = facts.arguments[k];
        if (argument.kind != Kind::tensor) continue;
        if (spec.on_cpu ? place_of(argument) != on_cpu
                        : place_of(argument) != on_cuda || device_of(argument) != spec.device_id) {
            return false;
        }
    }
    return true;
}

// Whether a binary takes what was read: its arguments are among them, and on its device.
bool is_for(const Spec &spec, const Facts &facts) {
    const bool has_all = std::all_of(spec.moves.begin(), spec.moves.end(), [&](const Move &move) {
        return move.index < facts.count;
    });
    const bool has_descriptors =
        std::all_of(spec.maps.begin(), spec.maps.end(), [&](const cuda::TensorMap &map) {
            return map.argument + size_t{2} * map.rank + 3 <= facts.count;
        });
    return has_all && has_descriptors && on_device(spec, facts);
}

// The spec of what `_launched` said of a binary: a description, or why native code cannot launch it.
std::unique_ptr<Spec> spec_of(PyObject *said) {
    if (!PyUnicode_Check(said)) return spec_from(said);
    const char *reason = PyUnicode_AsUTF8(said);
    if (reason == nullptr) return nullptr;
    auto spec = std::make_unique<Spec>();
    spec->refusal = *reason == 0 ? "it is not known how to launch this binary" : reason;
    return spec;
}

// Cache miss: Triton launches, and its binary is kept under the key read before the launch, unless
// the environment or what a nested argument holds has changed meanwhile.
PyObject *missed(const Call &call, const Form &form, Facts &facts, size_t environment) {
    ++call.kernel->misses;
    std::vector<Ref> constants;
    constants.reserve(facts.constant_count);
    for (size_t k = 0; k < facts.constant_count; ++k) {
        constants.push_back(Ref::borrow(facts.constants[k]));
    }
    Ref said = Ref::steal(in_python(call, call.kernel->state->names.launched));
    if (!said) return nullptr;
    if (!PyTuple_CheckExact(said.get()) || PyTuple_GET_SIZE(said.get()) != 2) {
        PyErr_SetString(PyExc_TypeError,
                        "_launched must return a kernel, and its description, a reason or None");
        return nullptr;
    }
    Ref result = Ref::borrow(PyTuple_GET_ITEM(said.get(), 0));
    PyObject *description = PyTuple_GET_ITEM(said.get(), 1);
    if (description == Py_None) return result.release();
    size_t now = 0;
    const Answer answer = environment_now(call.kernel, call.self->attributes, &now);
    if (answer == Answer::error) return nullptr;
    if (answer == Answer::no || now != environment) return result.release();
    if (facts.is_nested) {
        const Reading reading = read_nested_again(call, form, &facts);
        if (reading == Reading::error) return nullptr;
        if (reading == Reading::not_ours) return result.release();
    }
    std::unique_ptr<Spec> spec = spec_of(description);
    if (spec == nullptr) return nullptr;
    if (spec->refusal.empty() && !is_for(*spec, facts)) return result.release();
    spec->words.assign(facts.words, facts.words + facts.word_count);
    spec->constants = std::move(constants);
    spec->shortcut =
        shortcut_to(*spec, form, call.kernel->parameters, call.arguments, facts);
    call.kernel->specs.add(spec.release(), call.kernel->most_specs);
    return result.release();
}

// ---- launching ----------------------------------------------------------------------------------

PyObject *kernel_returned(const Spec &spec) {
    Py_INCREF(spec.kernel.get());
    return spec.kernel.get();
}

// The arguments in the order of the parameters, for an error message.
Ref values_of(const Call &call, const Form &form) {
    const size_t count = call.kernel->parameters.size();
    Ref values = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
    for (size_t k = 0; values && k < count; ++k) {
        PyObject *value = value_of(call, form, k);
        Py_INCREF(value);
        PyTuple_SET_ITEM(values.get(), static_cast<Py_ssize_t>(k), value);
    }
    return values;
}

PyObject *launch_on_cpu(const Call &call, const Form &form, const Spec &spec,
                        const int32_t grid[3], char *block) {
    int outcome = 0;
    const bool brief = is_brief(spec, grid);
    if (run_on_cpu(*call.kernel->state, spec, grid, block, brief, &outcome) < 0) return nullptr;
    if (outcome == 0) return kernel_returned(spec);
    Ref values = values_of(call, form);
    if (values) raise_from_cpu(spec, outcome, grid, values.get());
    return nullptr;
}

// The arguments by name, as a grid function gets them.
Ref named(const Call &call, const Form &form) {
    Ref meta = Ref::steal(PyDict_New());
    for (size_t k = 0; meta && k < call.kernel->parameters.size(); ++k) {
        PyObject *name = call.kernel->parameters[k].name.get();
        if (PyDict_SetItem(meta.get(), name, value_of(call, form, k)) < 0) meta.clear();
    }
    return meta;
}

// Those arguments by name that the grid function reads, where that is known; else all. `is_whole` is
// set for all.
Ref named_for(const Call &call, const Form &form, PyObject *function, bool *is_whole) {
    const Ref names = call.kernel->state->subscripts.of(*call.kernel->state, function);
    *is_whole = !names;
    if (!names) return PyErr_Occurred() ? Ref() : named(call, form);
    Ref meta = Ref::steal(PyDict_New());
    const auto &parameters = call.kernel->parameters;
    for (Py_ssize_t n = 0; meta && n < PyTuple_GET_SIZE(names.get()); ++n) {
        PyObject *name = PyTuple_GET_ITEM(names.get(), n);
        size_t k = 0;
        while (k < parameters.size() && !same_name(parameters[k].name.get(), name)) ++k;
        if (k == parameters.size()) continue;  // the function raises
        if (PyDict_SetItem(meta.get(), name, value_of(call, form, k)) < 0) meta.clear();
    }
    return meta;
}

// Whether a grid function has changed the dict of arguments.
bool differs(const Call &call, const Form &form, PyObject *meta) {
    PyObject *name = nullptr, *value = nullptr;
    Py_ssize_t at = 0;
    size_t k = 0;
    while (PyDict_Next(meta, &at, &name, &value)) {
        if (k >= call.kernel->parameters.size() || value != value_of(call, form, k)) return true;
        ++k;
    }
    return k != call.kernel->parameters.size();
}

// Counts a launch that Python makes for this reason, at the binary that was launched last: this one is
// not known yet.
Answer counted(const Kernel &kernel, Answer answer, graph::Plainly why) {
    const Spec *last = kernel.specs.last();
    if (answer == Answer::no && last != nullptr && last->site) graph::count_plain(*last->site, why);
    return answer;
}

#define TZ_DECIDE(answer, reason)                        \
    do {                                                 \
        const Answer decided = (answer);                 \
        if (decided == Answer::error) return nullptr;    \
        if (decided == Answer::no) return handed_over(call, reason); \
    } while (false)

// Finishes a launch in Python after the grid function was called, which must not be called twice.
PyObject *finished_in_python(const Call &call, const Spec &spec, PyObject *meta, void *stream) {
    Ref values = Ref::steal(PyDict_Values(meta));
    Ref args = values ? Ref::steal(PyList_AsTuple(values.get())) : Ref();
    Ref number = Ref::steal(PyLong_FromVoidPtr(stream));
    if (!args || !number) return nullptr;
    return PyObject_CallMethodObjArgs(
        reinterpret_cast<PyObject *>(call.self), call.kernel->state->names.finish.get(),
        spec.kernel.get(), call.grid.object, args.get(), number.get(), nullptr);
}

// Packs the arguments, and makes the tensor maps; null, or why Triton must make the launch.
const char *packed(const State &state, const Spec &spec, const Facts &facts, char *block) {
    if (!pack(spec, facts.arguments, block)) {
        return "the value of an argument does not fit its parameter's type";
    }
    if (spec.maps.empty() || encode_maps(state, spec, facts.arguments, block)) return nullptr;
    return "a tensor map cannot be made of a descriptor";
}

// Allocates scratch memory. What allocates may change tensors, so that they are read again. As
// `launch_with`, but returns whether the launch can go on.
bool has_scratch(const Call &call, const Form &form, const Spec &spec, Facts &facts, void *stream,
                 const int32_t grid[3], char *block, Scratch *scratch, const char **unfit) {
    const State &state = *call.kernel->state;
    *unfit = "its scratch memory cannot be allocated";
    if (!allocate(state, spec, grid, stream, scratch)) return false;
    if (read_addresses(call, form, &facts) != Reading::done) return false;
    *unfit = packed(state, spec, facts, block);
    return *unfit == nullptr;
}

void mutate_grid(Spec &spec, int32_t grid[3]) {
    if (!off(Guard::grid)) return;
    if (spec.first_grid[0] == 0) std::memcpy(spec.first_grid, grid, 3 * sizeof grid[0]);
    std::memcpy(grid, spec.first_grid, 3 * sizeof grid[0]);
}

// The lane to stage a launch in, if it is hot; or null.
graph::Lane *lane_for(State &state, Spec &spec, void *stream) {
    if (spec.site == nullptr) spec.site = graph::site_of(spec);
    if (!state.graphs.is_hot(state, *spec.site)) return nullptr;
    const auto is_of = [](const std::vector<graph::Work> &) { return true; };
    const auto work = [&] { return std::vector<graph::Work>{{&spec, nullptr}}; };
    return state.graphs.take(state, *spec.site, stream, spec.device_id, state.profilers.look(),
                             is_of, work);
}

// Launches on CUDA, as a graph of one launch if that is hot, which costs the driver less. 0, or -1
// with the Python error set.
int queue(State &state, Spec &spec, void *stream, const int32_t grid[3], char *block) {
    graph::Lane *lane = lane_for(state, spec, stream);
    if (lane == nullptr) return run_on_cuda(state, spec, grid, stream, block);
    std::copy_n(block, spec.bytes, lane->graph->block(0));
    lane->graph->grid(0, grid);
    return state.graphs.finish(state, *lane, 1);
}

// Launches a plain binary whose arguments are packed.
PyObject *launch_packed(const Call &call, const Form &form, Spec &spec, void *stream,
                        const int32_t grid[3], char *block) {
    if (spec.on_cpu) return launch_on_cpu(call, form, spec, grid, block);
    State &state = *call.kernel->state;
    const int queued = queue(state, spec, stream, grid, block);
    if (state.graphs.has_news() && state.graphs.report() < 0) return nullptr;
    return queued < 0 ? nullptr : kernel_returned(spec);
}

// Launches. Null with the Python error set; or, without it, with the reason why Triton must.
PyObject *launch_with(const Call &call, const Form &form, Spec &spec, Facts &facts, void *stream,
                      int32_t grid[3], const char **unfit) {
    mutate_grid(spec, grid);
    const State &state = *call.kernel->state;
    alignas(block_alignment) char block[stack_bytes];
    std::memset(block, 0, spec.bytes);  // a graph compares all of it
    *unfit = packed(state, spec, facts, block);
    if (*unfit != nullptr) return nullptr;
    if (spec.is_plain) return launch_packed(call, form, spec, stream, grid, block);
    Scratch scratch;
    const bool needs = spec.scratch[0].bytes != 0 || spec.scratch[1].bytes != 0;
    if (needs && !has_scratch(call, form, spec, facts, stream, grid, block, &scratch, unfit)) {
        return nullptr;
    }
    const int queued = run_on_cuda(state, spec, grid, stream, block, scratch);
    return queued < 0 ? nullptr : kernel_returned(spec);
}

// Calls the grid function, and launches with its result.
PyObject *launch_asked(Call &call, const Form &form, Spec &spec, Facts &facts, void *stream) {
    State &state = *call.kernel->state;
    bool is_whole = false;
    Ref meta = named_for(call, form, call.grid.object, &is_whole);
    if (!meta) return nullptr;
    Ref answered = Ref::steal(PyObject_CallOneArg(call.grid.object, meta.get()));
    if (!answered) return nullptr;
    call.grid.object = answered.get();
    int32_t grid[3];
    const Answer unhooked =
        counted(*call.kernel, no_launch_hooks(state, true), graph::Plainly::hooked);
    if (unhooked == Answer::error) return nullptr;
    if (unhooked == Answer::no || (is_whole && differs(call, form, meta.get())) ||
        !read_grid(answered.get(), grid)) {
        if (!is_whole) meta = named(call, form);
        return meta ? finished_in_python(call, spec, meta.get(), stream) : nullptr;
    }
    const Reading reading = read_addresses(call, form, &facts);
    if (reading == Reading::error) return nullptr;
    const char *unfit = nullptr;
    PyObject *result = reading == Reading::not_ours
                           ? nullptr
                           : launch_with(call, form, spec, facts, stream, grid, &unfit);
    if (result != nullptr || PyErr_Occurred()) return result;
    if (!is_whole) meta = named(call, form);
    return meta ? finished_in_python(call, spec, meta.get(), stream) : nullptr;
}

// The current stream; `no` if another device than the binary's is current.
Answer stream_of(const State &state, Spec &spec, void **out) {
    if (spec.on_cpu) return Answer::yes;
    if (!off(Guard::device) && state.cuda.current_device() != spec.device_id) return Answer::no;
    if (state.tensors.api->current_stream(dlpack::cuda, spec.device_id, out) != 0) {
        return Answer::error;
    }
    if (off(Guard::stream)) {
        if (!spec.knows_first_stream) spec.first_stream = *out;
        spec.knows_first_stream = true;
        *out = spec.first_stream;
    }
    return Answer::yes;
}

PyObject *launch_spec(Call &call, const Form &form, Spec &spec, Facts &facts) {
    State &state = *call.kernel->state;
    void *stream = nullptr;
    // Before the grid function is called, as in Triton: it may switch streams.
    TZ_DECIDE(stream_of(state, spec, &stream), "the tensors are not on the current device");
    if (!call.grid.known && PyCallable_Check(call.grid.object)) {
        return launch_asked(call, form, spec, facts, stream);
    }
    int32_t grid[3];
    if (call.grid.known) {
        std::memcpy(grid, call.grid.size, sizeof grid);
    } else if (!read_grid(call.grid.object, grid)) {
        return handed_over(call, "the grid is not one to three plain integers");
    }
    const bool ran_python = facts.runs_python;
    if (ran_python || !knobs_unchanged(state)) {
        const Answer unhooked = no_launch_hooks(state, ran_python);
        TZ_DECIDE(counted(*call.kernel, unhooked, graph::Plainly::hooked),
                  "a launch hook is attached");
    }
    if (ran_python) {
        const Reading reading = read_addresses(call, form, &facts);
        if (reading == Reading::error) return nullptr;
        if (reading == Reading::not_ours) return handed_over(call, "");
    }
    const char *unfit = nullptr;
    PyObject *result = launch_with(call, form, spec, facts, stream, grid, &unfit);
    return result != nullptr || PyErr_Occurred() ? result : handed_over(call, unfit);
}

// Whether the kernel's environment is unchanged, and no hook is attached.
bool is_steady(const State &state, const Kernel &kernel, const Attributes &attributes) {
    PyObject *hooks = attributes.pre_run_hooks;
    return kernel.generation == state.knobs_seen.generation && attributes.debug != nullptr &&
           attributes.debug == kernel.debug.get() && hooks != nullptr && PyList_CheckExact(hooks) &&
           PyList_GET_SIZE(hooks) == 0 && knobs_unchanged(state);
}

// Launches with arguments that were read.
PyObject *launch_read(Call &call, const Form &form, Facts &facts, size_t environment) {
    Kernel *kernel = call.kernel;
    Spec *spec = nullptr;
    if (kernel->specs.find(facts.view(), &spec) < 0) return nullptr;
    if (spec == nullptr) return missed(call, form, facts, environment);
    SpecUse use(spec);
    if (!spec->refusal.empty()) return handed_over(call, spec->refusal.c_str());
    const Answer kept = is_kept(call.self->attributes, *spec);
    if (kept == Answer::error) return nullptr;
    if (kept == Answer::no) {
        kernel->specs.clear();  // Triton has dropped the binary
        return missed(call, form, facts, environment);
    }
    TZ_DECIDE(globals_hold(*call.kernel->state, call.self->attributes), "");  // Triton raises, and names the global
    return launch_spec(call, form, *spec, facts);
}

// Launches like the last time, if all that is read is as it was then. False: nothing was done, and
// the long way decides. The kernel's environment is unchanged, and no hook is attached.
bool launch_alike(Call &call, const Form &form, uint64_t first, PyObject **result) {
    Kernel &kernel = *call.kernel;
    State &state = *kernel.state;
    Spec *spec = kernel.specs.last();
    const bool is_known = spec != nullptr && spec->shortcut && spec->shortcut->first == first &&
                          call.grid.known && state.tensors.handle >= 0;
    if (!is_known) return false;
    alignas(block_alignment) char block[stack_bytes];
    std::memset(block, 0, spec->bytes);  // a graph compares all of it
    if (!read_alike(state.tensors, *spec->shortcut, kernel.parameters, call.arguments, block)) {
        return false;
    }
    SpecUse use(spec);
    const Attributes &attributes = call.self->attributes;
    if (!is_kept_still(attributes, *spec) || !globals_are_same(state, attributes)) return false;
    void *stream = nullptr;
    if (stream_of(state, *spec, &stream) != Answer::yes) {
        PyErr_Clear();
        return false;
    }
    mutate_grid(*spec, call.grid.size);
    *result = launch_packed(call, form, *spec, stream, call.grid.size, block);
    return true;
}

// Launches with an argument that holds others, if that is why it was not read.
[[gnu::noinline]] PyObject *launch_nested(Call &call, const Form &form, uint64_t first,
                                          size_t environment) {
    NestedFacts nested;
    const Reading reading = read_nested(call, form, first, &nested);
    if (reading == Reading::error) return nullptr;
    if (reading == Reading::not_ours) {
        return handed_over(call, "only Python reads an argument of this type, or in this state");
    }
    return launch_read(call, form, nested.facts, environment);
}

}  // namespace

bool read_grid(PyObject *object, int32_t size[3]) {
    const bool is_tuple = PyTuple_CheckExact(object);
    if (!is_tuple && !PyList_CheckExact(object)) return false;
    const Py_ssize_t count = is_tuple ? PyTuple_GET_SIZE(object) : PyList_GET_SIZE(object);
    if (count < 1 || count > 3) return false;
    size[1] = size[2] = 1;
    for (Py_ssize_t k = 0; k < count; ++k) {
        PyObject *item = is_tuple ? PyTuple_GET_ITEM(object, k) : PyList_GET_ITEM(object, k);
        if (!PyLong_CheckExact(item)) return false;
        int overflow = 0;
        const long number = PyLong_AsLongAndOverflow(item, &overflow);
        if (overflow != 0 || number < 0 || number > INT32_MAX) return false;
        size[k] = static_cast<int32_t>(number);
    }
    return true;
}

int leave(Launchable &beside, const char *reason) {
    auto &left = beside.kernel->left;
    const auto known = std::find_if(left.begin(), left.end(), [reason](const auto &each) {
        return each.first == reason;
    });
    if (known != left.end()) {
        ++known->second;
        return 0;
    }
    try {
        left.emplace_back(reason, 1);
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
        return -1;
    }
    if (*reason == 0 || !beside.kernel->chosen) return 0;
    auto *object = reinterpret_cast<PyObject *>(&beside);
    return Ref::steal(PyObject_CallMethod(object, "_left", "s", reason)) ? 0 : -1;
}

PyObject *launch(Call &call) {
    Kernel *kernel = call.kernel;
    if (kernel == nullptr || !kernel->prepared) {
        PyErr_SetString(PyExc_RuntimeError, "this kernel is not prepared; call _prepare first");
        return nullptr;
    }
    State &state = *kernel->state;
    if (state.recorders != 0) return handed_over(call, "");  // recorders see launches in Python
    TZ_DECIDE(counted(*kernel, unwatched(state), graph::Plainly::observed), "");
    const bool steady = is_steady(state, *kernel, call.self->attributes);
    if (!steady) {
        if (!knobs_unchanged(state) && look_at_knobs(state) < 0) return nullptr;
        const Answer unhooked = no_run_hooks(state, call.self->attributes);
        TZ_DECIDE(counted(*kernel, unhooked, graph::Plainly::hooked), "");
    }
    size_t form_number = 0, environment = kernel->environment;
    const char *reason = "";  // empty: Triton reports what is wrong with the call
    const Form *form =
        kernel->forms.find(kernel->parameters, call.positional, call.names,
                           call.is_run ? Reserved::taken : Reserved::refused, &form_number, &reason);
    if (form == nullptr) return handed_over(call, reason);
    if (!steady) {
        const uint64_t generation = state.knobs_seen.generation;
        TZ_DECIDE(environment_now(kernel, call.self->attributes, &environment),
                  "the knobs have had too many different values");
        kernel->debug = Ref::borrow(call.self->attributes.debug);
        kernel->generation = generation;
    }
    const bool drops_form = off(Guard::options) || off(Guard::defaults);
    const uint64_t first = uint64_t{environment} << 32 | (drops_form ? 0 : form_number);
    PyObject *result = nullptr;
    if (steady && launch_alike(call, *form, first, &result)) return result;
    const size_t count = kernel->parameters.size() + form->options.size() + 1;
    Facts facts{static_cast<Argument *>(alloca(count * sizeof(Argument))),
                static_cast<uint64_t *>(alloca((2 * count + 1) * sizeof(uint64_t))),
                static_cast<PyObject **>(alloca(count * sizeof(PyObject *)))};
    const Reading reading = read_facts(call, *form, first, &facts);
    if (reading == Reading::error) return nullptr;
    if (reading == Reading::not_ours) return launch_nested(call, *form, first, environment);
    return launch_read(call, *form, facts, environment);
}

}  // namespace tzero
