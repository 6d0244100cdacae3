// Profilers of torch: whether one looks at this thread, and the ranges that it shows.
//
// torch's profilers, and `emit_nvtx`, add callbacks to a thread, or a state for all threads. Both
// are read here without a lock; src/tzero/adapters/torch_profilers.py compares them with torch's
// answer in Python before they are used. Ranges are made by torch, and only while one looks.
#pragma once

#include "python.h"

namespace tzero {

struct State;

class Profilers {
  public:
    // Finds the symbols in the libraries that torch has loaded: null, or the name of a missing one.
    const char *open();

    // Whether a profiler looks at this thread, and whether one looks at all threads; only after
    // `open` has found everything.
    bool look_here() const {
        const Callbacks &here = callbacks_here();
        return here.begin != here.end;
    }
    bool look_everywhere() const { return *everywhere_ != nullptr; }

    bool look() const { return ready && (look_everywhere() || look_here()); }

    bool ready = false;  // set by configure_profilers()
    Ref range;           // makes a range of a name; likewise

  private:
    struct Callbacks {  // the beginning of a std::vector
        const void *begin, *end;
    };

    // at::get_record_function_tls_(), which does not move.
    const Callbacks &callbacks_here() const {
        static thread_local const Callbacks *known = nullptr;
        if (known == nullptr) known = callbacks_();
        return *known;
    }

    const Callbacks *(*callbacks_)() = nullptr;
    const void *const *everywhere_ = nullptr;  // the state of a profiler of all threads, or null
};

// Opens a range called "tzero: NAME", followed by "[grid]" for a launch; empty with the Python
// error set, which it is if `name` is null. It may run any Python code, such as finalizers.
Ref open_range(const State &state, PyObject *name, bool is_launch);

// The same for a launch of a kernel, by its `__name__`.
Ref open_launch_range(const State &state, PyObject *kernel);

// Closes it. An error that is set stays set.
void close_range(const State &state, const Ref &range);

}  // namespace tzero
