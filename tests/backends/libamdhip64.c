/* Stands in for AMD's library: writes down what it is asked. No GPU is needed. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static char said[1 << 14];
static size_t length;
static int sizes[32];
static int device;

static void say(const char *format, ...) {
  va_list rest;
  va_start(rest, format);
  length += vsnprintf(said + length, sizeof said - length, format, rest);
  va_end(rest);
}

const char *heard(void) { return length = 0, said; }
void forget(void) { memset(said, 0, sizeof said), length = 0; }
void take_sizes(const int *from, int count) { memcpy(sizes, from, count * sizeof *from); }

int hipInit(unsigned flags) { return say("init %u; ", flags), 0; }
int hipGetDevice(int *found) { return *found = device, 0; }
int hipSetDevice(int wanted) { return say("device %d; ", device = wanted), 0; }
const char *hipGetErrorName(int error) { return error == 209 ? "hipErrorNoBinaryForGpu" : "hipErrorLaunchFailure"; }
const char *hipGetErrorString(int error) { return error == 209 ? "no kernel image" : "unspecified launch failure"; }
int hipModuleLoadData(void **module, const void *image) {
  if (strcmp(image, "another GPU's") == 0)
    return 209;
  say("load %s; ", (const char *)image);
  return *module = (void *)0x2000L, 0;
}
int hipModuleGetFunction(void **function, void *module, const char *name) {
  say("find %s in %p; ", name, module);
  return *function = (void *)0x3000L, 0;
}
int hipFuncSetAttribute(const void *function, int which, int value) {
  return say("set %d of %p to %d; ", which, (void *)function, value), 0;
}
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **params, void **extra) {
  say("launch %p grid %u %u %u block %u %u %u shared %u stream %p extra %d params", function, gx, gy, gz, bx, by, bz,
      shared, stream, extra != NULL);
  for (int i = 0; sizes[i]; ++i) {
    say(" ");
    for (int k = 0; k < sizes[i]; ++k)
      say("%02x", ((const unsigned char *)params[i])[k]);
  }
  say("; ");
  return gx == 13 ? 719 : 0;
}
