// A trace function that leaves to Python only the frames and instructions which matter to it.
#pragma once

#include "python.h"

namespace tzero {

struct State;

// Add the types Instructions and Follower: ``Follower(begin, step, leave, modules, among,
// empty)`` is a trace function for `tzero.reading.path`, and ``Instructions(looks, depths, counts, entries)`` says
// for the instructions of a code object which of them it sees.
int add_following(PyObject *module, State *state);

// Whether an object is a Follower.
bool is_follower(const State &state, PyObject *object);

// Shows an event of a frame to a Follower, as CPython calls a trace function in C: 0, or -1 with the
// Python error set. The trampoline of `sys.settrace` would copy the variables of each frame into a dict
// and back.
int follow(PyObject *follower, PyFrameObject *frame, int event, PyObject *value);

}  // namespace tzero
