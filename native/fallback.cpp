#include "fallback.h"

#include "fields.h"

namespace tzero {

namespace {

// How many calls of `fall_back` this thread is in.
thread_local size_t depth = 0;

// Counts one more for a time.
class Deeper {
  public:
    Deeper() { ++depth; }
    ~Deeper() { --depth; }
    Deeper(const Deeper &) = delete;
    Deeper &operator=(const Deeper &) = delete;
};

// This thread's dict of `current`, a threading.local; borrowed, because it lives as long as the
// thread. One thread may have several Python thread states, one after the other, each with a dict
// of its own. Null with the Python error set.
PyObject *current_dict(const State &state) {
    static thread_local uint64_t thread = 0;
    static thread_local PyObject *dict = nullptr;
    const uint64_t now = PyThreadState_GetID(PyThreadState_Get()) + 1;
    if (thread != now) {
        Ref found =
            Ref::steal(PyObject_GetAttr(state.current.get(), state.names.instance_dict.get()));
        if (!found) return nullptr;
        if (!PyDict_CheckExact(found.get())) {
            PyErr_SetString(PyExc_TypeError, "current.__dict__ is not a dict");
            return nullptr;
        }
        dict = found.get();
        thread = now;
    }
    return dict;
}

// Sets `current.call` for a time. It keeps the dict, which a call could otherwise free.
class CurrentCall {
  public:
    CurrentCall(const State &state, PyObject *dict) : dict_(Ref::borrow(dict)), state_(state) {}
    CurrentCall(const CurrentCall &) = delete;
    CurrentCall &operator=(const CurrentCall &) = delete;

    bool set(PyObject *call) {
        PyObject *before = PyDict_GetItemWithError(dict_.get(), name());
        if (before == nullptr && PyErr_Occurred()) return false;
        before_ = Ref::borrow(before);
        return PyDict_SetItem(dict_.get(), name(), call) == 0;
    }

    // Whether it succeeded; an error of the call stays set.
    bool restore() {
        PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
        PyErr_Fetch(&type, &value, &trace);
        // None is the default. Deleting the entry would make the dict grow again and again.
        PyObject *before = before_ ? before_.get() : Py_None;
        const int failed = PyDict_SetItem(dict_.get(), name(), before);
        if (type != nullptr) {
            PyErr_Restore(type, value, trace);
        }
        return failed == 0;
    }

  private:
    PyObject *name() const { return state_.names.current_call.get(); }

    Ref dict_, before_;
    const State &state_;
};

}  // namespace

int Fallback::visit(visitproc visit, void *arg) const {
    Py_VISIT(call.get());
    Py_VISIT(note.get());
    Py_VISIT(base.get());
    return 0;
}

Fallback fallback_from(PyObject *description) {
    const Fields fields(description);
    return {fields.any("call"), fields.any("note"), fields.tuple("base"), fields.flag("keyless"),
            static_cast<uint64_t>(fields.integer("until", 0, PY_SSIZE_T_MAX))};
}

bool in_fallback() { return depth != 0; }

PyObject *fall_back(State &state, const Fallback &fallback, PyObject *bound, const Ref &args,
                    uint64_t number) {
    PyObject *dict = current_dict(state);
    if (dict == nullptr) return nullptr;
    Ref counted = Ref::steal(PyLong_FromUnsignedLongLong(number));
    if (!counted) return nullptr;
    Ref running = Ref::steal(PyTuple_Pack(5, fallback.note.get(), fallback.base.get(), bound,
                                          args.get(), counted.get()));
    CurrentCall current(state, dict);
    if (!running || !current.set(running.get())) return nullptr;
    Ref host = fallback.call;  // the entry may be dropped during the call
    Ref result;
    {
        const Deeper deeper;
        result = Ref::steal(PyObject_Vectorcall(
            host.get(), reinterpret_cast<PyTupleObject *>(args.get())->ob_item,
            static_cast<size_t>(PyTuple_GET_SIZE(args.get())), nullptr));
    }
    if (!current.restore()) return nullptr;
    return result.release();
}

}  // namespace tzero
