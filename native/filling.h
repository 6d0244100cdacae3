// Memory of the CPU, filled with one element again and again.
#pragma once

#include "python.h"

#include <string>

namespace tzero {

// More is left to torch, which fills with several threads.
constexpr size_t most_filled_here = size_t{1} << 20;

// Fills memory; others may run meanwhile where that takes long. The pattern divides the size.
void fill_memory(char *at, size_t bytes, const std::string &pattern);

// The pattern's first bytes, where the rest only repeats them: 1, 2 or 4 of them, or 0.
size_t repeated(const std::string &pattern);

}  // namespace tzero
