// A replay of a plan: its guards, its steps, and the values between them.
#pragma once

#include "python.h"

#include <algorithm>

#include "plan.h"
#include "state.h"

namespace tzero::plan {

// The tensors of one replay, by slot; on the stack of `replay`. A slot that only launches use may
// have an address and no object.
struct Frame {
    PyObject *objects[most_slots];  // owned, or null
    const char *addresses[most_slots];
    size_t count;

    explicit Frame(size_t slots) : count(slots) { std::fill_n(objects, count, nullptr); }
    Frame(const Frame &) = delete;
    Frame &operator=(const Frame &) = delete;
    ~Frame() {
        for (size_t k = 0; k < count; ++k) Py_XDECREF(objects[k]);
    }

    void set(size_t slot, PyObject *owned, const void *address) {
        Py_XSETREF(objects[slot], owned);
        addresses[slot] = static_cast<const char *>(address);
    }
};

class Replay {
  public:
    Replay(State &state, PyObject *self, const Plan &plan, const Leaves &leaves,
           const Applied *applied, bool is_profiled, Frame &frame)
        : state_(state), self_(self), plan_(plan), leaves_(leaves), applied_(applied),
          frame_(frame), is_profiled_(is_profiled) {}

    Replayed run(Ref *result);

    // Checks all guards, before the first step; `done` if they hold.
    Replayed ready();

  private:
    enum class Done { yes, resume, differs, error };

    Answer watches_hold();
    Answer watched_tensors_hold();
    bool load_arguments();
    bool are_bare() const;
    bool shares_tables() const;
    bool shares(const Table &table) const;
    bool is_given(PyObject *value, int depth) const;

    Done in_order(const Step &step);
    Done step(const Step &step);
    Done open(const Run &run);
    Done close(Done done);
    Done plain_launch(const Launch &step, const int32_t grid[3]);
    Done launch_on_cpu(const Launch &step, const int32_t grid[3]);
    PyObject *allocated(const Allocate &step) const;
    PyObject *sized_arguments(const Allocate &step) const;
    Done allocate(const Allocate &step);
    Done fill(const Fill &step);
    Done put_in(const Fill &step, size_t bytes);
    Done copy(const Copy &step, Py_ssize_t number);
    Done put_copy(const Copy &step, void *to, const void *from, size_t bytes);
    bool may_copy(const Copy &step, size_t bytes) const;
    bool is_counted_alike(const Copy &step, PyObject *to, PyObject *from) const;
    bool copied_bytes(const Copy &step, size_t *bytes) const;
    bool read_ends(const Copy &step, size_t bytes, const void **to, const void **from) const;
    Ref called(const Call &step);
    Done call(const Call &step, Py_ssize_t number);
    Done read(const Call &step);
    Done launch(size_t step);
    Done shown_launch(size_t step);
    bool packed(const Launch &step, char *block) const;
    Done failed(const Launch &step, const int32_t grid[3], int outcome) const;
    Done view(const View &step);
    Done part(const Part &part, bool *is_made);
    Done captured(const Part &part, void *queue, Answer *answer);
    Ref tensors(const Part &part) const;

    bool is_current(int device) const;
    Answer may_use_again(const Allocate &step, void **queue);
    bool stream(int device, void **out);
    bool refresh();
    bool is_empty(size_t slot) const;
    bool geometry(size_t slot, int64_t *out) const;
    bool has_geometry(size_t slot, PyObject *tensor) const;
    Ref value(const Value &value) const;
    Ref nest(const Value &value) const;
    bool destructure(const Value &value, PyObject *given);
    bool put(size_t slot, PyObject *given);
    Ref resumed(Py_ssize_t number) const;

    State &state_;
    PyObject *self_;
    const Plan &plan_;
    const Leaves &leaves_;
    const Applied *applied_;  // null unless the plan is one over sizes
    Frame &frame_;
    void *stream_ = nullptr;
    bool knows_stream_ = false;
    bool is_unchanged_ = false;  // the dicts that guards read have the versions they had
    bool ran_python_ = false;  // since the launch guards were checked
    bool is_profiled_;
    graph::Lane *open_ = nullptr;  // where the run of this step is staged
    size_t staged_ = 0;            // how much of its work
};

}  // namespace tzero::plan
