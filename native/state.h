// What the module keeps: types, names, and the objects of torch, Triton and tzero that are read.
#pragma once

#include "python.h"

#include "arguments.h"
#include "cuda.h"

namespace tzero {

// Names of attributes and dict entries, interned once.
struct Names {
    Ref runtime, compilation, debug, instrumentation_mode, add_stages_inspection_hook;
    Ref launch_enter_hook, launch_exit_hook, calls, observers;
    Ref get_current_device, get_current_stream;
    Ref launch, launched, finish, run_plain;
};

// What `triton.knobs.runtime` says while nobody has changed it: its attributes are then those of
// its class. Valid for this object, while its own dict is empty and the class has this version.
struct RuntimeKnobs {
    Ref object;
    unsigned version = 0;
    Ref debug, stages_hook, enter_hook, exit_hook;
    Ref enter_dict, exit_dict;  // of the two hooks, where they are ordinary chains
};

struct State {
    Ref version;
    Ref launchable;  // types
    Ref launching;
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
    cuda::Driver cuda;

    RuntimeKnobs runtime;
};

State *state_of(PyObject *module);

// Makes the two types; 0, or -1 with the Python error set.
int add_types(PyObject *module, State *state);

extern PyModuleDef definition;

}  // namespace tzero
