// Fills memory of the CPU with copies of one element, and copies memory.
#pragma once

#include "python.h"

#include <string>

namespace tzero {

// Larger fills and copies are left to torch, which uses several threads.
constexpr size_t most_filled_here = size_t{1} << 20;

// Fills memory, and releases the GIL for large sizes. The size must be a multiple of the pattern's.
void fill_memory(char *at, size_t bytes, const std::string &pattern);

// Copies memory that does not overlap, and releases the GIL for large sizes.
void copy_memory(char *to, const char *from, size_t bytes);

// The period of the pattern: 1, 2 or 4 bytes, or 0 for none of them.
size_t repeated(const std::string &pattern);

}  // namespace tzero
