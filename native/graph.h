// Launches, fills and copies as one CUDA graph, whose parameters are set before each launch of it.
//
//     a call ─► `block`, `grid`, `fill`, `copy` of each piece of work ─► `launch`: sets what differs from the
//     graph's latest launch, and launches it
//
// A graph is made by capturing the driver's own launches on a stream that nothing else uses, so that
// it has all their attributes. It must not know Python, plans or settings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda.h"
#include "spec.h"

namespace tzero::graph {

// A launch of a binary; a fill, which has a pattern and no binary; or a copy, which has neither.
struct Work {
    enum class Kind : uint8_t { launch, fill, copy };
    const Spec *spec = nullptr;
    const std::string *pattern = nullptr;

    Kind kind() const {
        if (spec != nullptr) return Kind::launch;
        return pattern != nullptr ? Kind::fill : Kind::copy;
    }
    bool operator==(const Work &other) const {
        return spec == other.spec && pattern == other.pattern;
    }
};

// What CUDA said, and of which function.
struct Outcome {
    cuda::Result result = 0;
    const char *of = "";
    explicit operator bool() const { return result == 0; }
};

// Where a process has its CUDA context. What was made in another one is gone.
struct Home {
    int process = 0;
    int device = -1;
    unsigned long long context = 0;

    static Home now(const cuda::Driver &driver, int device);
    bool is_in_this_process() const;
    bool is_here(const cuda::Driver &driver) const;

    // Whether this thread is there. One call of the driver, which reads a number.
    bool is_current(const cuda::Driver &driver) const;
};

// Lets this thread do what allocates, frees or waits in the driver while another one captures.
class Relaxed {
  public:
    explicit Relaxed(const cuda::GraphFunctions &driver) : driver_(driver) {
        driver_.exchange_mode(&mode_);
    }
    Relaxed(const Relaxed &) = delete;
    Relaxed &operator=(const Relaxed &) = delete;
    ~Relaxed() { driver_.exchange_mode(&mode_); }

  private:
    const cuda::GraphFunctions &driver_;
    int mode_ = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
};

class Graph {
  public:
    // The work must stay where it is as long as the graph exists.
    Graph(const cuda::Driver &driver, std::vector<Work> work);
    Graph(const Graph &) = delete;
    Graph &operator=(const Graph &) = delete;
    ~Graph();

    size_t size() const { return nodes_.size(); }
    uint64_t device_bytes() const;
    const Home &home() const { return home_; }  // once it is made

    // Its context has ended: nothing is destroyed, since nothing is there.
    void forget() { graph_ = executable_ = nullptr; }

    // -- the work of one call, staged: it is kept until the next call ---------------------------

    // Where the parameters of a launch are written; `spec_bytes` of them.
    char *block(size_t at) { return nodes_[at].now.data() + sizeof(Head); }
    void grid(size_t at, const int32_t grid[3]);
    void fill(size_t at, void *address, size_t bytes);
    void copy(size_t at, void *to, const void *from, size_t bytes);

    // Whether a launch has no programs, or a fill or a copy no bytes: a graph cannot hold that.
    bool is_nothing(size_t at) const;

    // Whether work is too large for a graph. Of a grid that no device takes, the
    // driver says so for a plain launch, and for that one alone.
    bool is_outsized(size_t at) const;

    // Does one piece of work without the graph.
    cuda::Result do_plainly(size_t at, cuda::Stream stream) const;
    const Work &work(size_t at) const { return nodes_[at].work; }
    const int32_t *grid_of(size_t at) const;

    // -- the graph ------------------------------------------------------------------------------

    // Makes the graph of the work that is staged, on a private stream of the current device.
    Outcome make(int device, cuda::Stream capturing, cuda::Stream stream);

    // Sets what differs, and launches. `*set` is how many nodes were set, `*is_queued` whether a
    // failure may have come after the launch was queued. Call it without the GIL, and never twice at
    // a time.
    Outcome launch(cuda::Stream stream, size_t *set, bool *is_queued);

  private:
    // What comes before the parameters of a launch, or all of a fill or a copy.
    struct alignas(16) Head {
        int32_t grid[3];
        uint64_t address;
        uint64_t source;
        uint64_t bytes;
    };

    struct Node {
        Work work;
        std::vector<char> now, held;  // staged, and what the graph has
        std::vector<void *> params;   // of a launch, in `now`
        cuda::Node handle = nullptr;
        cuda::KernelNode kernel = {};
        cuda::FillNode fill = {};
        cuda::CopyNode copy = {};

        Head &head() { return *reinterpret_cast<Head *>(now.data()); }
        const Head &head() const { return *reinterpret_cast<const Head *>(now.data()); }

        // What the graph has is not known: no grid is negative, so that nothing equals it.
        void unset() { reinterpret_cast<Head *>(held.data())->grid[0] = -1; }
    };

    Outcome capture(cuda::Stream capturing);
    Outcome read_back();
    Outcome read_back(Node &node) const;
    Outcome set(Node &node);
    Outcome set_launch(Node &node);
    void give_up();
    void destroy() const;

    const cuda::Driver &driver_;
    std::vector<Node> nodes_;
    cuda::Graph graph_ = nullptr;
    cuda::Executable executable_ = nullptr;
    cuda::Context context_ = nullptr;
    Home home_;
};

}  // namespace tzero::graph
