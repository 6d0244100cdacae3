// The arguments of one launch: what decides its binary (words), and their values.
//
// Two launches with equal words run the same binary. The words of an argument are at least as fine
// as Triton's own description of it; src/tzero/facts.py says in Python what is read here.
#pragma once

#include "python.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "dlpack.h"

namespace tzero {

// More arguments than this, options among them, are for the twin: everything about a call lies on
// the stack.
constexpr size_t most_arguments = 64;

// What is known of a parameter before any call.
struct Parameter {
    Ref name;
    Ref fallback;  // the default, or nothing
    bool constant = false;
    bool keyword_only = false;
    bool specialize = true;
    bool align = true;
};

enum class Kind : uint32_t {
    tensor, integer, boolean, floating, none,
    constant_integer, constant_boolean, constant_floating, constant_none, constant_object,
};

// One argument: `kind` and `bits` are its words. A constant that has no 64 bits of its own is
// compared as an object besides.
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

// Where the arguments of one way to write a call are: `place[k]` is the position of parameter k
// among the arguments as CPython hands them over, or -1 for its default. Options follow.
struct Form {
    Py_ssize_t positional;
    Ref names;  // of the keyword arguments: a tuple, or nothing
    std::vector<Py_ssize_t> place;
    std::vector<Py_ssize_t> options;
    Py_ssize_t grid = -1;  // in a call of run(): where its own arguments are
    Py_ssize_t warmup = -1;
};

// torch's functions for compiled programs, a C interface that it keeps stable; each takes a handle,
// and returns 0 when it worked.
struct TorchShim {
    int (*data)(const void *handle, void **out) = nullptr;
    int (*dtype)(const void *handle, int32_t *out) = nullptr;
    int (*device_type)(const void *handle, int32_t *out) = nullptr;
    int (*device_index)(const void *handle, int32_t *out) = nullptr;
    int (*numel)(const void *handle, int64_t *out) = nullptr;

    // Finds the functions in the library that torch has loaded; false if one is missing.
    bool open();
};

// What tensors are read with. Through the exchange API a tensor costs 70 ns, most of it spent on
// the way to the C++ object; through the shim 10. The shim wants a handle, which is the address of
// the C++ object in the Python object: where that is, Python finds out by comparing with what torch
// says (`handle` is the offset, or negative where it could not be found).
struct Tensors {
    PyTypeObject *tensor = nullptr;     // torch.Tensor, kept alive by the module
    PyTypeObject *parameter = nullptr;  // torch.nn.Parameter, likewise
    const dlpack::ExchangeApi *api = nullptr;
    TorchShim shim;
    Py_ssize_t handle = -1;
};

// Where a tensor is, in the words of an argument.
enum Place : uint32_t { on_cpu = 0, on_cuda = 1, elsewhere = 0xff };

inline uint32_t place_of(const Argument &argument) { return argument.bits >> 24 & 0xff; }
inline int device_of(const Argument &argument) {
    return static_cast<int>(argument.bits >> 8 & 0x7fff);
}

enum class Reading { done, not_ours, error };

// Reads an argument of a parameter. `not_ours`: of a type, or in a state, that this code does not
// know; whoever does answers for it, and no Python error is set. `error`: one is.
Reading read_argument(const Tensors &tensors, const Parameter &parameter, PyObject *value,
                      Argument *out);

// Reads a constant: a constexpr argument.
Reading read_constant(PyObject *value, Argument *out);

// Reads an option. Triton takes options by their text, in which equal values may differ: so this
// takes only such as do not.
Reading read_option(PyObject *value, Argument *out);

// What the names `grid` and `warmup` are in a call: parameters like others, as a host function may
// have; names that Triton's launch refuses; or arguments of run() besides the kernel's own.
enum class Reserved { nothing, refused, taken };

// How CPython's arguments map to the parameters; false if the call is one that Triton refuses.
bool make_form(const std::vector<Parameter> &parameters, Py_ssize_t positional, PyObject *names,
               Reserved reserved, Form *out);

// The ways in which one thing has been called.
class Forms {
  public:
    // The way of this call; null where it is one that Triton refuses, or one too many, for which
    // there is a reason.
    const Form *find(const std::vector<Parameter> &parameters, Py_ssize_t positional,
                     PyObject *names, Reserved reserved, size_t *number, const char **reason);

  private:
    std::vector<std::unique_ptr<Form>> forms_;  // only added to, so that they stay in place
};

}  // namespace tzero
