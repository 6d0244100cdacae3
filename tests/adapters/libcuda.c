/* Stands in for libcuda: writes down what it is asked, as CUDA's own header declares it. */
#include "cuda.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char said[1 << 16];
static size_t length;
static int sizes[64];
static CUcontext current;
static size_t fifo = 1 << 20;

static void say(const char *format, ...) {
  va_list rest;
  va_start(rest, format);
  length += vsnprintf(said + length, sizeof said - length, format, rest);
  va_end(rest);
}

static void say_bytes(const void *from, int count) {
  for (int i = 0; i < count; ++i)
    say("%02x", ((const unsigned char *)from)[i]);
  say(" ");
}

const char *heard(void) {
  length = 0;
  return said;
}

void forget(void) { memset(said, 0, sizeof said), length = 0, current = NULL, fifo = 1 << 20; }

void take_sizes(const int *from, int count) { memcpy(sizes, from, count * sizeof *from); }

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == 1 ? "invalid argument" : "some error";
  return 0;
}
CUresult cuCtxGetCurrent(CUcontext *context) { return *context = current, 0; }
CUresult cuCtxSetCurrent(CUcontext context) { return current = context, say("enter %p; ", (void *)context), 0; }
CUresult cuDeviceGet(CUdevice *device, int ordinal) { return *device = ordinal, 0; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  return *context = (CUcontext)(0x100L + device), 0;
}
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice device) {
  *value = which == CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN ? 232448 : 1000 + which + device;
  return 0;
}
CUresult cuModuleLoadData(CUmodule *module, const void *data) {
  if (strcmp(data, "broken") == 0)
    return 200;
  say("load %s; ", (const char *)data);
  return *module = (CUmodule)0x2000L, 0;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
  say("find %s in %p; ", name, (void *)module);
  return *function = (CUfunction)0x3000L, 0;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute which, CUfunction function) {
  return *value = 512 + which + (int)(long)function, 0;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute which, int value) {
  return say("set %d of %p to %d; ", which, (void *)function, value), 0;
}
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) {
  return say("cache %d of %p; ", config, (void *)function), 0;
}
CUresult cuCtxGetLimit(size_t *value, CUlimit which) { return *value = which == CU_LIMIT_PRINTF_FIFO_SIZE ? fifo : 0, 0; }
CUresult cuCtxSetLimit(CUlimit which, size_t value) { return fifo = value, say("limit %d is %zu; ", which, value), 0; }
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute which, CUdeviceptr pointer) {
  if (pointer == 0xbad || pointer == 0xbad2)
    return pointer == 0xbad ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
  say("where %d %llx; ", which, pointer);
  return *(CUdeviceptr *)data = pointer + 0x10, 0;
}
static void say_config(const CUlaunchConfig *config) {
  say("grid %u %u %u block %u %u %u shared %u stream %p attributes ", config->gridDimX, config->gridDimY,
      config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ, config->sharedMemBytes,
      (void *)config->hStream);
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute *each = config->attrs + i;
    if (each->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      say("cluster %u %u %u ", each->value.clusterDim.x, each->value.clusterDim.y, each->value.clusterDim.z);
    else if (each->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)
      say("policy %d ", each->value.clusterSchedulingPolicyPreference);
    else if (each->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
      say("cooperative %d ", each->value.cooperative);
    else if (each->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
      say("dependent %d ", each->value.programmaticStreamSerializationAllowed);
    else
      say("another ");
  }
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **params, void **extra) {
  say("launch %p ", (void *)function);
  say_config(config);
  for (int i = 0; sizes[i]; ++i)
    say_bytes(params[i], sizes[i]);
  say("; ");
  return function == (CUfunction)0xbad ? CUDA_ERROR_LAUNCH_FAILED : 0;
}
CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *config) {
  say("clusters of %p ", (void *)function);
  return say_config(config), *count = 5, 0;
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *shape, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  if ((size_t)map % 64)
    return CUDA_ERROR_INVALID_VALUE;
  say("map %d %u %p interleave %d swizzle %d promotion %d fill %d: ", type, rank, address, interleave, swizzle,
      promotion, fill);
  for (unsigned i = 0; i < rank; ++i)
    say("%llu %llu %u %u, ", (unsigned long long)shape[i], i + 1 < rank ? (unsigned long long)strides[i] : 0, box[i],
        steps[i]);
  memset(map, rank, sizeof *map);
  return 0;
}
