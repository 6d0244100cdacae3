// The arguments of one call of a host function: their leaves, and the key of the call.
//
// Leaves are the arguments and, in order, the items of lists, tuples and dicts among them. Two
// calls with equal keys differ only in what a replay reads again: the addresses of tensors, and
// numbers that the host function only passes on.
#pragma once

#include "python.h"

#include <cstdint>
#include <vector>

#include "arguments.h"
#include "cuda.h"
#include "spec.h"
#include "tensors.h"

namespace tzero {

constexpr size_t most_leaves = 128;
constexpr size_t most_words = 1024;
static_assert(most_words <= UINT16_MAX, "word_of has 16 bits");

inline bool is_container(PyObject *value) {
    return PyList_CheckExact(value) || PyTuple_CheckExact(value) || PyDict_CheckExact(value);
}

struct Leaf {
    PyObject *object;
    Argument value;  // of a number or a tensor, for launches
};

// On the stack of a call; only the items below each count are initialized.
struct Leaves {
    Leaf leaf[most_leaves];
    uint16_t word_of[most_leaves];  // the first word of each leaf
    uint64_t words[most_words];
    PyObject *constants[most_leaves];  // compared as objects; borrowed from the call
    size_t count = 0, word_count = 0, constant_count = 0;
    size_t taken = 0;
    PyObject *took[most_leaves];  // owned: items of lists and dicts, which may change
    size_t container_count = 0;
    bool has_unread = false;  // whether the key has only the type of some object
    PyObject *containers[most_leaves];  // lists, tuples and dicts; nested ones are also in `took`

    Leaves() = default;
    Leaves(const Leaves &) = delete;
    Leaves &operator=(const Leaves &) = delete;
    ~Leaves() {
        for (size_t k = 0; k < taken; ++k) Py_DECREF(took[k]);
    }

    View view() const { return {words, word_count, constants, constant_count}; }
};

// The types of arguments, besides tensors and Python's own, that are read here. The module keeps
// them alive; null until they are known.
struct LeafTypes {
    PyTypeObject *dtype = nullptr, *layout = nullptr, *memory_format = nullptr, *device = nullptr,
                 *size = nullptr;
    PyTypeObject *constant = nullptr;  // ConstExpr
    PyObject *index = nullptr, *type = nullptr, *value = nullptr;  // names of attributes
};

class LeafReader {
  public:
    LeafReader(const Tensors &tensors, const Torch &torch, const LeafTypes &types,
               const cuda::Driver &cuda, PyObject *abstract, Leaves *out)
        : tensors_(tensors), torch_(torch), types_(types), cuda_(cuda), abstract_(abstract),
          out_(*out) {}

    // Starts the key with the modes of torch.
    bool start(const Modes &modes);

    // Reads one argument; false if only Python can. `by_value`: the key has the value of a number,
    // not only what Triton specializes on. `constant`: the parameter is annotated as one.
    bool read(PyObject *value, bool by_value, bool constant);

  private:
    bool item(PyObject *value, bool by_value, int depth);
    bool items(PyObject *value, int depth);
    bool pairs(PyObject *value, int depth);
    bool tensor(PyObject *value);
    bool number(PyObject *value, bool by_value);
    bool object(PyObject *value, uint64_t kind);
    bool other(PyObject *value);
    bool unread(PyObject *value);
    bool is_object(const PyTypeObject *type) const;
    bool complex(PyObject *value);
    bool size(PyObject *value);
    bool device(PyObject *value);
    bool constant(PyObject *value);
    bool wrapped(PyObject *value);
    bool container(PyObject *value, uint64_t tag, Py_ssize_t size);
    bool take(PyObject *value);
    bool words(uint64_t one, uint64_t other);
    Leaf *next(PyObject *value);

    const Tensors &tensors_;
    const Torch &torch_;
    const LeafTypes &types_;
    const cuda::Driver &cuda_;
    PyObject *const abstract_;  // ABCMeta, if objects count by identity; else null
    Leaves &out_;
};

}  // namespace tzero
