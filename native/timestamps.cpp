// `Timestamps`, the times of calls that native code made while a record was open.

#include "timestamps.h"

#include <array>
#include <cstddef>
#include <memory>
#include <new>
#include <utility>

namespace tzero {

namespace {

struct Taken {
    PyObject *kernel;  // its name, owned
    unsigned long thread;
    uint64_t start, read, found, end;
};

constexpr size_t in_chunk = 4096;
constexpr size_t most_taken = size_t{1} << 20;  // 48 MB; more calls are counted only

using Chunk = std::array<Taken, in_chunk>;

struct Buffer {
    std::unique_ptr<Chunk> chunks[most_taken / in_chunk];  // they never move, as an array would
    size_t count = 0;

    Buffer() = default;
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    ~Buffer() {
        for (size_t k = 0; k < count; ++k) Py_DECREF(at(k).kernel);
    }

    const Taken &at(size_t k) const { return (*chunks[k / in_chunk])[k % in_chunk]; }

    // False if there is no room.
    bool add(const Taken &taken) {
        if (count == most_taken) return false;
        std::unique_ptr<Chunk> &chunk = chunks[count / in_chunk];
        // Not initialised, so that its pages are touched when they are filled.
        if (chunk == nullptr) chunk.reset(new (std::nothrow) Chunk);
        if (chunk == nullptr) return false;
        (*chunk)[count++ % in_chunk] = taken;
        Py_INCREF(taken.kernel);
        return true;
    }
};

struct Timestamps {
    PyObject_HEAD
    Buffer *buffer;  // null until there is something in it
    unsigned long long dropped;
};

PyObject *span(const char *stage, const Taken &taken, uint64_t start, uint64_t end) {
    using Number = unsigned long long;
    return Py_BuildValue("(sOKKk)", stage, taken.kernel, Number{start}, Number{end}, taken.thread);
}

// take(): all spans since the last time, each (stage, kernel, start, end, thread).
PyObject *timestamps_take(PyObject *object, PyObject *) {
    // Taken out first: creating objects may run other code, which makes calls.
    const std::unique_ptr<Buffer> buffer(
        std::exchange(reinterpret_cast<Timestamps *>(object)->buffer, nullptr));
    Ref made = Ref::steal(PyList_New(0));
    if (!made || buffer == nullptr) return made.release();
    for (size_t k = 0; k < buffer->count; ++k) {
        const Taken &taken = buffer->at(k);
        Ref spans[] = {Ref::steal(span("key", taken, taken.start, taken.read)),
                       Ref::steal(span("bind", taken, taken.read, taken.found)),
                       Ref::steal(span("run", taken, taken.found, taken.end)),
                       Ref::steal(span("call", taken, taken.start, taken.end))};
        for (const Ref &each : spans) {
            if (!each || PyList_Append(made.get(), each.get()) < 0) return nullptr;
        }
    }
    return made.release();
}

void timestamps_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    delete std::exchange(reinterpret_cast<Timestamps *>(object)->buffer, nullptr);
    type->tp_free(object);
    Py_DECREF(type);
}

PyMethodDef timestamps_methods[] = {
    {"take", timestamps_take, METH_NOARGS,
     PyDoc_STR("take($self, /)\n--\n\n"
               "The spans since the last time: stage, kernel, start, end and thread of each.")},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef timestamps_members[] = {
    {"dropped", T_ULONGLONG, offsetof(Timestamps, dropped), READONLY,
     PyDoc_STR("How many calls found no room.")},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot timestamps_slots[] = {
    {Py_tp_doc, const_cast<char *>("When the stages of native calls began and ended.")},
    {Py_tp_dealloc, reinterpret_cast<void *>(timestamps_dealloc)},
    {Py_tp_methods, timestamps_methods},
    {Py_tp_members, timestamps_members},
    {0, nullptr},
};

PyType_Spec timestamps_spec = {
    "tzero._native.Timestamps", sizeof(Timestamps),
    0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    timestamps_slots,
};

}  // namespace

void Times::add(PyObject *kernel) {
    const uint64_t end = now();
    auto *into = reinterpret_cast<Timestamps *>(into_.get());
    if (into->buffer == nullptr) into->buffer = new (std::nothrow) Buffer();
    const Taken taken = {kernel, PyThread_get_thread_ident(), start_, read_, found_, end};
    if (into->buffer == nullptr || !into->buffer->add(taken)) ++into->dropped;
}

int use_record(State &state, PyObject *record) {
    if (record == state.record.get()) return 0;
    Ref timestamps;
    if (record != Py_None) {
        timestamps = Ref::steal(PyObject_GetAttr(record, state.names.timestamps.get()));
        if (!timestamps) return -1;
        auto *type = reinterpret_cast<PyTypeObject *>(state.timestamps_type.get());
        if (Py_TYPE(timestamps.get()) != type) {
            timestamps = Ref::steal(type->tp_alloc(type, 0));
            if (!timestamps ||
                PyObject_SetAttr(record, state.names.timestamps.get(), timestamps.get()) < 0) {
                return -1;
            }
        }
    }
    state.timestamps = std::move(timestamps);
    state.record = Ref::borrow(record);
    return 0;
}

int add_timestamps(PyObject *module, State *state) {
    state->timestamps_type = Ref::steal(PyType_FromModuleAndSpec(module, &timestamps_spec, nullptr));
    if (!state->timestamps_type) return -1;
    return PyModule_AddObjectRef(module, "Timestamps", state->timestamps_type.get());
}

}  // namespace tzero
