/* tl.device_print: writes whole lines to standard output, unbuffered. */
#ifndef TZ_PRINT_H
#define TZ_PRINT_H

int dprintf(int fd, const char *format, ...);
#define tz_print(...) dprintf(1, __VA_ARGS__)

#endif
