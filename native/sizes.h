// Integers of a call as formulas of the sizes and numbers among its arguments.
//
// src/tzero/symbolic/formulas.py has the same nouns and explains them. A formula means what Python's
// integers mean; where 64 bits cannot hold that, or Python raises, there is no value, and the plan
// does not apply to the call.
#pragma once

#include "python.h"

#include <cstdint>
#include <vector>

namespace tzero::plan {

constexpr size_t most_formulas = 512;

// Each with its name in Python. The order is that of `size_operation_names`.
#define TZERO_SIZE_OPERATIONS(EACH)                                                               \
    EACH(constant, "constant") EACH(add, "+") EACH(subtract, "-") EACH(multiply, "*")             \
    EACH(floor_divide, "//") EACH(modulo, "%") EACH(power, "**") EACH(left, "<<")                 \
    EACH(right, ">>") EACH(both, "&") EACH(either, "|") EACH(differing, "^")                      \
    EACH(negative, "negative") EACH(invert, "invert") EACH(absolute, "abs") EACH(least, "min")    \
    EACH(most, "max") EACH(ceil_divide, "cdiv") EACH(next_power_of_2, "next_power_of_2")          \
    EACH(bit_length, "bit_length") EACH(ceil, "ceil") EACH(floor, "floor") EACH(trunc, "trunc")
#define TZERO_SIZE_COMPARISONS(EACH)                                                              \
    EACH(equal, "==") EACH(unequal, "!=") EACH(less, "<") EACH(less_or_equal, "<=")               \
    EACH(greater, ">") EACH(greater_or_equal, ">=")
#define TZERO_SIZE_SOURCES(EACH) EACH(size, "size") EACH(stride, "stride") EACH(number, "number")

#define TZERO_FIRST_OF_PAIR(name, text) name,
#define TZERO_SECOND_OF_PAIR(name, text) text,

constexpr const char *size_operation_names[] = {TZERO_SIZE_OPERATIONS(TZERO_SECOND_OF_PAIR)};
constexpr const char *size_comparison_names[] = {TZERO_SIZE_COMPARISONS(TZERO_SECOND_OF_PAIR)};
constexpr const char *size_source_names[] = {TZERO_SIZE_SOURCES(TZERO_SECOND_OF_PAIR)};

// An operation on formulas with smaller numbers; of a constant, `a` is the value.
struct Node {
    enum Operation : int { TZERO_SIZE_OPERATIONS(TZERO_FIRST_OF_PAIR) count };
    Operation operation;
    int64_t a;
    int64_t b;
};

// A comparison of two formulas that must end as it did in the recorded call.
struct Condition {
    enum Comparison : int { TZERO_SIZE_COMPARISONS(TZERO_FIRST_OF_PAIR) count };
    Comparison comparison;
    size_t left, right;
    bool truth;
};

// Formulas in the order in which they are computed: the inputs, then the nodes.
struct Formulas {
    size_t inputs = 0;
    std::vector<Node> nodes;
    std::vector<Condition> conditions;

    size_t size() const { return inputs + nodes.size(); }

    // Computes the nodes after the inputs, which are in `values`; false if one has no value.
    bool compute(int64_t *values) const;

    // Whether all conditions are met.
    bool hold(const int64_t *values) const;
};

// Reads tuples of integers: (operation, a, b), and (comparison, left, right, truth). Throws
// `Malformed`.
Formulas formulas_from(size_t inputs, PyObject *nodes, PyObject *conditions);

// What Triton specializes an integer on: its width, whether it is 1, whether 16 divides it.
uint64_t size_class(int64_t value);

// Adds the names above, and the functions `size_class` and `computed_sizes`, to the module. 0, or
// -1 with the Python error set.
int add_sizes(PyObject *module);

}  // namespace tzero::plan
