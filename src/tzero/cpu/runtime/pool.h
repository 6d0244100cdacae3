/* Running a grid on threads: the interface of pool.c, for the Python and native launchers.
 *
 * Enters: a kernel, its packed arguments, a grid. Leaves: an outcome, and the status of a failed
 * check. It must not know Python, torch or how a kernel was compiled.
 */
#ifndef TZ_POOL_H
#define TZ_POOL_H

#include "launch.h"

/* Return values of tz_run. */
enum {
    TZ_DONE = 0,
    TZ_RAISED = 1,     /* a check failed; see the status */
    TZ_NO_MEMORY = 2,  /* the scratch could not be allocated */
    TZ_NO_THREADS = 3, /* a cooperative grid could not get a thread for each program */
    TZ_TOO_WIDE = 4,   /* the grid has too many programs */
};

/* The same for every launch of a kernel; from the compiler's metadata. */
typedef struct {
    size_t scratch;      /* bytes each running thread needs: cpu_scratch */
    int64_t work;        /* estimated element operations per program: cpu_work */
    int32_t cooperative; /* all programs must run at the same time */
} tz_program;

/* Run `kernel` over the grid and return when every program has ended.
 *
 * At most `threads` threads take part, the caller among them; tz_threads() decides how many. Any
 * number of threads may call this at once, also in a forked child. `status` is cleared first. */
int tz_run(tz_kernel_fn kernel, const tz_program *program, const void *args,
           const int32_t grid[3], int32_t threads, const tz_span *spans, tz_status *status);

/* The thread policy: how many threads, the caller among them, run `programs` programs of `work`
 * element operations each when `threads` are allowed. */
int32_t tz_threads(int64_t programs, int64_t work, int32_t threads);

/* A launch in one block of memory, so that callers pass one pointer. */
typedef struct {
    tz_kernel_fn kernel;
    int32_t grid[3];
    int32_t threads;
    int64_t unused; /* aligns the arguments to 16 bytes, as launch.h promises */
    /* the arguments follow */
} tz_packed;

/* tz_run on a block; the status is kept for tz_last_status(). */
int tz_run_packed(const tz_program *program, const tz_packed *packed, const tz_span *spans);

/* The status of the calling thread's latest tz_run_packed. */
const tz_status *tz_last_status(void);

/* How many worker threads this process has now; for tests. */
int32_t tz_workers(void);

#endif
