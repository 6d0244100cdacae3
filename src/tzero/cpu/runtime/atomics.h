/* Atomics for which C has no builtin. Those with a value return the old bits. */
#ifndef TZ_ATOMICS_H
#define TZ_ATOMICS_H

/* The memory order of a failed compare-and-swap. */
#define TZ_FAILED(order) \
    ((order) == __ATOMIC_RELAXED || (order) == __ATOMIC_RELEASE ? __ATOMIC_RELAXED : __ATOMIC_ACQUIRE)

#define TZ_ATOMIC_LOAD(p, order)                 \
    ({                                           \
        __typeof__(*(p)) tz_old;                 \
        __atomic_load((p), &tz_old, (order));    \
        tz_old;                                  \
    })

#define TZ_ATOMIC_STORE(p, bits, order)          \
    do {                                         \
        __typeof__(*(p)) tz_new = (bits);        \
        __atomic_store((p), &tz_new, (order));   \
    } while (0)

#define TZ_ATOMIC_XCHG(p, bits, order)                      \
    ({                                                      \
        __typeof__(*(p)) tz_new = (bits), tz_old;           \
        __atomic_exchange((p), &tz_new, &tz_old, (order));  \
        tz_old;                                             \
    })

#define TZ_ATOMIC_CAS(p, expected, desired, order)                                             \
    ({                                                                                         \
        __typeof__(*(p)) tz_old = (expected), tz_new = (desired);                              \
        __atomic_compare_exchange((p), &tz_old, &tz_new, 0, (order), TZ_FAILED(order));        \
        tz_old;                                                                                \
    })

/* `updated` is an expression of tz_old. */
#define TZ_ATOMIC_UPDATE(p, updated, order)                                                    \
    ({                                                                                         \
        __typeof__(*(p)) tz_old, tz_new;                                                       \
        __atomic_load((p), &tz_old, __ATOMIC_RELAXED);                                         \
        do                                                                                     \
            tz_new = (updated);                                                                \
        while (!__atomic_compare_exchange((p), &tz_old, &tz_new, 1, (order), TZ_FAILED(order))); \
        tz_old;                                                                                \
    })

struct tz_time {
    long seconds, nanoseconds;
};
int clock_gettime(int clock, struct tz_time *now);
int sched_yield(void);

static inline __attribute__((unused)) int64_t tz_nanoseconds(void)
{
    struct tz_time now;
    clock_gettime(1 /* CLOCK_MONOTONIC on Linux */, &now);
    return now.seconds * 1000000000ll + now.nanoseconds;
}

/* When a timeout in nanoseconds ends; a negative one (or 292 years) never does. */
static inline __attribute__((unused)) int64_t tz_deadline(int64_t timeout)
{
    const int64_t now = timeout < 0 ? 0 : tz_nanoseconds();
    return timeout < 0 || timeout > INT64_MAX - now ? INT64_MAX : now + timeout;
}

/* A waiting program yields its core between polls: the one it waits for may need it. Without a
 * deadline it waits until another program fails. */
#define TZ_ATOMIC_POLL(p, wanted, deadline, order)                                             \
    ({                                                                                         \
        _Bool tz_seen;                                                                         \
        while (!(tz_seen = __atomic_load_n((p), __ATOMIC_RELAXED) == (wanted))) {              \
            if (tz_stopped(launch) ||                                                          \
                ((deadline) != INT64_MAX && tz_nanoseconds() >= (deadline)))                   \
                break;                                                                         \
            sched_yield();                                                                     \
        }                                                                                      \
        if (tz_seen)                                                                           \
            __atomic_thread_fence(order);                                                      \
        tz_seen;                                                                               \
    })

#endif
