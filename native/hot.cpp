#include "hot.h"

#include <fstream>

#include "binary.h"
#include "state.h"

namespace tzero::graph {

namespace {

constexpr unsigned non_blocking = 1;
constexpr char by_settings[] = "no CUDA graph any more: the settings say so";
constexpr uint64_t patience = 8;  // how much longer to wait after a graph that did not last
constexpr uint64_t most_wanted = 1 << 20;  // calls to wait for at most, unless settings say more

std::string in_words(const State &state, const Outcome &outcome) {
    return std::string(outcome.of) + " failed: " + state.cuda.name_of(outcome.result) + " (" +
           state.cuda.text_of(outcome.result) + ")";
}

// An attribute of the settings as an integer; -1 with the Python error set.
long integer_of(PyObject *settings, const Ref &name) {
    const Ref value = Ref::steal(PyObject_GetAttr(settings, name.get()));
    return value ? PyLong_AsLong(value.get()) : -1;
}

// The tool of CUDA's that has put a library into this process, which it does at the latest when CUDA
// starts; empty for none.
std::string attached_tool() {
    constexpr std::pair<const char *, const char *> tools[] = {
        {"libcudadebugger", "cuda-gdb"},
        {"libsanitizer-", "compute-sanitizer"},
        {"InjectionTarget", "a tool of CUDA's"},
        {"TargetInjection", "a tool of CUDA's"},
        {"ToolsInjection", "a tool of CUDA's"},
    };
    std::ifstream mapped("/proc/self/maps");
    for (std::string line; std::getline(mapped, line);) {
        for (const auto &[library, tool] : tools) {
            if (line.find(library) != std::string::npos) return tool;
        }
    }
    return {};
}

// Whether a failure says nothing of later attempts: no memory, a value that is the call's, a driver
// that is not ready, and what another capture does to this one (900 to 908, and 910: an update).
bool may_pass(cuda::Result result) {
    constexpr cuda::Result invalid_value = 1, invalid_context = 201, not_ready = 600;
    constexpr cuda::Result system_not_ready = 802, first_of_captures = 900, update_failed = 910;
    return result == invalid_value || result == cuda::out_of_memory || result == invalid_context ||
           result == not_ready || result == system_not_ready ||
           (result >= first_of_captures && result <= update_failed);
}

const char *words_for(const Work &work) {
    return work.kind() == Work::Kind::copy ? "a copy" : "a fill";
}

// Raises the failure of a graph's launch, with the names of all kernels in it: the driver does not
// say which one it is about, and what it has queued must not be launched again to find out.
void raise_of_all(const State &state, const Site &site, const Graph &graph, cuda::Result result) {
    if (graph.size() == 1) {
        raise_from_cuda(state, graph.work(0).spec, result, graph.grid_of(0));
        return;
    }
    const Ref names = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(graph.size())));
    const Spec *first = nullptr;
    const int32_t none[3] = {0, 0, 0}, *grid = none;
    for (size_t k = 0; names && k < graph.size(); ++k) {
        const Spec *spec = graph.work(k).spec;
        if (first == nullptr && spec != nullptr) grid = graph.grid_of(k);
        if (first == nullptr) first = spec;
        PyObject *name = spec != nullptr ? Ref::borrow(spec->name.get()).release()
                                         : PyUnicode_FromString(words_for(graph.work(k)));
        if (name == nullptr) return;
        PyTuple_SET_ITEM(names.get(), static_cast<Py_ssize_t>(k), name);
    }
    const Ref empty = Ref::steal(PyTuple_New(0));
    const Ref facts = Ref::steal(Py_BuildValue(
        "{s:O,s:s,s:s,s:(iii),s:I,s:I,s:O}", "kernel", site.name.get(), "name",
        state.cuda.name_of(result), "text", state.cuda.text_of(result), "grid", grid[0], grid[1],
        grid[2], "block", first == nullptr ? 0 : first->binary.threads, "shared",
        first == nullptr ? 0 : first->binary.shared, "together", names.get()));
    if (!names || !empty || !facts) return;
    const Ref error = Ref::steal(PyObject_Call(state.launch_failed.get(), empty.get(), facts.get()));
    if (error) PyErr_SetObject(reinterpret_cast<PyObject *>(Py_TYPE(error.get())), error.get());
}

}  // namespace

Site::Site() = default;
Site::~Site() = default;

std::shared_ptr<Site> site_of(const Spec &spec) {
    auto made = std::make_shared<Site>();
    made->name = spec.name;
    if (spec.binary.dependent) made->ended = overlaps;
    return made;
}

