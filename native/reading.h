// Reading single values, inline: for the key of a launch, and for one that is like the last.
#pragma once

#include "python.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "arguments.h"
#include "guards.h"

namespace tzero {

// What both ways of reading see of a tensor.
struct SeenTensor {
    uintptr_t address;
    uint32_t dtype;  // a number for each, the same throughout the process
    uint32_t place;
    int32_t device;
};

inline uint32_t place_from_torch(int32_t type) {
    return type == 0 || type == 1 ? static_cast<uint32_t>(type) : elsewhere;
}

inline uint32_t place_from_dlpack(int32_t type) {
    if (type == dlpack::cuda) return on_cuda;
    return type == dlpack::cpu || type == dlpack::cuda_host ? on_cpu : elsewhere;
}

inline bool see_through_shim(const Tensors &tensors, PyObject *value, SeenTensor *out) {
    const char *handle = reinterpret_cast<const char *>(value) + tensors.handle;
    const char *impl = nullptr;
    const void *storage = nullptr;
    std::memcpy(&impl, handle, sizeof impl);
    if (impl == nullptr) return false;
    std::memcpy(&storage, impl + tensors.storage, sizeof storage);
    if (storage == nullptr) return false;
    void *data = nullptr;
    int32_t dtype = 0, type = 0, index = 0;
    if (tensors.shim.device_type(handle, &type) != 0 || tensors.shim.dtype(handle, &dtype) != 0 ||
        tensors.shim.device_index(handle, &index) != 0 || tensors.shim.data(handle, &data) != 0) {
        return false;
    }
    int64_t elements = 0;
    // A tensor with elements but no memory is wrapped by a transform, or freed: Python reports it.
    if (data == nullptr && (tensors.shim.numel(handle, &elements) != 0 || elements != 0)) {
        return false;
    }
    *out = {reinterpret_cast<uintptr_t>(data), static_cast<uint32_t>(dtype),
            place_from_torch(type), index < 0 ? 0 : index};
    return true;
}

// The word of a tensor in the key.
inline uint64_t bits_of(const SeenTensor &seen, bool aligns) {
    uint64_t bits = uint64_t{seen.place} << 24 | uint64_t(seen.device & 0x7fff) << 8;
    if (!off(Guard::dtype)) bits |= uint64_t{seen.dtype} << 32;
    if (aligns && !off(Guard::alignment)) bits |= (seen.address & 15) == 0;
    return bits;
}

enum Width : uint64_t { bits_32, bits_64, bits_64_unsigned };

// The word of an integer: its width, and what Triton specializes on. `pattern` is its value as 64
// bits.
inline uint64_t bits_of(uint64_t pattern, uint64_t width, bool specializes, bool aligns) {
    uint64_t bits = off(Guard::integer_width) ? 0 : width;
    if (specializes) {
        if (pattern == 1 && !off(Guard::integer_one)) bits |= 4;
        if (aligns && (pattern & 15) == 0 && !off(Guard::integer_16)) bits |= 8;
    }
    return bits;
}

// The value of an integer of one digit, which fits 32 bits; false for others.
inline bool small_integer(PyObject *value, int32_t *out) {
#if PY_VERSION_HEX >= 0x030C0000
    const auto *number = reinterpret_cast<const PyLongObject *>(value);
    if (!PyUnstable_Long_IsCompact(number)) return false;
    *out = static_cast<int32_t>(PyUnstable_Long_CompactValue(number));
#else
    const Py_ssize_t size = Py_SIZE(value);
    if (size < -1 || size > 1) return false;
    const auto digit = reinterpret_cast<const PyLongObject *>(value)->ob_digit[0];
    *out = static_cast<int32_t>(size) * static_cast<int32_t>(digit);
#endif
    return true;
}

}  // namespace tzero
