#include "captures.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include "fields.h"
#include "graph.h"
#include "library.h"

namespace tzero {

// What graphs of one device have in common: they share memory, so that each waits for the one that
// was launched before it, on whichever stream.
struct GraphOrder {
    const graph::Home home;
    std::mutex mutex;  // protects the event, and the parameters of graphs while they are launched
    void *event = nullptr;

    explicit GraphOrder(const graph::Home &where) : home(where) {}
};

namespace {

using cuda::Result;

// CUDA_KERNEL_NODE_PARAMS_v2.
struct KernelParams {
    void *function;
    unsigned grid[3], block[3], shared;
    void **params;
    void **extra;
    void *kernel;
    void *context;
};

// The functions of the driver, found when the first graph is added.
struct GraphDriver {
    Result (*instantiate)(void **, void *, uint64_t) = nullptr;
    Result (*destroy)(void *) = nullptr;
    Result (*launch)(void *, void *) = nullptr;
    Result (*set_kernel)(void *, void *, const KernelParams *) = nullptr;
    Result (*set_copy)(void *, void *, const void *, void *) = nullptr;
    Result (*set_fill)(void *, void *, const void *, void *) = nullptr;
    Result (*context)(void **) = nullptr;
    Result (*create_event)(void **, unsigned) = nullptr;
    Result (*record)(void *, void *) = nullptr;
    Result (*wait)(void *, void *, unsigned) = nullptr;
    Result (*synchronize)(void *) = nullptr;
    Result (*is_capturing)(void *, int *) = nullptr;

    // The name of a function that is missing; null if there is none.
    const char *open() {
        if (is_capturing != nullptr) return nullptr;
        const Library library("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
        const char *missing = nullptr;
        auto find = [&](const char *name, auto &function) {
            if (missing == nullptr && !(library && library.find(name, function))) missing = name;
        };
        find("cuGraphInstantiateWithFlags", instantiate);
        find("cuGraphExecDestroy", destroy);
        find("cuGraphLaunch", launch);
        find("cuGraphExecKernelNodeSetParams_v2", set_kernel);
        find("cuGraphExecMemcpyNodeSetParams", set_copy);
        find("cuGraphExecMemsetNodeSetParams", set_fill);
        find("cuCtxGetCurrent", context);
        find("cuEventCreate", create_event);
        find("cuEventRecord", record);
        find("cuStreamWaitEvent", wait);
        find("cuEventSynchronize", synchronize);
        find("cuStreamIsCapturing", is_capturing);
        if (missing != nullptr) is_capturing = nullptr;
        return missing;
    }
};

constexpr unsigned without_timing = 2;  // CU_EVENT_DISABLE_TIMING

// A place in a node's parameters that holds an address: of an input, and so many bytes after it.
struct Place {
    size_t input, at;
    int64_t after;
};

// Two inputs whose memory must not overlap: one is copied first, the other may be changed.
struct Apart {
    size_t copied;
    uint64_t size;
    size_t other;
    uint64_t size_of_other;

    bool holds(const uint64_t *addresses) const {
        return addresses[copied] + size <= addresses[other] ||
               addresses[other] + size_of_other <= addresses[copied];
    }
};

enum NodeKind : int { kernel_node, copy_node, fill_node, node_kinds };

// A node some of whose parameters are set for each call.
struct Node {
    NodeKind kind = kernel_node;
    void *handle = nullptr;
    std::vector<Place> places;
    std::string bytes;           // the parameters, or the description of a copy or of a fill
    KernelParams params = {};    // of a kernel
    std::vector<size_t> starts;  // where each parameter is in `bytes`
    std::vector<void *> blocks;  // likewise, as pointers
    void *extra[5] = {};         // instead of these, if the kernel has them in one buffer
    size_t size = 0;
};

struct Graph {
    const cuda::Driver &cuda;
    GraphDriver driver;
    std::shared_ptr<GraphOrder> order;
    void *exec = nullptr;
    Ref kept;  // what holds the graph and its memory
    std::vector<std::pair<size_t, uint64_t>> fixed;    // inputs that must be there
    std::vector<std::pair<size_t, uint64_t>> aligned;  // inputs, and what divides their addresses
    std::vector<Apart> apart;
    std::vector<Node> nodes;
    std::vector<uint64_t> latest;  // the addresses that are set
    Result failure = 0;  // of setting some: what is set is not known any more

