/* The floor of a launch: the same kernel with the same arguments, in a loop that does nothing else.
 *
 * The floor of a CUDA graph: its launch, with and without new parameters for each of its kernels.
 *
 * Enters: addresses, and a number of launches. Leaves: an error code. It knows neither Python nor
 * Triton; on CUDA it opens the driver itself and calls cuLaunchKernelEx.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

typedef int (*run_packed)(const void *program, const void *packed, const void *spans);

/* Launches on the thread pool of tzero.cpu; the first error, or 0. */
int floor_cpu(run_packed run, const void *program, const void *packed, int64_t times)
{
    for (int64_t k = 0; k < times; ++k) {
        int outcome = run(program, packed, NULL);
        if (outcome != 0)
            return outcome;
    }
    return 0;
}

/* Several launches in a row, each with arguments of its own. */
int floor_cpu_each(run_packed run, const void *program, const void *const *packed, int count,
                   int64_t times)
{
    for (int64_t k = 0; k < times; ++k)
        for (int j = 0; j < count; ++j) {
            int outcome = run(program, packed[j], NULL);
            if (outcome != 0)
                return outcome;
        }
    return 0;
}

typedef struct {
    uint32_t grid[3], block[3], shared;
    void *stream;
    void *attributes;
    uint32_t count;
} launch_config;

typedef int (*launch_ex)(const launch_config *, void *function, void **params, void **extra);

/* Launches with CUDA's driver; its first error, 0, or -1 if there is no driver. */
int floor_cuda(void *function, uint32_t grid, uint32_t threads, uint32_t shared, void *stream,
               void **params, int64_t times)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY);
    launch_ex launch = library ? (launch_ex)dlsym(library, "cuLaunchKernelEx") : NULL;
    if (launch == NULL)
        return -1;
    launch_config config = {{grid, 1, 1}, {threads, 1, 1}, shared, stream, NULL, 0};
    for (int64_t k = 0; k < times; ++k) {
        int result = launch(&config, function, params, NULL);
        if (result != 0)
            return result;
    }
    return 0;
}

typedef struct {
    void *function;
    uint32_t grid[3], block[3], shared;
    void **params, **extra;
    void *kernel, *context;
} kernel_node;

typedef int (*make_graph)(void **graph, unsigned flags);
typedef int (*add_kernel)(void **node, void *graph, void *const *after, size_t count,
                          const kernel_node *what);
typedef int (*instantiate)(void **executable, void *graph, unsigned long long flags);
typedef int (*launch_graph)(void *executable, void *stream);
typedef int (*set_kernel)(void *executable, void *node, const kernel_node *what);

enum { MOST_NODES = 64 };

/* Makes a graph of `nodes` equal kernels in a row; the executable, or null. */
void *floor_graph(void *function, uint32_t grid, uint32_t threads, uint32_t shared, void **params,
                  int nodes, void **made)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY), *graph = NULL, *executable = NULL;
    if (library == NULL || nodes > MOST_NODES)
        return NULL;
    make_graph make = (make_graph)dlsym(library, "cuGraphCreate");
    add_kernel add = (add_kernel)dlsym(library, "cuGraphAddKernelNode_v2");
    instantiate finish = (instantiate)dlsym(library, "cuGraphInstantiateWithFlags");
    kernel_node what = {function, {grid, 1, 1}, {threads, 1, 1}, shared, params, NULL, NULL, NULL};
    if (!make || !add || !finish || make(&graph, 0) != 0)
        return NULL;
    for (int k = 0; k < nodes; ++k)
        if (add(&made[k], graph, k ? &made[k - 1] : NULL, k ? 1 : 0, &what) != 0)
            return NULL;
    return finish(&executable, graph, 0) == 0 ? executable : NULL;
}

/* Launches the graph. If `others` is given, every kernel gets other parameters each time: these and
 * `params` in turn. The first error, 0, or -1 if there is no driver. */
int floor_graph_launches(void *executable, void *function, uint32_t grid, uint32_t threads,
                         uint32_t shared, void *stream, void **params, void **others, int nodes,
                         void **made, int64_t times)
{
    void *library = dlopen("libcuda.so.1", RTLD_LAZY);
    launch_graph launch = library ? (launch_graph)dlsym(library, "cuGraphLaunch") : NULL;
    set_kernel set = library ? (set_kernel)dlsym(library, "cuGraphExecKernelNodeSetParams_v2") : NULL;
    if (launch == NULL || set == NULL)
        return -1;
    kernel_node what = {function, {grid, 1, 1}, {threads, 1, 1}, shared, params, NULL, NULL, NULL};
    for (int64_t t = 0; t < times; ++t) {
        what.params = t & 1 ? others : params;
        for (int k = 0; others != NULL && k < nodes; ++k) {
            int result = set(executable, made[k], &what);
            if (result != 0)
                return result;
        }
        int result = launch(executable, stream);
        if (result != 0)
            return result;
    }
    return 0;
}
