/* A libcuda for tests without a GPU: it records the calls it gets, and does the work on the CPU.
 *
 * A function is a C function that takes its parameters as CUDA passes them. Streams and contexts are
 * numbers. While a stream captures, work on it becomes a node; launching a graph does the work of its
 * nodes in order, with the parameters that were set last. A function can be told to fail, and to take
 * its time. There are two devices, each with one context, which a reset replaces.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 512, MOST_PARAMETERS = 16 };

typedef void (*work_fn)(void **params, const uint32_t *grid);

typedef struct {
    uint32_t id;
    char padding[4];
    uint32_t value[16];
} attribute;

typedef struct {
    uint32_t grid[3], block[3], shared;
    void *stream;
    const attribute *attributes;
    uint32_t count;
} config;

typedef struct {
    work_fn function;
    uint32_t grid[3], block[3], shared;
    void **params, **extra;
    void *kernel, *context;
} kernel_node;

typedef struct {
    uint64_t at;
    size_t pitch;
    uint32_t value, element_size;
    size_t width, height;
} fill_node;

typedef struct {
    size_t x, y, z, level;
    uint32_t memory;
    const void *host;
    uint64_t at;
    void *array, *reserved;
    size_t pitch, height;
} side;

typedef struct {
    side from, to;
    size_t width, height, depth;
} copy_node;

typedef struct {
    enum { LAUNCH, FILL, COPY } kind;
    kernel_node kernel;
    fill_node fill;
    copy_node copy;
    uint64_t values[MOST_PARAMETERS]; /* copies of the parameters, as a graph keeps them */
} node;

typedef struct {
    node *nodes[MOST];
    size_t count;
    unsigned long long context;
} graph;

typedef struct {
    graph *of;
    node now[MOST]; /* what the next launch does */
    unsigned long long context;
} executable;

static char calls[1 << 20];
static char failing[64], failing_next[64]; /* the second one once the first one has failed */
static int failure, failure_next, times_before;
static char slow[64];
static unsigned delay; /* in microseconds */
static _Thread_local int mode; /* of captures: CU_STREAM_CAPTURE_MODE_GLOBAL, as threads begin */
static int disturbing; /* calls that break captures of other threads */
static int capturing_status;
static uintptr_t current = 0, streams = 100;
static unsigned long long contexts[2] = {1, 2}; /* the number of each device's */
static int device = 0;
static int is_active = 1, alive[2]; /* on each device: graphs and executables */
static int stale; /* calls with an executable whose context has ended, or is not current */
static int widens; /* whether fills are read back with elements of four bytes, where they can be */
static int pitches; /* whether copies are read back with pitches, and in two dimensions if that is 2 */
static unsigned latest_grid; /* that was set */
static graph *captured;
static uintptr_t capturing;

static int said(const char *name, const char *more)
{
    size_t used = strlen(calls);
    snprintf(calls + used, sizeof calls - used, "%s%s%s\n", name, *more ? " " : "", more);
    if (slow[0] && strcmp(slow, name) == 0) {
        slow[0] = 0;
        usleep(delay);
    }
    if (failing[0] && strcmp(failing, name) == 0 && times_before-- <= 0) {
        int result = failure;
        memcpy(failing, failing_next, sizeof failing);
        failure = failure_next;
        times_before = 0;
        failing_next[0] = 0;
        return result;
    }
    return 0;
}

/* ---- for tests -------------------------------------------------------------------------------- */

const char *standin_calls(void) { return calls; }
void standin_forget(void) { calls[0] = 0; }
int standin_alive(void) { return alive[0] + alive[1]; }
void standin_stream(uintptr_t stream) { current = stream; }
void standin_capturing(int status) { capturing_status = status; }

void standin_device(int number) { device = number; }
void standin_widen(int yes) { widens = yes; }
void standin_pitches(int how) { pitches = how; }
int standin_stale(void) { return stale; }
unsigned standin_latest_grid(void) { return latest_grid; }

/* All graphs of the device are gone, without a call that says so. */
void standin_reset(void)
{
    contexts[device] += 2;
    alive[device] = 0;
}

static int is_gone(unsigned long long context) { return context != contexts[0] && context != contexts[1]; }

