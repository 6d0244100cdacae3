// The names of the guards, and a switch for each in the build for the mutation tests.
//
// The tests build the extension a second time with TZERO_MUTABLE, switch one guard off, and demand
// that the test in tests/launches which needs it fails. In every other build `off` is always false
// and costs nothing.
#pragma once

#include <bitset>
#include <cstdint>

#include "enums.h"

namespace tzero {

// In this order: guards of a launch; of a compiled kernel by itself; of heuristics; of a plan, on
// its arguments, on the modes of torch and tzero, on the names that the host function reads, on what
// its kernels were compiled with, on the sizes of a call, on the results of its steps, and on the tensors
// that it copies; of a ring of outputs.
#define TZERO_GUARDS(EACH)                                                                        \
    EACH(alignment) EACH(integer_one) EACH(integer_16) EACH(integer_width) EACH(dtype)            \
    EACH(tensor_type) EACH(constants) EACH(options) EACH(defaults) EACH(globals)                  \
    EACH(knob_debug) EACH(knob_instrumentation) EACH(stages_hook) EACH(launch_hooks)              \
    EACH(pre_run_hooks) EACH(own_debug) EACH(driver) EACH(device) EACH(stream) EACH(cache)        \
    EACH(grid) EACH(tuple_shape) EACH(descriptor_block)                                           \
    EACH(compiled_hooks) EACH(compiled_attributes) EACH(compiled_class) EACH(compiled_driver)     \
    EACH(heuristics_dict)                                                                         \
    EACH(plan_tensor_type) EACH(plan_requires_grad) EACH(plan_alignment) EACH(plan_dtype)         \
    EACH(plan_sizes) EACH(plan_strides) EACH(plan_keys) EACH(plan_same_tensor)                    \
    EACH(plan_same_container) EACH(plan_container) EACH(plan_class) EACH(plan_value)              \
    EACH(plan_text) EACH(plan_dtype_value) EACH(plan_other_value) EACH(plan_object)               \
    EACH(plan_modes) EACH(plan_keys_on) EACH(plan_functions_on) EACH(plan_recorders)              \
    EACH(plan_quiet) EACH(plan_unwatched)                                                         \
    EACH(plan_versions) EACH(plan_names) EACH(plan_global_tensors) EACH(plan_global_arguments)    \
    EACH(plan_global_containers) EACH(plan_bare)                                                  \
    EACH(plan_knobs) EACH(plan_attributes) EACH(plan_run_hooks) EACH(plan_globals)                \
    EACH(plan_cache)                                                                              \
    EACH(plan_others_fixed) EACH(plan_other_sizes) EACH(plan_conditions) EACH(plan_variants)       \
    EACH(plan_choice) EACH(plan_marks)                                                            \
    EACH(plan_asked_again) EACH(plan_addresses) EACH(plan_aligned) EACH(plan_result)              \
    EACH(plan_read) EACH(plan_copy_apart) EACH(plan_copy_gaps) EACH(plan_copy_tangents)           \
    EACH(plan_copy_changed)                                                                       \
    EACH(pool_names) EACH(pool_uses) EACH(pool_words) EACH(pool_version) EACH(pool_weak)          \
    EACH(pool_attributes) EACH(pool_deterministic) EACH(pool_geometry)

enum class Guard : uint32_t { TZERO_GUARDS(TZERO_ENUMERATOR) count };
constexpr const char *guard_names[] = {TZERO_GUARDS(TZERO_ENUMERATOR_NAME)};
#ifdef TZERO_MUTABLE
// The one mutable global, in this build only.
inline std::bitset<static_cast<size_t>(Guard::count)> guards_off;
inline bool off(Guard guard) { return guards_off[static_cast<size_t>(guard)]; }
#else
constexpr bool off(Guard) { return false; }
#endif

}  // namespace tzero
