#include "filling.h"

#include <algorithm>
#include <cstring>

namespace tzero {

namespace {

constexpr size_t long_enough = size_t{1} << 16;

void fill(char *at, size_t bytes, const std::string &pattern) {
    if (repeated(pattern) == 1) {
        std::memset(at, pattern[0], bytes);
        return;
    }
    size_t done = std::min(bytes, pattern.size());
    std::copy_n(pattern.begin(), done, at);
    while (done < bytes) {  // double what is there
        const size_t more = std::min(done, bytes - done);
        std::memcpy(at + done, at, more);
        done += more;
    }
}

}  // namespace

size_t repeated(const std::string &pattern) {
    for (const size_t size : {size_t{1}, size_t{2}, size_t{4}}) {
        if (pattern.size() % size != 0) continue;
        bool same = true;
        for (size_t k = size; k < pattern.size() && same; ++k) same = pattern[k] == pattern[k - size];
        if (same) return size;
    }
    return 0;
}

void fill_memory(char *at, size_t bytes, const std::string &pattern) {
    if (bytes < long_enough) {
        fill(at, bytes, pattern);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    fill(at, bytes, pattern);
    Py_END_ALLOW_THREADS
}

void copy_memory(char *to, const char *from, size_t bytes) {
    if (bytes < long_enough) {
        std::memcpy(to, from, bytes);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    std::memcpy(to, from, bytes);
    Py_END_ALLOW_THREADS
}

}  // namespace tzero
