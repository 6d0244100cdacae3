/* Runs a grid of programs on threads.
 *
 *     tz_run ──► job (on the caller's stack) ──► list of active jobs
 *       │                                            │ workers join the oldest that has work
 *       │ takes chunks ◄── atomic `next` ──► takes chunks
 *       └─ leaves the list, waits until no worker is inside the job, returns
 *
 * Workers are detached, are started on demand and live as long as the process. A launch never
 * waits for another: its caller works through its own grid, helped or not. After fork() the child
 * starts over with an empty pool (`forget_after_fork`). The library must never be unloaded.
 *
 * It must not know Python, torch or how a kernel was compiled.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Thread policy: each thread gets at least this much work. An element operation takes some
 * 0.05 ns (vectorised arithmetic) to 1 ns (exp), and waking a sleeping thread 5 to 20 us. */
#define WORK_PER_THREAD 131072
/* A chunk is at least this much work, so that the shared counter is not a bottleneck. */
#define WORK_PER_CHUNK 4096
/* A chunk is 1/this of a thread's fair share of the rest: balanced, with few atomics. */
#define CHUNKS_PER_SHARE 4
/* How long an idle worker, or a caller waiting for the last chunk, spins before it sleeps. */
#define SPIN_NS 100000
#define MAX_WORKERS 1023
#define MAX_COOPERATIVE 4096
#define WORKER_STACK ((size_t)8 << 20)
#define COOPERATIVE_STACK ((size_t)2 << 20)
/* Scratch above this is given back after the launch instead of being kept by the thread. */
#define KEEP_SCRATCH ((size_t)64 << 20)
#define SCRATCH_ALIGNMENT 64

typedef struct job {
    tz_kernel_fn kernel;
    const tz_program *program;
    tz_launch launch;
    unsigned fp_control;         /* the caller's rounding and denormal modes */
    int64_t total;               /* programs in the grid */
    int64_t least;               /* smallest chunk, in programs */
    int64_t share;               /* threads * CHUNKS_PER_SHARE */
    _Atomic int64_t next;        /* first program nobody has taken */
    _Atomic int32_t no_memory;   /* a thread could not allocate its scratch */
    _Atomic int32_t helpers;     /* workers inside this job; changed under pool.lock */
    int32_t room;                /* workers that may still join; under pool.lock */
    struct job *older, *younger; /* neighbours in the list; under pool.lock */
} job;

/* The lock protects every field but `posted`, and the list fields of every job. */
static struct pool {
    pthread_mutex_t lock;
    pthread_cond_t wake; /* a job was posted */
    pthread_cond_t left; /* a worker left a job, and no other is in it */
    job *oldest, *youngest;
    int32_t workers, spinning, sleeping;
    _Atomic uint32_t posted; /* counts jobs; what spinning workers watch */
} pool = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .wake = PTHREAD_COND_INITIALIZER,
          .left = PTHREAD_COND_INITIALIZER};

static bool may_spin; /* more than one processor; set once, when the library is loaded */

/* ---- time and registers ----------------------------------------------------------------------- */

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Rounding and denormal modes are per thread, but a program must not depend on the thread that runs
 * it: helpers use the caller's modes. */
static unsigned get_fp_control(void) {
#if defined(__x86_64__)
    return __builtin_ia32_stmxcsr() & ~0x3Fu; /* without the sticky exception flags */
#elif defined(__aarch64__)
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    return (unsigned)control;
#else
    return 0;
#endif
}

static void set_fp_control(unsigned control) {
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(control);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)control));
#else
    (void)control;
#endif
}

/* ---- scratch: one block per thread, kept between launches ------------------------------------- */

typedef struct {
    void *memory;
    size_t bytes;
} block;

static _Thread_local block kept;
static pthread_key_t kept_key; /* only for its destructor: frees `kept` when a thread ends */

static void free_block(void *pointer) {
    block *owned = pointer;
    free(owned->memory);
    *owned = (block){0};
}

