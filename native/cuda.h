// CUDA's driver, loaded when it is first needed; the extension is built without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tzero::cuda {

using Result = int;
using Function = void *;
using Stream = void *;

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

class Driver {
  public:
    // Loads the driver; false if it is missing, or lacks a function.
    bool open();

    // The device of this thread's context; -1 if it has none.
    int current_device() const;

    Result launch(const Binary &binary, const int32_t grid[3], Stream stream, void **params) const;

    // Whether the driver can fill memory with this element, and doing so; it takes patterns with a
    // period of one, two or four bytes.
    bool can_fill(const std::string &pattern) const;
    Result fill(void *at, size_t bytes, const std::string &pattern, Stream stream) const;

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
    Result (*error_name_)(Result, const char **) = nullptr;
    Result (*error_string_)(Result, const char **) = nullptr;
};

}  // namespace tzero::cuda