Lane::~Lane() {
    if (keeper != nullptr) keeper->remove(*this);
    site.launches += launches;
    site.settings += settings;
}

namespace {

// How often launches were plain, by reason.
Ref by_reason(const Site &site, uint64_t observed) {
    PlainCounts counts;
    std::copy(std::begin(site.plainly), std::end(site.plainly), counts);
    counts[static_cast<size_t>(Plainly::observed)] += observed;
    Ref made = Ref::steal(PyDict_New());
    for (size_t k = 0; made && k < static_cast<size_t>(Plainly::count); ++k) {
        const Ref number = Ref::steal(PyLong_FromUnsignedLongLong(counts[k]));
        if (!number || PyDict_SetItemString(made.get(), plainly_names[k], number.get()) < 0) {
            return {};
        }
    }
    return made;
}

}  // namespace

PyObject *described(const Site &site, size_t work, size_t copies, uint64_t observed) {
    // First, since making a dict may run finalizers, which may change the site.
    Ref plainly = by_reason(site, observed);
    if (!plainly) return nullptr;
    const Ref name = site.name;
    const std::string ended = site.ended;
    std::string lost;
    uint64_t launches = site.launches, settings = site.settings, bytes = 0, again = 0;
    uint64_t calls = site.lanes.empty() ? site.calls : 0;
    size_t count = 0;
    for (const auto &each : site.lanes) {
        launches += each->launches;
        settings += each->settings;
        if (each->is_made()) {
            ++count;
            bytes += each->graph->device_bytes();
            continue;
        }
        calls += each->calls;
        if (each->lost.empty()) continue;
        const uint64_t left = each->wanted > each->calls ? each->wanted - each->calls : 1;
        if (!lost.empty() && left >= again) continue;
        lost = each->lost;
        again = left;
    }
    using Number = unsigned long long;
    return Py_BuildValue("(OnKsnKKKOsKn)", name.get(), static_cast<Py_ssize_t>(work),
                         Number{calls}, ended.c_str(), static_cast<Py_ssize_t>(count),
                         Number{bytes}, Number{launches}, Number{settings}, plainly.get(),
                         lost.c_str(), Number{again}, static_cast<Py_ssize_t>(copies));
}

Keeper::~Keeper() {
    drop_all("");
    for (Lane *each : kept_) each->keeper = nullptr;
}

void Keeper::remove(Lane &lane) {
    kept_.erase(std::find(kept_.begin(), kept_.end(), &lane));
    bytes_ -= lane.graph->device_bytes();
    ++dropped_;
    lane.keeper = nullptr;
}

void Keeper::news(const Site &site, const std::string &text) {
    if (tell && !text.empty()) news_.emplace_back(site.name, text);
}

// Ends the graph of a lane, now or when the call that uses it ends.
void Keeper::lose(Lane &lane, const std::string &why) {
    if (lane.is_made() && !lane.is_doomed) news(lane.site, why);
    lane.is_doomed = lane.is_busy;
    if (lane.is_busy) return;
    if (lane.is_made()) remove(lane);
    lane.graph.reset();
    lane.calls = lane.latest = 0;
}

void Keeper::drop_all(const char *why) {
    ++ends_;
    const std::vector<Lane *> all = kept_;
    for (Lane *each : all) {
        each->lost.clear();
        each->wanted = 0;
        lose(*each, why);
    }
}

// Drops all graphs of a context that has ended.
void Keeper::drop_gone(const Home &home) {
    const std::vector<Lane *> all = kept_;
    for (Lane *each : all) {
        const Home &its = each->graph->home();
        if (its.device != home.device || its.context != home.context || each->is_busy) continue;
        each->lost = "its CUDA context has ended";
        each->wanted = limits_.hot;
        each->graph->forget();
        lose(*each, "no CUDA graph any more: its CUDA context has ended");
    }
}

// ---- settings -----------------------------------------------------------------------------------

bool Keeper::look_at_settings(State &state) {
    if (!settings) return false;
    const uint64_t version = version_of(settings.get());
    PyObject *now = PyDict_GetItemWithError(settings.get(), state.names.in_force.get());
    if (now == nullptr || now == Py_None) {  // not read yet
        PyErr_Clear();
        return false;
    }
    if (now != latest_.get() && !read_limits(state, now)) {
        PyErr_Clear();  // no graphs then: `why_not` says that they are off
        return false;
    }
    seen_.set(version);
    return true;
}

