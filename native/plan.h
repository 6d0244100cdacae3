// A plan in native form: what one call of a host function did, to be done again.
//
// src/tzero/plan.py has the same nouns, and says what they mean; native_plan.py turns its values
// into tuples of numbers and objects, from which `plan_from` makes these.
#pragma once

#include "python.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernel.h"
#include "leaves.h"
#include "spec.h"
#include "tensors.h"

namespace tzero::plan {

constexpr size_t most_slots = 256;
constexpr size_t most_namespaces = 16;  // of which versions are kept

// What a step is given, or a call returns. The numbers are known to native_plan.py.
struct Value {
    enum Kind : int {
        tensor, scalar, constant, tuple, list, dict,
        sequence,  // a tuple of another type: made by calling `object` with one tuple of the items
        count,
    };
    Kind kind = constant;
    size_t index = 0;  // of a slot or a leaf
    Ref object;        // a constant, or the type that makes a tuple
    std::vector<Value> items;
    std::vector<Ref> names;  // of a dict's items
};

// A name that the host function reads, and what it must be.
struct Watch {
    enum How : int { is, equals, asks, absent, count };
    Ref where;  // a dict, or a cell
    Ref name;   // in the dict
    Ref value;
    Ref check;
    How how = is;
    bool in_cell = false;
    bool by_version = false;  // it holds while its dict has not changed
};

// A dict that watches look into, as it was when they all held.
struct Namespace {
    Ref dict;
    mutable Seen seen;
};

struct Slot {
    Py_ssize_t leaf = -1;   // of the arguments
    Py_ssize_t watch = -1;  // or of the watches, whose value is the tensor
    std::vector<uint64_t> words;  // of a watched tensor, when the plan was made
    Geometry geometry;
};

// A kernel that is launched, and the world it was compiled in. The rest is what was seen when all of
// it held: as long as that has not changed, it holds.
struct Function {
    Ref object;
    bool is_launchable = false;  // its attributes are fields
    World world;
    std::vector<size_t> launches;

    mutable uint64_t generation = 0;  // of the knobs
    mutable SeenObject attributes;    // where they are in its dict; these are borrowed from there
    mutable Attributes own = {};
    mutable Ref debug;
    mutable Seen used_globals;
    mutable std::vector<std::pair<Ref, Seen>> globals;  // dicts of modules
    mutable std::vector<std::pair<Ref, SeenObject>> constants;  // tl.constexpr objects in them
};

struct Allocate {
    size_t slot;
    int device;  // of CUDA, or negative
    Ref quick, quick_args;  // torch's short way, which is for the current device; or nothing
    PyCFunction direct = nullptr;  // what it calls, where that takes the tuple as it is
    Ref plain, plain_args, plain_kwargs;
    Ref ring;  // of tensors that are used again, or nothing
    int64_t changes = 0;  // in place, that the plan makes to it
};

struct Fill {
    size_t slot;
    int device;
    std::string pattern;  // one element
    size_t bytes;         // all of them
    Ref function, number;  // for those that torch fills
    int64_t version;       // of the tensor afterwards; 0 where a new one is made with this in it
};

struct View {
    size_t slot, base;
    Py_ssize_t offset;  // bytes
    bool is_empty;
};

struct Call {
    Ref function;
    Ref name;
    std::vector<Value> args;  // by place, then by name
    Ref keywords;             // a tuple of names, or nothing
    Value result;
};

struct Pointer {
    size_t slot, offset;
    bool aligned;  // the binary is made for an address that 16 divides
};

struct Number {
    size_t leaf, offset;
    Type type;
};

struct Launch {
    size_t function;
    std::unique_ptr<Spec> spec;
    std::string block;  // the parameters, with gaps for what differs between calls
    std::vector<Pointer> pointers;
    std::vector<Number> numbers;
    std::vector<Value> args;  // for errors
    int32_t grid[3];
};

struct Step {
    enum Kind : int { allocate, fill, view, call, launch, count };
    Kind kind;
    size_t at;          // among the steps of its kind
    Py_ssize_t number;  // in the plan
};

struct Plan {
    Ref object;  // the plan in Python
    int device = -1;  // of CUDA, on which all of its kernels run; or negative
    mutable bool outdated = false;  // Triton has dropped a binary, and does not come back to it
    std::vector<Watch> watches;
    std::vector<Namespace> namespaces;
    std::vector<Slot> slots;
    std::vector<std::pair<size_t, size_t>> arguments;  // slot and leaf
    std::vector<size_t> watched;                       // slots of tensors in globals and closures
    std::vector<size_t> tables;                        // watches of lists, tuples and dicts
    std::vector<Function> functions;
    std::vector<Step> steps;
    std::vector<Allocate> allocates;
    std::vector<Fill> fills;
    std::vector<View> views;
    std::vector<Call> calls;
    std::vector<Launch> launches;
    Value result;

    int visit(visitproc visit, void *arg) const;
};

// What native_plan.py's `describe` says, checked. `leaves` is how many leaves a call has whose words
// the plan is for. Null where it cannot be kept: with the Python error set where there is one, and
// without where the world has changed since the plan was recorded.
std::unique_ptr<Plan> plan_from(State &state, PyObject *said, size_t leaves);

// How a replay went.
enum class Replayed {
    done,
    stale,      // what the host function reads has changed: the plan is for another world
    elsewhere,  // a kernel cannot be launched here now; nothing has been done yet
    error,
};

// Asks what must hold for a replay, and does nothing: `done` if all of it does.
Replayed may_replay(State &state, PyObject *self, const Plan &plan, const Leaves &leaves);

// Does what the plan says. `self` is the kernel, whose `_resume` goes on where this cannot.
Replayed replay(State &state, PyObject *self, const Plan &plan, const Leaves &leaves, Ref *result);

// The attributes of a Triton kernel that its launches read, kept while they are looked at.
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

// Whether every kernel of a plan can be launched as it was recorded, as far as that does not depend
// on arguments; see launch.cpp for what is asked.
Answer may_launch(State &state, const Plan &plan);

}  // namespace tzero::plan
