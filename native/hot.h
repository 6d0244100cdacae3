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

// Launches, fills and copies of one graph; what follows in a longer run becomes the next one. With that much
// work ahead of it the host waits for the GPU.
constexpr size_t most_nodes = 128;

// The streams, or kinds of work, of one site that have graphs.
constexpr size_t most_lanes = 4;

// Why work that has been called often enough was not launched as a graph, in one call.
#define TZERO_PLAIN_REASONS(EACH)                                                               \
    EACH(capturing) EACH(profiled) EACH(in_use) EACH(nothing) EACH(outsized) EACH(interrupted)  \
    EACH(hooked) EACH(observed)
enum class Plainly : int { TZERO_PLAIN_REASONS(TZERO_ENUMERATOR) count };
constexpr const char *plainly_names[] = {TZERO_PLAIN_REASONS(TZERO_ENUMERATOR_NAME)};

using PlainCounts = uint64_t[static_cast<size_t>(Plainly::count)];

struct Lane;

// Where work is launched from again and again.
struct Site {
    Ref name;            // of the kernel, a str
    uint64_t calls = 0;  // before it has lanes; then those that find no place for theirs
    std::string ended;   // why it never becomes a graph again; empty if it may
    uint64_t launches = 0, settings = 0;  // of graphs of lanes that are gone
    PlainCounts plainly = {};
    std::vector<std::unique_ptr<Lane>> lanes;

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

// The work of a site on one stream: how hot it is, and its graph once it is. What it counts is
// protected by the GIL; its graph belongs to the call that has set `is_busy`.
struct Lane {
    Site &site;
    const std::vector<Work> work;
    const cuda::Stream stream;
    const int device;
    std::unique_ptr<Graph> graph;    // null until the lane is hot
    class Keeper *keeper = nullptr;  // which counts the graph, once it is made
    uint64_t calls = 0;   // without a graph since there was one
    uint64_t wanted = 0;  // how many of these it takes, if more than the setting says
    uint64_t latest = 0;  // launches of the graph it has
    uint64_t launches = 0, settings = 0;  // of all its graphs
    uint64_t used = 0;       // the clock at its latest launch, or at the latest call without one
    std::string lost;        // why it has no graph any more, or could not get one; else empty
    bool is_busy = false;    // a call stages its work in the graph
    bool is_doomed = false;  // the graph is to be dropped when that call ends

    Lane(Site &of, cuda::Stream on, int where, std::vector<Work> what)
        : site(of), work(std::move(what)), stream(on), device(where) {}
    Lane(const Lane &) = delete;
    Lane &operator=(const Lane &) = delete;
    ~Lane();

    bool is_made() const { return keeper != nullptr; }
};

// A site for `explain`: its name, pieces of work, calls without a graph, why there is no graph or "",
// graphs, their bytes, launches and nodes that were set in all of them, how often launches were
// plain, by reason; why a graph was lost or could not be made or "", and after how many calls that is
// tried again; how many pieces of work are copies. `observed` are calls that never came to the site.
// Null with the Python error set.
PyObject *described(const Site &site, size_t work, size_t copies, uint64_t observed);

// Counts a call whose launches Python makes, if the site was ever hot.
inline void count_plain(Site &site, Plainly why) {
    if (!site.lanes.empty()) ++site.plainly[static_cast<size_t>(why)];
}

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

    // Set by configure_graphs(): the dict with the settings in force; a function that says which
    // variable has launches watched, or ""; what is told of graphs; sys.modules; the dict of torch's
    // profilers, or None.
    Ref settings, watched, tell, modules, profilers;

    // Whether the site may have a graph now. Counts the call if it never had one.
    bool is_hot(State &state, Site &site) {
        if (!seen_.is(settings.get()) && !look_at_settings(state)) return false;
        if (!is_on_) return false;
        return !site.lanes.empty() || (site.ended.empty() && ++site.calls >= limits_.hot);
    }

