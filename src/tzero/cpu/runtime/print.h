/* tl.device_print: whole lines straight to standard output, past every buffer. */
#ifndef TZ_PRINT_H
#define TZ_PRINT_H

int dprintf(int fd, const char *format, ...);
#define tz_print(...) dprintf(1, __VA_ARGS__)

#endif
