// What a kernel keeps natively, and one call of it.
#pragma once

#include "python.h"

#include <memory>
#include <vector>

#include "arguments.h"
#include "spec.h"
#include "state.h"

namespace tzero {

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
    Forms forms;
    std::vector<std::unique_ptr<World>> worlds;  // only added to, so that they stay in place
    size_t world = 0;                            // the latest
    uint64_t generation = 0;                     // of the knobs when it was found, without hooks
    Ref debug;                                   // the kernel's own, then
    SpecTable specs;
    Ref grids;  // dict: a tuple of integers -> its Launching
    Ref last_launching;
    bool prepared = false;
};

// Attributes of a Triton kernel that its launches read; null where it has none such.
struct Attributes {
    PyObject *pre_run_hooks;
    PyObject *debug;
    PyObject *device_caches;
    PyObject *used_global_vals;
};

// The base of a kernel in Python. The four attributes are Triton's own: they live here and not in
// the instance's dict, so that reading them is reading a field.
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
    bool is_run;  // of run(), which takes grid and warmup besides
};

// What there is to say to a question; an error is set for `error`, and for nothing else.
enum class Answer { yes, no, error };

// -- world.cpp: everything that is read anew on every launch -----------------------------------

// Whether nobody wants to hear of a launch.
Answer unwatched(State &state);

// Whether no pre-run hook is attached, and no hook on the compiler's stages.
Answer no_run_hooks(State &state, const Attributes &attributes);

// Whether no launch hook is attached. `again`: Python code has run since `no_run_hooks`.
Answer no_launch_hooks(State &state, bool again);

// The number of the world as it is now; `no`: there have been too many to keep.
Answer world_now(Kernel *kernel, const Attributes &attributes, size_t *out);

// The world as it is now: 0, or -1 with the Python error set. For this and the next, and for
// `world_now`, `no_run_hooks` has said yes before.
int read_world(const State &state, const Attributes &attributes, World *out);

// Whether the world is what it was.
Answer world_holds(const State &state, const Attributes &attributes, const World &world);

// The part of the world that is not a kernel's own, as it is now: 0, or -1 with the Python error set.
int read_knobs(State &state, World *out);

// Whether knobs, driver and launch hooks are as they were when `look_at_knobs` looked, and no launch
// hook is attached. False says nothing.
bool knobs_unchanged(const State &state);

// Takes note of how they are now, in a new generation. What is found to hold afterwards holds while
// `knobs_unchanged`; where that cannot be, it will always be false. 0, or -1 with the Python error set.
int look_at_knobs(State &state);

// Whether two worlds are the same.
Answer same_world(const World &one, const World &other);

// Whether Triton still keeps the spec's kernel where it kept it.
Answer is_kept(const Attributes &attributes, Spec &spec);

// Whether nothing has changed where it was found. False says nothing.
bool is_kept_still(const Attributes &attributes, const Spec &spec);

// Whether no global that the kernel was compiled with has changed.
Answer globals_hold(const Attributes &attributes);

// -- launch.cpp ---------------------------------------------------------------------------------

// The sizes of a grid that is one to three exact integers; anything else is for the twin.
bool read_grid(PyObject *object, int32_t size[3]);

// Launches; the compiled kernel, or null with the Python error set.
PyObject *launch(Call &call);

}  // namespace tzero
