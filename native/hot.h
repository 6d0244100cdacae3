// Which work is hot and becomes a CUDA graph, and which graphs are kept.
//
//     a site (a run of launches in a plan, or one binary of tzero.jit), called often enough
//       └─ `take` ── the graph for this stream ──► the work is staged in it ──► `finish` launches
//             └ null: launches are made one by one, and the reason is counted
//
// Everything here is called with the GIL, which protects it.
#pragma once

#include "python.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "enums.h"
#include "graph.h"
#include "versions.h"

namespace tzero {
struct State;
}

namespace tzero::graph {

// A larger run of launches stays as it is: the host waits for the GPU then.
constexpr size_t most_nodes = 128;

// The streams of one site that have graphs.
constexpr size_t most_streams = 4;

// Why work that has been called often enough was not launched as a graph, in one call.
#define TZERO_PLAIN_REASONS(EACH)                                                               \
    EACH(capturing) EACH(profiled) EACH(in_use) EACH(nothing) EACH(interrupted)
enum class Plainly : int { TZERO_PLAIN_REASONS(TZERO_ENUMERATOR) count };
constexpr const char *plainly_names[] = {TZERO_PLAIN_REASONS(TZERO_ENUMERATOR_NAME)};

struct Kept;

// Where work is launched from again and again.
struct Site {
    Ref name;             // of the kernel, a str
    uint64_t calls = 0;   // made without a graph since there was one
    uint64_t wanted = 0;  // how many of these it takes, if more than the setting says
    std::string ended;    // why it never becomes a graph again; empty if it may
    uint64_t launches = 0, settings = 0;  // of graphs that are gone
    uint64_t plainly[static_cast<size_t>(Plainly::count)] = {};
    std::vector<std::unique_ptr<Kept>> graphs;

    Site();
    Site(const Site &) = delete;
    Site &operator=(const Site &) = delete;
    ~Site();
};

// The site of launches of one binary by itself.
std::shared_ptr<Site> site_of(const Spec &spec);

// Why work whose first launch is dependent stays as it is.
constexpr char overlaps[] = "its first launch may begin before the work ahead of it has ended "
                            "(programmatic dependent launch)";

// A graph of a site, for launches on one stream.
struct Kept {
    Graph graph;
    Site &site;
    cuda::Stream stream;
    int device;
    class Keeper *keeper = nullptr;  // which counts it, once it is made
    uint64_t used = 0;       // the clock at its latest launch
    bool is_busy = false;    // a call stages its work in it
    bool is_doomed = false;  // to be dropped when that call ends

    Kept(const cuda::Driver &driver, std::vector<Work> work, Site &of, cuda::Stream on, int where)
        : graph(driver, std::move(work)), site(of), stream(on), device(where) {}
    Kept(const Kept &) = delete;
    Kept &operator=(const Kept &) = delete;
    ~Kept();
};

// A site for `explain`: its name, pieces of work, calls without a graph, why there is no graph or "",
// graphs, their bytes, launches and nodes that were set in all of them, and how often launches were
// plain, by reason. Null with the Python error set.
PyObject *described(const Site &site, size_t work);

// What becomes a graph, from the settings of tzero.
struct Limits {
    long level = 0;  // 0: nothing; 1: unless something watches launches; 2: everything
    uint64_t hot = 0;
    uint64_t most = 0;
    uint64_t most_bytes = 0;
};

class Keeper {
  public:
    Keeper() = default;
    Keeper(const Keeper &) = delete;
    Keeper &operator=(const Keeper &) = delete;
    ~Keeper();

    // Set by configure_graphs(): the dict with the settings in force; which variable says that
    // launches are watched, or ""; what is told of graphs; sys.modules; the dict of torch's profilers, or None.
    Ref settings, watched, tell, modules, profilers;

    // Whether the site may have a graph now. Counts the call if it has none.
    bool is_hot(State &state, Site &site) {
        if (!seen_.is(settings.get()) && !look_at_settings(state)) return false;
        if (!is_on_) return false;
        return !site.graphs.empty() || (site.ended.empty() && is_due(site));
    }

    // The graph to stage the work of a hot site in, or null for plain launches. `is_of` is whether a
    // graph is of this work; `work` is called for a vector of it when there is none yet.
    template <typename IsOf, typename WorkOf>
    Kept *take(State &state, Site &site, cuda::Stream stream, int device, bool is_profiled,
               IsOf is_of, WorkOf work) {
        for (const auto &each : site.graphs) {
            if (each->stream == stream && is_of(each->graph)) {
                return may_use(state, *each, is_profiled) ? each.get() : nullptr;
            }
        }
        if (!has_room(site)) return nullptr;
        Kept *made = added(state, site, stream, device, work());
        if (may_use(state, *made, is_profiled)) return made;
        drop(*made, "");
        return nullptr;
    }

    // Ends the staging: launches the first `staged` pieces of work, as a graph if that is all of
    // them. 0, or -1 with the Python error set. Keeps an error that is set before.
    int finish(State &state, Kept &kept, size_t staged);

    // Passes what happened to graphs on to `tell`. It may run any Python code.
    int report();
    bool has_news() const { return !news_.empty(); }

    // Drops all graphs, for a reason.
    void drop_all(const char *why);

    // Why nothing becomes a graph; empty if hot work does.
    std::string why_not(State &state) {
        look_at_settings(state);
        return reason(state);
    }

    // Totals: graphs, bytes, graphs that were made, graphs that were dropped.
    size_t count() const { return kept_.size(); }
    uint64_t bytes() const { return bytes_; }
    uint64_t made() const { return made_; }
    uint64_t dropped() const { return dropped_; }

    void remove(Kept &kept);  // one that ends

    void forget_settings() {
        seen_.clear();
        latest_.clear();
    }

    template <typename Visit> int each_reference(Visit visit) {
        for (Ref *each : {&settings, &watched, &tell, &modules, &profilers, &latest_, &proton_}) {
            const int result = visit(*each);
            if (result != 0) return result;
        }
        return 0;
    }

  private:
    bool is_due(Site &site) const { return ++site.calls >= std::max(site.wanted, limits_.hot); }
    bool has_room(Site &site);
    static Kept *added(const State &state, Site &site, cuda::Stream stream, int device,
                       std::vector<Work> work);
    bool may_use(State &state, Kept &kept, bool is_profiled);
    bool look_at_settings(State &state);
    bool read_limits(State &state, PyObject *now);
    std::string reason(State &state);
    bool torch_profiles(State &state);
    bool proton_profiles(State &state);
    bool is_watched(State &state);
    void make(State &state, Kept &kept);
    void make_room(const Kept *but);
    void drop(Kept &kept, const std::string &why);
    void news(const Site &site, const std::string &text);
    cuda::Stream capturing_on(State &state, int device);
    int launch_plainly(State &state, Kept &kept, size_t staged);

    struct Capturing {
        Home home;
        cuda::Stream stream;
    };

    Seen seen_;   // of the settings, when the limits were read
    Ref latest_;  // the settings they were read from
    Limits limits_;
    bool is_on_ = false;
    bool is_making_ = false;
    bool has_looked_for_tools_ = false;
    std::string tool_;  // that watches launches, of those that put a library into the process
    uint64_t clock_ = 0, bytes_ = 0, made_ = 0, dropped_ = 0;
    uint64_t ends_ = 0;  // how often all graphs were dropped
    std::vector<Kept *> kept_;
    std::vector<Capturing> capturing_;
    std::vector<std::pair<Ref, std::string>> news_;
    Seen modules_seen_, profilers_seen_;
    Ref proton_;  // Proton's flags, if it was imported
};

}  // namespace tzero::graph
