// The native state of a kernel, and one launch of it.
#pragma once

#include "python.h"

#include <memory>
#include <string>
#include <vector>

#include "arguments.h"
#include "spec.h"
#include "state.h"

namespace tzero {

// The knobs, the driver and the kernel's debug flag at the time of a launch: everything but the
// arguments that selects a binary.
constexpr size_t most_environment_values = 10;

struct Environment {
    Ref values[most_environment_values];
    size_t count = 0;
};

struct Kernel {
    State *state = nullptr;  // of the module, which the type keeps alive
    std::vector<Parameter> parameters;
    size_t most_specs = 1024;
    Forms forms;
    std::vector<std::unique_ptr<Environment>> environments;  // append-only
    size_t environment = 0;   // the number of the latest
    uint64_t generation = 0;  // of the knobs when that was found, without hooks
    Ref debug;                // the kernel's own flag at that time
    SpecTable specs;
    Ref grids;  // dict: a tuple of integers -> its Launching
    Ref last_launching;
    bool prepared = false;

    // Of a kernel beside one of Triton's, which it launches (running.cpp).
    PyObject *of = nullptr;  // Triton's kernel, which the Python object keeps alive
    SeenObject beside;       // that kernel, when its attributes were read
    uint64_t choice = 0;     // the number of the choice of kernels for which `chosen` holds
    bool chosen = false;     // whether its launches outside of fallbacks are native
    uint64_t launches = 0, misses = 0;
    std::vector<std::pair<std::string, uint64_t>> left;  // why Triton launched, and how often
    uint64_t sampled = 0, nanoseconds = 0;  // launches that were timed, and how long they took
};

// Attributes of a Triton kernel that its launches read; null if missing.
struct Attributes {
    PyObject *pre_run_hooks;
    PyObject *debug;
    PyObject *device_caches;
    PyObject *used_global_vals;
};

// The base of a kernel in Python. The four attributes are Triton's own. They are fields instead of
// entries in the instance's dict, because fields are quicker to read.
struct Launchable {
    PyObject_HEAD
    Kernel *kernel;
    Attributes attributes;  // owned, all four; null until set
};

struct Grid {
    PyObject *object;  // borrowed
    int32_t size[3];
    bool known;  // `size` is filled in
};

struct Call {
    Launchable *self;
    Kernel *kernel;
    Grid grid;
    PyObject *const *arguments;  // as CPython hands them over: positional, then named
    Py_ssize_t positional;
    PyObject *names;
    bool is_run;  // a call of run(), which also takes grid and warmup
    PyObject *plain = nullptr;  // Triton's own `run`, which makes what native code cannot; borrowed.
                                // Before the arguments stands the kernel, as this function takes it
};

// The answer to a question; the Python error is set for `error` only.
enum class Answer { yes, no, error };

// -- environment.cpp: what is read on every launch besides the arguments ------------------------

// Whether launches are neither observed nor logged.
Answer unwatched(State &state);

// Whether no pre-run hook is attached, and no hook on the compiler's stages.
Answer no_run_hooks(State &state, const Attributes &attributes);

// Whether no launch hook is attached. `again`: Python code has run since `no_run_hooks`.
Answer no_launch_hooks(State &state, bool again);

// The number of the current environment; `no` if there have been too many to keep.
Answer environment_now(Kernel *kernel, const Attributes &attributes, size_t *out);

// The current environment: 0, or -1 with the Python error set. Call this, the next function and
// `environment_now` only after `no_run_hooks` has answered yes.
int read_environment(const State &state, const Attributes &attributes, Environment *out);

// Whether the current environment equals this one.
Answer environment_holds(const State &state, const Attributes &attributes,
                         const Environment &environment);

// The current environment without a kernel's debug flag: 0, or -1 with the Python error set.
int read_knobs(State &state, Environment *out);

// Whether knobs, driver and launch hooks are unchanged since `look_at_knobs`, and no launch hook is
// attached. False means "maybe not".
bool knobs_unchanged(const State &state);

// Keeps their versions, as a new generation. What is found afterwards holds while
// `knobs_unchanged`. If the versions cannot be relied on, that is always false. 0, or -1 with the
// Python error set.
int look_at_knobs(State &state);

// Whether two environments are the same.
Answer same_environment(const Environment &one, const Environment &other);

// Whether Triton still keeps the spec's kernel in the same place.
Answer is_kept(const Attributes &attributes, Spec &spec);

// Whether the dicts on the way to it are unchanged. False means "maybe not".
bool is_kept_still(const Attributes &attributes, const Spec &spec);

// Whether each of them is the same number or text; runs no Python code. False means "maybe not".
bool globals_are_same(const State &state, const Attributes &attributes);

// The active driver; empty with the Python error set.
Ref active_driver(const State &state);

// Whether no global that the kernel was compiled with has changed.
Answer globals_hold(const State &state, const Attributes &attributes);

// -- launch.cpp ---------------------------------------------------------------------------------

// Reads a grid of one to three exact integers; false for any other, which Python handles.
bool read_grid(PyObject *object, int32_t size[3]);

// Counts a launch of one of Triton's kernels that is left to Triton. The first one with a reason is
// reported, unless that is empty. 0, or -1 with the Python error set.
int leave(Launchable &beside, const char *reason);

// Launches; the compiled kernel, or null with the Python error set.
PyObject *launch(Call &call);

// -- running.cpp --------------------------------------------------------------------------------

// Times one launch of 32.
class Stopwatch {
  public:
    explicit Stopwatch(const Kernel &kernel);
    void stop(Kernel &kernel) const;

  private:
    uint64_t start_;
};

// Whether what stands beside a kernel makes its launches outside of fallbacks. Python is asked once
// for each choice.
Answer is_chosen(const State &state, PyObject *beside);

// -- types.cpp ----------------------------------------------------------------------------------

// A call of run(*args, grid=, warmup=, **kwargs); `plain` is as in `Call`, or null.
PyObject *run_launchable(Launchable *self, PyObject *const *args, Py_ssize_t nargs, PyObject *names,
                         PyObject *plain);

}  // namespace tzero
