// The runs of a replay: launches, fills and copies on CUDA between which nothing of torch is called.
//
//     hot: open ──► each of them is staged         ──► close: all of them are launched as a graph
//                        └ a step fails: close launches what is staged one by one first
//
// Other steps of a run are done at once: they allocate and make views, and nothing they do depends on
// the work that is staged.

#include "binary.h"
#include "replay.h"

#include <algorithm>

namespace tzero::plan {

namespace {

// The binary of a launch, or one of those in a plan over sizes.
const Spec &binary_of(const Plan &plan, const Step &launch) {
    const size_t at = plan.sized == nullptr ? launch.at
                                            : plan.sized->launches[launch.at].variants.front().launch;
    return *plan.launches[at].spec;
}

bool is_on_cuda(const State &state, const Plan &plan, const Step &step) {
    if (step.kind == Step::fill) {
        const Fill &fill = plan.fills[step.at];
        return fill.device >= 0 && fill.device == plan.device && state.cuda.can_fill(fill.pattern);
    }
    if (step.kind == Step::copy) {
        const int device = plan.copies[step.at].device;
        return device >= 0 && device == plan.device && state.cuda.can_copy();
    }
    return step.kind == Step::launch && plan.device >= 0 && binary_of(plan, step).is_plain;
}

// Whether a step that is not of a run ends it: it may do anything, as a call of torch does.
bool is_between(const Step &step) {
    return step.kind != Step::allocate && step.kind != Step::view;
}

// A graph of one copy is no better than the copy.
void drop_lone_copies(Plan &plan) {
    const auto is_lone = [&](const Run &run) {
        return run.work.size() == 1 && plan.steps[run.work.front()].kind == Step::copy;
    };
    plan.runs.erase(std::remove_if(plan.runs.begin(), plan.runs.end(), is_lone), plan.runs.end());
}

}  // namespace

void find_runs(const State &state, Plan &plan) {
    bool is_open = false;
    for (size_t k = 0; k < plan.steps.size(); ++k) {
        const Step &step = plan.steps[k];
        if (!is_on_cuda(state, plan, step)) {
            is_open = is_open && !is_between(step);
            continue;
        }
        if (!is_open || plan.runs.back().work.size() == graph::most_nodes) plan.runs.emplace_back();
        is_open = true;
        plan.runs.back().work.push_back(k);
    }
    drop_lone_copies(plan);
    Ref name = Ref::steal(PyObject_GetAttr(plan.object.get(), state.names.kernel.get()));
    if (!name || !PyUnicode_Check(name.get())) {
        PyErr_Clear();
        name = Ref::steal(PyUnicode_FromString("a plan"));
    }
    for (size_t k = 0; k < plan.runs.size(); ++k) {
        Run &run = plan.runs[k];
        run.site = std::make_unique<graph::Site>();
        run.site->name = name;
        Step &first = plan.steps[run.work.front()];
        first.opens = static_cast<Py_ssize_t>(k);
        plan.steps[run.work.back()].closes = true;
        if (first.kind == Step::launch && binary_of(plan, first).binary.dependent) {
            run.site->ended = graph::overlaps;
        }
    }
}

PyObject *runs_of(const Plan &plan, uint64_t observed) {
    Ref made = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(plan.runs.size())));
    for (size_t k = 0; made && k < plan.runs.size(); ++k) {
        const std::vector<size_t> &work = plan.runs[k].work;
        const auto copies = std::count_if(work.begin(), work.end(), [&](size_t step) {
            return plan.steps[step].kind == Step::copy;
        });
        PyObject *each = graph::described(*plan.runs[k].site, work.size(),
                                          static_cast<size_t>(copies), observed);
        if (each == nullptr) return nullptr;
        PyTuple_SET_ITEM(made.get(), static_cast<Py_ssize_t>(k), each);
    }
    return made.release();
}

int count_hooked(State &state, const Plan &plan) {
    if (plan.runs.empty()) return 0;
    const Answer unhooked = no_launch_hooks(state, true);
    if (unhooked == Answer::error) return -1;
    for (const Run &run : plan.runs) {
        if (unhooked == Answer::no) graph::count_plain(*run.site, graph::Plainly::hooked);
    }
    return 0;
}

graph::Work Plan::work(const Step &step, const Applied *applied) const {
    if (step.kind == Step::fill) return {nullptr, &fills[step.at].pattern};
    if (step.kind == Step::copy) return {};
    return {launched(step.at, applied).spec.get(), nullptr};
}

// Finds the graph to stage a run in, if it is hot.
Replay::Done Replay::open(const Run &run) {
    if (!state_.graphs.is_hot(state_, *run.site)) return Done::yes;
    void *queue = nullptr;
    if (!stream(plan_.device, &queue)) return Done::error;
    const auto work_at = [&](size_t k) { return plan_.work(plan_.steps[run.work[k]], applied_); };
    open_ = state_.graphs.take(
        state_, *run.site, queue, plan_.device, is_profiled_,
        [&](const std::vector<graph::Work> &work) {
            if (applied_ == nullptr) return true;
            for (size_t k = 0; k < work.size(); ++k) {
                if (!(work[k] == work_at(k))) return false;
            }
            return true;
        },
        [&] {
            std::vector<graph::Work> work;
            work.reserve(run.work.size());
            for (size_t k = 0; k < run.work.size(); ++k) work.push_back(work_at(k));
            return work;
        });
    staged_ = 0;
    return Done::yes;
}

// Launches what is staged. If a step has failed, that is the work before it.
Replay::Done Replay::close(Done done) {
    graph::Lane &lane = *std::exchange(open_, nullptr);
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    if (state_.graphs.finish(state_, lane, staged_) < 0) {  // this failed before the step did
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(trace);
        return Done::error;
    }
    PyErr_Restore(type, value, trace);
    return done;
}

Replay::Done Replay::in_order(const Step &each) {
    if (each.opens >= 0) {
        const Done opened = open(plan_.runs[static_cast<size_t>(each.opens)]);
        if (opened != Done::yes) return opened;
    }
    const Done done = step(each);
    return open_ != nullptr && (done != Done::yes || each.closes) ? close(done) : done;
}

}  // namespace tzero::plan