bool Keeper::read_limits(State &state, PyObject *now) {
    const Names &names = state.names;
    const long level = integer_of(now, names.graphs), hot = integer_of(now, names.graphs_after);
    const long most = integer_of(now, names.graphs_kept);
    const long mebibytes = integer_of(now, names.graphs_memory);
    if (PyErr_Occurred()) return false;
    constexpr long most_hot = 1L << 48, most_mebibytes = 1L << 43;  // as good as without a limit
    limits_ = {level, static_cast<uint64_t>(std::min(hot, most_hot)), static_cast<uint64_t>(most),
               static_cast<uint64_t>(std::min(mebibytes, most_mebibytes)) << 20};
    latest_ = Ref::borrow(now);
    is_on_ = reason(state).empty();
    if (!is_on_) drop_all(by_settings);
    make_room(nullptr);
    return true;
}

std::string Keeper::reason(State &state) {
    if (limits_.level == 0) return "TZERO_GRAPHS is 0";
    if (limits_.most == 0) return "TZERO_GRAPHS_KEPT is 0";
    if (limits_.most_bytes == 0) return "TZERO_GRAPHS_MEMORY is 0";
    if (limits_.level == 1 && !watcher_.empty()) return watcher_;
    if (limits_.level == 1 && !(profilers && PyDict_CheckExact(profilers.get()))) {
        return "this torch does not say whether a profiler is on";
    }
    if (state.cuda.graphs.missing != nullptr) {
        return std::string("the driver has no ") + state.cuda.graphs.missing;
    }
    return "";
}

// What watches launches: a variable that CUDA reads when it starts, or a tool in this process.
std::string Keeper::watcher() const {
    const Ref said = Ref::steal(PyObject_CallNoArgs(watched.get()));
    const char *variable = said ? PyUnicode_AsUTF8(said.get()) : nullptr;
    if (variable == nullptr) {
        PyErr_Clear();
        return "what watches launches cannot be told";
    }
    if (*variable != 0) return std::string(variable) + " is set";
    const std::string tool = attached_tool();
    return tool.empty() ? tool : tool + " is attached";
}

// Whether something watches launches, which is looked at once, when the first graph is made: CUDA has
// started then, and tools have put their libraries into the process.
bool Keeper::is_watched(State &state) {
    if (!has_looked_) watcher_ = watcher();
    has_looked_ = true;
    is_on_ = reason(state).empty();
    return !is_on_;
}

// Whether each launch is to be seen by itself. It may run Python code.
bool Keeper::is_profiled_now(State &state, bool is_profiled) {
    return limits_.level == 1 && (is_profiled || torch_profiles(state) || proton_profiles(state));
}

// Whether a profiler of torch is on in any thread; also true if that cannot be told. One that looks at
// the GPU alone has no callbacks in the thread.
bool Keeper::torch_profiles(State &state) {
    if (profilers_seen_.is(profilers.get())) return false;
    profilers_seen_.clear();
    if (!PyDict_CheckExact(profilers.get())) return true;
    const uint64_t version = version_of(profilers.get());
    PyObject *on = PyDict_GetItemWithError(profilers.get(), state.names.profiler_enabled.get());
    if (on != Py_False) {
        PyErr_Clear();
        return true;
    }
    profilers_seen_.set(version);
    return false;
}

// Whether Proton profiles; also true if that cannot be told. It may do so without hooks.
bool Keeper::proton_profiles(State &state) {
    if (!modules_seen_.is(modules.get())) {
        const uint64_t version = version_of(modules.get());
        PyObject *module = PyDict_GetItemWithError(modules.get(), state.names.proton_flags.get());
        proton_.clear();
        if (module != nullptr) {
            proton_ = Ref::steal(PyObject_GetAttr(module, state.names.flags.get()));
        }
        if (PyErr_Occurred()) {
            PyErr_Clear();
            return true;
        }
        modules_seen_.set(version);
    }
    if (!proton_) return false;
    const Ref on = Ref::steal(PyObject_GetAttr(proton_.get(), state.names.profiling_on.get()));
    if (!on) PyErr_Clear();
    return on.get() != Py_False;
}

// ---- taking a graph -----------------------------------------------------------------------------

