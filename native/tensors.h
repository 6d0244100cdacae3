// What a plan reads of torch: everything of a tensor except its contents, and the modes of a
// thread. A guard on a new tensor fact goes into `read_tensor_words`.
//
// All of it comes from symbols that torch's libraries export, most of them of its C shim for
// compiled programs. src/tzero/adapters/torch_layout.py compares each with torch's answer in Python
// before it is used; if one is missing or differs, plans are replayed in Python.
#pragma once

#include "python.h"

#include <cstdint>
#include <vector>

#include "arguments.h"

namespace tzero {

// The modes of torch in this thread, as words of a key: which dispatch keys are included and
// excluded beyond the default (by inference mode, transforms, dispatch modes; usually none), grad
// mode, and deterministic mode, which is global.
struct Modes {
    uint64_t included;
    uint64_t excluded;
    uint64_t grad;
    uint64_t deterministic;
};

// Arguments and results of torch's C++ functions, with the layout and the calling convention of
// at::Tensor, c10::ArrayRef<c10::SymInt> and std::optional<c10::SymInt>. Only a class with a
// destructor of its own is passed and returned by address.
struct NewTensor {
    void *impl;
    ~NewTensor() {}  // NOLINT(modernize-use-equals-default)
};

struct Integers {
    const int64_t *data;
    size_t count;
};

struct MaybeInteger {
    int64_t value;
    bool is_given;
    MaybeInteger(int64_t number, bool given) : value(number), is_given(given) {}
    MaybeInteger(const MaybeInteger &) = default;
    ~MaybeInteger() {}  // NOLINT(modernize-use-equals-default)
};

// What `view_of` calls; null where this torch does not have it.
struct ViewFunctions {
    NewTensor (*as_strided)(const void *handle, Integers sizes, Integers strides,
                            MaybeInteger offset) = nullptr;
    // The same without the dispatch keys of autograd: `keys` are the first to be called.
    NewTensor (*below_autograd)(uint64_t keys, const void *handle, Integers sizes,
                                Integers strides, MaybeInteger offset) = nullptr;
    PyObject *(*wrap)(NewTensor *taken) = nullptr;  // into a Python object
    int (*offset)(const void *handle, int64_t *out) = nullptr;

    void open();
    bool are_known() const {
        return as_strided != nullptr && below_autograd != nullptr && wrap != nullptr &&
               offset != nullptr;
    }
};

class Torch {
  public:
    // Finds the functions in the libraries that torch has loaded: null, or the name of a missing
    // one.
    const char *open();

    // The modes of this thread; only after `open` has found everything.
    Modes modes() const;

    bool is_deterministic() const { return deterministic_(context_); }

    // The number of torch function modes in this thread.
    int64_t function_modes() const { return function_modes_(); }

    // The number of threads torch may use; negative if only Python can tell.
    int threads() const { return threads_ == nullptr ? -1 : threads_(); }

    int (*dim)(const void *handle, int64_t *out) = nullptr;
    int (*sizes)(const void *handle, const int64_t **out) = nullptr;
    int (*strides)(const void *handle, const int64_t **out) = nullptr;
    bool (*requires_grad)(const void *impl) = nullptr;
    int64_t (*version)(const void *handle) = nullptr;
    void (*bump_version)(const void *handle) = nullptr;
    ViewFunctions views;

    // The tangent of a tensor in forward-mode differentiation, and what it is where there is none.
    // Null where this torch does not have it.
    const void *const *(*tangent)(const void *impl, uint64_t level, const void *handle) = nullptr;
    const void *no_tangent = nullptr;

    // Set by configure_plans().
    bool ready = false;
    Py_ssize_t key_set = 0;        // offset of the dispatch keys in a tensor's C++ object
    uint64_t plain_keys = 0;       // the dispatch keys of tensors that native code reads
    uint64_t plain_included = 0;   // the dispatch keys that may be included, and excluded, in a
    uint64_t plain_excluded = 0;   // thread whose calls are replayed natively
    Py_ssize_t storage = -1;       // offset of the storage in a tensor's C++ object, and of its
    Py_ssize_t gradients = -1;     // autograd metadata; negative if unknown
    bool makes_views = false;      // `view_of` makes the tensors that torch makes
    uint64_t view_key = 0;         // the dispatch key that tracks views
    uint64_t keys_of_views = 0;    // that one and those below it

