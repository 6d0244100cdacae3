#include "graph.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace tzero::graph {

namespace {

constexpr int thread_local_mode = 1;  // CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
constexpr cuda::Result invalid_context = 201, not_supported = 801;

// The most blocks of a grid in each dimension, on every device that CUDA has.
constexpr int64_t most_blocks = INT32_MAX, most_blocks_beside = 65535;

// The most bytes of a copy: the largest pitch on every device, which is that of one row.
constexpr uint64_t most_copied = INT32_MAX;

constexpr uint32_t device_memory = 2, unified_memory = 4;  // CU_MEMORYTYPE_DEVICE, _UNIFIED

const char *function_of(Work::Kind kind) {
    switch (kind) {
    case Work::Kind::launch: return "cuLaunchKernelEx";
    case Work::Kind::fill: return "cuMemsetAsync";
    default: return "cuMemcpyDtoDAsync";
    }
}

// Whether a side of a copy is one row of memory at this address.
bool is_row(const cuda::CopyNode::Side &side, uint64_t at) {
    return (side.memory == device_memory || side.memory == unified_memory) && side.at == at &&
           side.x == 0 && side.y == 0 && side.z == 0 && side.level == 0;
}

void move_to(cuda::CopyNode::Side &side, uint64_t at, uint64_t bytes) {
    side.at = at;
    if (side.pitch != 0) side.pitch = bytes;
}

}  // namespace

Home Home::now(const cuda::Driver &driver, int device) {
    return {static_cast<int>(getpid()), device, driver.graphs.context_of(device)};
}

bool Home::is_in_this_process() const { return process == static_cast<int>(getpid()); }

bool Home::is_current(const cuda::Driver &driver) const {
    unsigned long long number = 0;  // null: of the context that is current in this thread
    return driver.graphs.context_id(nullptr, &number) == 0 && context != 0 && number == context;
}

bool Home::is_here(const cuda::Driver &driver) const {
    // The process first: in a forked child the driver must not be called.
    return is_in_this_process() && context != 0 && context == driver.graphs.context_of(device);
}

Graph::Graph(const cuda::Driver &driver, std::vector<Work> work) : driver_(driver) {
    nodes_.resize(work.size());
    for (size_t k = 0; k < work.size(); ++k) {
        Node &node = nodes_[k];
        node.work = work[k];
        const Spec *spec = work[k].spec;
        // `put_one` may write as many bytes as the widest type has.
        node.now.assign(sizeof(Head) + (spec == nullptr ? 0 : spec->bytes + parameter_bytes), 0);
        if (spec == nullptr) continue;
        for (const Move &move : spec->moves) node.params.push_back(block(k) + move.offset);
    }
}

Graph::~Graph() { give_up(); }

// What cannot be destroyed any more is gone with its context, or is the parent's.
void Graph::give_up() {
    if (graph_ == nullptr && executable_ == nullptr) return;
    if (home_.is_in_this_process()) {  // in a forked child the driver must not be called
        const Relaxed relaxed(driver_.graphs);
        destroy();
    }
    forget();
}

void Graph::destroy() const {
    if (!home_.is_here(driver_)) return;
    if (executable_ != nullptr) driver_.graphs.destroy_executable(executable_);
    if (graph_ != nullptr) driver_.graphs.destroy_graph(graph_);
}

// As measured on an H200 with driver 580; the driver does not say, and takes larger pieces.
uint64_t Graph::device_bytes() const {
    constexpr uint64_t of_a_graph = 108 << 10, of_a_node = 2560;
    return of_a_graph + of_a_node * nodes_.size();
}

void Graph::grid(size_t at, const int32_t grid[3]) {
    std::copy_n(grid, 3, nodes_[at].head().grid);
}

void Graph::fill(size_t at, void *address, size_t bytes) {
    nodes_[at].head().address = reinterpret_cast<uint64_t>(address);
    nodes_[at].head().bytes = bytes;
}