// Whether a site may have one more lane. Where work is on many streams, or of many kinds, the lane
// that was used longest ago makes room from time to time.
bool Keeper::has_room(Site &site) {
    if (!site.ended.empty()) return false;
    if (site.lanes.size() < most_lanes) return true;
    const auto oldest = std::min_element(
        site.lanes.begin(), site.lanes.end(),
        [](const auto &one, const auto &other) { return one->used < other->used; });
    if (++site.calls % (patience * limits_.hot) != 0 || (*oldest)->is_busy) return false;
    lose(**oldest, "no CUDA graph any more on one stream: others are used more");
    site.lanes.erase(oldest);
    return true;
}

// The first lane has the calls that made the site hot, and one that takes the place of another those
// that found none.
Lane &Keeper::add(Site &site, cuda::Stream stream, int device, std::vector<Work> work) {
    site.lanes.push_back(std::make_unique<Lane>(site, stream, device, std::move(work)));
    Lane &added = *site.lanes.back();
    added.calls = std::exchange(site.calls, 0);
    return added;
}

// Whether this thread is where the graph of a lane was made.
bool Keeper::is_at_home(State &state, Lane &lane) {
    const Home home = lane.graph->home();
    if (home.is_current(state.cuda)) return true;
    if (!home.is_here(state.cuda)) drop_gone(home);
    return false;
}

bool Keeper::may_use(State &state, Lane &lane, bool is_seen) {
    auto plainly = [&](Plainly why) {
        ++lane.site.plainly[static_cast<size_t>(why)];
        return false;
    };
    if (lane.is_busy) return plainly(Plainly::in_use);
    if (!lane.is_made() && !(lane.site.ended.empty() && is_due(lane))) return false;
    if (is_seen) return plainly(Plainly::profiled);
    if (lane.is_made() ? !is_at_home(state, lane)
                       : is_making_ || state.cuda.current_device() != lane.device) {
        return false;
    }
    if (state.cuda.is_capturing(lane.stream)) return plainly(Plainly::capturing);
    if (!lane.is_made()) lane.graph = std::make_unique<Graph>(state.cuda, lane.work);
    lane.is_busy = true;
    return true;
}

// ---- launching ----------------------------------------------------------------------------------

int Keeper::launch_plainly(State &state, Lane &lane, size_t staged) {
    const Graph &graph = *lane.graph;
    cuda::Result result = 0;
    size_t at = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; at < staged && result == 0; ++at) result = graph.do_plainly(at, lane.stream);
    Py_END_ALLOW_THREADS
    if (result == 0) return 0;
    raise_from_cuda(state, graph.work(at - 1).spec, result, graph.grid_of(at - 1));
    return -1;
}

// Whether a graph can hold what is staged.
bool Keeper::is_whole(Lane &lane, size_t staged) {
    auto plainly = [&](Plainly why) {
        ++lane.site.plainly[static_cast<size_t>(why)];
        return false;
    };
    if (staged != lane.work.size()) return plainly(Plainly::interrupted);
    for (size_t k = 0; k < staged; ++k) {
        if (lane.graph->is_nothing(k)) return plainly(Plainly::nothing);
        if (lane.graph->is_outsized(k)) return plainly(Plainly::outsized);
    }
    return true;
}

// Launches the graph of a lane; whether it is queued, which it may be after a failure too.
bool Keeper::launch(Lane &lane, Outcome *outcome) {
    size_t set = 0;
    bool is_queued = false;
    Py_BEGIN_ALLOW_THREADS
    *outcome = lane.graph->launch(lane.stream, &set, &is_queued);
    Py_END_ALLOW_THREADS
    lane.settings += set;
    if (!is_queued) return false;
    ++lane.launches;
    ++lane.latest;
    lane.used = ++clock_;
    return true;
}

int Keeper::finish(State &state, Lane &lane, size_t staged) {
    const bool is_all = is_whole(lane, staged);
    Outcome outcome;
    bool is_raised = false;
    const bool is_queued = is_all && lane.is_made() && launch(lane, &outcome);
    if (is_queued && !outcome) {  // it must not be launched twice
        raise_of_all(state, lane.site, *lane.graph, outcome.result);
        is_raised = true;
    }
    if (!is_queued && launch_plainly(state, lane, staged) < 0) is_raised = true;
    // What the driver refuses of plain launches too is no fault of the graph's.
    if (!outcome && (is_queued || !is_raised)) failed(state, lane, outcome);
    if (is_all && !is_raised && !lane.is_doomed && !lane.is_made()) make(state, lane);
    lane.is_busy = false;
    if (lane.is_doomed || !lane.is_made()) lose(lane, "");
    return is_raised ? -1 : 0;
}

