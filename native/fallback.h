// A call whose host function runs as written, because its calls are not replayed.
#pragma once

#include "python.h"

#include <cstdint>

#include "state.h"

namespace tzero {

// What such calls need. `note` and `base` are those of `tzero.launches.current_call`, for code in
// the host function that calls `tzero.specialize`.
struct Fallback {
    Ref call;  // the host function, with its config
    Ref note, base;
    bool keyless = false;  // whether calls with other keys would be made in the same way
    uint64_t until = 0;    // the number of the call that Python makes, to record it; 0 for none

    bool is_due(uint64_t number) const { return until != 0 && until <= number; }

    int visit(visitproc visit, void *arg) const;
};

// Makes a fallback from Python's description; throws `Malformed`.
Fallback fallback_from(PyObject *description);

// Runs the host function with these arguments, a tuple in the order of the parameters. `number` is
// that of the call. Null with the Python error set.
PyObject *fall_back(State &state, const Fallback &fallback, PyObject *bound, const Ref &args,
                    uint64_t number);

// Whether this thread runs a host function as written, in `fall_back`.
bool in_fallback();

}  // namespace tzero
