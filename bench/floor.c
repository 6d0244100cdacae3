/* The floor of a launch: the same kernel with the same arguments, in a loop that does nothing else.
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
