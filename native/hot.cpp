#include "hot.h"

#include <fstream>

#include "binary.h"
#include "state.h"

namespace tzero::graph {

namespace {

constexpr unsigned non_blocking = 1;
constexpr char by_settings[] = "no CUDA graph any more: the settings say so";
constexpr uint64_t patience = 8;  // how much longer to wait after a graph that did not last

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

// Reports the failure of a graph as that of its first launch.
void raise_of_first(const State &state, const Graph &graph, cuda::Result result) {
    size_t at = 0;
    while (at + 1 < graph.size() && graph.work(at).spec == nullptr) ++at;
    raise_from_cuda(state, graph.work(at).spec, result, graph.grid_of(at));
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

Kept::~Kept() {
    if (keeper != nullptr) keeper->remove(*this);
    site.launches += graph.launches();
    site.settings += graph.settings();
}

PyObject *described(const Site &site, size_t work) {
    uint64_t launches = site.launches, settings = site.settings, bytes = 0;
    size_t count = 0;
    for (const auto &each : site.graphs) {
        if (!each->graph.is_made()) continue;
        ++count;
        bytes += each->graph.device_bytes();
        launches += each->graph.launches();
        settings += each->graph.settings();
    }
    Ref plainly = Ref::steal(PyDict_New());
    for (size_t k = 0; plainly && k < static_cast<size_t>(Plainly::count); ++k) {
        const Ref number = Ref::steal(PyLong_FromUnsignedLongLong(site.plainly[k]));
        if (!number || PyDict_SetItemString(plainly.get(), plainly_names[k], number.get()) < 0) {
            return nullptr;
        }
    }
    return plainly ? Py_BuildValue("(OnKsnKKKO)", site.name.get(), static_cast<Py_ssize_t>(work),
                                   static_cast<unsigned long long>(site.calls), site.ended.c_str(),
                                   static_cast<Py_ssize_t>(count),
                                   static_cast<unsigned long long>(bytes),
                                   static_cast<unsigned long long>(launches),
                                   static_cast<unsigned long long>(settings), plainly.get())
                   : nullptr;
}

Keeper::~Keeper() {
    drop_all("");
    for (Kept *each : kept_) each->keeper = nullptr;
}

void Keeper::remove(Kept &kept) {
    kept_.erase(std::find(kept_.begin(), kept_.end(), &kept));
    bytes_ -= kept.graph.device_bytes();
    ++dropped_;
}

void Keeper::news(const Site &site, const std::string &text) {
    if (tell && !text.empty()) news_.emplace_back(site.name, text);
}

// Drops a graph, now or when the call that uses it ends. A site whose graph was evicted waits longer
// before it has another one.
void Keeper::drop(Kept &kept, const std::string &why) {
    if (kept.is_busy) {
        kept.is_doomed = true;
        return;
    }
    Site &site = kept.site;
    if (kept.keeper != nullptr) news(site, why);
    auto &all = site.graphs;
    const auto at = std::find_if(all.begin(), all.end(),
                                 [&](const auto &each) { return each.get() == &kept; });
    const std::unique_ptr<Kept> ended = std::move(*at);
    all.erase(at);
    if (all.empty()) site.calls = 0;
}

void Keeper::drop_all(const char *why) {
    ++ends_;
    const std::vector<Kept *> all = kept_;
    for (Kept *each : all) drop(*each, why);
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
    const char *watch = watched ? PyUnicode_AsUTF8(watched.get()) : "";
    if (watch == nullptr) {
        PyErr_Clear();
        watch = "what watches launches cannot be told";
    }
    if (limits_.level == 0) return "TZERO_GRAPHS is 0";
    if (limits_.most == 0) return "TZERO_GRAPHS_KEPT is 0";
    if (limits_.most_bytes == 0) return "TZERO_GRAPHS_MEMORY is 0";
    if (limits_.level == 1 && *watch != 0) return std::string(watch) + " is set";
    if (limits_.level == 1 && !tool_.empty()) return tool_ + " is attached";
    if (state.cuda.graphs.missing != nullptr) {
        return std::string("the driver has no ") + state.cuda.graphs.missing;
    }
    return "";
}

// Whether a profiler of torch is on in any thread; also true if that cannot be told. One that looks at
// the GPU alone has no callbacks in the thread.
bool Keeper::torch_profiles(State &state) {
    if (profilers_seen_.is(profilers.get())) return false;
    profilers_seen_.clear();
    if (!PyDict_CheckExact(profilers.get())) return false;
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

// Whether a site may have one more graph. Where work is on many streams, or of many kinds, the graph
// that was used longest ago makes room from time to time.
bool Keeper::has_room(Site &site) {
    if (is_making_ || !site.ended.empty()) return false;
    if (site.graphs.size() < most_streams) return true;
    const auto oldest = std::min_element(
        site.graphs.begin(), site.graphs.end(),
        [](const auto &one, const auto &other) { return one->used < other->used; });
    if (++site.calls % (patience * limits_.hot) != 0 || (*oldest)->is_busy) return false;
    drop(**oldest, "no CUDA graph any more on one stream: others are used more");
    return true;
}

Kept *Keeper::added(const State &state, Site &site, cuda::Stream stream, int device,
                    std::vector<Work> work) {
    site.graphs.push_back(
        std::make_unique<Kept>(state.cuda, std::move(work), site, stream, device));
    return site.graphs.back().get();
}

bool Keeper::may_use(State &state, Kept &kept, bool is_profiled) {
    auto plainly = [&](Plainly why) {
        ++kept.site.plainly[static_cast<size_t>(why)];
        return false;
    };
    if (kept.is_busy) return plainly(Plainly::in_use);
    if (limits_.level == 1 && (is_profiled || torch_profiles(state) || proton_profiles(state))) {
        return plainly(Plainly::profiled);
    }
    if (state.cuda.is_capturing(kept.stream)) return plainly(Plainly::capturing);
    kept.is_busy = true;
    return true;
}

// ---- launching ----------------------------------------------------------------------------------

int Keeper::launch_plainly(State &state, Kept &kept, size_t staged) {
    cuda::Result result = 0;
    size_t at = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; at < staged && result == 0; ++at) result = kept.graph.do_plainly(at, kept.stream);
    Py_END_ALLOW_THREADS
    if (result == 0) return 0;
    raise_from_cuda(state, kept.graph.work(at - 1).spec, result, kept.graph.grid_of(at - 1));
    return -1;
}

int Keeper::finish(State &state, Kept &kept, size_t staged) {
    bool is_whole = staged == kept.graph.size();
    if (!is_whole) ++kept.site.plainly[static_cast<size_t>(Plainly::interrupted)];
    for (size_t k = 0; is_whole && k < staged; ++k) {
        if (!kept.graph.is_nothing(k)) continue;
        is_whole = false;
        ++kept.site.plainly[static_cast<size_t>(Plainly::nothing)];
    }
    bool is_done = false, is_raised = false;
    if (is_whole && kept.graph.is_made()) {
        Outcome outcome;
        Py_BEGIN_ALLOW_THREADS
        outcome = kept.graph.launch(kept.stream, &is_done);
        Py_END_ALLOW_THREADS
        if (outcome) {
            kept.used = ++clock_;
        } else {
            kept.site.ended = in_words(state, outcome);
            kept.is_doomed = true;
            if (is_done) {  // it must not be launched twice
                raise_of_first(state, kept.graph, outcome.result);
                is_raised = true;
            }
        }
    }
    if (!is_done && launch_plainly(state, kept, staged) < 0) is_raised = true;
    if (is_whole && !is_raised && !kept.is_doomed && !kept.graph.is_made()) make(state, kept);
    kept.is_busy = false;
    if (kept.is_doomed || !kept.graph.is_made()) {
        const std::string why = kept.site.ended;
        drop(kept, why.empty() ? by_settings : why);
    }
    return is_raised ? -1 : 0;
}

// ---- making graphs ------------------------------------------------------------------------------

// The private stream of a device on which work is captured; null if it cannot be made.
cuda::Stream Keeper::capturing_on(State &state, int device) {
    for (const Capturing &each : capturing_) {
        if (each.home.device == device && each.home.is_here(state.cuda)) return each.stream;
    }
    cuda::Stream made = nullptr;
    if (state.cuda.graphs.create_stream(&made, non_blocking) != 0) return nullptr;
    capturing_.push_back({Home::now(state.cuda, device), made});
    return made;
}

// Whether a tool watches launches. CUDA has started when this is first asked.
bool Keeper::is_watched(State &state) {
    if (!has_looked_for_tools_) tool_ = attached_tool();
    has_looked_for_tools_ = true;
    is_on_ = reason(state).empty();
    return !is_on_;
}

void Keeper::make(State &state, Kept &kept) {
    if (is_making_ || is_watched(state)) return;
    is_making_ = true;
    const uint64_t ends = ends_;
    const cuda::Stream capturing = capturing_on(state, kept.device);
    Outcome outcome{cuda::out_of_memory, "cuStreamCreate"};
    Py_BEGIN_ALLOW_THREADS
    if (capturing != nullptr) outcome = kept.graph.make(kept.device, capturing, kept.stream);
    Py_END_ALLOW_THREADS
    is_making_ = false;
    Site &site = kept.site;
    if (!outcome) {
        if (outcome.result == cuda::out_of_memory) {  // there may be more later
            site.wanted = patience * std::max(site.wanted, limits_.hot);
        } else {
            site.ended = in_words(state, outcome);
        }
        news(site, "no CUDA graph: " + in_words(state, outcome));
        return;
    }
    kept.is_doomed = kept.is_doomed || ends != ends_;  // another thread has dropped all meanwhile
    kept.keeper = this;
    kept.used = ++clock_;
    kept_.push_back(&kept);
    bytes_ += kept.graph.device_bytes();
    ++made_;
    site.calls = 0;
    const size_t size = kept.graph.size();
    news(site, std::to_string(size) +
                   (size == 1 ? " launch is" : " launches and fills are") + " one CUDA graph");
    make_room(&kept);
}

void Keeper::make_room(const Kept *but) {
    while (kept_.size() > limits_.most || bytes_ > limits_.most_bytes) {
        Kept *oldest = nullptr;
        for (Kept *each : kept_) {
            if (each == but || each->is_busy) continue;
            if (oldest == nullptr || each->used < oldest->used) oldest = each;
        }
        if (oldest == nullptr) return;
        Site &site = oldest->site;
        site.wanted = patience * std::max(site.wanted, limits_.hot);
        drop(*oldest, "no CUDA graph any more: others were used later");
    }
}

int Keeper::report() {
    std::vector<std::pair<Ref, std::string>> told;
    told.swap(news_);
    for (const auto &[name, text] : told) {
        const Ref said = Ref::steal(PyObject_CallFunction(tell.get(), "Os", name.get(), text.c_str()));
        if (!said) return -1;
    }
    return 0;
}

}  // namespace tzero::graph