  private:
    int64_t (*function_modes_)() = nullptr;
    bool (*grad_)() = nullptr;
    const void *context_ = nullptr;  // torch's global context
    bool (*deterministic_)(const void *context) = nullptr;
    int (*threads_)() = nullptr;
};

constexpr size_t most_dimensions = 32;
constexpr size_t most_tensor_words = 2 + 2 * most_dimensions;

// The number of dimensions in the first word of a tensor's key.
inline size_t dimensions_in(uint64_t word) { return word >> 24 & 0xff; }

// Reads the key of a tensor of exactly torch.Tensor or torch.nn.Parameter. The first word has its
// type, requires_grad, address modulo 16, dtype, device index and number of dimensions; the upper
// 32 bits are free. The other words are its dispatch keys, sizes and strides. `not_ours` for other
// than plain tensors, such as sparse or wrapped ones.
Reading read_tensor_words(const Tensors &tensors, const Torch &torch, PyObject *value,
                          uint64_t *words, size_t *count, const void **address);

// The tensor's current address; false if torch has none.
bool read_address(const Tensors &tensors, PyObject *value, const void **address);

// Who refers to a tensor in C++: the words with torch's reference counts of the tensor and of its
// storage, the storage, and the autograd metadata (usually null). They are only compared.
struct Uses {
    uint64_t tensor = 0, storage = 0;
    const void *memory = nullptr, *gradients = nullptr;

    bool operator==(const Uses &other) const {
        return tensor == other.tensor && storage == other.storage && memory == other.memory &&
               gradients == other.gradients;
    }
};

Uses read_uses(const Tensors &tensors, const Torch &torch, PyObject *value);

// The version counter of a tensor; inference tensors have none.
int64_t read_version(const Tensors &tensors, const Torch &torch, PyObject *value);

// Increments the version counter; inference tensors have none.
void bump_version(const Tensors &tensors, const Torch &torch, PyObject *value);

// Whether torch counts changes of a tensor in inference mode too: not those of inference tensors.
bool is_tracked(const Tensors &tensors, const Torch &torch, PyObject *value);

// Whether functions of torch also compute the tangent of a tensor; also true if that is unknown.
bool has_tangent(const Tensors &tensors, const Torch &torch, PyObject *value);

// A view of a tensor that starts `offset` elements after it: what torch.as_strided returns, without
// parsing Python arguments. `sizes` is followed by as many strides. Null with the Python error set,
// or without one if torch refuses.
PyObject *view_of(const Tensors &tensors, const Torch &torch, PyObject *base,
                  const int64_t *sizes, size_t dimensions, int64_t offset);

// The geometry of a tensor that a step makes.
struct Geometry {
    int32_t dtype = 0;
    int32_t device_type = 0;
    int32_t device_index = 0;
    std::vector<int64_t> sizes_and_strides;  // the sizes, then as many strides

    // Whether a plain tensor has this geometry.
    bool fits(const Tensors &tensors, const Torch &torch, PyObject *value) const {
        return fits(tensors, torch, value, sizes_and_strides.data());
    }

    // Whether it has other sizes and strides, as many; or just any, if these are null.
    bool fits(const Tensors &tensors, const Torch &torch, PyObject *value,
              const int64_t *now) const;
};

// The attributes that someone has put on a tensor; null if there are none. Borrowed.
inline PyObject *attributes_of(PyObject *tensor) {
    PyObject **dict = _PyObject_GetDictPtr(tensor);
    return dict == nullptr || *dict == nullptr || PyDict_GET_SIZE(*dict) == 0 ? nullptr : *dict;
}

}  // namespace tzero
