// One launch, from CPython's arguments to the driver.
//
//     k[grid](x, n, BLOCK=64) ─► words ─► spec ── guards hold ──► pack, launch, return the kernel
//                                          └ none: Python's `_launched` has Triton launch, and
//                                            says what it launched; kept under these words
//
// Whatever is not decided here goes to the twin in Python, which decides it: a hook that is
// attached, an argument of another type, an observer. src/tzero/launch.py has the list of what must
// hold, in words.

#include "python.h"

#include <alloca.h>

#include <cstring>

#include "guards.h"
#include "kernel.h"

namespace tzero {

namespace {

constexpr size_t most_forms = 64;
constexpr size_t stack_bytes = 32 + 8 * most_arguments + 8;  // all of them, and the CPU's head

PyObject *value_of(const Call &call, const Form &form, size_t k) {
    const Py_ssize_t place = form.place[k];
    return place < 0 ? call.kernel->parameters[k].fallback.get() : call.arguments[place];
}

// Calls a method of the Python side with the grid, the positional arguments as a tuple and the
// named ones as a dict; and a reason, where there is one.
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

// The twin launches, and says why; an empty reason is none that anyone needs to hear.
PyObject *handed_over(const Call &call, const char *reason) {
    return in_python(call, call.kernel->state->names.launch, reason);
}

bool same_names(PyObject *one, PyObject *other) {
    if (one == other) return true;
    if (one == nullptr || other == nullptr) return false;
    if (PyTuple_GET_SIZE(one) != PyTuple_GET_SIZE(other)) return false;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(one); ++k) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(one, k), PyTuple_GET_ITEM(other, k)) != 0) {
            return false;
        }
    }
    return true;
}

// The way this call is written; null where it is one that Triton refuses, or one too many, for which
// there is a reason.
const Form *form_of(const Call &call, size_t *number, const char **reason) {
    auto &forms = call.kernel->forms;
    PyObject *names =
        call.names != nullptr && PyTuple_GET_SIZE(call.names) == 0 ? nullptr : call.names;
    for (size_t k = 0; k < forms.size(); ++k) {
        const Form &form = *forms[k];
        if (form.positional == call.positional && (form.grid >= 0) == call.is_run &&
            same_names(form.names.get(), names)) {
            *number = k;
            return &form;
        }
    }
    if (forms.size() >= most_forms) {
        *reason = "it is called in more ways than are kept";
        return nullptr;
    }
    if (call.kernel->parameters.size() + (names ? PyTuple_GET_SIZE(names) : 0) > most_arguments) {
        *reason = "it is called with more arguments and options than are read natively";
        return nullptr;
    }
    auto made = std::make_unique<Form>();
    if (!make_form(call.kernel->parameters, call.positional, names, call.is_run, made.get())) {
        return nullptr;
    }
    forms.push_back(std::move(made));
    *number = forms.size() - 1;
    return forms.back().get();
}

// Arguments, words and constants of a call. They lie on the stack of `launch`, as many as there are.
struct Facts {
    Argument *arguments;
    uint64_t *words;
    PyObject **constants;  // borrowed from the call
    size_t word_count = 0;
    size_t constant_count = 0;

    void note(const Argument &argument) {
        words[word_count++] = static_cast<uint64_t>(argument.kind);
        words[word_count++] = argument.bits;
        if (argument.kind == Kind::constant_object) constants[constant_count++] = argument.object;
    }

    View view() const { return {words, word_count, constants, constant_count}; }
};

