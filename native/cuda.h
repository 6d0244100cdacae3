// CUDA's driver, loaded when it is first needed; the extension is built without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tzero::cuda {

using Result = int;
using Function = void *;
using Stream = void *;
using Graph = void *;
using Executable = void *;
using Node = void *;
using Context = void *;

constexpr Result out_of_memory = 2;

// What is the same for every launch of one binary. A new launch attribute gets a field here, and is
// packed in `Driver::launch`.
struct Binary {
    Function function = nullptr;
    uint32_t threads = 0;  // in a block
    uint32_t shared = 0;   // bytes
    uint32_t cluster = 1;  // blocks
    bool cooperative = false;
    bool dependent = false;  // programmatic dependent launch
};

// A kernel in a graph: CUDA_KERNEL_NODE_PARAMS of version 2.
struct KernelNode {
    Function function;
    uint32_t grid[3], block[3], shared;
    void **params, **extra;
    void *kernel;
    Context context;
};

// A fill in a graph: CUDA_MEMSET_NODE_PARAMS.
struct FillNode {
    uint64_t at;
    size_t pitch;
    uint32_t value, element_size;
    size_t width, height;
};

// A copy in a graph: CUDA_MEMCPY3D.
struct CopyNode {
    struct Side {
        size_t x, y, z, level;
        uint32_t memory;
        const void *host;
        uint64_t at;
        void *array, *reserved;
        size_t pitch, height;
    };
    Side from, to;
    size_t width, height, depth;
};

// The driver's functions for executable graphs. An older driver may lack some.
struct GraphFunctions {
    const char *missing = "CUDA's driver";  // the first function it lacks, or null

    Result (*create_stream)(Stream *, unsigned) = nullptr;
    Result (*begin_capture)(Stream, int mode) = nullptr;
    Result (*end_capture)(Stream, Graph *) = nullptr;
    // status, id, graph, nodes that the next one depends on, their edges, how many
    Result (*capture_info)(Stream, int *, uint64_t *, Graph *, const Node **, const void **,
                           size_t *) = nullptr;
    Result (*exchange_mode)(int *) = nullptr;
    Result (*kernel_of)(Node, KernelNode *) = nullptr;
    Result (*fill_of)(Node, FillNode *) = nullptr;
    Result (*copy_of)(Node, CopyNode *) = nullptr;
    Result (*instantiate)(Executable *, Graph, unsigned long long flags) = nullptr;
    Result (*upload)(Executable, Stream) = nullptr;
    Result (*launch)(Executable, Stream) = nullptr;
    Result (*set_kernel)(Executable, Node, const KernelNode *) = nullptr;
    Result (*set_fill)(Executable, Node, const FillNode *, Context) = nullptr;
    Result (*set_copy)(Executable, Node, const CopyNode *, Context) = nullptr;
    Result (*destroy_executable)(Executable) = nullptr;
    Result (*destroy_graph)(Graph) = nullptr;
    Result (*current_context)(Context *) = nullptr;
    Result (*context_id)(Context, unsigned long long *) = nullptr;
    Result (*is_active)(int device, unsigned *, int *) = nullptr;
    Result (*retain)(Context *, int device) = nullptr;
    Result (*release)(int device) = nullptr;

    // The number of a device's primary context, which changes with a reset of the device; 0 if it
    // has none, or if that is not known.
    unsigned long long context_of(int device) const;
};

class Driver {
  public:
    // Loads the driver; false if it is missing, or lacks a function other than those for graphs.
    bool open();

    GraphFunctions graphs;

    // The device of this thread's context; -1 if it has none.
    int current_device() const;

    Result launch(const Binary &binary, const int32_t grid[3], Stream stream, void **params) const;

    // Whether the driver can fill memory with this element, and doing so; it takes patterns with a
    // period of one, two or four bytes.
    bool can_fill(const std::string &pattern) const;
    Result fill(void *at, size_t bytes, const std::string &pattern, Stream stream) const;

    // Copies memory of the device, which must not overlap.
    bool can_copy() const { return copy_ != nullptr; }
    Result copy(uint64_t to, uint64_t from, size_t bytes, Stream stream) const {
        return copy_(to, from, bytes, stream);
    }

    // Whether the stream is being captured into a graph; also true if that is unknown.
    bool is_capturing(Stream stream) const;

    const char *name_of(Result result) const;
    const char *text_of(Result result) const;

  private:
    struct LaunchAttribute;
    struct LaunchConfig;

    Result (*get_device_)(int *) = nullptr;
    Result (*launch_)(const LaunchConfig *, Function, void **, void **) = nullptr;
    Result (*is_capturing_)(Stream, int *) = nullptr;
    Result (*fill_1_)(uint64_t, unsigned char, size_t, Stream) = nullptr;
    Result (*fill_2_)(uint64_t, unsigned short, size_t, Stream) = nullptr;
    Result (*fill_4_)(uint64_t, unsigned int, size_t, Stream) = nullptr;
    Result (*copy_)(uint64_t to, uint64_t from, size_t, Stream) = nullptr;
    Result (*error_name_)(Result, const char **) = nullptr;
    Result (*error_string_)(Result, const char **) = nullptr;
};

}  // namespace tzero::cuda
