// A trace function that leaves to Python only the frames and instructions which matter to it.
#pragma once

#include "python.h"

namespace tzero {

struct State;

// Add the types Instructions and Follower: ``Follower(begin, step, leave, modules, empty)`` is a
// trace function for `tzero.reading.path`, and ``Instructions(looks, depths, counts, entries)`` says
// for the instructions of a code object which of them it sees.
int add_following(PyObject *module, State *state);

}  // namespace tzero
