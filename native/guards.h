// The names of the guards, and a switch for each in a build that is made to be broken on purpose.
//
// The tests build the extension a second time with TZERO_MUTABLE, take one guard out, and demand
// that the row of tests/guards which claims it fails. In every other build `off` is always false
// and costs nothing.
#pragma once

#include <cstdint>

namespace tzero {

enum class Guard : uint32_t {
    alignment, integer_one, integer_16, integer_width, dtype, tensor_type, constants, options,
    defaults, globals, knob_debug, knob_instrumentation, stages_hook, launch_hooks, pre_run_hooks,
    own_debug, driver, device, stream, cache, grid, count
};

constexpr const char *guard_names[] = {
    "alignment", "integer_one", "integer_16", "integer_width", "dtype", "tensor_type", "constants",
    "options", "defaults", "globals", "knob_debug", "knob_instrumentation", "stages_hook",
    "launch_hooks", "pre_run_hooks", "own_debug", "driver", "device", "stream", "cache", "grid",
};
static_assert(sizeof(guard_names) / sizeof(guard_names[0]) == static_cast<uint32_t>(Guard::count));

#ifdef TZERO_MUTABLE
inline uint32_t guards_off = 0;  // the one mutable global, in the one build that wants it
inline bool off(Guard guard) { return (guards_off >> static_cast<uint32_t>(guard)) & 1; }
#else
constexpr bool off(Guard) { return false; }
#endif

}  // namespace tzero
