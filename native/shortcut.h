// A launch whose arguments are of the same kinds as in the last one, which most are.
//
// Its key is compared while it is read, and each argument is written into the block of parameters at
// once. What differs, or is not known here, goes the long way (launch.cpp), which reads everything
// again.
#pragma once

#include "python.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "arguments.h"

namespace tzero {

enum class Type : int;
struct Facts;
struct Spec;

// One argument or option: its words of the key, and where its value goes.
struct Slot {
    Kind kind;
    bool is_option, passes, specializes, aligns;
    Type type;
    Py_ssize_t place;  // among CPython's arguments, or -1 for the default
    size_t parameter;
    size_t offset;
    uint64_t bits;
    Ref same;  // a constant that has this word
};

struct Shortcut {
    uint64_t first;  // the word of the key for the environment and the form
    std::vector<Slot> slots;
};

// The shortcut to a binary for a launch that was read; null if its arguments hold others, or have
// constants that only Python compares.
std::unique_ptr<Shortcut> shortcut_to(const Spec &spec, const Form &form,
                                      const std::vector<Parameter> &parameters,
                                      PyObject *const *arguments, const Facts &facts);

// Reads the arguments of a launch into a block of parameters. False if one is of another kind, or
// does not fit; no Python code runs.
bool read_alike(const Tensors &tensors, const Shortcut &shortcut,
                const std::vector<Parameter> &parameters, PyObject *const *arguments, char *block);

}  // namespace tzero