Reading read_facts(const Call &call, const Form &form, size_t form_number, size_t world,
                   Facts *out) {
    const auto &parameters = call.kernel->parameters;
    const Tensors &tensors = call.kernel->state->tensors;
    if (off(Guard::options) || off(Guard::defaults)) form_number = 0;
    out->words[out->word_count++] = uint64_t{world} << 32 | form_number;
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

// Reads the addresses of tensors again: Python code that ran meanwhile may have given them others.
Reading read_addresses(const Call &call, const Form &form, Facts *facts) {
    const auto &parameters = call.kernel->parameters;
    for (size_t k = 0; k < parameters.size(); ++k) {
        if (facts->arguments[k].kind != Kind::tensor) continue;
        const Reading reading = read_argument(call.kernel->state->tensors, parameters[k],
                                              value_of(call, form, k), &facts->arguments[k]);
        if (reading != Reading::done) return reading;
    }
    return Reading::done;
}

// What a spec needs of what Python says about a launch: see native_launch.py.
std::unique_ptr<Spec> spec_from(PyObject *said) {
    auto spec = std::make_unique<Spec>();
    PyObject *moves = nullptr, *caches = nullptr, *table = nullptr, *key = nullptr;
    PyObject *kernel = nullptr, *device = nullptr, *launcher = nullptr, *name = nullptr;
    unsigned long long run = 0, program = 0, function = 0;
    Py_ssize_t bytes = 0;
    int on_cpu = 0, cooperative = 0, dependent = 0, device_id = -1;
    unsigned threads = 0, shared = 0, cluster = 1;
    if (!PyArg_ParseTuple(said, "OOO!OOO!nUpOKKKIIIppi", &kernel, &caches, &PyDict_Type, &table,
                          &key, &device, &PyTuple_Type, &moves, &bytes, &name, &on_cpu, &launcher,
                          &run, &program, &function, &threads, &shared, &cluster, &cooperative,
                          &dependent, &device_id)) {
        return nullptr;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(moves); ++k) {
        Py_ssize_t index = 0, offset = 0;
        int type = 0;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(moves, k), "nin", &index, &type, &offset)) {
            return nullptr;
        }
        if (type < 0 || type >= static_cast<int>(Type::count) || index < 0 ||
            static_cast<size_t>(index) >= most_arguments || offset < 0 || offset + 8 > bytes ||
            static_cast<size_t>(bytes) > stack_bytes) {
            PyErr_SetString(PyExc_ValueError, "a parameter lies outside its block");
            return nullptr;
        }
        spec->moves.push_back({static_cast<size_t>(index), static_cast<Type>(type),
                               static_cast<size_t>(offset)});
    }
    spec->kernel = Ref::borrow(kernel);
    spec->caches = Ref::borrow(caches);
    spec->table = Ref::borrow(table);
    spec->key = Ref::borrow(key);
    spec->device = Ref::borrow(device);
    spec->launcher = Ref::borrow(launcher);
    spec->name = Ref::borrow(name);
    spec->bytes = static_cast<size_t>(bytes);
    spec->on_cpu = on_cpu != 0;
    spec->run_packed = reinterpret_cast<decltype(spec->run_packed)>(run);
    spec->program = reinterpret_cast<const void *>(program);
    spec->function = reinterpret_cast<const void *>(function);
    spec->binary = {reinterpret_cast<void *>(function), threads, shared, cluster,
                    cooperative != 0, dependent != 0};
    spec->device_id = device_id;
    return spec;
}

// Whether every tensor of the call is where the binary runs; elsewhere Triton has a say.
bool on_device(const Spec &spec, const Facts &facts, size_t count) {
    for (size_t k = 0; k < count; ++k) {
        const Argument &argument = facts.arguments[k];
        if (argument.kind != Kind::tensor) continue;
        if (spec.on_cpu ? place_of(argument) != on_cpu
                        : place_of(argument) != on_cuda || device_of(argument) != spec.device_id) {
            return false;
        }
    }
    return true;
}

