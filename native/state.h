// The state of the module: types, names, and the objects of torch, Triton and tzero that it reads.
#pragma once

#include "python.h"

#include <memory>

#include "arguments.h"
#include "cuda.h"
#include "hot.h"
#include "leaves.h"
#include "lookalikes.h"
#include "memory.h"
#include "profilers.h"
#include "subscripts.h"
#include "tensors.h"
#include "versions.h"

namespace tzero {

// Names of attributes and dict entries, interned once.
struct Names {
    Ref runtime, compilation, debug, instrumentation_mode, add_stages_inspection_hook;
    Ref launch_enter_hook, launch_exit_hook, calls, observers;
    Ref get_current_device, get_current_stream;
    Ref launch, launched, finish, run_plain;
    Ref pre_run_hooks, device_caches, used_global_vals, value, differs;
    Ref missed, unread, resume, drifted, settled, call, open, in_force, verify, version, data;
    Ref current_call, instance_dict, beside, index, type;
    Ref configs, arg_names, keys, cache, fn, values, nargs, best_config, run, grid, warmup, dtype;
    Ref kwargs, pre_hook, all_kwargs;
    Ref base, shape, strides, block_shape, padding, round_f32_to_tf32;
    Ref bound_run, function, launch_metadata, module, packed_metadata, get, data_ptr, device;
    Ref graphs, graphs_after, graphs_kept, graphs_memory, kernel;
    Ref proton_flags, flags, profiling_on, profiler_enabled;
    Ref name, function_name, enter, exit, timestamps, func, args;
    Ref f_trace, f_trace_lines, f_trace_opcodes;
};

// The attributes of `triton.knobs.runtime`. Valid for this object, while its own dict is empty and
// its class has this version.
struct RuntimeKnobs {
    Ref object;
    unsigned version = 0;
    Ref debug, stages_hook, enter_hook, exit_hook;
    Ref enter_dict, exit_dict;  // of the two hooks, where they are ordinary chains
};

// The versions of the knobs, the driver and the launch hooks when all of them were last read. While
// they are unchanged, guards that held in this `generation` hold.
struct KnobsSeen {
    uint64_t generation = 0;
    bool valid = false;
    unsigned computed = 0;  // the version of a class with computed knobs, or 0
    Seen module;  // triton.knobs
    SeenObject runtime, compilation, driver, active;
    Ref compilation_object, active_object;  // keep the two alive
    Seen enter, exit;                       // the dicts of the hooks, where these are chains
    Ref enter_calls, exit_calls;            // the lists in them
};

struct GraphOrder;  // captures.cpp
constexpr size_t most_graph_devices = 64;

struct State {
    Ref version;
    Ref launchable;  // types
    Ref launching;
    Ref dispatching;
    Ref ring, nearest, on_grid, bound, on_bound, follower, stepping, timestamps_type, captures;
    Ref get_threshold, set_threshold;  // of gc
    Names names;

    // Set by configure().
    bool configured = false;
    Ref tensor_type, parameter_type, exchange_capsule;
    Tensors tensors;
    Ref knobs;         // the dict of triton.knobs
    Ref more_knobs;    // names in knobs.compilation that only some Tritons have, a tuple
    Ref hook_chain;    // the type of an ordinary chain of launch hooks
    Ref runtime_knobs; // the type of triton.knobs.runtime as Triton made it
    Ref driver;        // Triton's driver configuration
    Ref driver_slot;   // its attribute with the active driver
    Ref events;        // the dict of tzero.events
    Ref log_cache;     // of tzero's logger: whether each level is enabled
    Ref debug_level;   // logging.DEBUG
    Ref watched;       // tzero.events.watched
    Ref get_num_threads;
    Ref launch_failed;  // tzero.errors.LaunchFailed
    Ref cuda_driver;    // the class of Triton's driver for CUDA
    Ref constexpr_type; // tl.constexpr
    Ref constexpr_differs;  // its `!=`, if that is Triton's
    Ref jit_callable;   // the class of Triton's functions, kernels among them
    Ref descriptor;     // TensorDescriptor, or None if its fields are not the known ones
    Ref torch_size;     // torch.Size
    unsigned descriptor_version = 0;  // of that class, when its attributes were plain
    Ref current;        // of tzero.launches.current_call
    Ref const_expr;     // tzero.ConstExpr
    cuda::Driver cuda;
    cuda::Memory memory;
    Subscripts subscripts;
    Lookalikes lookalikes;
    std::shared_ptr<GraphOrder> orders[most_graph_devices];  // of CUDA graphs, by device

    // Set by configure_plans().
    Torch torch;
    Ref dtype_type;  // torch.dtype
    Ref layout_type, memory_format_type, device_type, size_type;  // likewise
    LeafTypes leaf_types;                                         // these and the next
    Ref measure;     // the dict of tzero.measure
    Ref settings;    // the dict with the settings in force
    Ref plain_settings;  // the latest settings without verify mode

    std::vector<Ref> dtype_texts;  // the text of each dtype, by torch's number

    Py_ssize_t recorders = 0;  // the number of calls that are being recorded
    uint64_t choice = 0;  // the number of the choice of Triton's kernels that are launched natively
                          // outside of fallbacks too; 0 for none

    RuntimeKnobs runtime;
    KnobsSeen knobs_seen;
    Seen unwatched[2];  // the dicts of events and of the logger, when nothing was observed
    Seen quiet[2];      // those of measure and of settings, when nothing was verified

    graph::Keeper graphs;  // after the driver: it ends first

    Profilers profilers;  // set by configure_profilers()
    Ref record;           // the open record of tzero.measure, or None, when it was last read
    Ref timestamps;       // where it takes the times of calls, or nothing
};

State *state_of(PyObject *module);

// Makes all names; 0, or -1 with the Python error set.
int intern_all(Names &names);

// Make the types; 0, or -1 with the Python error set.
int add_types(PyObject *module, State *state);
int add_dispatching(PyObject *module, State *state);
int add_nearest(PyObject *module, State *state);
int add_run(PyObject *module);
int add_wrappers(PyObject *module, State *state);
int add_compiled(PyObject *module, State *state);

extern PyModuleDef definition;

}  // namespace tzero