    explicit Graph(const cuda::Driver &of) : cuda(of) {}
    Graph(const Graph &) = delete;
    Graph &operator=(const Graph &) = delete;

    // What cannot be destroyed any more is gone with its context, or is the parent's, one of whose
    // threads may hold the mutex.
    ~Graph() {
        if (exec == nullptr || !order->home.is_here(cuda)) return;
        Py_BEGIN_ALLOW_THREADS
        const graph::Relaxed relaxed(cuda.graphs);
        {
            const std::lock_guard<std::mutex> lock(order->mutex);
            if (order->event != nullptr) driver.synchronize(order->event);
        }
        driver.destroy(exec);
        Py_END_ALLOW_THREADS
    }

    Result set(Node &node, void *context) const {
        if (node.kind == kernel_node) return driver.set_kernel(exec, node.handle, &node.params);
        const auto set = node.kind == copy_node ? driver.set_copy : driver.set_fill;
        return set(exec, node.handle, node.bytes.data(), context);
    }

    // Sets the parameters that have changed.
    Result set_all(const uint64_t *addresses) {
        void *context = nullptr;
        Result result = driver.context(&context);
        for (Node &node : nodes) {
            bool is_other = false;
            for (const Place &place : node.places) {
                if (addresses[place.input] == latest[place.input]) continue;
                const uint64_t now = addresses[place.input] + static_cast<uint64_t>(place.after);
                std::memcpy(&node.bytes[place.at], &now, sizeof now);
                is_other = true;
            }
            if (is_other && result == 0) result = set(node, context);
        }
        std::copy_n(addresses, latest.size(), latest.begin());
        return result;
    }