// No spec: Triton launches, and what it launched is kept under the words read before; unless the
// world is another one afterwards.
PyObject *missed(const Call &call, const Facts &facts, size_t world) {
    std::vector<Ref> constants;
    constants.reserve(facts.constant_count);
    for (size_t k = 0; k < facts.constant_count; ++k) {
        constants.push_back(Ref::borrow(facts.constants[k]));
    }
    Ref said = Ref::steal(in_python(call, call.kernel->state->names.launched));
    if (!said) return nullptr;
    if (!PyTuple_CheckExact(said.get()) || PyTuple_GET_SIZE(said.get()) != 2) {
        PyErr_SetString(PyExc_TypeError, "_launched returns a kernel and what is known of it");
        return nullptr;
    }
    Ref result = Ref::borrow(PyTuple_GET_ITEM(said.get(), 0));
    PyObject *description = PyTuple_GET_ITEM(said.get(), 1);
    if (description == Py_None) return result.release();
    size_t now = 0;
    const Answer answer = world_now(call.kernel, *call.self, &now);
    if (answer == Answer::error) return nullptr;
    if (answer == Answer::no || now != world) return result.release();
    std::unique_ptr<Spec> spec = spec_from(description);
    if (spec == nullptr) return nullptr;
    if (!on_device(*spec, facts, call.kernel->parameters.size())) return result.release();
    spec->words.assign(facts.words, facts.words + facts.word_count);
    spec->constants = std::move(constants);
    call.kernel->specs.add(spec.release(), call.kernel->most_specs);
    return result.release();
}

// ---- launching ----------------------------------------------------------------------------------

// tz_packed of the CPU's pool.h: what stands before the arguments.
struct PackedHead {
    const void *kernel;
    int32_t grid[3];
    int32_t threads;
    int64_t unused;
};
static_assert(sizeof(PackedHead) == 32, "pool.h and native_launch.py agree on this");

PyObject *raise_from_cpu(const Call &call, const Form &form, const Spec &spec, int outcome,
                         const int32_t grid[3]) {
    const size_t count = call.kernel->parameters.size();
    Ref values = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
    if (!values) return nullptr;
    for (size_t k = 0; k < count; ++k) {
        PyObject *value = value_of(call, form, k);
        Py_INCREF(value);
        PyTuple_SET_ITEM(values.get(), static_cast<Py_ssize_t>(k), value);
    }
    Ref error = Ref::steal(PyObject_CallMethod(spec.launcher.get(), "error", "i(iii)O", outcome,
                                               grid[0], grid[1], grid[2], values.get()));
    if (error) PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.get())), error.get());
    return nullptr;
}

PyObject *raise_from_cuda(const State &state, const Spec &spec, cuda::Result result,
                          const int32_t grid[3]) {
    Ref none = Ref::steal(PyTuple_New(0));
    Ref facts = Ref::steal(Py_BuildValue(
        "{s:O,s:s,s:s,s:(iii),s:I,s:I}", "kernel", spec.name.get(), "name",
        state.cuda.name_of(result), "text", state.cuda.text_of(result), "grid", grid[0], grid[1],
        grid[2], "block", spec.binary.threads, "shared", spec.binary.shared));
    if (!none || !facts) return nullptr;
    Ref error = Ref::steal(PyObject_Call(state.launch_failed.get(), none.get(), facts.get()));
    if (error) PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.get())), error.get());
    return nullptr;
}

PyObject *kernel_returned(const Spec &spec) {
    Py_INCREF(spec.kernel.get());
    return spec.kernel.get();
}

PyObject *launch_on_cpu(const Call &call, const Form &form, const Spec &spec, const Facts &facts,
                        const int32_t grid[3], char *block) {
    if (!pack(spec, facts.arguments, block)) {
        return handed_over(call, "an argument's value is none that its parameter takes as it is");
    }
    Ref threads = Ref::steal(PyObject_CallNoArgs(call.kernel->state->get_num_threads.get()));
    if (!threads) return nullptr;
    const long allowed = PyLong_AsLong(threads.get());
    if (allowed == -1 && PyErr_Occurred()) return nullptr;
    PackedHead head{spec.function, {grid[0], grid[1], grid[2]}, static_cast<int32_t>(allowed), 0};
    std::memcpy(block, &head, sizeof head);
    int outcome = 0;
    Py_BEGIN_ALLOW_THREADS
    outcome = spec.run_packed(spec.program, block, nullptr);
    Py_END_ALLOW_THREADS
    if (outcome != 0) return raise_from_cpu(call, form, spec, outcome, grid);
    return kernel_returned(spec);
}

