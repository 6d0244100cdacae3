// Names that the headers of newer systems refer to, and that older libraries lack; see portable.h.

#ifdef TZERO_PORTABLE

#include <new>

// glibc 2.32: whether there is one thread only, so that `std::shared_ptr` may count without atomics. "No"
// is always right. It is hidden, as everything here.
extern "C" {
char __libc_single_threaded = 0;
}

namespace std {

// GCC 11: the length of a vector overflows.
[[noreturn]] void __throw_bad_array_new_length() { throw bad_alloc(); }

}  // namespace std

#endif