    // Sets parameters, and launches. `*is_queued` is whether the failure came after that. Without
    // the GIL, under the lock.
    Result launch(const uint64_t *addresses, void *stream, bool *is_queued) {
        *is_queued = false;
        if (failure == 0) failure = set_all(addresses);
        Result result = failure;
        if (result == 0 && order->event == nullptr) {
            result = driver.create_event(&order->event, without_timing);
        } else if (result == 0) {
            result = driver.wait(stream, order->event, 0);
        }
        if (result == 0) result = driver.launch(exec, stream);
        if (result != 0) return result;
        *is_queued = true;
        return driver.record(order->event, stream);
    }
};

constexpr uint64_t most_alignment = 256;

// What divides an address, up to what libraries choose kernels by.
uint64_t alignment_of(uint64_t address) {
    const uint64_t bits = address | most_alignment;
    return bits & (~bits + 1);
}

constexpr size_t most_graphs = 8;

struct Captures {
    PyObject_HEAD
    State *state;
    PyObject *make, *failed;  // functions in Python
    size_t count;                       // of addresses
    int device;
    bool is_off;
    std::vector<std::shared_ptr<Graph>> *graphs;  // the one used last first
    unsigned long long launched;
    PyObject *weak;
};

Captures *captures_of(PyObject *object) { return reinterpret_cast<Captures *>(object); }

bool fits(const Graph &graph, const uint64_t *addresses) {
    for (const auto &[input, address] : graph.fixed) {
        if (addresses[input] != address) return false;
    }
    for (const auto &[input, alignment] : graph.aligned) {
        if (alignment_of(addresses[input]) != alignment) return false;
    }
    return true;
}

// ---- graphs from descriptions -------------------------------------------------------------------

uint64_t address_from(PyObject *item) {
    const unsigned long long found = PyLong_AsUnsignedLongLong(item);
    if (found == static_cast<unsigned long long>(-1) && PyErr_Occurred()) throw Malformed{};
    return found;
}

PyObject *item_of(const Fields &fields, const char *name, PyObject *tuple, Py_ssize_t k,
                  Py_ssize_t size) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != size) {
        fields.wrong(name, "tuples of the right size");
    }
    return PyTuple_GET_ITEM(tuple, k);
}

std::vector<std::pair<size_t, uint64_t>> pairs(const Fields &fields, const char *name,
                                               size_t count) {
    std::vector<std::pair<size_t, uint64_t>> made;
    fields.for_each(name, [&](PyObject *each) {
        const uint64_t input = address_from(item_of(fields, name, each, 0, 2));
        if (input >= count) fields.wrong(name, "numbers of inputs");
        made.emplace_back(input, address_from(item_of(fields, name, each, 1, 2)));
    });
    return made;
}

// Puts the blocks of a node one after the other, each where any type may be.
std::vector<size_t> joined(const Fields &fields, std::string &bytes) {
    constexpr size_t alignment = 64;
    std::vector<size_t> starts;
    fields.for_each("blocks", [&](PyObject *each) {
        if (!PyBytes_Check(each)) fields.wrong("blocks", "a tuple of bytes");
        bytes.resize((bytes.size() + alignment - 1) / alignment * alignment);
        starts.push_back(bytes.size());
        bytes.append(PyBytes_AS_STRING(each), static_cast<size_t>(PyBytes_GET_SIZE(each)));
    });
    return starts;
}

Node node_from(const Fields &fields, size_t count) {
    Node made;
    made.kind = static_cast<NodeKind>(fields.index("kind", node_kinds));
    made.handle = reinterpret_cast<void *>(fields.address("handle"));
    made.starts = joined(fields, made.bytes);
    const std::vector<size_t> &starts = made.starts;
    fields.for_each("places", [&](PyObject *each) {
        const uint64_t input = address_from(item_of(fields, "places", each, 0, 4));
        const uint64_t block = address_from(item_of(fields, "places", each, 1, 4));
        const uint64_t at = address_from(item_of(fields, "places", each, 2, 4));
        const int64_t after = integer_from(item_of(fields, "places", each, 3, 4));
        if (input >= count || block >= starts.size()) fields.wrong("places", "places in blocks");
        const size_t end = block + 1 < starts.size() ? starts[block + 1] : made.bytes.size();
        if (starts[block] + at + sizeof(uint64_t) > end) fields.wrong("places", "places in blocks");
        made.places.push_back({input, starts[block] + at, after});
    });
    if (made.kind != kernel_node) return made;
    const Ref params = fields.bytes("params");
    if (PyBytes_GET_SIZE(params.get()) != sizeof made.params) {
        fields.wrong("params", "a CUDA_KERNEL_NODE_PARAMS");
    }
    std::memcpy(&made.params, PyBytes_AS_STRING(params.get()), sizeof made.params);
    made.size = made.bytes.size();
    return made;
}

// Points into the node, which does not move any more.
void point(Node &node) {
    if (node.kind != kernel_node) return;
    for (const size_t start : node.starts) node.blocks.push_back(&node.bytes[0] + start);
    if (node.params.extra != nullptr) {
        void *extra[] = {reinterpret_cast<void *>(1), &node.bytes[0], reinterpret_cast<void *>(2),
                         &node.size, nullptr};
        std::copy(std::begin(extra), std::end(extra), node.extra);
        node.params.extra = node.extra;
        node.params.params = nullptr;
    } else {
        node.params.params = node.blocks.data();
    }
}

// What graphs of a device have in common; another one since the device was reset.
std::shared_ptr<GraphOrder> order_of(State &state, int device) {
    auto &order = state.orders[static_cast<size_t>(device)];
    if (order != nullptr && order->home.is_here(state.cuda)) return order;
    const graph::Home home = graph::Home::now(state.cuda, device);
    if (home.context == 0) {
        PyErr_Format(PyExc_RuntimeError, "CUDA does not tell the context of device %d", device);
        throw Malformed{};
    }
    order = std::make_shared<GraphOrder>(home);
    return order;
}

// A graph that is not instantiated yet.
std::shared_ptr<Graph> graph_from(const Captures &captures, const Fields &fields) {
    auto made = std::make_shared<Graph>(captures.state->cuda);
    made->driver.open();  // `Captures` was made, so that no function is missing
    made->order = order_of(*captures.state, captures.device);
    made->kept = fields.any("kept");
    made->fixed = pairs(fields, "fixed", captures.count);
    made->aligned = pairs(fields, "aligned", captures.count);
    fields.for_each("apart", [&](PyObject *each) {
        uint64_t numbers[4];
        for (Py_ssize_t k = 0; k < 4; ++k) {
            numbers[k] = address_from(item_of(fields, "apart", each, k, 4));
        }
        if (numbers[0] >= captures.count || numbers[2] >= captures.count) {
            fields.wrong("apart", "numbers of inputs");
        }
        made->apart.push_back({numbers[0], numbers[1], numbers[2], numbers[3]});
    });
    fields.for_each("nodes", [&](PyObject *each) {
        made->nodes.push_back(node_from(Fields(each), captures.count));
    });
    for (Node &node : made->nodes) point(node);
    fields.for_each("addresses",
                    [&](PyObject *each) { made->latest.push_back(address_from(each)); });
    if (made->latest.size() != captures.count) fields.wrong("addresses", "one for each input");
    return made;
}

Result instantiate(Graph &made, void *graph) {
    Result result = 0;
    void *exec = nullptr;
    Py_BEGIN_ALLOW_THREADS
    const graph::Relaxed relaxed(made.cuda.graphs);
    result = made.driver.instantiate(&exec, graph, 0);
    Py_END_ALLOW_THREADS
    if (result == 0) made.exec = exec;
    return result;
}

// ---- the type -----------------------------------------------------------------------------------

PyObject *captures_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *names[] = {"device", "count", "make", "failed", nullptr};
    int device = 0;
    Py_ssize_t count = 0;
    PyObject *make = nullptr, *failed = nullptr;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "inOO", const_cast<char **>(names), &device,
                                     &count, &make, &failed)) {
        return nullptr;
    }
    if (device < 0 || static_cast<size_t>(device) >= most_graph_devices || count < 0) {
        PyErr_Format(PyExc_ValueError, "Captures is for devices 0 to %zu, and some addresses",
                     most_graph_devices - 1);
        return nullptr;
    }
    PyObject *module = PyType_GetModule(type);
    if (module == nullptr) return nullptr;
    cuda::Driver &cuda = state_of(module)->cuda;
    if (!cuda.open()) {  // no launch may have needed it so far
        PyErr_SetString(PyExc_RuntimeError, "CUDA's driver is missing, or lacks a function");
        return nullptr;
    }
    GraphDriver driver;
    const char *missing = driver.open();
    if (missing == nullptr && cuda.graphs.release == nullptr) missing = cuda.graphs.missing;
    if (missing != nullptr) {
        PyErr_Format(PyExc_RuntimeError, "CUDA's driver has no %s", missing);
        return nullptr;
    }
    PyObject *object = type->tp_alloc(type, 0);
    if (object == nullptr) return nullptr;
    Captures &made = *captures_of(object);
    made.state = state_of(module);
    made.device = device;
    made.count = static_cast<size_t>(count);
    made.make = Py_NewRef(make);
    made.failed = Py_NewRef(failed);
    made.graphs = new (std::nothrow) std::vector<std::shared_ptr<Graph>>();
    if (made.graphs != nullptr) return object;
    Py_DECREF(object);
    return PyErr_NoMemory();
}