PyObject *launch_on_cuda(const Call &call, const Spec &spec, const Facts &facts, void *stream,
                         const int32_t grid[3], char *block) {
    const State &state = *call.kernel->state;
    if (!pack(spec, facts.arguments, block)) {
        return handed_over(call, "an argument's value is none that its parameter takes as it is");
    }
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return kernel_returned(spec);
    // After the arguments come two scratch buffers, which this binary does not use.
    void *params[most_arguments + 2];
    size_t count = 0;
    for (const Move &move : spec.moves) params[count++] = block + move.offset;
    void *no_scratch = nullptr;
    params[count++] = &no_scratch;
    params[count++] = &no_scratch;
    cuda::Result result = 0;
    Py_BEGIN_ALLOW_THREADS
    result = state.cuda.launch(spec.binary, grid, stream, params);
    Py_END_ALLOW_THREADS
    if (result != 0) return raise_from_cuda(state, spec, result, grid);
    return kernel_returned(spec);
}

// The parameters by name, as a callable grid gets them.
Ref named(const Call &call, const Form &form) {
    Ref meta = Ref::steal(PyDict_New());
    for (size_t k = 0; meta && k < call.kernel->parameters.size(); ++k) {
        PyObject *name = call.kernel->parameters[k].name.get();
        if (PyDict_SetItem(meta.get(), name, value_of(call, form, k)) < 0) meta.clear();
    }
    return meta;
}

// Whether a grid function has changed the arguments it was shown.
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

#define TZ_DECIDE(answer, reason)                        \
    do {                                                 \
        const Answer decided = (answer);                 \
        if (decided == Answer::error) return nullptr;    \
        if (decided == Answer::no) return handed_over(call, reason); \
    } while (false)

// A launch whose binary is chosen, and whose grid has been asked, by Python's hand: it goes on from
// there, as Triton does, whatever the grid function has done.
PyObject *finished_in_python(const Call &call, const Spec &spec, PyObject *meta, void *stream) {
    Ref values = Ref::steal(PyDict_Values(meta));
    Ref args = values ? Ref::steal(PyList_AsTuple(values.get())) : Ref();
    Ref number = Ref::steal(PyLong_FromVoidPtr(stream));
    if (!args || !number) return nullptr;
    return PyObject_CallMethodObjArgs(
        reinterpret_cast<PyObject *>(call.self), call.kernel->state->names.finish.get(),
        spec.kernel.get(), call.grid.object, args.get(), number.get(), nullptr);
}

PyObject *launch_with(const Call &call, const Form &form, Spec &spec, const Facts &facts,
                      void *stream, int32_t grid[3]) {
    if (off(Guard::grid)) {
        if (spec.first_grid[0] == 0) std::memcpy(spec.first_grid, grid, 3 * sizeof grid[0]);
        std::memcpy(grid, spec.first_grid, 3 * sizeof grid[0]);
    }
    alignas(16) char block[stack_bytes];
    if (spec.on_cpu) return launch_on_cpu(call, form, spec, facts, grid, block);
    return launch_on_cuda(call, spec, facts, stream, grid, block);
}

// A grid that is a function: asked, and its answer launched.
PyObject *launch_asked(Call &call, const Form &form, Spec &spec, Facts &facts, void *stream) {
    State &state = *call.kernel->state;
    Ref meta = named(call, form);
    if (!meta) return nullptr;
    Ref answered = Ref::steal(PyObject_CallOneArg(call.grid.object, meta.get()));
    if (!answered) return nullptr;
    call.grid.object = answered.get();
    int32_t grid[3];
    const Answer unhooked = no_launch_hooks(state, true);
    if (unhooked == Answer::error) return nullptr;
    if (unhooked == Answer::no || differs(call, form, meta.get()) ||
        !read_grid(answered.get(), grid)) {
        return finished_in_python(call, spec, meta.get(), stream);
    }
    const Reading reading = read_addresses(call, form, &facts);
    if (reading == Reading::error) return nullptr;
    if (reading == Reading::not_ours || !fits(spec, facts.arguments)) {
        return finished_in_python(call, spec, meta.get(), stream);
    }
    return launch_with(call, form, spec, facts, stream, grid);
}

