// A plan in native form: what one call of a host function did, to be replayed.
//
// src/tzero/plans/plan.py has the same nouns and explains them; plans/describe.py describes a plan
// in Python, and `plan_from` makes these structs from the description.
#pragma once

#include "python.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "enums.h"
#include "hot.h"
#include "kernel.h"
#include "leaves.h"
#include "sized.h"
#include "spec.h"
#include "tensors.h"
#include "watching.h"

namespace tzero::plan {

constexpr size_t most_slots = 2048;
constexpr size_t most_namespaces = 1024;  // whose versions are kept

// What a step is given, or a call returns. A `sequence` is a tuple of another type, which is made
// by calling `object` with one tuple of the items; a `formula` is an integer of a plan over sizes.
#define TZERO_VALUE_KINDS(EACH) \
    EACH(tensor) EACH(scalar) EACH(constant) EACH(tuple) EACH(list) EACH(dict) EACH(sequence)  \
    EACH(formula) EACH(slice)
constexpr const char *value_kind_names[] = {TZERO_VALUE_KINDS(TZERO_ENUMERATOR_NAME)};

struct Value {
    enum Kind : int { TZERO_VALUE_KINDS(TZERO_ENUMERATOR) count };
    Kind kind = constant;
    size_t index = 0;  // of a slot, a leaf or a formula
    Ref object;        // a constant, or what makes a sequence
    std::vector<Value> items;
    std::vector<Ref> names;  // of a dict's items
};

// A dict in which watches look up names, and its version when all of them held.
struct Namespace {
    Ref dict;
    mutable Seen seen;
};

struct Slot {
    Py_ssize_t leaf = -1;   // of an argument
    Py_ssize_t watch = -1;  // or of a watch whose value is the tensor
    std::vector<uint64_t> words;  // the key of a watched tensor when the plan was recorded
    Geometry geometry;
};

// A kernel that the plan launches, and the environment it was compiled in. The mutable fields are
// the versions of everything that was read when all guards last held: while they are the same, the
// guards hold.
struct Function {
    Ref object;
    bool is_launchable = false;  // its attributes are fields
    Environment environment;
    std::vector<size_t> launches;  // the launch steps

    mutable uint64_t generation = 0;  // of the knobs
    mutable SeenObject attributes;    // the kernel and its dict, from which `own` is borrowed
    mutable Attributes own = {};
    mutable Ref debug;
    mutable Seen used_globals;
    mutable std::vector<std::pair<Ref, Seen>> globals;  // dicts of modules
    mutable std::vector<std::pair<Ref, SeenObject>> constants;  // tl.constexpr objects in them
};

struct Allocate {
    size_t slot;
    int device;  // of CUDA, or negative
    Ref quick, quick_args;  // torch's quick function, which takes the current device; or nothing
    PyCFunction direct = nullptr;  // the C function behind it, if it takes a tuple
    Ref plain, plain_args, plain_kwargs;
    Ref ring;  // of tensors that are reused, or nothing
    int64_t changes = 0;  // in place, by the plan
};

struct Fill {
    size_t slot;
    int device;
    std::string pattern;  // one element
    size_t bytes;         // of all elements
    Ref function, number;  // if torch fills it
    int64_t version;       // of the tensor afterwards; 0 if torch does not count the fill
};

struct View {
    size_t slot, base;
    Py_ssize_t offset;  // bytes
    bool is_empty;
    int64_t itemsize;
    bool is_tensor;    // more than its address is needed
    int64_t elements;  // the offset of a tensor
};

struct Call {
    Ref function;
    Ref name;
    std::vector<Value> args;  // positional, then named
    Ref keywords;             // a tuple of names, or nothing
    Value result;  // of a `read`, a constant
};

// A call of torch that copies the elements of one tensor, in the order in which they are in memory.
struct Copy {
    size_t to, from;  // slots
    int device;       // of CUDA, or negative
    size_t itemsize;
    size_t bytes;           // of all elements
    Py_ssize_t allocation;  // of a new target; negative if it was there before
    bool counts;            // whether torch counts it as a change of the target
    bool inference;         // whether the plan is for inference mode
    int64_t version;        // of the target afterwards; 0 if not the plan alone changes it
    Call call;              // where native code does not copy
};

struct Pointer {
    size_t slot, offset;
    bool aligned;  // the binary assumes that 16 divides the address
};

struct Number {
    size_t leaf, offset;
    Type type;
};

struct Computed {
    size_t formula, offset;
    Type type;
};

struct Launch {
    size_t function;
    std::unique_ptr<Spec> spec;
    // The parameters, with gaps for pointers and numbers. A launch that keeps the GIL fills these
    // in place.
    mutable std::string block;
    std::vector<Pointer> pointers;
    std::vector<Number> numbers;
    std::vector<Computed> computed;
    std::vector<Value> args;  // for errors
    int32_t grid[3] = {0, 0, 0};  // not of a plan over sizes
};

// Steps that are made as one CUDA graph, where there is one for this call; otherwise they follow.
// See captures.h.
struct Part {
    Ref captures;                 // a `Captures`, or a function in Python that stands in for it
    bool is_native = false;
    int device = -1;
    std::vector<size_t> inputs;   // slots
    std::vector<size_t> outputs;  // among the allocations of the plan
    size_t after = 0;             // the next step, once the graph was launched
    std::vector<size_t> again;    // steps that are made nevertheless, before that one
    std::vector<size_t> writes;   // slots whose versions torch would increment
};

// A `read` is a call whose result must be the recorded one, for the plan to apply.
#define TZERO_STEP_KINDS(EACH) \
    EACH(allocate) EACH(fill) EACH(copy) EACH(view) EACH(call) EACH(read) EACH(launch) EACH(part)
constexpr const char *step_kind_names[] = {TZERO_STEP_KINDS(TZERO_ENUMERATOR_NAME)};

struct Step {
    enum Kind : int { TZERO_STEP_KINDS(TZERO_ENUMERATOR) count };
    Kind kind;
    size_t at;          // among the steps of its kind
    Py_ssize_t number;  // in the plan
    Py_ssize_t opens = -1;  // the run that it is the first of
    bool closes = false;    // whether it is the last of a run
};

// Launches, fills and copies on CUDA between which the plan calls nothing of torch: they may become one
// CUDA graph.
struct Run {
    std::vector<size_t> work;  // which steps
    std::unique_ptr<graph::Site> site;
};

// Names that were read of an argument and that it must not have itself, in the place of what its
// class has.
struct Bare {
    size_t leaf;
    Ref names;  // a tuple
};

// A watch of a list, tuple or dict; and the version of a dict that holds none of these.
struct Table {
    size_t watch;
    mutable Seen flat;
};

struct Plan {
    Ref object;  // the plan in Python
    int device = -1;  // of CUDA, where all of its kernels run; or negative
    mutable bool outdated = false;  // Triton has dropped a binary for good
    std::vector<Watch> watches;
    std::vector<size_t> unversioned;  // those that no version of a dict stands for
    std::vector<Namespace> namespaces;
    std::vector<Slot> slots;
    std::vector<std::pair<size_t, size_t>> arguments;  // slot and leaf
    std::vector<size_t> watched;                       // slots of tensors in globals and closures
    std::vector<const PyObject *> held;                // these tensors, sorted by address
    std::vector<Table> tables;
    std::vector<Bare> bare;
    std::vector<Function> functions;
    std::vector<Step> steps;
    std::vector<Allocate> allocates;
    std::vector<Fill> fills;
    std::vector<Copy> copies;
    std::vector<View> views;
    std::vector<Call> calls;
    std::vector<Launch> launches;
    std::vector<Part> parts;
    std::vector<Run> runs;
    Value result;
    std::unique_ptr<Sized> sized;  // of a plan over sizes, or null