void Graph::copy(size_t at, void *to, const void *from, size_t bytes) {
    fill(at, to, bytes);
    nodes_[at].head().source = reinterpret_cast<uint64_t>(from);
}

bool Graph::is_nothing(size_t at) const {
    const Head &head = nodes_[at].head();
    if (nodes_[at].work.spec == nullptr) return head.bytes == 0;
    return std::any_of(head.grid, head.grid + 3, [](int32_t size) { return size == 0; });
}

bool Graph::is_outsized(size_t at) const {
    const Node &node = nodes_[at];
    const Head &head = node.head();
    const Work::Kind kind = node.work.kind();
    if (kind == Work::Kind::copy) return head.bytes > most_copied;
    if (kind == Work::Kind::fill) {  // the driver may have made larger elements of the pattern
        return executable_ != nullptr && head.bytes % node.fill.element_size != 0;
    }
    const int64_t blocks = int64_t{head.grid[0]} * node.work.spec->binary.cluster;
    return blocks > most_blocks || head.grid[1] > most_blocks_beside ||
           head.grid[2] > most_blocks_beside;
}

const int32_t *Graph::grid_of(size_t at) const { return nodes_[at].head().grid; }

cuda::Result Graph::do_plainly(size_t at, cuda::Stream stream) const {
    if (is_nothing(at)) return 0;
    const Node &node = nodes_[at];
    const Head &head = node.head();
    const Work::Kind kind = node.work.kind();
    if (kind == Work::Kind::copy) {
        return driver_.copy(head.address, head.source, head.bytes, stream);
    }
    if (kind == Work::Kind::fill) {
        return driver_.fill(reinterpret_cast<void *>(head.address), head.bytes,
                            *node.work.pattern, stream);
    }
    // Triton's kernels take two scratch buffers after the arguments; this binary uses neither.
    void *params[most_parameters + 2];
    void *no_scratch = nullptr;
    void **end = std::copy(node.params.begin(), node.params.end(), params);
    *end++ = &no_scratch;
    *end = &no_scratch;
    return driver_.launch(node.work.spec->binary, head.grid, stream, params);
}

Outcome Graph::capture(cuda::Stream capturing) {
    const cuda::GraphFunctions &driver = driver_.graphs;
    Outcome outcome{driver.begin_capture(capturing, thread_local_mode), "cuStreamBeginCapture"};
    if (!outcome) return outcome;
    for (size_t k = 0; outcome && k < nodes_.size(); ++k) {
        outcome = {do_plainly(k, capturing), function_of(nodes_[k].work.kind())};
        if (!outcome) break;
        int status = 0;
        uint64_t number = 0;
        cuda::Graph of = nullptr;
        const cuda::Node *latest = nullptr;
        const void *edges = nullptr;
        size_t count = 0;
        outcome = {driver.capture_info(capturing, &status, &number, &of, &latest, &edges, &count),
                   "cuStreamGetCaptureInfo"};
        // The stream waits for what was captured last, and for nothing else.
        if (outcome && count != 1) outcome.result = not_supported;
        if (outcome) nodes_[k].handle = latest[0];
    }
    const cuda::Result ended = driver.end_capture(capturing, &graph_);
    return outcome ? Outcome{ended, "cuStreamEndCapture"} : outcome;
}

// Reads what the driver has made of each piece of work, to give it back with other parameters.
Outcome Graph::read_back() {
    Outcome outcome;
    for (size_t k = 0; outcome && k < nodes_.size(); ++k) outcome = read_back(nodes_[k]);
    return outcome;
}

