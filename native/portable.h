// With TZERO_PORTABLE, a build that also loads on systems older than the one it is built on, back to
// glibc 2.28: the functions that newer systems have in newer versions are taken in the oldest one.
// `make wheels` builds so, and auditwheel looks whether it has worked.
//
// The compiler's headers refer to two more names of newer systems, which portable.cpp defines.
#pragma once

#include <sys/stat.h>

#ifdef TZERO_PORTABLE
#if defined(__x86_64__)
#define TZERO_OLDEST "GLIBC_2.2.5"
#define TZERO_STAT_VERSION 1
#elif defined(__aarch64__)
#define TZERO_OLDEST "GLIBC_2.17"
#define TZERO_STAT_VERSION 0
#else
#error "TZERO_PORTABLE knows the symbols of x86-64 and of AArch64 only"
#endif
__asm__(".symver dlopen,dlopen@" TZERO_OLDEST);
__asm__(".symver dlsym,dlsym@" TZERO_OLDEST);
__asm__(".symver log2,log2@" TZERO_OLDEST);
__asm__(".symver __xstat,__xstat@" TZERO_OLDEST);

// What `stat` was until glibc 2.33; its header has it no longer.
extern "C" int __xstat(int version, const char *path, struct stat *found);
#endif

namespace tzero {

// As `stat`.
inline int file_status(const char *path, struct stat *found) {
#ifdef TZERO_PORTABLE
    return __xstat(TZERO_STAT_VERSION, path, found);
#else
    return stat(path, found);
#endif
}

}  // namespace tzero
