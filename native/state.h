// What the module keeps: types, names, and the objects of torch, Triton and tzero that are read.
#pragma once

#include "python.h"

#include "arguments.h"
#include "cuda.h"
#include "tensors.h"
#include "versions.h"

namespace tzero {

// Names of attributes and dict entries, interned once.
struct Names {
    Ref runtime, compilation, debug, instrumentation_mode, add_stages_inspection_hook;
    Ref launch_enter_hook, launch_exit_hook, calls, observers;
    Ref get_current_device, get_current_stream;
    Ref launch, launched, finish, run_plain;
    Ref pre_run_hooks, device_caches, used_global_vals, value;
    Ref missed, resume, drifted, call, open, in_force, verify, version, data;
};

// What `triton.knobs.runtime` says while nobody has changed it: its attributes are then those of
// its class. Valid for this object, while its own dict is empty and the class has this version.
struct RuntimeKnobs {
    Ref object;
    unsigned version = 0;
    Ref debug, stages_hook, enter_hook, exit_hook;
    Ref enter_dict, exit_dict;  // of the two hooks, where they are ordinary chains
};

// The knobs, the driver and the launch hooks, when all of them were last looked at. While nothing
// of that has changed, what was found to hold in this `generation` holds.
struct KnobsSeen {
    uint64_t generation = 0;
    bool valid = false;
    unsigned computed = 0;  // the version of a class whose knobs are computed: it is no use looking
    Seen module;  // triton.knobs
    SeenObject runtime, compilation, driver, active;
    Ref compilation_object, active_object;  // kept alive for the two
    Seen enter, exit;                       // the dicts of the hooks, where these are chains
    Ref enter_calls, exit_calls;            // the lists in them
};

struct State {
    Ref version;
    Ref launchable;  // types
    Ref launching;
    Ref dispatching;
    Ref ring;
    Names names;

    // Set by configure().
    bool configured = false;
    Ref tensor_type, parameter_type, exchange_capsule;
    Tensors tensors;
    Ref knobs;         // the dict of triton.knobs
    Ref more_knobs;    // tuple of names in knobs.compilation, besides the one every Triton has
    Ref hook_chain;    // the type of an ordinary chain of launch hooks
    Ref runtime_knobs; // the type of triton.knobs.runtime as Triton made it
    Ref driver;        // Triton's driver configuration
    Ref driver_slot;   // the attribute of it that holds the active driver
    Ref events;        // the dict of tzero.events
    Ref log_cache;     // of tzero's logger: its answers by level, emptied when a level changes
    Ref debug_level;   // logging.DEBUG
    Ref watched;       // tzero.events.watched
    Ref get_num_threads;
    Ref launch_failed;  // tzero.errors.LaunchFailed
    Ref cuda_driver;    // the class of Triton's driver for CUDA
    Ref constexpr_type; // tl.constexpr
    cuda::Driver cuda;

    // Set by configure_plans().
    Torch torch;
    Ref dtype_type;  // torch.dtype
    Ref measure;     // the dict of tzero.measure
    Ref settings;    // the dict in which tzero.settings keeps those in force
    Ref plain_settings;  // the last of these under which plans are not verified

    Py_ssize_t recorders = 0;  // how many calls of host functions are being recorded

    RuntimeKnobs runtime;
    KnobsSeen knobs_seen;
    Seen unwatched[2];  // the dicts of events and of the logger, when nobody watched
    Seen quiet[2];      // those of measure and of settings, when nothing was measured or verified
};

State *state_of(PyObject *module);

// Make the types; 0, or -1 with the Python error set.
int add_types(PyObject *module, State *state);
int add_dispatching(PyObject *module, State *state);
int add_nearest(PyObject *module);

extern PyModuleDef definition;

}  // namespace tzero
