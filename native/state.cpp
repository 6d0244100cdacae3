// The strings in the state of the module: names of attributes, keys and arguments.

#include "state.h"

namespace tzero {

namespace {

int intern(Ref &name, const char *text) {
    name = Ref::steal(PyUnicode_InternFromString(text));
    return name ? 0 : -1;
}

}  // namespace

int intern_all(Names &names) {
    const std::pair<Ref *, const char *> all[] = {
        {&names.runtime, "runtime"},
        {&names.compilation, "compilation"},
        {&names.debug, "debug"},
        {&names.instrumentation_mode, "instrumentation_mode"},
        {&names.add_stages_inspection_hook, "add_stages_inspection_hook"},
        {&names.launch_enter_hook, "launch_enter_hook"},
        {&names.launch_exit_hook, "launch_exit_hook"},
        {&names.calls, "calls"},
        {&names.get_current_device, "get_current_device"},
        {&names.get_current_stream, "get_current_stream"},
        {&names.launch, "_launch_in_python"},
        {&names.launched, "_launched"},
        {&names.finish, "_finish"},
        {&names.run_plain, "_run_plain"},
        {&names.pre_run_hooks, "pre_run_hooks"},
        {&names.device_caches, "device_caches"},
        {&names.used_global_vals, "used_global_vals"},
        {&names.value, "value"},
        {&names.differs, "__ne__"},
        {&names.missed, "_missed"},
        {&names.unread, "_unread"},
        {&names.resume, "_resume"},
        {&names.drifted, "_drifted"},
        {&names.settled, "_settled"},
        {&names.data, "data"},
        {&names.call, "__call__"},
        {&names.open, "_open"},
        {&names.in_force, "in_force"},
        {&names.verify, "verify"},
        {&names.version, "_version"},
        {&names.current_call, "call"},
        {&names.f_trace, "f_trace"},
        {&names.f_trace_lines, "f_trace_lines"},
        {&names.f_trace_opcodes, "f_trace_opcodes"},
        {&names.instance_dict, "__dict__"},
        {&names.beside, "_tzero_beside"},
        {&names.index, "index"},
        {&names.type, "type"},
        {&names.configs, "configs"},
        {&names.arg_names, "arg_names"},
        {&names.keys, "keys"},
        {&names.cache, "cache"},
        {&names.fn, "fn"},
        {&names.values, "values"},
        {&names.nargs, "nargs"},
        {&names.best_config, "best_config"},
        {&names.run, "run"},
        {&names.grid, "grid"},
        {&names.warmup, "warmup"},
        {&names.dtype, "dtype"},
        {&names.kwargs, "kwargs"},
        {&names.pre_hook, "pre_hook"},
        {&names.all_kwargs, "all_kwargs"},
        {&names.base, "base"},
        {&names.shape, "shape"},
        {&names.strides, "strides"},
        {&names.block_shape, "block_shape"},
        {&names.padding, "padding"},
        {&names.round_f32_to_tf32, "round_f32_to_tf32"},
        {&names.bound_run, "_run"},
        {&names.function, "function"},
        {&names.launch_metadata, "launch_metadata"},
        {&names.module, "module"},
        {&names.packed_metadata, "packed_metadata"},
        {&names.get, "get"},
        {&names.data_ptr, "data_ptr"},
        {&names.device, "device"},
        {&names.name, "name"},
        {&names.function_name, "__name__"},
        {&names.enter, "__enter__"},
        {&names.exit, "__exit__"},
        {&names.timestamps, "timestamps"},
        {&names.graphs, "graphs"},
        {&names.graphs_after, "graphs_after"},
        {&names.graphs_kept, "graphs_kept"},
        {&names.graphs_memory, "graphs_memory"},
        {&names.kernel, "kernel"},
        {&names.proton_flags, "triton.profiler.flags"},
        {&names.flags, "flags"},
        {&names.profiling_on, "profiling_on"},
        {&names.profiler_enabled, "_is_profiler_enabled"},
        {&names.func, "func"},
        {&names.args, "args"},
    };
    for (const auto &[name, text] : all) {
        if (intern(*name, text) < 0) return -1;
    }
    return 0;
}

}  // namespace tzero
