// What one launch is given, as native code reads it, and the key that selects the binary.
#pragma once

#include "python.h"

#include "kernel.h"

namespace tzero {

// The arguments and the key of a launch, in arrays on the caller's stack. An argument that holds
// others counts as these.
struct Facts {
    Argument *arguments;
    uint64_t *words;
    PyObject **constants;  // borrowed from the call
    size_t count = 0;      // of arguments
    size_t word_count = 0;
    size_t constant_count = 0;
    bool is_nested = false;   // an argument or option holds others, or is a tuple that holds none
    bool runs_python = false;  // hashing and comparing the constants may

    void note(Kind kind, uint64_t bits) {
        words[word_count++] = static_cast<uint64_t>(kind);
        words[word_count++] = bits;
    }
    void note(const Argument &argument) {
        note(argument.kind, argument.bits);
        if (argument.kind != Kind::constant_object) return;
        constants[constant_count++] = argument.object;
        PyObject *object = argument.object;
        runs_python |= !PyUnicode_CheckExact(object) && !PyLong_CheckExact(object) &&
                       !PyType_CheckExact(object);
    }

    View view() const { return {words, word_count, constants, constant_count}; }
};

// The value of a parameter in a call.
inline PyObject *value_of(const Call &call, const Form &form, size_t k) {
    const Py_ssize_t place = form.place[k];
    return place < 0 ? call.kernel->parameters[k].fallback.get() : call.arguments[place];
}

// -- nested.cpp ---------------------------------------------------------------------------------

// Room for the facts of a launch with nested arguments.
struct NestedFacts {
    static constexpr size_t most_words = 4 * most_parameters;

    Argument arguments[most_parameters];
    uint64_t words[most_words];
    PyObject *constants[most_parameters];
    Facts facts{arguments, words, constants};
};

// Reads all arguments and options, also those that hold others: tuples, tensor descriptors,
// constants in the place of a number. `first` is the first word of the key. As `read_argument`.
Reading read_nested(const Call &call, const Form &form, uint64_t first, NestedFacts *out);

// Reads the arguments again, after Python code ran: `not_ours` if the key is another.
Reading read_nested_again(const Call &call, const Form &form, Facts *facts);

}  // namespace tzero
