// The value stack of a running Python frame.
#pragma once

#include "python.h"

namespace tzero {

// The upper `count` of the `depth` values on a frame's stack, the top last, as a tuple; `empty` for a
// place that holds no value.
PyObject *frame_values(PyObject *frame, int depth, int count, PyObject *empty);

// frame_operands(frame, depth, count, empty): as `frame_values`.
PyObject *frame_operands(PyObject *module, PyObject *args);

// frame_function(frame): the function that the frame runs; None for a module or a class body.
PyObject *frame_function(PyObject *module, PyObject *frame);

}  // namespace tzero
