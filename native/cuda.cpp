// Calls of CUDA's driver. The layout of CUlaunchConfig and its attributes is part of the driver's
// ABI, and declared here from its documentation.

#include "cuda.h"

#include <cstring>

#include "filling.h"
#include "library.h"

namespace tzero::cuda {

namespace {

constexpr uint32_t attribute_cooperative = 2;
constexpr uint32_t attribute_cluster_dimension = 4;
constexpr uint32_t attribute_cluster_policy = 5;
constexpr uint32_t attribute_dependent = 6;
constexpr uint32_t policy_spread = 1;

void find_graphs(const Library &library, GraphFunctions *out) {
    GraphFunctions found;
    const auto all_found = [&] {
        auto find = [&](const char *name, auto &function) {
            found.missing = library.find(name, function) ? nullptr : name;
            return found.missing == nullptr;
        };
        return find("cuThreadExchangeStreamCaptureMode", found.exchange_mode) &&
               find("cuCtxGetCurrent", found.current_context) &&
               find("cuCtxGetId", found.context_id) &&
               find("cuDevicePrimaryCtxGetState", found.is_active) &&
               find("cuDevicePrimaryCtxRetain", found.retain) &&
               find("cuDevicePrimaryCtxRelease_v2", found.release) &&
               find("cuStreamCreate", found.create_stream) &&
               find("cuStreamBeginCapture_v2", found.begin_capture) &&
               find("cuStreamEndCapture", found.end_capture) &&
               find("cuStreamGetCaptureInfo_v3", found.capture_info) &&
               find("cuGraphKernelNodeGetParams_v2", found.kernel_of) &&
               find("cuGraphMemsetNodeGetParams", found.fill_of) &&
               find("cuGraphMemcpyNodeGetParams", found.copy_of) &&
               find("cuGraphInstantiateWithFlags", found.instantiate) &&
               find("cuGraphUpload", found.upload) && find("cuGraphLaunch", found.launch) &&
               find("cuGraphExecKernelNodeSetParams_v2", found.set_kernel) &&
               find("cuGraphExecMemsetNodeSetParams", found.set_fill) &&
               find("cuGraphExecMemcpyNodeSetParams", found.set_copy) &&
               find("cuGraphExecDestroy", found.destroy_executable) &&
               find("cuGraphDestroy", found.destroy_graph);
    };
    all_found();  // those for contexts first: graphs that torch captures need no others
    *out = found;
}

}  // namespace

struct Driver::LaunchAttribute {
    uint32_t id;
    char padding[4];
    union {
        char bytes[64];
        int flag;
        uint32_t cluster[3];
        uint32_t policy;
    } value;
};

struct Driver::LaunchConfig {
    uint32_t grid[3];
    uint32_t block[3];
    uint32_t shared;
    Stream stream;
    LaunchAttribute *attributes;
    uint32_t count;
};

bool Driver::open() {
    if (launch_ != nullptr) return true;
    const Library library("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    decltype(launch_) launch = nullptr;
    if (!library || !library.find("cuCtxGetDevice", get_device_) ||
        !library.find("cuGetErrorName", error_name_) ||
        !library.find("cuGetErrorString", error_string_) ||
        !library.find("cuStreamIsCapturing", is_capturing_) ||
        !library.find("cuMemsetD8Async", fill_1_) || !library.find("cuMemsetD16Async", fill_2_) ||
        !library.find("cuMemsetD32Async", fill_4_) ||
        !library.find("cuMemcpyDtoDAsync_v2", copy_) ||
        !library.find("cuLaunchKernelEx", launch)) {
        return false;
    }
    find_graphs(library, &graphs);
    launch_ = launch;
    return true;
}

unsigned long long GraphFunctions::context_of(int device) const {
    unsigned flags = 0;
    int active = 0;
    Context context = nullptr;
    unsigned long long number = 0;
    if (release == nullptr || is_active(device, &flags, &active) != 0 || active == 0 ||
        retain(&context, device) != 0) {
        return 0;
    }
    if (context_id(context, &number) != 0) number = 0;
    release(device);
    return number;
}

bool Driver::is_capturing(Stream stream) const {
    int status = 0;
    return is_capturing_ == nullptr || is_capturing_(stream, &status) != 0 || status != 0;
}

int Driver::current_device() const {
    int device = -1;
    return get_device_ != nullptr && get_device_(&device) == 0 ? device : -1;
}

// Packs the launch attributes, and launches.
Result Driver::launch(const Binary &binary, const int32_t grid[3], Stream stream,
                      void **params) const {
    LaunchAttribute attributes[4];
    uint32_t count = 0;
    auto add = [&](uint32_t id) -> LaunchAttribute & {
        attributes[count] = LaunchAttribute{};
        attributes[count].id = id;
        return attributes[count++];
    };
    if (binary.dependent) add(attribute_dependent).value.flag = 1;
    if (binary.cooperative) add(attribute_cooperative).value.flag = 1;
    if (binary.cluster != 1) {
        auto &shape = add(attribute_cluster_dimension).value.cluster;
        shape[0] = binary.cluster;
        shape[1] = shape[2] = 1;
        add(attribute_cluster_policy).value.policy = policy_spread;
    }
    LaunchConfig config{
        {static_cast<uint32_t>(grid[0]) * binary.cluster, static_cast<uint32_t>(grid[1]),
         static_cast<uint32_t>(grid[2])},
        {binary.threads, 1, 1},
        binary.shared,
        stream,
        attributes,
        count,
    };
    return launch_(&config, binary.function, params, nullptr);
}

bool Driver::can_fill(const std::string &pattern) const {
    return launch_ != nullptr && repeated(pattern) != 0;
}

Result Driver::fill(void *at, size_t bytes, const std::string &pattern, Stream stream) const {
    const auto address = reinterpret_cast<uint64_t>(at);
    uint32_t number = 0;
    switch (const size_t size = repeated(pattern)) {
    case 4:
        std::memcpy(&number, pattern.data(), size);
        return fill_4_(address, number, bytes / size, stream);
    case 2:
        std::memcpy(&number, pattern.data(), size);
        return fill_2_(address, static_cast<unsigned short>(number), bytes / size, stream);
    default:
        return fill_1_(address, static_cast<unsigned char>(pattern[0]), bytes, stream);
    }
}

const char *Driver::name_of(Result result) const {
    const char *text = nullptr;
    return error_name_(result, &text) == 0 && text != nullptr ? text : "an unknown error";
}

const char *Driver::text_of(Result result) const {
    const char *text = nullptr;
    return error_string_(result, &text) == 0 && text != nullptr ? text : "no description";
}

}  // namespace tzero::cuda
