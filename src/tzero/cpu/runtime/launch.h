/* The kernel ABI: what a compiled kernel exports, and what the launcher passes to it.
 *
 * Enters: two freestanding headers only, because every kernel includes this file and pays for
 * parsing it. Leaves: the types below. It must not know Python, torch or threads.
 *
 * A kernel's shared object exports one function, `tz_kernel`, of type `tz_kernel_fn`. It runs the
 * programs first .. last-1 of the grid, numbered with x fastest. Several threads may be inside the
 * same kernel with the same `launch` and different ranges.
 */
#ifndef TZ_LAUNCH_H
#define TZ_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

/* A pointer parameter may access bytes lo .. hi-1; only used in checked mode. */
typedef struct {
    uintptr_t lo, hi;
} tz_span;

/* The first failed check of a launch. The thread that sets `raised` with an atomic exchange fills
 * the rest; all programs stop soon after. `site` indexes the metadata's cpu_sites, `param` its cpu_params,
 * `offset` counts elements from that parameter's pointer. */
typedef struct {
    int32_t raised;
    int32_t site;
    int32_t param;
    int32_t pid[3];
    int64_t offset;
} tz_status;

/* One launch, the same for all of its programs. `args` points at the parameters in order, laid out
 * as a C struct; it is aligned to 16 bytes. `spans` has one entry per parameter, or is null when
 * the kernel was not compiled in checked mode. */
typedef struct {
    const void *args;
    int32_t grid[3];
    const tz_span *spans;
    tz_status *status;
} tz_launch;

/* `scratch` is aligned to 64 bytes, at least as large as the metadata's cpu_scratch, private to
 * the calling thread until the function returns, and not cleared. Tiles beyond about 256 KB of
 * stack go there, because a kernel may run on any thread of the process. */
typedef void (*tz_kernel_fn)(const tz_launch *launch, int64_t first, int64_t last, void *scratch);

#endif
