#include "tensors.h"

#include <algorithm>
#include <cstring>
#include <exception>

#include "library.h"

namespace tzero {

namespace {

// c10::impl::raw_local_dispatch_key_set: the included and excluded dispatch keys of this thread,
// each XORed with the default. It is thread-local, and does not move.
const uint64_t *local_keys() {
    thread_local const uint64_t *known = nullptr;
    if (known == nullptr) {
        const Library library("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
        if (library) library.find("_ZN3c104impl26raw_local_dispatch_key_setE", known);
    }
    return known;
}

const void *handle_of(const Tensors &tensors, PyObject *value) {
    return reinterpret_cast<const char *>(value) + tensors.handle;
}

// The C++ object; a handle points to its address.
const void *impl_of(const void *handle) {
    const void *impl = nullptr;
    std::memcpy(&impl, handle, sizeof impl);
    return impl;
}

// The dispatch keys for a view of a tensor of which autograd knows nothing; 0 for other tensors.
uint64_t keys_below_autograd(const Torch &torch, const void *impl) {
    const auto *at = static_cast<const char *>(impl);
    const void *gradients = nullptr;
    uint64_t keys = 0;
    if (torch.gradients < 0) return 0;
    std::memcpy(&gradients, at + torch.gradients, sizeof gradients);
    std::memcpy(&keys, at + torch.key_set, sizeof keys);
    // Without the key it is an inference tensor, and the mode of the thread decides.
    if (gradients != nullptr || (keys & torch.view_key) == 0) return 0;
    return keys & torch.keys_of_views;
}

}  // namespace

const char *Torch::open() {
    const Library base("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    const Library library("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!base || !library) return "torch's libraries";
    if (local_keys() == nullptr) return "c10::impl::raw_local_dispatch_key_set";
    if (!base.find("_ZNK3c1010TensorImpl13requires_gradEv", requires_grad)) {
        return "c10::TensorImpl::requires_grad";
    }
    if (!library.find("_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv", function_modes_)) {
        return "at::impl::PythonTorchFunctionTLS::stack_len";
    }
    if (!library.find("aoti_torch_grad_mode_is_enabled", grad_)) {
        return "aoti_torch_grad_mode_is_enabled";
    }
    const void *(*context)() = nullptr;
    if (!library.find("_ZN2at13globalContextEv", context) ||
        !library.find("_ZNK2at7Context23deterministicAlgorithmsEv", deterministic_)) {
        return "at::Context::deterministicAlgorithms";
    }
    context_ = context();
    if (!library.find("_ZNK2at10TensorBase8_versionEv", version)) return "at::TensorBase::_version";
    if (!library.find("_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE", bump_version)) {
        return "torch::autograd::impl::bump_version";
    }
    if (!library.find("aoti_torch_get_dim", dim)) return "aoti_torch_get_dim";
    if (!library.find("aoti_torch_get_sizes", sizes)) return "aoti_torch_get_sizes";
    if (!library.find("aoti_torch_get_strides", strides)) return "aoti_torch_get_strides";
    library.find("_ZN2at15get_num_threadsEv", threads_);  // optional: Python can be asked instead
    views.open();                                         // optional: Python calls torch instead
    if (!base.find("_ZN3c1019UndefinedTensorImpl10_singletonE", no_tangent) ||
        !base.find("_ZNK3c1010TensorImpl8_fw_gradEmRKN2at10TensorBaseE", tangent)) {
        tangent = nullptr;  // optional: torch copies
    }
    return nullptr;
}

void ViewFunctions::open() {
    const Library library("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    const Library python("libtorch_python.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!library || !python) return;
    library.find("_ZN2at4_ops10as_strided4callERKNS_6TensorEN3c108ArrayRefINS5_6SymIntEEES8_"
                 "St8optionalIS7_E",
                 as_strided);
    library.find("_ZN2at4_ops10as_strided10redispatchEN3c1014DispatchKeySetERKNS_6TensorENS2_"
                 "8ArrayRefINS2_6SymIntEEES9_St8optionalIS8_E",
                 below_autograd);
    library.find("aoti_torch_get_storage_offset", offset);
    python.find("_Z16THPVariable_WrapON2at10TensorBaseE", wrap);
}

Modes Torch::modes() const {
    const uint64_t *keys = local_keys();
    return {keys[0], keys[1], grad_(), deterministic_(context_)};
}

Reading read_tensor_words(const Tensors &tensors, const Torch &torch, PyObject *value,
                          uint64_t *words, size_t *count, const void **address) {
    const void *handle = handle_of(tensors, value);
    const auto *impl = static_cast<const char *>(impl_of(handle));
    if (impl == nullptr) return Reading::not_ours;
    uint64_t keys = 0;
    std::memcpy(&keys, impl + torch.key_set, sizeof keys);
    // First, because the functions below are for plain tensors only.
    if ((keys & ~torch.plain_keys) != 0) return Reading::not_ours;
    int32_t dtype = 0, index = 0;
    int64_t dimension = 0;
    const int64_t *sizes = nullptr, *strides = nullptr;
    void *data = nullptr;
    if (tensors.shim.dtype(handle, &dtype) != 0 || tensors.shim.device_index(handle, &index) != 0 ||
        torch.dim(handle, &dimension) != 0 || torch.sizes(handle, &sizes) != 0 ||
        torch.strides(handle, &strides) != 0 || tensors.shim.data(handle, &data) != 0) {
        return Reading::not_ours;
    }
    if (dimension < 0 || static_cast<size_t>(dimension) > most_dimensions || dtype < 0 ||
        dtype > 0xff || index > 0xfe) {
        return Reading::not_ours;
    }
    // A tensor with elements but no memory, such as one with a freed storage: Python reports it.
    if (data == nullptr && std::find(sizes, sizes + dimension, 0) == sizes + dimension) {
        return Reading::not_ours;
    }
    const auto place = reinterpret_cast<uintptr_t>(data);
    words[0] = uint64_t{Py_TYPE(value) == tensors.parameter} |
               uint64_t{torch.requires_grad(impl)} << 1 | uint64_t{place & 15} << 4 |
               static_cast<uint64_t>(dtype) << 8 |
               static_cast<uint64_t>(index < 0 ? 0 : index) << 16 |
               static_cast<uint64_t>(dimension) << 24;
    words[1] = keys;
    for (int64_t k = 0; k < dimension; ++k) {
        words[2 + k] = static_cast<uint64_t>(sizes[k]);
        words[2 + dimension + k] = static_cast<uint64_t>(strides[k]);
    }
    *count = 2 + 2 * static_cast<size_t>(dimension);
    *address = data;
    return Reading::done;
}

bool read_address(const Tensors &tensors, PyObject *value, const void **address) {
    void *data = nullptr;
    if (tensors.shim.data(handle_of(tensors, value), &data) != 0) return false;
    *address = data;
    return true;
}

int64_t read_version(const Tensors &tensors, const Torch &torch, PyObject *value) {
    return torch.version(handle_of(tensors, value));
}

void bump_version(const Tensors &tensors, const Torch &torch, PyObject *value) {
    torch.bump_version(handle_of(tensors, value));
}

bool is_tracked(const Tensors &tensors, const Torch &torch, PyObject *value) {
    const auto *at = static_cast<const char *>(impl_of(handle_of(tensors, value)));
    uint64_t keys = 0;
    std::memcpy(&keys, at + torch.key_set, sizeof keys);
    return (keys & torch.view_key) != 0;
}

bool has_tangent(const Tensors &tensors, const Torch &torch, PyObject *value) {
    constexpr uint64_t level = 0;  // torch has one
    const void *handle = handle_of(tensors, value);
    return torch.tangent == nullptr ||
           *torch.tangent(impl_of(handle), level, handle) != torch.no_tangent;
}

Uses read_uses(const Tensors &tensors, const Torch &torch, PyObject *value) {
    constexpr size_t count = 8;  // offset in an intrusive_ptr_target, after the vtable
    const auto *impl = static_cast<const char *>(impl_of(handle_of(tensors, value)));
    Uses uses;
    std::memcpy(&uses.tensor, impl + count, sizeof uses.tensor);
    std::memcpy(&uses.memory, impl + torch.storage, sizeof uses.memory);
    std::memcpy(&uses.gradients, impl + torch.gradients, sizeof uses.gradients);
    if (uses.memory != nullptr) {
        std::memcpy(&uses.storage, static_cast<const char *>(uses.memory) + count,
                    sizeof uses.storage);
    }
    return uses;
}

PyObject *view_of(const Tensors &tensors, const Torch &torch, PyObject *base,
                  const int64_t *sizes, size_t dimensions, int64_t offset) {
    const void *handle = handle_of(tensors, base);
    const Integers size = {sizes, dimensions};
    const Integers stride = {sizes + dimensions, dimensions};
    int64_t start = 0;
    // Without an offset, torch takes the base's.
    if (offset != 0 && torch.views.offset(handle, &start) != 0) return nullptr;
    const MaybeInteger from = {start + offset, offset != 0};
    try {
        const uint64_t keys = keys_below_autograd(torch, impl_of(handle));
        NewTensor made = keys == 0 ? torch.views.as_strided(handle, size, stride, from)
                                   : torch.views.below_autograd(keys, handle, size, stride, from);
        return torch.views.wrap(&made);
    } catch (const std::exception &) {
        return nullptr;
    }
}

bool Geometry::fits(const Tensors &tensors, const Torch &torch, PyObject *value,
                    const int64_t *now) const {
    uint64_t words[most_tensor_words];
    size_t count = 0;
    const void *address = nullptr;
    int32_t type = 0;
    if (read_tensor_words(tensors, torch, value, words, &count, &address) != Reading::done ||
        tensors.shim.device_type(handle_of(tensors, value), &type) != 0) {
        return false;
    }
    return type == device_type && (words[0] >> 8 & 0xff) == static_cast<uint64_t>(dtype) &&
           (words[0] >> 16 & 0xff) == static_cast<uint64_t>(device_index) &&
           count == 2 + sizes_and_strides.size() &&
           (count == 2 || now == nullptr ||
            std::memcmp(words + 2, now, (count - 2) * sizeof(int64_t)) == 0);
}

}  // namespace tzero
