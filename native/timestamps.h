// When the stages of calls began and ended, for the open record of `tzero.measure`.
//
//     call ── start ── arguments read ── entry found ── end ──► Timestamps ── take() ──► spans
//
// The GIL is held wherever times are added or taken, so that there is no lock.
#pragma once

#include "python.h"

#include <cstdint>
#include <ctime>

#include "state.h"

namespace tzero {

// Nanoseconds of the clock that `time.perf_counter_ns` reads.
inline uint64_t now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(time.tv_nsec);
}

// The times of one call. It does nothing while no record is open.
class Times {
  public:
    // The call begins; maybe a record is open.
    explicit Times(const State &state) {
        if (state.timestamps) start_ = now();
    }

    // It is known now whether a record is open, which it returns. The call is in this one, though it
    // may be closed before the call ends.
    bool opened(const State &state) {
        if (!state.timestamps) return false;
        into_ = state.timestamps;
        if (start_ == 0) start_ = now();
        return true;
    }

    void arguments_read() {
        if (into_) read_ = found_ = now();
    }

    void entry_found() {
        if (into_) found_ = now();
    }

    // Native code makes the call; of other calls Python takes the times.
    void made_here() { is_native_ = true; }

    // The call ends, also if it raises. `kernel` is its name, if a record is open.
    void ended(PyObject *kernel) {
        if (into_ && is_native_) add(kernel);
    }

  private:
    void add(PyObject *kernel);

    Ref into_;
    uint64_t start_ = 0, read_ = 0, found_ = 0;
    bool is_native_ = false;
};

// Finds out whether a record is open, and has it take the times of calls: 0, or -1 with the Python
// error set. `record` is the one opened last, or None.
int use_record(State &state, PyObject *record);

// Makes the type; 0, or -1 with the Python error set.
int add_timestamps(PyObject *module, State *state);

}  // namespace tzero