/* At least `bytes` bytes, or null. Never null for 0 bytes, so that null means failure. */
static void *scratch_of(size_t bytes) {
    if (kept.memory && kept.bytes >= bytes) return kept.memory;
    if (bytes > SIZE_MAX - SCRATCH_ALIGNMENT) return NULL;
    size_t rounded = (bytes + SCRATCH_ALIGNMENT) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
    free_block(&kept);
    if (posix_memalign(&kept.memory, SCRATCH_ALIGNMENT, rounded)) {
        kept.memory = NULL;
        return NULL;
    }
    kept.bytes = rounded;
    pthread_setspecific(kept_key, &kept);
    return kept.memory;
}

static void trim_scratch(void) {
    if (kept.bytes > KEEP_SCRATCH) free_block(&kept);
}

/* ---- working on a job -------------------------------------------------------------------------- */

/* Take the next chunk of programs; false when there is none, or the launch has failed. */
static bool take(job *j, int64_t *first, int64_t *last) {
    if (__atomic_load_n(&j->launch.status->raised, __ATOMIC_RELAXED)) return false;
    if (atomic_load_explicit(&j->no_memory, memory_order_relaxed)) return false;
    int64_t start = atomic_load_explicit(&j->next, memory_order_relaxed);
    int64_t count;
    do {
        int64_t rest = j->total - start;
        if (rest <= 0) return false;
        count = rest / j->share;
        if (count < j->least) count = j->least;
        if (count > rest) count = rest;
    } while (!atomic_compare_exchange_weak_explicit(&j->next, &start, start + count,
                                                    memory_order_relaxed, memory_order_relaxed));
    *first = start;
    *last = start + count;
    return true;
}

static void work_on(job *j) {
    int64_t first, last;
    if (!take(j, &first, &last)) return;
    void *scratch = scratch_of(j->program->scratch);
    if (!scratch) {
        atomic_store_explicit(&j->no_memory, 1, memory_order_relaxed);
        return;
    }
    do j->kernel(&j->launch, first, last, scratch);
    while (take(j, &first, &last));
    trim_scratch();
}

static bool has_work(const job *j) {
    return j->room > 0 && atomic_load_explicit(&j->next, memory_order_relaxed) < j->total;
}

/* ---- workers ------------------------------------------------------------------------------------ */

static void help(job *j) { /* pool.lock is held on entry and on exit, not in between */
    j->room--;
    atomic_fetch_add_explicit(&j->helpers, 1, memory_order_relaxed);
    pthread_mutex_unlock(&pool.lock);

    unsigned own = get_fp_control();
    set_fp_control(j->fp_control);
    work_on(j);
    set_fp_control(own);

    pthread_mutex_lock(&pool.lock);
    /* From here on the caller may return and its job vanish: nothing may touch *j any more. */
    if (atomic_fetch_sub_explicit(&j->helpers, 1, memory_order_release) == 1)
        pthread_cond_broadcast(&pool.left);
}

/* Wait for a posted job without sleeping, for a short time; pool.lock is held around it. */
static void spin_for_job(void) {
    uint32_t seen = atomic_load_explicit(&pool.posted, memory_order_relaxed);
    pool.spinning++;
    pthread_mutex_unlock(&pool.lock);
    int64_t deadline = now_ns() + SPIN_NS;
    while (atomic_load_explicit(&pool.posted, memory_order_relaxed) == seen && now_ns() < deadline)
        relax();
    pthread_mutex_lock(&pool.lock);
    pool.spinning--;
}

static void *worker(void *unused) {
    (void)unused;
    bool spun = false;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        job *j = pool.oldest;
        while (j && !has_work(j)) j = j->younger;
        if (j) {
            help(j);
            spun = false;
        } else if (may_spin && !spun) {
            spin_for_job();
            spun = true;
        } else {
            pool.sleeping++;
            pthread_cond_wait(&pool.wake, &pool.lock);
            pool.sleeping--;
            spun = false;
        }
    }
    return NULL;
}

/* Start a thread that blocks all signals, so that the program's own threads get them. */
static bool start_thread(pthread_t *thread, void *(*body)(void *), void *argument, size_t stack,
                         int detach) {
    pthread_attr_t attributes;
    sigset_t all, before;
    if (pthread_attr_init(&attributes)) return false;
    pthread_attr_setstacksize(&attributes, stack);
    pthread_attr_setdetachstate(&attributes, detach);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, &attributes, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    return !failed;
}

