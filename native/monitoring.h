// Shows the events of one thread to a trace function by `sys.monitoring`, where `sys.settrace` is slow.
//
// In CPython 3.12 a trace function that sees instructions makes all code of the process stop at each
// of its instructions: that of libraries, and that of the trace function itself, which then takes
// several times as long. By `sys.monitoring` only code stops there that is named. Newer versions do so
// for `sys.settrace`, too; older ones change no code.
#pragma once

#include "python.h"

#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
#define TZERO_MONITORING
#endif

namespace tzero {

#ifdef TZERO_MONITORING

// Show the frames of this thread to a trace function in C and its object: their begins and ends, and
// the instructions of what `monitor_code_of` names. 1; 0 if another tool or block prevents it; -1 with
// the Python error set.
int begin_monitoring(Py_tracefunc function, PyObject *object);

// Show nothing more, in whichever thread that began. 0, or -1 with the Python error set.
int end_monitoring();

// Whether this thread's frames are shown.
bool is_monitored();

// Whether any thread's are, and by which one: null if none.
PyThreadState *monitored_thread();

// Show the instructions of the code that a frame runs. 0, or -1 with the Python error set.
int monitor_code_of(PyFrameObject *frame);

#else

inline int begin_monitoring(Py_tracefunc, PyObject *) { return 0; }
inline int end_monitoring() { return 0; }
inline bool is_monitored() { return false; }
inline PyThreadState *monitored_thread() { return nullptr; }
inline int monitor_code_of(PyFrameObject *) { return 0; }

#endif

}  // namespace tzero
