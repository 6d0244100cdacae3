/* Included by generated kernels: the ABI, number types and functions, and macros. */
#ifndef TZ_KERNEL_H
#define TZ_KERNEL_H

#include "launch.h"
#include "numeric.h"

#define TZ_EXPORT __attribute__((visibility("default")))
#define TZ_ALIGNED __attribute__((aligned(64)))
#define TZ_ASSUME_ALIGNED(p) ((char *)__builtin_assume_aligned((p), 64))

/* Iterations of a tile loop do not depend on each other through memory. */
#if defined(__clang__)
#define TZ_IVDEP _Pragma("clang loop vectorize(assume_safety)")
#else
#define TZ_IVDEP _Pragma("GCC ivdep")
#endif

static inline __attribute__((unused)) int64_t tz_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline __attribute__((unused)) int64_t tz_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline __attribute__((unused)) int tz_apart(const char *p, const char *q, int64_t bytes)
{
    return (uintptr_t)p + bytes <= (uintptr_t)q || (uintptr_t)q + bytes <= (uintptr_t)p;
}

/* A power of two that scales a divisor so that its reciprocal is a normal number. */
static inline __attribute__((unused)) float tz_divisor_scale(float x)
{
    const float size = __builtin_fabsf(x);
    return size > 0x1p125f ? 0x1p-4f : size < 0x1p-125f ? 0x1p25f : 1.0f;
}

static inline __attribute__((unused)) int tz_stopped(const tz_launch *launch)
{
    return __atomic_load_n(&launch->status->raised, __ATOMIC_RELAXED);
}

/* Record `param` if its span is nearer to the address than the best so far. */
#define TZ_NEARER(best, way, param, span, at)                                                  \
    {                                                                                          \
        const uint64_t tz_way = (at) < (span).lo ? (span).lo - (at) : (at) - (span).hi;        \
        if (tz_way < (way)) {                                                                  \
            (way) = tz_way;                                                                    \
            (best) = (param);                                                                  \
        }                                                                                      \
    }

/* The first program to fail records where; the others only stop. */
static __attribute__((noinline, cold, unused)) void
tz_fail(const tz_launch *launch, const int32_t *pid, int32_t site, int32_t param, int64_t offset)
{
    tz_status *status = launch->status;
    if (__atomic_exchange_n(&status->raised, 1, __ATOMIC_ACQ_REL))
        return;
    status->site = site;
    status->param = param;
    status->offset = offset;
    for (int k = 0; k < 3; k++)
        status->pid[k] = pid[k];
}

/* Stop the program that is running, from anywhere in its body. */
#define TZ_FAIL(site, param, offset)                         \
    do {                                                     \
        tz_fail(launch, pid, site, param, offset);           \
        return;                                              \
    } while (0)

#endif