/* Start workers until there are `wanted`, if possible; with fewer, the grid only takes longer. */
static void start_workers(int32_t wanted) { /* pool.lock is held */
    pthread_t thread;
    if (wanted > MAX_WORKERS) wanted = MAX_WORKERS;
    while (pool.workers < wanted &&
           start_thread(&thread, worker, NULL, WORKER_STACK, PTHREAD_CREATE_DETACHED))
        pool.workers++;
}

/* ---- launching ------------------------------------------------------------------------------------ */

static void post(job *j, int32_t helpers) {
    pthread_mutex_lock(&pool.lock);
    start_workers(helpers);
    j->room = helpers;
    j->older = pool.youngest;
    j->younger = NULL;
    *(pool.youngest ? &pool.youngest->younger : &pool.oldest) = j;
    pool.youngest = j;
    atomic_fetch_add_explicit(&pool.posted, 1, memory_order_relaxed);
    int32_t wake = helpers - pool.spinning;
    bool all = wake >= pool.sleeping;
    if (all && pool.sleeping > 0 && wake > 0) pthread_cond_broadcast(&pool.wake);
    for (; !all && wake > 0; wake--) pthread_cond_signal(&pool.wake);
    pthread_mutex_unlock(&pool.lock);
}

static int32_t helpers_inside(job *j) {
    return atomic_load_explicit(&j->helpers, memory_order_acquire);
}