    // What a step does on CUDA, if it is one of a run.
    graph::Work work(const Step &step, const Applied *applied) const;

    // What a launch step launches.
    const Launch &launched(size_t step, const Applied *applied) const {
        return launches[applied == nullptr ? step : applied->launches[step]];
    }

    int visit(visitproc visit, void *arg) const;
};

// Makes a plan from a PlanDescription, and checks it. `leaves` is the number of leaves of a call.
// Null with the Python error set if the description is malformed; null without an error if
// something the plan depends on has changed since it was recorded.
std::unique_ptr<Plan> plan_from(State &state, PyObject *description, size_t leaves);

// Finds the runs of a plan.
void find_runs(const State &state, Plan &plan);

// The runs of a plan for `explain`, a tuple of what `graph::described` says of each; `observed` is how
// many calls of the kernel an observer saw. Null with the Python error set.
PyObject *runs_of(const Plan &plan, uint64_t observed);

// Counts a call that Python makes, if that is because of a launch hook. 0, or -1 with the Python error
// set.
int count_hooked(State &state, const Plan &plan);

// How a replay went.
enum class Replayed {
    done,
    stale,      // a guard on a name fails, a binary is gone, or a tensor has another value than
                // the plan is for: drop the plan; nothing that outlives the call has been done
    elsewhere,  // this call must be made in Python; nothing has been done yet
    error,
};

// Checks all guards without running a step: `done` if they hold. `applied` is a plan over sizes in
// this call; null for other plans.
Replayed may_replay(State &state, PyObject *self, const Plan &plan, const Leaves &leaves,
                    const Applied *applied);

// Replays the plan. `self` is the kernel, whose `_resume` continues in Python where this cannot.
// `is_profiled`: a profiler looks at this thread, and each launch is in a range.
Replayed replay(State &state, PyObject *self, const Plan &plan, const Leaves &leaves,
                const Applied *applied, bool is_profiled, Ref *result);

// The attributes of a Triton kernel that its launches read, kept alive while they are used.
class AttributesOf {
  public:
    // 0, or -1 with the Python error set.
    int read(const State &state, const Function &function);
    const Attributes &get() const { return *attributes_; }

  private:
    const Attributes *attributes_ = nullptr;
    Attributes own_ = {};
    Ref kept_[4];
};

// Whether the guards of all kernels of a plan hold, except those on arguments; launch.cpp has the
// same guards for a single launch.
Answer may_launch(State &state, const Plan &plan, const Applied *applied);

}  // namespace tzero::plan