Outcome Graph::read_back(Node &node) const {
    const Head &head = node.head();
    Outcome outcome;
    bool is_known = true;
    switch (node.work.kind()) {
    case Work::Kind::launch:
        outcome = {driver_.graphs.kernel_of(node.handle, &node.kernel),
                   "cuGraphKernelNodeGetParams"};
        node.kernel.extra = nullptr;
        break;
    case Work::Kind::fill:
        outcome = {driver_.graphs.fill_of(node.handle, &node.fill), "cuGraphMemsetNodeGetParams"};
        is_known = node.fill.height == 1 && node.fill.element_size != 0 &&
                   node.fill.width * node.fill.element_size == head.bytes;
        break;
    case Work::Kind::copy:
        outcome = {driver_.graphs.copy_of(node.handle, &node.copy), "cuGraphMemcpyNodeGetParams"};
        is_known = is_row(node.copy.from, head.source) && is_row(node.copy.to, head.address) &&
                   node.copy.width == head.bytes && node.copy.height == 1 && node.copy.depth == 1;
        break;
    }
    if (outcome && !is_known) outcome.result = not_supported;
    return outcome;
}

Outcome Graph::make(int device, cuda::Stream capturing, cuda::Stream stream) {
    const Relaxed relaxed(driver_.graphs);
    home_ = Home::now(driver_, device);
    Outcome outcome{driver_.graphs.current_context(&context_), "cuCtxGetCurrent"};
    // A graph of another context than the one that `home_` names could never be told to be gone.
    if (outcome && !home_.is_current(driver_)) outcome = {invalid_context, "cuCtxGetId"};
    if (outcome) outcome = capture(capturing);
    if (outcome) outcome = read_back();
    if (outcome) {
        outcome = {driver_.graphs.instantiate(&executable_, graph_, 0), "cuGraphInstantiate"};
    }
    if (outcome) outcome = {driver_.graphs.upload(executable_, stream), "cuGraphUpload"};
    if (!outcome) {
        give_up();
        return outcome;
    }
    for (Node &node : nodes_) node.held = node.now;
    return outcome;
}

Outcome Graph::set(Node &node) {
    const Head &head = node.head();
    switch (node.work.kind()) {
    case Work::Kind::launch: return set_launch(node);
    case Work::Kind::fill:
        node.fill.at = head.address;
        node.fill.width = head.bytes / node.fill.element_size;
        return {driver_.graphs.set_fill(executable_, node.handle, &node.fill, context_),
                "cuGraphExecMemsetNodeSetParams"};
    default:
        move_to(node.copy.from, head.source, head.bytes);
        move_to(node.copy.to, head.address, head.bytes);
        node.copy.width = head.bytes;
        return {driver_.graphs.set_copy(executable_, node.handle, &node.copy, context_),
                "cuGraphExecMemcpyNodeSetParams"};
    }
}

Outcome Graph::set_launch(Node &node) {
    const Head &head = node.head();
    void *params[most_parameters + 2];
    void *no_scratch = nullptr;
    void **end = std::copy(node.params.begin(), node.params.end(), params);
    *end++ = &no_scratch;
    *end = &no_scratch;
    node.kernel.params = params;
    node.kernel.grid[0] = static_cast<uint32_t>(head.grid[0]) * node.work.spec->binary.cluster;
    node.kernel.grid[1] = static_cast<uint32_t>(head.grid[1]);
    node.kernel.grid[2] = static_cast<uint32_t>(head.grid[2]);
    return {driver_.graphs.set_kernel(executable_, node.handle, &node.kernel),
            "cuGraphExecKernelNodeSetParams"};
}

Outcome Graph::launch(cuda::Stream stream, size_t *count, bool *is_queued) {
    *is_queued = false;
    for (Node &node : nodes_) {
        if (std::memcmp(node.now.data(), node.held.data(), node.now.size()) == 0) continue;
        const Outcome outcome = set(node);
        if (!outcome) {
            node.unset();
            return outcome;
        }
        std::copy(node.now.begin(), node.now.end(), node.held.begin());
        ++*count;
    }
    *is_queued = true;
    return {driver_.graphs.launch(executable_, stream), "cuGraphLaunch"};
}

}  // namespace tzero::graph
