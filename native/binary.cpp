#include "binary.h"

#include <cstring>

namespace tzero {

namespace {

// tz_packed of the CPU's pool.h: what stands before the arguments.
struct PackedHead {
    const void *kernel;
    int32_t grid[3];
    int32_t threads;
    int64_t unused;
};
static_assert(sizeof(PackedHead) == 32, "pool.h and native_launch.py agree on this");

void raise_from_cuda(const State &state, const Spec &spec, cuda::Result result,
                     const int32_t grid[3]) {
    Ref none = Ref::steal(PyTuple_New(0));
    Ref facts = Ref::steal(Py_BuildValue(
        "{s:O,s:s,s:s,s:(iii),s:I,s:I}", "kernel", spec.name.get(), "name",
        state.cuda.name_of(result), "text", state.cuda.text_of(result), "grid", grid[0], grid[1],
        grid[2], "block", spec.binary.threads, "shared", spec.binary.shared));
    if (!none || !facts) return;
    Ref error = Ref::steal(PyObject_Call(state.launch_failed.get(), none.get(), facts.get()));
    if (error) PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.get())), error.get());
}

// How many threads torch allows; -1 with the Python error set.
long allowed_threads(const State &state) {
    const int known = state.torch.ready ? state.torch.threads() : -1;
    if (known > 0) return known;
    Ref threads = Ref::steal(PyObject_CallNoArgs(state.get_num_threads.get()));
    return threads ? PyLong_AsLong(threads.get()) : -1;
}

// Element operations, of 0.05 to 1 ns each, in a launch that is over long before another thread would
// ask for the GIL a second time. The pool gives as many to one thread: WORK_PER_THREAD of pool.c.
constexpr int64_t brief_work = 131072;

bool is_brief(const Spec &spec, const int32_t grid[3]) {
    if (spec.work <= 0 || spec.work > brief_work) return false;
    int64_t work = spec.work;
    for (int k = 0; k < 3; ++k) {
        work *= grid[k];  // at most 2^17 times 2^31
        if (work > brief_work) return false;
    }
    return true;
}

}  // namespace

// What a spec needs of what Python says about a launch: see native_launch.py.
std::unique_ptr<Spec> spec_from(PyObject *said) {
    auto spec = std::make_unique<Spec>();
    PyObject *moves = nullptr, *caches = nullptr, *table = nullptr, *key = nullptr;
    PyObject *kernel = nullptr, *device = nullptr, *launcher = nullptr, *name = nullptr;
    unsigned long long run = 0, program = 0, function = 0;
    Py_ssize_t bytes = 0;
    long long work = 0;
    int on_cpu = 0, cooperative = 0, dependent = 0, device_id = -1;
    unsigned threads = 0, shared = 0, cluster = 1;
    if (!PyArg_ParseTuple(said, "OOO!OOO!nUpOKKKIIIppiL", &kernel, &caches, &PyDict_Type, &table,
                          &key, &device, &PyTuple_Type, &moves, &bytes, &name, &on_cpu, &launcher,
                          &run, &program, &function, &threads, &shared, &cluster, &cooperative,
                          &dependent, &device_id, &work)) {
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
    spec->work = work;
    return spec;
}

int run_on_cpu(const State &state, const Spec &spec, const int32_t grid[3], char *block,
               int *outcome) {
    const long allowed = allowed_threads(state);
    if (allowed == -1 && PyErr_Occurred()) return -1;
    PackedHead head{spec.function, {grid[0], grid[1], grid[2]}, static_cast<int32_t>(allowed), 0};
    std::memcpy(block, &head, sizeof head);
    if (is_brief(spec, grid)) {
        *outcome = spec.run_packed(spec.program, block, nullptr);
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    *outcome = spec.run_packed(spec.program, block, nullptr);
    Py_END_ALLOW_THREADS
    return 0;
}

void raise_from_cpu(const Spec &spec, int outcome, const int32_t grid[3], PyObject *values) {
    Ref error = Ref::steal(PyObject_CallMethod(spec.launcher.get(), "error", "i(iii)O", outcome,
                                               grid[0], grid[1], grid[2], values));
    if (error) PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.get())), error.get());
}

int run_on_cuda(const State &state, const Spec &spec, const int32_t grid[3], void *stream,
                char *block) {
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return 0;
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
    if (result == 0) return 0;
    raise_from_cuda(state, spec, result, grid);
    return -1;
}

}  // namespace tzero
