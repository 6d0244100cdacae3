// What a kernel keeps natively, and one call of it.
#pragma once

#include "python.h"

#include <memory>
#include <vector>

#include "arguments.h"
#include "spec.h"
#include "state.h"

namespace tzero {

// More arguments than this, options among them, are for the twin: everything about a call lies on
// the stack.
constexpr size_t most_arguments = 64;

// The knobs and the driver at the time of a launch. Two launches in one world differ at most in
// their arguments.
constexpr size_t most_world_values = 10;

struct World {
    Ref values[most_world_values];
    size_t count = 0;
};

struct Kernel {
    State *state = nullptr;  // of the module, which the type keeps alive
    std::vector<Parameter> parameters;
    size_t most_specs = 1024;
    std::vector<std::unique_ptr<Form>> forms;    // only added to, so that they stay in place
    std::vector<std::unique_ptr<World>> worlds;  // likewise
    size_t world = 0;                            // the latest
    SpecTable specs;
    Ref grids;  // dict: a tuple of integers -> its Launching
    Ref last_launching;
    bool prepared = false;
};

// The base of a kernel in Python. The four attributes are Triton's own: they live here and not in
// the instance's dict, so that reading them is reading a field.
struct Launchable {
    PyObject_HEAD
    Kernel *kernel;
    PyObject *pre_run_hooks;     // owned, all four; null until set
    PyObject *debug;
    PyObject *device_caches;
    PyObject *used_global_vals;
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
    bool is_run;  // of run(), which takes grid and warmup besides
};

// What there is to say to a question; an error is set for `error`, and for nothing else.
enum class Answer { yes, no, error };

// -- world.cpp: everything that is read anew on every launch -----------------------------------

// Whether nobody wants to hear of a launch.
Answer unwatched(const State &state);

// Whether no pre-run hook is attached, and no hook on the compiler's stages.
Answer no_run_hooks(State &state, const Launchable &self);

// Whether no launch hook is attached. `again`: Python code has run since `no_run_hooks`.
Answer no_launch_hooks(State &state, bool again);

// The number of the world as it is now; `no`: there have been too many to keep.
Answer world_now(Kernel *kernel, const Launchable &self, size_t *out);

// Whether Triton still keeps the spec's kernel where it kept it.
Answer is_kept(const Launchable &self, const Spec &spec);

// Whether no global that the kernel was compiled with has changed.
Answer globals_hold(const Launchable &self);

// -- launch.cpp ---------------------------------------------------------------------------------

// The sizes of a grid that is one to three exact integers; anything else is for the twin.
bool read_grid(PyObject *object, int32_t size[3]);

// Launches; the compiled kernel, or null with the Python error set.
PyObject *launch(Call &call);

}  // namespace tzero
