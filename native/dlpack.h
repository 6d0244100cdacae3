// The part of DLPack's C exchange API that is read here, declared from its specification.
//
// A tensor type has a capsule `__dlpack_c_exchange_api__` with a table of functions. One fills a
// Tensor from a Python object without allocating; its pointers are valid only until control returns
// to Python. Another returns the current stream.
#pragma once

#include <cstdint>

namespace tzero::dlpack {

constexpr uint32_t major_version = 1;

enum DeviceType : int32_t { cpu = 1, cuda = 2, cuda_host = 3 };

struct Device {
    int32_t type;
    int32_t id;
};

struct DataType {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};

struct Tensor {
    void *data;
    Device device;
    int32_t ndim;
    DataType dtype;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
};

struct Header {
    uint32_t major;
    uint32_t minor;
    Header *previous;
};

struct ExchangeApi {
    Header header;
    void *managed_allocator;
    void *managed_from_object;
    void *managed_to_object;
    int (*tensor_from_object)(void *object, Tensor *out);  // 0, or -1 with the Python error set
    int (*current_stream)(int32_t device_type, int32_t device_id, void **out);
};

}  // namespace tzero::dlpack