int standin_disturbing(void) { return disturbing; }

/* The next call of a function takes so long. */
void standin_slow(const char *name, unsigned microseconds)
{
    snprintf(slow, sizeof slow, "%s", name);
    delay = microseconds;
}

void standin_fail(const char *name, int result, int after)
{
    snprintf(failing, sizeof failing, "%s", name);
    failure = result;
    times_before = after;
}

void standin_fail_next(const char *name, int result)
{
    snprintf(failing_next, sizeof failing_next, "%s", name);
    failure_next = result;
}

int standin_current_stream(int32_t type, int32_t device, void **out)
{
    (void)type, (void)device;
    *out = (void *)current;
    return 0;
}

/* ---- functions on the "device" ---------------------------------------------------------------- */

#define TO(type, k) (*(type *)params[k])

void standin_add(void **params, const uint32_t *grid)
{
    float *x = TO(float *, 0), *y = TO(float *, 1), *out = TO(float *, 2);
    int n = TO(int, 3);
    for (int k = 0; k < n && k < (int)(grid[0] * 128); ++k)
        out[k] = x[k] + y[k];
}

void standin_scale(void **params, const uint32_t *grid)
{
    float *x = TO(float *, 0), *out = TO(float *, 1), by = TO(float, 3);
    int n = TO(int, 2);
    for (int k = 0; k < n && k < (int)(grid[0] * 128); ++k)
        out[k] = x[k] * by;
}

static void fill_with(const fill_node *f)
{
    for (size_t k = 0; k < f->width; ++k)
        memcpy((char *)f->at + k * f->element_size, &f->value, f->element_size);
}

static void copy_with(const copy_node *c)
{
    memcpy((void *)c->to.at, (void *)c->from.at, c->width);
}

/* ---- the driver ------------------------------------------------------------------------------- */

int cuCtxGetDevice(int *out) { *out = device; return 0; }
int cuGetErrorName(int result, const char **out)
{
    *out = result == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_STANDIN";
    return 0;
}
int cuGetErrorString(int result, const char **out)
{
    *out = result == 2 ? "out of memory" : "told to fail";
    return 0;
}
int cuStreamIsCapturing(void *stream, int *status)
{
    *status = (uintptr_t)stream == current ? capturing_status : 0;
    return 0;
}

static void keep(node *n, const kernel_node *k)
{
    n->kernel = *k;
    /* Both functions have four parameters and Triton's two; the block has room for eight bytes each. */
    for (int p = 0; p < 6; ++p)
        memcpy(&n->values[p], k->params[p], 8);
}

static void capture(node made)
{
    node *n = malloc(sizeof *n);
    *n = made;
    captured->nodes[captured->count++] = n;
}

static int is_too_large(const uint32_t *grid) { return grid[1] > 65535 || grid[2] > 65535; }

int cuLaunchKernelEx(const config *c, work_fn function, void **params, void **extra)
{
    static const char *const names[] = {[2] = "cooperative", [4] = "cluster", [5] = "spread", [6] = "dependent"};
    char text[128];
    (void)extra;
    int used = snprintf(text, sizeof text, "stream %lu grid %u", (unsigned long)c->stream, c->grid[0]);
    for (uint32_t k = 0; k < c->count; ++k)
        used += snprintf(text + used, sizeof text - used, " %s %u", names[c->attributes[k].id],
                         c->attributes[k].value[0]);
    int failed = said("cuLaunchKernelEx", text);
    if (failed)
        return failed;
    if (is_too_large(c->grid))
        return 1;
    kernel_node k = {.function = function, .params = params};
    memcpy(k.grid, c->grid, sizeof k.grid);
    memcpy(k.block, c->block, sizeof k.block);
    if (captured && (uintptr_t)c->stream == capturing) {
        node n = {0};
        keep(&n, &k);
        capture(n);
        return 0;
    }
    function(params, c->grid);
    return 0;
}

static int fill(uint64_t at, uint32_t value, uint32_t size, size_t count, void *stream)
{
    int failed = said("cuMemsetAsync", "");
    if (failed)
        return failed;
    fill_node f = {at, 0, value, size, count, 1};
    if (captured && (uintptr_t)stream == capturing) {
        node n = {.kind = FILL, .fill = f};
        capture(n);
    } else {
        fill_with(&f);
    }
    return 0;
}

