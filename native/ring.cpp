#include "ring.h"

#include <cstddef>
#include <cstring>
#include <new>
#include <vector>

#include "guards.h"
#include "tensors.h"

namespace tzero {

namespace {

constexpr size_t most_kept = 4;

// A tensor, and what must be unchanged for it to pass for a new one.
struct Kept {
    Ref tensor;
    std::vector<uint64_t> words;
    const void *address = nullptr;
    Uses uses;
    void *stream = nullptr;
    bool has_version = true;  // inference tensors have none
};

struct Ring {
    PyObject_HEAD
    std::vector<Kept> *kept;
    size_t next;  // where the search begins: after the tensor that was reused last
    unsigned long long made, reused;
    PyObject *weak;
};

Ring *ring_of(PyObject *object) { return reinterpret_cast<Ring *>(object); }

bool has_weak_references(PyObject *object) {
    const Py_ssize_t offset = Py_TYPE(object)->tp_weaklistoffset;
    if (offset == 0) return false;
    const void *first = nullptr;
    std::memcpy(&first, reinterpret_cast<char *>(object) + offset, sizeof(void *));
    return first != nullptr;
}

bool is_free(const State &state, const Kept &kept, void *stream, int64_t changes) {
    PyObject *tensor = kept.tensor.get();
    if ((Py_REFCNT(tensor) != 1 && !off(Guard::pool_names)) ||
        Py_TYPE(tensor) != state.tensors.tensor || kept.stream != stream ||
        (!off(Guard::pool_uses) &&
         !(read_uses(state.tensors, state.torch, tensor) == kept.uses))) {
        return false;
    }
    uint64_t words[most_tensor_words];
    size_t count = 0;
    const void *address = nullptr;
    if (read_tensor_words(state.tensors, state.torch, tensor, words, &count, &address) !=
            Reading::done ||
        (!off(Guard::pool_words) &&
         (address != kept.address || count != kept.words.size() ||
          std::memcmp(words, kept.words.data(), count * sizeof words[0]) != 0)) ||
        (has_weak_references(tensor) && !off(Guard::pool_weak)) ||
        (attributes_of(tensor) != nullptr && !off(Guard::pool_attributes))) {
        return false;
    }
    // The version is 0 in a new tensor, and `changes` after the plan's own changes in place, which
    // a replay does not count a second time.
    if (!kept.has_version || off(Guard::pool_version)) return true;
    const int64_t version = read_version(state.tensors, state.torch, tensor);
    return version == 0 || version == changes;
}

// Whether a tensor has these sizes and strides; as many as it has, since an allocation always makes
// tensors of as many dimensions.
bool has_geometry(const Kept &kept, const int64_t *wanted) {
    constexpr size_t first = 2;  // the sizes come after two other words
    const size_t count = kept.words.size() - first;
    return off(Guard::pool_geometry) || count == 0 ||
           std::memcmp(kept.words.data() + first, wanted, count * sizeof wanted[0]) == 0;
}

PyObject *ring_new(PyTypeObject *type, PyObject *, PyObject *) {
    PyObject *object = type->tp_alloc(type, 0);
    if (object == nullptr) return nullptr;
    ring_of(object)->kept = new (std::nothrow) std::vector<Kept>();
    if (ring_of(object)->kept == nullptr) {
        Py_DECREF(object);
        return PyErr_NoMemory();
    }
    return object;
}

int ring_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    if (ring_of(object)->kept == nullptr) return 0;
    for (const Kept &each : *ring_of(object)->kept) Py_VISIT(each.tensor.get());
    return 0;
}

int ring_clear(PyObject *object) {
    if (ring_of(object)->kept == nullptr) return 0;
    std::vector<Kept> gone;
    gone.swap(*ring_of(object)->kept);
    return 0;
}

void ring_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (ring_of(object)->weak != nullptr) PyObject_ClearWeakRefs(object);
    ring_clear(object);
    delete std::exchange(ring_of(object)->kept, nullptr);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject *ring_let_go(PyObject *object, PyObject *) {
    ring_clear(object);
    Py_RETURN_NONE;
}

PyObject *ring_held(PyObject *object, PyObject *) {
    Ref made = Ref::steal(PyList_New(0));
    for (size_t k = 0; made && k < ring_of(object)->kept->size(); ++k) {
        if (PyList_Append(made.get(), (*ring_of(object)->kept)[k].tensor.get()) < 0) return nullptr;
    }
    return made.release();
}

PyMethodDef ring_methods[] = {
    {"clear", ring_let_go, METH_NOARGS, PyDoc_STR("clear($self, /)\n--\n\nRelease all tensors.")},
    {"held", ring_held, METH_NOARGS, PyDoc_STR("held($self, /)\n--\n\nThe tensors of the ring.")},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef ring_members[] = {
    {"made", T_ULONGLONG, offsetof(Ring, made), READONLY, nullptr},
    {"reused", T_ULONGLONG, offsetof(Ring, reused), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Ring, weak), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot ring_slots[] = {
    {Py_tp_doc, const_cast<char *>("The tensors of one allocation in a plan, which are reused.")},
    {Py_tp_new, reinterpret_cast<void *>(ring_new)},
    {Py_tp_traverse, reinterpret_cast<void *>(ring_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(ring_clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(ring_dealloc)},
    {Py_tp_methods, ring_methods},
    {Py_tp_members, ring_members},
    {0, nullptr},
};

PyType_Spec ring_spec = {
    "tzero._native.Ring",
    sizeof(Ring),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    ring_slots,
};

}  // namespace

int add_ring(PyObject *module, State *state) {
    state->ring = Ref::steal(PyType_FromModuleAndSpec(module, &ring_spec, nullptr));
    if (!state->ring) return -1;
    return PyModule_AddObjectRef(module, "Ring", state->ring.get());
}

PyObject *take_from_ring(const State &state, PyObject *object, void *stream, int64_t changes,
                         const int64_t *wanted, const void **address) {
    Ring *ring = ring_of(object);
    const size_t count = ring->kept->size();
    for (size_t k = 0; k < count; ++k) {
        const size_t at = (ring->next + k) % count;
        const Kept &kept = (*ring->kept)[at];
        if (wanted != nullptr && !has_geometry(kept, wanted)) continue;
        if (!is_free(state, kept, stream, changes)) continue;
        ring->next = at + 1;
        ++ring->reused;
        *address = kept.address;
        Py_INCREF(kept.tensor.get());
        return kept.tensor.get();
    }
    return nullptr;
}

int add_to_ring(const State &state, PyObject *object, PyObject *tensor, void *stream) {
    Ring *ring = ring_of(object);
    ++ring->made;
    Kept made;
    uint64_t words[most_tensor_words];
    size_t count = 0;
    if (read_tensor_words(state.tensors, state.torch, tensor, words, &count, &made.address) !=
        Reading::done) {
        return 0;
    }
    Ref version = Ref::steal(PyObject_GetAttr(tensor, state.names.version.get()));
    if (!version) {
        if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return -1;
        PyErr_Clear();
        made.has_version = false;
    }
    made.words.assign(words, words + count);
    made.uses = read_uses(state.tensors, state.torch, tensor);
    made.stream = stream;
    made.tensor = Ref::borrow(tensor);
    if (ring->kept->size() < most_kept) {
        ring->kept->push_back(std::move(made));
        return 0;
    }
    // All are held, or changed: replace the one that was handed out first.
    const size_t at = ring->next % most_kept;
    std::swap((*ring->kept)[at], made);
    ring->next = at + 1;
    return 0;
}

}  // namespace tzero