    // Where to stage the work of a hot site, or null for plain launches. `is_of` is whether a vector
    // of work is this one; `work` is called for it when the stream is new.
    template <typename IsOf, typename WorkOf>
    Lane *take(State &state, Site &site, cuda::Stream stream, int device, bool is_profiled,
               IsOf is_of, WorkOf work) {
        // First, since it may run Python code, which may change the lanes.
        const bool is_seen = is_profiled_now(state, is_profiled);
        for (const auto &each : site.lanes) {
            if (each->stream == stream && is_of(each->work)) {
                return may_use(state, *each, is_seen) ? each.get() : nullptr;
            }
        }
        if (!has_room(site)) return nullptr;
        Lane &added = add(site, stream, device, work());
        return may_use(state, added, is_seen) ? &added : nullptr;
    }

    // Ends the staging: launches the first `staged` pieces of work, as a graph if that is all of
    // them. 0, or -1 with the Python error set. None is set before.
    int finish(State &state, Lane &lane, size_t staged);

    // Passes what happened to graphs on to `tell`. It may run any Python code. Keeps an error that is
    // set before.
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

    void remove(Lane &lane);  // one whose graph ends

    void forget_settings() {
        seen_.clear();
        latest_.clear();
        has_looked_ = false;
        watcher_.clear();
    }

    template <typename Visit> int each_reference(Visit visit) {
        for (Ref *each : {&settings, &watched, &tell, &modules, &profilers, &latest_, &proton_}) {
            const int result = visit(*each);
            if (result != 0) return result;
        }
        return 0;
    }

  private:
    bool is_due(Lane &lane) {
        lane.used = ++clock_;
        return ++lane.calls >= std::max(lane.wanted, limits_.hot);
    }
    bool has_room(Site &site);
    Lane &add(Site &site, cuda::Stream stream, int device, std::vector<Work> work);
    bool may_use(State &state, Lane &lane, bool is_seen);
    bool is_at_home(State &state, Lane &lane);
    bool look_at_settings(State &state);
    bool read_limits(State &state, PyObject *now);
    std::string reason(State &state);
    bool is_profiled_now(State &state, bool is_profiled);
    bool torch_profiles(State &state);
    bool proton_profiles(State &state);
    bool is_watched(State &state);
    std::string watcher() const;
    static bool is_whole(Lane &lane, size_t staged);
    bool launch(Lane &lane, Outcome *outcome);
    int launch_plainly(State &state, Lane &lane, size_t staged);
    void make(State &state, Lane &lane);
    void keep(Lane &lane);
    Outcome capture(const cuda::Driver &driver, Lane &lane);
    Outcome capturing_on(const cuda::Driver &driver, int device, cuda::Stream *out);
    void make_room(const Lane *but);
    void failed(State &state, Lane &lane, const Outcome &outcome);
    uint64_t later(const Lane &lane) const;
    void lose(Lane &lane, const std::string &why);
    void drop_gone(const Home &home);
    void news(const Site &site, const std::string &text);

    struct Capturing {
        Home home;
        cuda::Stream stream;
    };

    Seen seen_;   // of the settings, when the limits were read
    Ref latest_;  // the settings they were read from
    Limits limits_;
    bool is_on_ = false;
    bool is_making_ = false;
    bool has_looked_ = false;
    std::string watcher_;  // what watches launches, when CUDA had started; empty for nothing
    uint64_t clock_ = 0, bytes_ = 0, made_ = 0, dropped_ = 0;
    uint64_t ends_ = 0;  // how often all graphs were dropped
    std::vector<Lane *> kept_;  // those with a graph
    std::vector<Capturing> capturing_;  // of whoever is making a graph
    std::vector<std::pair<Ref, std::string>> news_;
    Seen modules_seen_, profilers_seen_;
    Ref proton_;  // Proton's flags, if it was imported
};

}  // namespace tzero::graph
