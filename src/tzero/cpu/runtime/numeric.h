/* All numeric functions that generated kernels call, except those in libdevice.h.
 *
 * Written for -O3 -fno-math-errno -fno-trapping-math; -ffast-math would break it. Declares
 * what it needs of the C library through __builtin_* and includes only <stdint.h>, because
 * every kernel pays for parsing it.
 */
#ifndef TZ_NUMERIC_H
#define TZ_NUMERIC_H

#include "tz_number.h"
#include "tz_math.h"

#endif