int cuMemsetD8Async(uint64_t at, unsigned char v, size_t n, void *s) { return fill(at, v, 1, n, s); }
int cuMemsetD16Async(uint64_t at, unsigned short v, size_t n, void *s)
{
    return fill(at, v, 2, n, s);
}
int cuMemsetD32Async(uint64_t at, unsigned v, size_t n, void *s) { return fill(at, v, 4, n, s); }

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    enum { DEVICE = 2 };
    char text[64];
    snprintf(text, sizeof text, "%zu", bytes);
    int failed = said("cuMemcpyDtoDAsync", text);
    if (failed)
        return failed;
    copy_node c = {.from = {.memory = DEVICE, .at = from}, .to = {.memory = DEVICE, .at = to}};
    c.width = bytes;
    c.height = c.depth = 1;
    if (captured && (uintptr_t)stream == capturing) {
        node n = {.kind = COPY, .copy = c};
        capture(n);
    } else {
        copy_with(&c);
    }
    return 0;
}

static void disturb(void);
int cuStreamCreate(void **stream, unsigned flags)
{
    (void)flags;
    disturb();
    *stream = (void *)++streams;
    return said("cuStreamCreate", "");
}
int cuStreamBeginCapture_v2(void *stream, int mode)
{
    int failed = said("cuStreamBeginCapture", mode == 1 ? "" : "in another mode");
    if (failed)
        return failed;
    captured = calloc(1, sizeof *captured);
    captured->context = contexts[device];
    ++alive[device];
    capturing = (uintptr_t)stream;
    return 0;
}
int cuStreamEndCapture(void *stream, graph **out)
{
    (void)stream;
    *out = captured;
    captured = NULL;
    return said("cuStreamEndCapture", "");
}
int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, graph **of, node ***latest,
                              const void **edges, size_t *count)
{
    (void)stream, (void)edges;
    *status = 1;
    *id = 1;
    *of = captured;
    *latest = &captured->nodes[captured->count - 1];
    *count = captured->count > 0;
    return 0;
}
int cuThreadExchangeStreamCaptureMode(int *other)
{
    int before = mode;
    mode = *other;
    *other = before;
    return 0;
}

/* What allocates, frees or waits breaks captures of other threads, unless this one is relaxed. */
static void disturb(void) { disturbing += mode != 2; }
int cuGraphKernelNodeGetParams_v2(node *n, kernel_node *out) { *out = n->kernel; return 0; }
int cuGraphMemsetNodeGetParams(node *n, fill_node *out)
{
    *out = n->fill;
    if (widens && out->element_size == 1 && out->width % 4 == 0) {
        out->value *= 0x01010101u;
        out->element_size = 4;
        out->width /= 4;
    }
    return 0;
}
int cuGraphMemcpyNodeGetParams(node *n, copy_node *out)
{
    *out = n->copy;
    if (pitches) {
        out->from.pitch = out->to.pitch = out->width;
        out->from.height = out->to.height = 1;
    }
    if (pitches == 2)
        out->height = 2;
    return said("cuGraphMemcpyNodeGetParams", "");
}
int cuGraphInstantiateWithFlags(executable **out, graph *of, unsigned long long flags)
{
    (void)flags;
    disturb();
    int failed = said("cuGraphInstantiate", "");
    if (failed)
        return failed;
    executable *e = calloc(1, sizeof *e);
    e->of = of;
    e->context = contexts[device];
    for (size_t k = 0; k < of->count; ++k)
        e->now[k] = *of->nodes[k];
    ++alive[device];
    *out = e;
    return 0;
}
int cuGraphUpload(executable *e, void *stream) { (void)e, (void)stream; return said("cuGraphUpload", ""); }

static void run(const node *n)
{
    void *params[MOST_PARAMETERS];
    if (n->kind == FILL) {
        fill_with(&n->fill);
        return;
    }
    if (n->kind == COPY) {
        copy_with(&n->copy);
        return;
    }
    for (int p = 0; p < MOST_PARAMETERS; ++p)
        params[p] = (void *)&n->values[p];
    n->kernel.function(params, n->kernel.grid);
}