PyObject *launch_spec(Call &call, const Form &form, Spec &spec, Facts &facts) {
    State &state = *call.kernel->state;
    void *stream = nullptr;
    if (!spec.on_cpu) {
        if (!off(Guard::device) && state.cuda.current_device() != spec.device_id) {
            return handed_over(call, "the tensors are not on the current device");
        }
        // Before the grid is asked, as Triton does it: a grid function may switch streams.
        if (state.tensors.api->current_stream(dlpack::cuda, spec.device_id, &stream) != 0) {
            return nullptr;
        }
        if (off(Guard::stream)) {
            if (!spec.knows_first_stream) spec.first_stream = stream;
            spec.knows_first_stream = true;
            stream = spec.first_stream;
        }
    }
    if (!call.grid.known && PyCallable_Check(call.grid.object)) {
        return launch_asked(call, form, spec, facts, stream);
    }
    int32_t grid[3];
    if (call.grid.known) {
        std::memcpy(grid, call.grid.size, sizeof grid);
    } else if (!read_grid(call.grid.object, grid)) {
        return handed_over(call, "the grid is not one to three plain integers");
    }
    const bool ran_python = facts.constant_count > 0;  // to compare them
    TZ_DECIDE(no_launch_hooks(state, ran_python), "a launch hook is attached");
    if (ran_python) {
        const Reading reading = read_addresses(call, form, &facts);
        if (reading == Reading::error) return nullptr;
        if (reading == Reading::not_ours) return handed_over(call, "");
    }
    return launch_with(call, form, spec, facts, stream, grid);
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

PyObject *launch(Call &call) {
    Kernel *kernel = call.kernel;
    if (kernel == nullptr || !kernel->prepared) {
        PyErr_SetString(PyExc_RuntimeError, "this kernel was not prepared");
        return nullptr;
    }
    State &state = *kernel->state;
    TZ_DECIDE(unwatched(state), "");
    TZ_DECIDE(no_run_hooks(state, *call.self), "");
    size_t form_number = 0, world = 0;
    const char *reason = "";  // none: Triton says what is wrong with it
    const Form *form = form_of(call, &form_number, &reason);
    if (form == nullptr) return handed_over(call, reason);
    TZ_DECIDE(world_now(kernel, *call.self, &world), "the knobs have had too many values");
    const size_t count = kernel->parameters.size() + form->options.size() + 1;
    Facts facts{static_cast<Argument *>(alloca(count * sizeof(Argument))),
                static_cast<uint64_t *>(alloca((2 * count + 1) * sizeof(uint64_t))),
                static_cast<PyObject **>(alloca(count * sizeof(PyObject *)))};
    const Reading reading = read_facts(call, *form, form_number, world, &facts);
    if (reading == Reading::error) return nullptr;
    if (reading == Reading::not_ours) {
        return handed_over(call, "an argument is of a type, or in a state, that only Python reads");
    }
    Spec *spec = nullptr;
    if (kernel->specs.find(facts.view(), &spec) < 0) return nullptr;
    if (spec == nullptr) return missed(call, facts, world);
    SpecUse use(spec);
    const Answer kept = is_kept(*call.self, *spec);
    if (kept == Answer::error) return nullptr;
    if (kept == Answer::no) {
        kernel->specs.clear();  // Triton has started anew, and so does this
        return missed(call, facts, world);
    }
    TZ_DECIDE(globals_hold(*call.self), "");  // Triton raises, by name
    return launch_spec(call, *form, *spec, facts);
}

}  // namespace tzero
