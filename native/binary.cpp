#include "binary.h"

#include <algorithm>
#include <cstring>

#include "fields.h"

namespace tzero {

namespace {

// tz_packed of the CPU's pool.h: the head of a block.
struct PackedHead {
    const void *kernel;
    int32_t grid[3];
    int32_t threads;
    int64_t unused;
};
static_assert(sizeof(PackedHead) == head_bytes, "the layout of tz_packed in pool.h");

// How many threads torch allows; -1 with the Python error set.
long allowed_threads(const State &state) {
    const int known = state.torch.ready ? state.torch.threads() : -1;
    if (known > 0) return known;
    Ref threads = Ref::steal(PyObject_CallNoArgs(state.get_num_threads.get()));
    return threads ? PyLong_AsLong(threads.get()) : -1;
}

// The most element operations, of 0.05 to 1 ns each, in a launch that keeps the GIL: it ends long
// before another thread's request for the GIL times out. The same as WORK_PER_THREAD of pool.c.
constexpr int64_t brief_work = 131072;

// ---- a BinaryDescription of launches/native.py --------------------------------------------------

Move read_move(const Fields &fields, size_t bytes) {
    const auto type = static_cast<Type>(fields.index("type", static_cast<size_t>(Type::count)));
    const size_t room = type == Type::tensor_map ? cuda::map_bytes : parameter_bytes;
    if (bytes < room) fields.wrong("offset", "in a block with room for this type");
    // `put_one` may write as many bytes as the widest type has.
    return {fields.index("argument", most_parameters), type,
            fields.index("offset", bytes - room + 1)};
}

void read_cpu(const Fields &fields, Spec *spec) {
    spec->on_cpu = true;
    spec->run_packed = reinterpret_cast<decltype(spec->run_packed)>(fields.address("run_packed"));
    spec->program = reinterpret_cast<const void *>(fields.address("program"));
    spec->work = fields.integer("work", 0, INT64_MAX);
}

// A MapDescription, after the moves were read.
cuda::TensorMap read_map(const Fields &fields, const Spec &spec) {
    const size_t number = fields.index("move", spec.moves.size());
    const Move &move = spec.moves[number];
    if (move.type != Type::tensor_map || move.offset % cuda::map_alignment != 0) {
        fields.wrong("move", "the number of an aligned tensor map");
    }
    auto unsigned_number = [&](const char *name, int64_t most) {
        return static_cast<uint32_t>(fields.integer(name, 0, most));
    };
    cuda::TensorMap map{move.index,
                        move.offset,
                        static_cast<uint32_t>(fields.integer("rank", 1, cuda::most_map_rank)),
                        unsigned_number("swizzle", INT32_MAX),
                        unsigned_number("element_bytes", INT32_MAX),
                        unsigned_number("dtype", INT32_MAX),
                        {}};
    size_t at = map.rank;
    fields.for_each("box", [&](PyObject *each) {
        const int64_t size = integer_from(each);
        if (at == 0 || size < 0 || size > UINT32_MAX) fields.wrong("box", "a size for each dimension");
        map.box[--at] = static_cast<uint32_t>(size);
    });
    if (at != 0) fields.wrong("box", "a size for each dimension");
    return map;
}

void read_cuda(const Fields &fields, Spec *spec) {
    auto number = [&](const char *name) {
        return static_cast<uint32_t>(fields.integer(name, 0, UINT32_MAX));
    };
    spec->binary = {const_cast<void *>(spec->function), number("threads"),
                    number("shared"),                   number("cluster"),
                    fields.flag("cooperative"),         fields.flag("dependent")};
    spec->device_id = static_cast<int>(fields.integer("device", 0, INT32_MAX));
    fields.for_each("maps", [&](PyObject *each) {
        if (spec->maps.size() >= cuda::most_maps) fields.wrong("maps", "a tuple of fewer items");
        spec->maps.push_back(read_map(Fields(each), *spec));
    });
    size_t count = 0;
    fields.for_each("scratch", [&](PyObject *each) {
        if (count >= spec->scratch.size()) fields.wrong("scratch", "a tuple of fewer items");
        const Fields need(each);
        spec->scratch[count++] = {need.integer("bytes", 0, INT64_MAX),
                                  need.integer("alignment", 0, INT64_MAX), need.any("allocators")};
    });
    spec->is_plain = spec->maps.empty() && count == 0;
}

std::unique_ptr<Spec> read_spec(const Fields &fields) {
    auto spec = std::make_unique<Spec>();
    spec->kernel = fields.any("kernel");
    spec->caches = fields.any("caches");
    spec->table = fields.dict("table");
    spec->key = fields.any("key");
    spec->device = fields.any("device");
    spec->name = fields.text("name");
    spec->launcher = fields.any("launcher");
    spec->function = reinterpret_cast<const void *>(fields.address("function"));
    spec->bytes = static_cast<size_t>(
        fields.integer("block_bytes", parameter_bytes, static_cast<int64_t>(stack_bytes)));
    fields.for_each("moves", [&](PyObject *each) {
        if (spec->moves.size() >= most_parameters) fields.wrong("moves", "a tuple of fewer items");
        spec->moves.push_back(read_move(Fields(each), spec->bytes));
    });
    if (const Ref cpu = fields.optional("cpu")) {
        read_cpu(Fields(cpu.get()), spec.get());
    } else {
        read_cuda(Fields(fields.any("cuda").get()), spec.get());
    }
    const auto maps = std::count_if(spec->moves.begin(), spec->moves.end(), [](const Move &move) {
        return move.type == Type::tensor_map;
    });
    if (static_cast<size_t>(maps) != spec->maps.size()) {
        fields.wrong("moves", "moves with a tensor map for each in maps");
    }
    return spec;
}

}  // namespace

std::unique_ptr<Spec> spec_from(PyObject *description) {
    try {
        return read_spec(Fields(description));
    } catch (const Malformed &) {
        return nullptr;
    }
}

bool is_brief(const Spec &spec, const int32_t grid[3]) {
    if (spec.work <= 0 || spec.work > brief_work) return false;
    int64_t work = spec.work;
    for (int k = 0; k < 3; ++k) {
        work *= grid[k];  // at most 2^17 times 2^31
        if (work > brief_work) return false;
    }
    return true;
}

int run_on_cpu(const State &state, const Spec &spec, const int32_t grid[3], char *block, bool brief,
               int *outcome) {
    const long allowed = brief ? 1 : allowed_threads(state);
    if (allowed == -1 && PyErr_Occurred()) return -1;
    PackedHead head{spec.function, {grid[0], grid[1], grid[2]}, static_cast<int32_t>(allowed), 0};
    std::memcpy(block, &head, sizeof head);
    if (brief) {
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

void raise_from_cuda(const State &state, const Spec *spec, cuda::Result result,
                     const int32_t grid[3]) {
    if (spec == nullptr) {
        PyErr_Format(PyExc_RuntimeError, "CUDA could not fill or copy a tensor: %s (%s)",
                     state.cuda.name_of(result), state.cuda.text_of(result));
        return;
    }
    Ref none = Ref::steal(PyTuple_New(0));
    Ref facts = Ref::steal(Py_BuildValue(
        "{s:O,s:s,s:s,s:(iii),s:I,s:I}", "kernel", spec->name.get(), "name",
        state.cuda.name_of(result), "text", state.cuda.text_of(result), "grid", grid[0], grid[1],
        grid[2], "block", spec->binary.threads, "shared", spec->binary.shared));
    if (!none || !facts) return;
    Ref error = Ref::steal(PyObject_Call(state.launch_failed.get(), none.get(), facts.get()));
    if (error) PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.get())), error.get());
}

int run_on_cuda(const State &state, const Spec &spec, const int32_t grid[3], void *stream,
                char *block, const Scratch &scratch) {
    if (grid[0] == 0 || grid[1] == 0 || grid[2] == 0) return 0;
    // Triton's kernels take two addresses of scratch memory after the arguments.
    void *params[most_parameters + 2];
    size_t count = 0;
    for (const Move &move : spec.moves) params[count++] = block + move.offset;
    for (const uint64_t &address : scratch.address) params[count++] = const_cast<uint64_t *>(&address);
    cuda::Result result = 0;
    Py_BEGIN_ALLOW_THREADS
    result = state.cuda.launch(spec.binary, grid, stream, params);
    Py_END_ALLOW_THREADS
    if (result == 0) return 0;
    raise_from_cuda(state, &spec, result, grid);
    return -1;
}

}  // namespace tzero