int cuGraphLaunch(executable *e, void *stream)
{
    char text[64];
    snprintf(text, sizeof text, "stream %lu", (unsigned long)stream);
    int failed = said("cuGraphLaunch", text);
    stale += e->context != contexts[device];
    if (failed)
        return failed;
    for (size_t k = 0; k < e->of->count; ++k)
        if (e->now[k].kind == LAUNCH && is_too_large(e->now[k].kernel.grid))
            return 1;
    for (size_t k = 0; k < e->of->count; ++k)
        run(&e->now[k]);
    return 0;
}

static size_t place(const executable *e, const node *n)
{
    size_t k = 0;
    while (e->of->nodes[k] != n)
        ++k;
    return k;
}
int cuGraphExecKernelNodeSetParams_v2(executable *e, node *n, const kernel_node *k)
{
    char text[32];
    snprintf(text, sizeof text, "%zu", place(e, n));
    int failed = said("cuGraphExecKernelNodeSetParams", text);
    stale += e->context != contexts[device];
    latest_grid = k->grid[0];
    if (!failed)
        keep(&e->now[place(e, n)], k);
    return failed;
}
int cuGraphExecMemsetNodeSetParams(executable *e, node *n, const fill_node *f, void *where)
{
    char text[32];
    (void)where;
    snprintf(text, sizeof text, "%zu", place(e, n));
    int failed = said("cuGraphExecMemsetNodeSetParams", text);
    if (!failed)
        e->now[place(e, n)].fill = *f;
    return failed;
}
/* As CUDA does, it takes one row of at least one byte, of memory of the same kinds. */
int cuGraphExecMemcpyNodeSetParams(executable *e, node *n, const copy_node *c, void *where)
{
    char text[32];
    (void)where;
    snprintf(text, sizeof text, "%zu", place(e, n));
    int failed = said("cuGraphExecMemcpyNodeSetParams", text);
    if (failed)
        return failed;
    const copy_node *before = &n->copy;
    if (c->width == 0 || c->height != 1 || c->depth != 1 || c->from.memory != before->from.memory ||
        c->to.memory != before->to.memory || c->from.x || c->to.x ||
        (c->from.pitch && c->from.pitch < c->width) || (c->to.pitch && c->to.pitch < c->width))
        return 1;
    e->now[place(e, n)].copy = *c;
    return 0;
}
int cuGraphExecDestroy(executable *e)
{
    stale += is_gone(e->context);
    alive[(e->context - 1) % 2] -= !is_gone(e->context);
    free(e);
    disturb();
    return said("cuGraphExecDestroy", "");
}
int cuGraphDestroy(graph *g)
{
    stale += is_gone(g->context);
    alive[(g->context - 1) % 2] -= !is_gone(g->context);
    for (size_t k = 0; k < g->count; ++k)
        free(g->nodes[k]);
    free(g);
    return said("cuGraphDestroy", "");
}
int cuCtxGetCurrent(void **out) { *out = &contexts[device]; return 0; }
int cuCtxGetId(void *of, unsigned long long *out)
{
    *out = of ? *(unsigned long long *)of : contexts[device];
    return 0;
}
int cuDevicePrimaryCtxGetState(int number, unsigned *flags, int *active)
{
    (void)number;
    *flags = 0;
    *active = is_active;
    return 0;
}
int cuDevicePrimaryCtxRetain(void **out, int number) { *out = &contexts[number]; return 0; }
int cuDevicePrimaryCtxRelease_v2(int number) { (void)number; return 0; }

/* Events are numbers that nothing waits for: work is done at once. */
int cuEventCreate(void **event, unsigned flags)
{
    (void)flags;
    *event = &contexts[0];
    return said("cuEventCreate", "");
}
int cuEventRecord(void *event, void *stream)
{
    (void)event, (void)stream;
    return said("cuEventRecord", "");
}
int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    (void)stream, (void)event, (void)flags;
    return said("cuStreamWaitEvent", "");
}
int cuEventSynchronize(void *event)
{
    (void)event;
    disturb();
    return said("cuEventSynchronize", "");
}
