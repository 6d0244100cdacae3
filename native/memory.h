// What a launch on CUDA gives a kernel besides its arguments: tensor maps, and scratch memory.
//
// A descriptor that the host made becomes a tensor map of CUDA's driver, 128 bytes which say where a
// tensor is and how it is cut into blocks (TMA). Scratch memory comes from the allocator that the
// program has given Triton, which is called in each launch.
#pragma once

#include "python.h"

#include <array>
#include <cstdint>
#include <vector>

#include "arguments.h"
#include "cuda.h"

namespace tzero {

struct State;
struct Spec;
struct Facts;

namespace cuda {

constexpr size_t map_bytes = 128;
constexpr size_t map_alignment = 64;
constexpr size_t most_map_rank = 5;
constexpr size_t most_maps = 8;  // of one kernel

// How a descriptor becomes a tensor map. Of the arguments, `argument` is its base; after that come
// its sizes, its strides and two flags, as nested.cpp reads them.
struct TensorMap {
    size_t argument = 0, offset = 0;  // `offset` is in the block of parameters
    uint32_t rank = 0;
    uint32_t swizzle = 0, element_bytes = 0, type = 0;
    std::array<uint32_t, most_map_rank> box{};  // the last dimension first, as the driver has it
};

// Functions of the driver that few kernels need.
class Memory {
  public:
    void open();

    // Writes a tensor map; false if the driver cannot, or does not take these numbers.
    bool encode(const TensorMap &map, const Argument *arguments, void *out) const;

    // The address by which the device reads this memory.
    Result device_address(uint64_t address, uint64_t *out) const;

  private:
    using Encode = Result(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *,
                          const uint32_t *, const uint32_t *, int, int, int, int);

    Encode *encode_ = nullptr;
    Result (*attribute_)(void *, int, uint64_t) = nullptr;
};

}  // namespace cuda

// Memory that a kernel needs besides its arguments: how much a block of its grid does.
struct ScratchNeed {
    int64_t bytes = 0, alignment = 0;
    Ref allocators;  // has `get`, the allocator of the moment
};

// The memory of one launch, until it is queued.
struct Scratch {
    uint64_t address[2] = {0, 0};
    Ref kept[2];
};

// Of a binary that needs none.
inline const Scratch no_scratch;

// Writes the tensor maps of a launch into its block of parameters; false if Triton must, which
// reports what is wrong.
bool encode_maps(const State &state, const Spec &spec, const Argument *arguments, char *block);

// Asks for memory as Triton does. False: Triton must make the launch, or the Python error is set.
bool allocate(const State &state, const Spec &spec, const int32_t grid[3], void *stream,
              Scratch *out);

}  // namespace tzero
