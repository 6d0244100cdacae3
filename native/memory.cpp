#include "memory.h"

#include <algorithm>

#include "facts.h"
#include "library.h"
#include "spec.h"
#include "state.h"

namespace tzero {

namespace cuda {

namespace {

// Values of the driver's enums that Triton passes.
constexpr int no_interleave = 0;
constexpr int promote_to_128_bytes = 2;
constexpr int fill_zeros = 0, fill_nans = 1;
constexpr int device_pointer = 3;  // CU_POINTER_ATTRIBUTE_DEVICE_POINTER

}  // namespace

void Memory::open() {
    const Library library("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (!library) return;
    library.find("cuTensorMapEncodeTiled", encode_);
    library.find("cuPointerGetAttribute", attribute_);
}

bool Memory::encode(const TensorMap &map, const Argument *arguments, void *out) const {
    if (encode_ == nullptr) return false;
    const Argument *at = arguments + map.argument;
    void *const base = const_cast<void *>(at->address);
    uint64_t sizes[most_map_rank], strides[most_map_rank];
    for (uint32_t k = 0; k < map.rank; ++k) {  // the driver has the last dimension first
        sizes[map.rank - 1 - k] = static_cast<uint64_t>(at[1 + k].integer);
    }
    const Argument *given = at + 1 + map.rank;
    if (given[map.rank - 1].integer != 1) return false;  // Triton raises
    for (uint32_t k = 0; k + 1 < map.rank; ++k) {
        strides[map.rank - 2 - k] = map.element_bytes * static_cast<uint64_t>(given[k].integer);
    }
    const Argument &pads = given[map.rank], &rounds = given[map.rank + 1];
    if (rounds.integer != 0) return false;
    constexpr uint32_t steps[most_map_rank] = {1, 1, 1, 1, 1};
    return encode_(out, static_cast<int>(map.type), map.rank, base, sizes, strides, map.box.data(),
                   steps, no_interleave, static_cast<int>(map.swizzle), promote_to_128_bytes,
                   pads.integer != 0 ? fill_nans : fill_zeros) == 0;
}

Result Memory::device_address(uint64_t address, uint64_t *out) const {
    return attribute_ == nullptr ? -1 : attribute_(out, device_pointer, address);
}

}  // namespace cuda

namespace {

// The number of bytes that a grid needs; false for one beyond 64 bits.
bool bytes_of(const ScratchNeed &need, const int32_t grid[3], uint32_t cluster, int64_t *out) {
    *out = need.bytes;
    return !__builtin_mul_overflow(*out, int64_t{cluster}, out) &&
           !__builtin_mul_overflow(*out, int64_t{grid[0]}, out) &&
           !__builtin_mul_overflow(*out, int64_t{grid[1]}, out) &&
           !__builtin_mul_overflow(*out, int64_t{grid[2]}, out);
}

// The address of what an allocator returned, as Triton finds it. False with the Python error set,
// or where Triton must raise.
bool address_of(const State &state, const Ref &given, uint64_t *out) {
    *out = 0;
    if (given.get() == Py_None) return true;
    if (PyLong_Check(given.get())) {
        *out = PyLong_AsUnsignedLongLong(given.get());
        return !PyErr_Occurred();
    }
    Ref number = Ref::steal(PyObject_CallMethodNoArgs(given.get(), state.names.data_ptr.get()));
    if (!number || !PyLong_Check(number.get())) {
        PyErr_Clear();
        return false;
    }
    const uint64_t address = PyLong_AsUnsignedLongLong(number.get());
    if (PyErr_Occurred()) return false;
    return address == 0 || state.memory.device_address(address, out) == 0;
}

}  // namespace

bool encode_maps(const State &state, const Spec &spec, const Argument *arguments, char *block) {
    return std::all_of(spec.maps.begin(), spec.maps.end(), [&](const cuda::TensorMap &map) {
        return state.memory.encode(map, arguments, block + map.offset);
    });
}

bool allocate(const State &state, const Spec &spec, const int32_t grid[3], void *stream,
              Scratch *out) {
    Ref queue = Ref::steal(PyLong_FromVoidPtr(stream));
    if (!queue) return false;
    for (size_t k = 0; k < spec.scratch.size(); ++k) {
        const ScratchNeed &need = spec.scratch[k];
        int64_t bytes = 0;
        if (need.bytes == 0) continue;
        if (!bytes_of(need, grid, spec.binary.cluster, &bytes)) return false;
        Ref size = Ref::steal(PyLong_FromLongLong(bytes));
        Ref alignment = Ref::steal(PyLong_FromLongLong(need.alignment));
        Ref allocator =
            Ref::steal(PyObject_CallMethodNoArgs(need.allocators.get(), state.names.get.get()));
        if (!size || !alignment || !allocator) return false;
        out->kept[k] = Ref::steal(PyObject_CallFunctionObjArgs(
            allocator.get(), size.get(), alignment.get(), queue.get(), nullptr));
        if (!out->kept[k]) return false;
    }
    for (size_t k = 0; k < spec.scratch.size(); ++k) {
        if (out->kept[k] && !address_of(state, out->kept[k], &out->address[k])) return false;
    }
    return true;
}

}  // namespace tzero