// After how many calls a lane is tried again. That becomes more each time, so that few calls make
// graphs where these do not last, and begins anew after one that did.
uint64_t Keeper::later(const Lane &lane) const {
    const uint64_t waited = std::max(lane.wanted, limits_.hot);
    const bool has_lasted = lane.latest >= patience * waited;
    return std::max(limits_.hot, std::min(most_wanted, patience * (has_lasted ? limits_.hot : waited)));
}

// What a failure means: the lane is tried again later, or the site never.
void Keeper::failed(State &state, Lane &lane, const Outcome &outcome) {
    lane.lost = in_words(state, outcome);
    if (may_pass(outcome.result)) {
        lane.wanted = later(lane);
        news(lane.site, "no CUDA graph: " + lane.lost + "; tried again after " +
                            std::to_string(lane.wanted) + " calls");
    } else {
        lane.site.ended = lane.lost;
        news(lane.site, "no CUDA graph: " + lane.lost);
    }
    lane.is_doomed = true;
}

// ---- making graphs ------------------------------------------------------------------------------

// The private stream of a device on which work is captured.
Outcome Keeper::capturing_on(const cuda::Driver &driver, int device, cuda::Stream *out) {
    const auto known = std::find_if(capturing_.begin(), capturing_.end(), [&](const Capturing &each) {
        return each.home.device == device;
    });
    if (known != capturing_.end()) {
        *out = known->stream;
        if (known->home.is_here(driver)) return {};
        capturing_.erase(known);  // it has ended with its context
    }
    const Outcome outcome{driver.graphs.create_stream(out, non_blocking), "cuStreamCreate"};
    if (outcome) capturing_.push_back({Home::now(driver, device), *out});
    return outcome;
}

// Makes the graph of a lane. Without the GIL, and relaxed from the first call on: another thread may
// capture, or wait for the GIL.
Outcome Keeper::capture(const cuda::Driver &driver, Lane &lane) {
    const Relaxed relaxed(driver.graphs);
    cuda::Stream capturing = nullptr;
    const Outcome outcome = capturing_on(driver, lane.device, &capturing);
    return outcome ? lane.graph->make(lane.device, capturing, lane.stream) : outcome;
}

void Keeper::make(State &state, Lane &lane) {
    if (is_making_) return;
    is_making_ = true;  // from here on, since what follows lets other threads run
    const uint64_t ends = ends_;
    Outcome outcome;
    const bool may_make = !is_watched(state);
    if (may_make) {
        Py_BEGIN_ALLOW_THREADS
        outcome = capture(state.cuda, lane);
        Py_END_ALLOW_THREADS
    }
    is_making_ = false;
    if (!may_make) return;
    if (!outcome) {
        failed(state, lane, outcome);
        return;
    }
    keep(lane);
    lane.is_doomed = lane.is_doomed || ends != ends_;  // another thread has dropped all meanwhile
}

void Keeper::keep(Lane &lane) {
    lane.keeper = this;
    lane.used = ++clock_;
    lane.calls = lane.latest = 0;
    lane.lost.clear();
    kept_.push_back(&lane);
    bytes_ += lane.graph->device_bytes();
    ++made_;
    const size_t size = lane.work.size();
    const bool copies = std::any_of(lane.work.begin(), lane.work.end(), [](const Work &each) {
        return each.kind() == Work::Kind::copy;
    });
    const char *several = copies ? " launches, fills and copies are" : " launches and fills are";
    news(lane.site,
         std::to_string(size) + (size == 1 ? " launch is" : several) + " one CUDA graph");
    make_room(&lane);
}

void Keeper::make_room(const Lane *but) {
    while (kept_.size() > limits_.most || bytes_ > limits_.most_bytes) {
        Lane *oldest = nullptr;
        for (Lane *each : kept_) {
            if (each == but || each->is_busy) continue;
            if (oldest == nullptr || each->used < oldest->used) oldest = each;
        }
        if (oldest == nullptr) return;
        oldest->wanted = later(*oldest);
        oldest->lost = "others were used later";
        lose(*oldest, "no CUDA graph any more: others were used later");
    }
}

int Keeper::report() {
    std::vector<std::pair<Ref, std::string>> told;
    told.swap(news_);
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    for (const auto &[name, text] : told) {
        const Ref said = Ref::steal(PyObject_CallFunction(tell.get(), "Os", name.get(), text.c_str()));
        if (said) continue;
        if (type == nullptr) return -1;
        PyErr_WriteUnraisable(tell.get());  // the error that is set already says more
    }
    PyErr_Restore(type, value, trace);
    return 0;
}

}  // namespace tzero::graph