/* Take the job off the list and wait until no worker is inside it. */
static void withdraw(job *j) {
    pthread_mutex_lock(&pool.lock);
    *(j->older ? &j->older->younger : &pool.oldest) = j->younger;
    *(j->younger ? &j->younger->older : &pool.youngest) = j->older;
    if (may_spin && helpers_inside(j)) {
        pthread_mutex_unlock(&pool.lock);
        int64_t deadline = now_ns() + SPIN_NS;
        while (helpers_inside(j) && now_ns() < deadline) relax();
        if (!helpers_inside(j)) return;
        pthread_mutex_lock(&pool.lock);
    }
    while (helpers_inside(j)) pthread_cond_wait(&pool.left, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

/* a * b for non-negative numbers, or INT64_MAX where that is too much. */
static int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

int32_t tz_threads(int64_t programs, int64_t work, int32_t threads) {
    int64_t worth = times(programs, work > 0 ? work : 1) / WORK_PER_THREAD;
    if (worth > programs) worth = programs;
    if (worth > threads) worth = threads;
    return worth < 1 ? 1 : (int32_t)worth;
}

/* Run all programs on this thread. */
static int run_alone(job *j) {
    void *scratch = scratch_of(j->program->scratch);
    if (!scratch) return TZ_NO_MEMORY;
    j->kernel(&j->launch, 0, j->total, scratch);
    trim_scratch();
    return j->launch.status->raised ? TZ_RAISED : TZ_DONE;
}

static int run_on_pool(job *j, int32_t threads) {
    if (threads == 1) return run_alone(j);
    j->share = (int64_t)threads * CHUNKS_PER_SHARE;
    j->least = WORK_PER_CHUNK / (j->program->work > 0 ? j->program->work : 1);
    if (j->least < 1) j->least = 1;
    post(j, threads - 1);
    work_on(j);
    withdraw(j);
    if (j->launch.status->raised) return TZ_RAISED;
    return j->no_memory ? TZ_NO_MEMORY : TZ_DONE;
}

/* ---- cooperative grids: a thread for each program -------------------------------------------------- */

/* Programs may wait for each other, so none may start before all have a thread and memory. */
typedef struct {
    job *j;
    pthread_mutex_t lock; /* protects the rest */
    pthread_cond_t changed;
    int64_t ready; /* threads that wait at the gate */
    bool open, cancelled;
} gate;

typedef struct {
    gate *at;
    int64_t program;
} seat;

static void *run_seat(void *argument) {
    const seat *s = argument;
    gate *g = s->at;
    void *scratch = scratch_of(g->j->program->scratch);
    pthread_mutex_lock(&g->lock);
    if (!scratch) g->j->no_memory = 1;
    g->ready++;
    pthread_cond_broadcast(&g->changed);
    while (!g->open) pthread_cond_wait(&g->changed, &g->lock);
    bool run = !g->cancelled;
    pthread_mutex_unlock(&g->lock);
    if (run) {
        set_fp_control(g->j->fp_control);
        g->j->kernel(&g->j->launch, s->program, s->program + 1, scratch);
    }
    return NULL;
}

static int run_cooperatively(job *j) {
    if (j->total > MAX_COOPERATIVE) return TZ_TOO_WIDE;
    size_t count = (size_t)j->total;
    pthread_t *threads = malloc(count * sizeof *threads);
    seat *seats = malloc(count * sizeof *seats);
    int outcome = threads && seats ? TZ_DONE : TZ_NO_MEMORY;
    gate g = {.j = j, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    size_t started = 0;
    while (outcome == TZ_DONE && started < count) {
        seats[started] = (seat){&g, (int64_t)started};
        if (start_thread(&threads[started], run_seat, &seats[started], COOPERATIVE_STACK,
                         PTHREAD_CREATE_JOINABLE))
            started++;
        else
            outcome = TZ_NO_THREADS;
    }
    pthread_mutex_lock(&g.lock);
    while (g.ready < (int64_t)started) pthread_cond_wait(&g.changed, &g.lock);
    if (outcome == TZ_DONE && j->no_memory) outcome = TZ_NO_MEMORY;
    g.cancelled = outcome != TZ_DONE;
    g.open = true;
    pthread_cond_broadcast(&g.changed);
    pthread_mutex_unlock(&g.lock);
    for (size_t i = 0; i < started; i++) pthread_join(threads[i], NULL);
    free(seats);
    free(threads);
    if (outcome == TZ_DONE && j->launch.status->raised) outcome = TZ_RAISED;
    return outcome;
}

/* ---- the interface -------------------------------------------------------------------------------- */

int tz_run(tz_kernel_fn kernel, const tz_program *program, const void *args,
           const int32_t grid[3], int32_t threads, const tz_span *spans, tz_status *status) {
    memset(status, 0, sizeof *status);
    if (grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) return TZ_DONE;
    int64_t total = times((int64_t)grid[0] * grid[1], grid[2]);
    if (total == INT64_MAX) return TZ_TOO_WIDE;
    job j = {.kernel = kernel,
             .program = program,
             .launch = {args, {grid[0], grid[1], grid[2]}, spans, status},
             .fp_control = get_fp_control(),
             .total = total};
    if (program->cooperative && total > 1) return run_cooperatively(&j);
    return run_on_pool(&j, tz_threads(total, program->work, threads));
}

static _Thread_local tz_status last_status;

int tz_run_packed(const tz_program *program, const tz_packed *packed, const tz_span *spans) {
    return tz_run(packed->kernel, program, packed + 1, packed->grid, packed->threads, spans,
                  &last_status);
}

const tz_status *tz_last_status(void) { return &last_status; }

int32_t tz_workers(void) {
    pthread_mutex_lock(&pool.lock);
    int32_t workers = pool.workers;
    pthread_mutex_unlock(&pool.lock);
    return workers;
}

/* A forked child has one thread. Its copies of locks and lists may have been in use by threads that
 * do not exist here, so they are reset. */
static void forget_after_fork(void) {
    struct pool fresh = {.lock = PTHREAD_MUTEX_INITIALIZER,
                         .wake = PTHREAD_COND_INITIALIZER,
                         .left = PTHREAD_COND_INITIALIZER};
    memcpy(&pool, &fresh, sizeof pool);
}

__attribute__((constructor)) static void prepare(void) {
    may_spin = sysconf(_SC_NPROCESSORS_ONLN) > 1;
#ifdef CPU_COUNT
    cpu_set_t allowed;
    if (!sched_getaffinity(0, sizeof allowed, &allowed)) may_spin = CPU_COUNT(&allowed) > 1;
#endif
    pthread_key_create(&kept_key, free_block);
    pthread_atfork(NULL, NULL, forget_after_fork);
}