int captures_traverse(PyObject *object, visitproc visit, void *arg) {
    const Captures &captures = *captures_of(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(captures.make);
    Py_VISIT(captures.failed);
    if (captures.graphs == nullptr) return 0;
    for (const auto &each : *captures.graphs) Py_VISIT(each->kept.get());
    return 0;
}

int captures_clear(PyObject *object) {
    Captures &captures = *captures_of(object);
    Py_CLEAR(captures.make);
    Py_CLEAR(captures.failed);
    if (captures.graphs == nullptr) return 0;
    std::vector<std::shared_ptr<Graph>> gone;
    gone.swap(*captures.graphs);
    return 0;
}

void captures_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (captures_of(object)->weak != nullptr) PyObject_ClearWeakRefs(object);
    captures_clear(object);
    delete std::exchange(captures_of(object)->graphs, nullptr);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject *captures_let_go(PyObject *object, PyObject *) {
    std::vector<std::shared_ptr<Graph>> gone;
    gone.swap(*captures_of(object)->graphs);
    captures_of(object)->is_off = true;
    Py_RETURN_NONE;
}

PyObject *captures_count(PyObject *object, PyObject *) {
    return PyLong_FromSize_t(captures_of(object)->graphs->size());
}

PyMethodDef captures_methods[] = {
    {"count", captures_count, METH_NOARGS,
     PyDoc_STR("count($self, /)\n--\n\nHow many graphs there are.")},
    {"let_go", captures_let_go, METH_NOARGS,
     PyDoc_STR("let_go($self, /)\n--\n\nDrop all graphs, and capture no more.")},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef captures_members[] = {
    {"launched", T_ULONGLONG, offsetof(Captures, launched), READONLY,
     PyDoc_STR("How often a graph was launched.")},
    {"is_off", T_BOOL, offsetof(Captures, is_off), READONLY,
     PyDoc_STR("Whether no graph is captured any more.")},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Captures, weak), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot captures_slots[] = {
    {Py_tp_doc, const_cast<char *>("Captures(device, count, make, failed)\n--\n\n"
                                   "The CUDA graphs of one part of a plan.")},
    {Py_tp_new, reinterpret_cast<void *>(captures_new)},
    {Py_tp_traverse, reinterpret_cast<void *>(captures_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(captures_clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(captures_dealloc)},
    {Py_tp_methods, captures_methods},
    {Py_tp_members, captures_members},
    {0, nullptr},
};

PyType_Spec captures_spec = {
    "tzero._native.Captures", sizeof(Captures), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, captures_slots,
};

// Tells Python that CUDA refused a graph, which is dropped.
Captured refused(Captures &captures, const std::shared_ptr<Graph> &graph, Result result) {
    auto &graphs = *captures.graphs;
    graphs.erase(std::remove(graphs.begin(), graphs.end(), graph), graphs.end());
    captures.is_off = true;
    const char *name = captures.state->cuda.name_of(result);
    const Ref said = Ref::steal(PyObject_CallFunction(captures.failed, "s", name));
    return said ? Captured::refused : Captured::error;
}

// Adds a graph in front of the others; beyond `most_graphs` the one used longest ago goes.
Captured add_graph(Captures &captures, PyObject *description) {
    std::shared_ptr<Graph> made, oldest;  // ends after the others are in order: it waits
    try {
        const Fields fields(description);
        made = graph_from(captures, fields);
        const Result result =
            instantiate(*made, reinterpret_cast<void *>(fields.address("graph")));
        if (result != 0) return refused(captures, made, result);
        auto &graphs = *captures.graphs;
        graphs.insert(graphs.begin(), made);
        if (graphs.size() > most_graphs) {
            oldest = std::move(graphs.back());
            graphs.pop_back();
        }
        return Captured::missing;
    } catch (const Malformed &) {
        return Captured::error;
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
        return Captured::error;
    }
}

}  // namespace

bool is_captures(const State &state, PyObject *object) {
    return reinterpret_cast<PyObject *>(Py_TYPE(object)) == state.captures.get();
}

Captured launch_captured(PyObject *object, const uint64_t *addresses, void *stream) {
    Captures &captures = *captures_of(object);
    if (captures.is_off) return Captured::refused;
    auto &graphs = *captures.graphs;
    const auto found = std::find_if(graphs.begin(), graphs.end(), [&](const auto &each) {
        return fits(*each, addresses);
    });
    if (found == graphs.end()) return Captured::missing;
    for (const Apart &each : (*found)->apart) {
        if (!each.holds(addresses)) return Captured::refused;
    }
    std::rotate(graphs.begin(), found, found + 1);
    const std::shared_ptr<Graph> graph = graphs.front();
    int capturing = 0;
    // The default stream cannot be captured.
    if (stream != nullptr && (graph->driver.is_capturing(stream, &capturing) != 0 || capturing != 0)) {
        return Captured::refused;
    }
    // In a forked child a thread of the parent may hold the mutex for ever.
    if (!graph->order->home.is_in_this_process()) return Captured::refused;
    Result result = 0;
    bool is_queued = false;
    Py_BEGIN_ALLOW_THREADS
    {
        const std::lock_guard<std::mutex> lock(graph->order->mutex);
        result = graph->launch(addresses, stream, &is_queued);
    }
    Py_END_ALLOW_THREADS
    if (result == 0) {
        ++captures.launched;
        return Captured::launched;
    }
    const Captured told = refused(captures, graph, result);
    if (!is_queued || told == Captured::error) return told;
    const cuda::Driver &driver = captures.state->cuda;
    PyErr_Format(PyExc_RuntimeError, "CUDA failed after it had launched a graph: %s (%s)",
                 driver.name_of(result), driver.text_of(result));
    return Captured::error;  // its steps must not be made twice
}

Captured capture(PyObject *object, PyObject *tensors) {
    Captures &captures = *captures_of(object);
    const Ref made = Ref::steal(PyObject_CallOneArg(captures.make, tensors));
    if (!made) return Captured::error;
    if (made.get() == Py_None) return Captured::refused;
    if (made.get() == Py_False) {
        captures.is_off = true;
        return Captured::refused;
    }
    return add_graph(captures, made.get());
}

int add_captures(PyObject *module, State *state) {
    state->captures = Ref::steal(PyType_FromModuleAndSpec(module, &captures_spec, nullptr));
    if (!state->captures) return -1;
    return PyModule_AddObjectRef(module, "Captures", state->captures.get());
}

}  // namespace tzero
