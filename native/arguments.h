// The arguments of one launch: their values, and the key that selects the binary.
//
// Two launches with equal keys run the same binary. A key is an array of 64-bit words; those of an
// argument tell apart at least what Triton's own description of it does. The counterpart in Python
// is src/tzero/arguments/launch_facts.py.
#pragma once

#include "python.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "dlpack.h"

namespace tzero {

// Launches with more arguments, options included, are made in Python: here all of a call lies on
// the stack.
constexpr size_t most_arguments = 64;    // of a call of torch in a plan
constexpr size_t most_parameters = 256;  // of a launch, with its options

// A parameter of a kernel or a host function.
struct Parameter {
    Ref name;
    Ref fallback;  // the default, or nothing
    bool constant = false;
    bool keyword_only = false;
    bool specialize = true;
    bool align = true;
};

// Reads a tuple of ParameterDescription, a class of src/tzero/launches/native.py: 0, or -1 with the
// Python error set.
int read_parameters(PyObject *descriptions, std::vector<Parameter> *out);

enum class Kind : uint32_t {
    tensor, integer, boolean, floating, none,
    constant_integer, constant_boolean, constant_floating, constant_none, constant_object,
    group, descriptor,  // in keys only: of what holds others, its number of items or its rank
    lookalike,          // likewise: the dtype of an object that Triton takes for a pointer
};

// One argument: `kind` and `bits` are its two words in the key. A constant that 64 bits cannot hold
// is also compared as an object.
struct Argument {
    Kind kind;
    uint64_t bits;
    union {
        int64_t integer;  // also booleans
        double floating;
        const void *address;
    };
    PyObject *object;  // borrowed from the call
    bool is_unsigned;  // the integer is above 2^63 - 1
};

// Where the arguments are in calls with the same number of positional arguments and the same
// keywords: `place[k]` is the position of parameter k among CPython's arguments, or -1 for its
// default; `options` are the positions of the launch options.
struct Form {
    Py_ssize_t positional;
    Ref names;  // of the keyword arguments: a tuple, or nothing
    std::vector<Py_ssize_t> place;
    std::vector<Py_ssize_t> options;
    Py_ssize_t grid = -1;  // the positions of run()'s own arguments
    Py_ssize_t warmup = -1;
};

// torch's stable C interface for compiled programs (AOTInductor). Each function takes a handle and
// returns 0 for success.
struct TorchShim {
    int (*data)(const void *handle, void **out) = nullptr;
    int (*dtype)(const void *handle, int32_t *out) = nullptr;
    int (*device_type)(const void *handle, int32_t *out) = nullptr;
    int (*device_index)(const void *handle, int32_t *out) = nullptr;
    int (*numel)(const void *handle, int64_t *out) = nullptr;

    // Finds the functions in the library that torch has loaded; false if one is missing.
    bool open();
};

// How tensors are read: through torch's C shim (10 ns a tensor) or the DLPack exchange API (70 ns).
// The shim takes a handle, the place in the Python object that holds the address of the C++ object.
// Python finds it by probing (adapters/torch_layout.py); `handle` is its offset, or negative if it
// was not found, and then DLPack is used. A tensor whose storage is null has no address: the shim
// returns one of opaque memory for a tensor of MKL-DNN, where torch raises in Python.
struct Tensors {
    PyTypeObject *tensor = nullptr;     // torch.Tensor, kept alive by the module
    PyTypeObject *parameter = nullptr;  // torch.nn.Parameter, likewise
    const dlpack::ExchangeApi *api = nullptr;
    TorchShim shim;
    Py_ssize_t handle = -1;
    Py_ssize_t storage = -1;  // of the storage in the C++ object; known if `handle` is
};

// Where a tensor is, as its key has it. The first two are torch's own numbers.
enum Place : uint32_t { on_cpu = 0, on_cuda = 1, elsewhere = 0xff };
constexpr const char *place_names[] = {"cpu", "cuda"};  // `torch.device.type` of the first two

inline uint32_t place_of(const Argument &argument) { return argument.bits >> 24 & 0xff; }
inline int device_of(const Argument &argument) {
    return static_cast<int>(argument.bits >> 8 & 0x7fff);
}

enum class Reading { done, not_ours, error };

// Reads an argument of a parameter. `not_ours`: its type or state is not handled here, so that
// Python must make the call; no Python error is set. `error`: the Python error is set.
Reading read_argument(const Tensors &tensors, const Parameter &parameter, PyObject *value,
                      Argument *out);

// Reads a constant: a constexpr argument.
Reading read_constant(PyObject *value, Argument *out);

// Reads an option. Triton compares options by their text, in which equal values may differ; so this
// takes only types where they do not.
Reading read_option(PyObject *value, Argument *out);

// What the keywords `grid` and `warmup` are in a call: ordinary parameters, for a host function;
// errors, for `k[grid](...)`; or run()'s own arguments.
enum class Reserved { nothing, refused, taken };

// Maps CPython's arguments to the parameters; false for a call that Triton rejects.
bool make_form(const std::vector<Parameter> &parameters, Py_ssize_t positional, PyObject *names,
               Reserved reserved, Form *out);

// The forms in which one kernel has been called.
class Forms {
  public:
    // The form of this call; null if Triton rejects it, or if there are too many, with a reason.
    const Form *find(const std::vector<Parameter> &parameters, Py_ssize_t positional,
                     PyObject *names, Reserved reserved, size_t *number, const char **reason);

  private:
    std::vector<std::unique_ptr<Form>> forms_;  // append-only, so that pointers stay valid
};

}  // namespace tzero
