// CUDA's driver, opened when it is first needed: the extension is built without it and runs without.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace tzero::cuda {

using Result = int;
using Function = void *;
using Stream = void *;

// What is the same for every launch of one binary.
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
    // Opens the driver; false where there is none, or none with all that is needed.
    bool open();

    // The device of this thread's context; -1 where it has none.
    int current_device() const;

    Result launch(const Binary &binary, const int32_t grid[3], Stream stream, void **params) const;

    // Whether memory can be filled with this element again and again, and doing so; the driver has
    // patterns of one, two and four bytes.
    bool can_fill(const std::string &pattern) const;
    Result fill(void *at, size_t bytes, const std::string &pattern, Stream stream) const;

    // Whether what goes to the stream is captured into a graph; yes also where that is not known.
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
