#include "quiet.h"

#include "guards.h"
#include "timestamps.h"

namespace tzero {

namespace {

// Whether verify mode is off in the settings in force.
Answer is_unverified(State &state) {
    PyObject *now = PyDict_GetItemWithError(state.settings.get(), state.names.in_force.get());
    if (now == nullptr) return PyErr_Occurred() ? Answer::error : Answer::no;
    if (now == state.plain_settings.get()) return Answer::yes;
    if (now == Py_None) return Answer::no;  // not read yet: Python reads them
    Ref keep = Ref::borrow(now);
    Ref verify = Ref::steal(PyObject_GetAttr(now, state.names.verify.get()));
    if (!verify) return Answer::error;
    if (verify.get() != Py_False) return Answer::no;
    state.plain_settings = std::move(keep);
    return Answer::yes;
}

// Whether nothing is verified. An open record takes the times of calls from now on.
Answer is_quiet(State &state) {
    PyObject *open = PyDict_GetItemWithError(state.measure.get(), state.names.open.get());
    if (open == nullptr) return PyErr_Occurred() ? Answer::error : Answer::no;
    if (!PyTuple_CheckExact(open) || PyTuple_GET_SIZE(open) < 1) return Answer::no;
    const Ref record = Ref::borrow(PyTuple_GET_ITEM(open, PyTuple_GET_SIZE(open) - 1));
    if (use_record(state, record.get()) < 0) return Answer::error;
    return is_unverified(state);
}

}  // namespace

Answer is_ours(State &state, const Modes &modes) {
    if (state.recorders != 0 && !off(Guard::plan_recorders)) return Answer::no;
    const uint64_t strange = (modes.included & ~state.torch.plain_included) |
                             (modes.excluded & ~state.torch.plain_excluded);
    if (strange != 0 && !off(Guard::plan_keys_on)) return Answer::no;
    if (state.torch.function_modes() != 0 && !off(Guard::plan_functions_on)) return Answer::no;
    const bool unchanged =
        off(Guard::plan_quiet) ||
        (state.quiet[0].is(state.measure.get()) && state.quiet[1].is(state.settings.get()));
    if (!unchanged) {
        const uint64_t measure = version_of(state.measure.get());
        const uint64_t settings = version_of(state.settings.get());
        const Answer answer = is_quiet(state);
        if (answer != Answer::yes) return answer;
        state.quiet[0].set(measure);
        state.quiet[1].set(settings);
    }
    return off(Guard::plan_unwatched) ? Answer::yes : unwatched(state);
}

}  // namespace tzero
