// What a plan over sizes has besides its steps, and what it is in one call.
//
//     sizes and numbers of a call ──► formulas ──► grids, arguments, geometry of new tensors
//                                        └ a condition fails, no value, no binary: not applicable
#pragma once

#include "python.h"

#include <cstdint>
#include <memory>
#include <vector>

#include "leaves.h"
#include "sizes.h"

namespace tzero::plan {

struct Plan;

// An integer among the arguments of a call.
struct Input {
    enum Source : int { TZERO_SIZE_SOURCES(TZERO_FIRST_OF_PAIR) count };
    Source source;
    size_t leaf, dim;
    bool is_free;     // calls of the plan may differ in it
    size_t word = 0;  // of the key, set by `resolve`
};

// The geometry of a slot, in formulas.
struct SizedSlot {
    bool known = false;  // false if nothing depends on it
    std::vector<size_t> sizes_and_strides;
    size_t offset = 0;  // from its base, in elements
};

struct Selector {
    size_t formula;
    bool by_value;
};

struct Variant {
    std::vector<int64_t> selected;  // for each selector: the class of its value, or the value
    size_t launch;                  // of the plan
};

struct SizedLaunch {
    size_t grid[3];
    std::vector<Selector> selectors;
    std::vector<Variant> variants;
};

// Which config a tuned kernel has for a call: that of the nearest hint. The plan is for some of them.
struct Choice {
    Ref nearest;                     // empty if the config is the same for all sizes
    std::vector<Py_ssize_t> ranks;   // of the tensors whose sizes are compared
    std::vector<Py_ssize_t> sizes;   // their formulas in order; -1 for an unknown size
    std::vector<char> has_config;    // for each hint: whether it has the config of the plan
    mutable std::vector<int64_t> asked;

    bool is_same(const int64_t *values) const;
};

// What is put on tensors that decides on the config of a tuned kernel: the dimensions that are
// marked static.
struct Marks {
    Ref attribute;              // its name; empty if nothing is compared
    std::vector<Ref> of_leaf;  // a frozenset for each tensor, empty for other leaves

    // Whether the arguments of a call have the same: 1 or 0, or -1 with the Python error set.
    int are_same(const Leaves &leaves) const;
};

// The arguments of an allocation. They are made when it is first done, and may be of another call
// until then.
struct Arguments {
    Ref tuple;  // size, stride, and dtype for torch's quick function
    bool are_current = false;
};

// A plan in one call. That of the latest call is kept for the next, which often has the same sizes.
struct Applied {
    std::vector<int64_t> values;   // of all formulas
    std::vector<size_t> launches;  // which launch of the plan each launch step makes
    mutable std::vector<Arguments> allocations;

    int64_t operator[](size_t formula) const { return values[formula]; }
};

struct Sized {
    std::vector<Input> inputs;
    Formulas formulas;
    std::vector<SizedSlot> slots;
    std::vector<SizedLaunch> launches;
    Choice choice;
    Marks marks;
    mutable std::shared_ptr<Applied> latest, spare;

    // Finds the words of the inputs in the keys of calls. False if a call has no such size or
    // number.
    bool resolve(const Leaves &leaves);

    // The plan in this call; null if it does not apply.
    std::shared_ptr<const Applied> applied(const Plan &plan, const Leaves &leaves) const;

    int visit(visitproc visit, void *arg) const;

  private:
    bool read(const Leaves &leaves, int64_t *out) const;
    bool compute(const Plan &plan, int64_t *values, size_t *chosen) const;
};

// The number of elements of a slot; false if 64 bits cannot hold it, or a size is negative.
bool elements_of(const SizedSlot &slot, const int64_t *values, int64_t *out);

}  // namespace tzero::plan
