#include "profilers.h"

#include "library.h"
#include "state.h"

namespace tzero {

const char *Profilers::open() {
    ready = false;
    const Library library("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return "torch's libraries";
    if (!library.find("_ZN2at24get_record_function_tls_Ev", callbacks_)) {
        return "at::get_record_function_tls_";
    }
    if (!library.find("_ZZN5torch8profiler4impl18GlobalStateManagerINS1_17ProfilerStateBaseEE"
                      "9singletonEvE10singleton_",
                      everywhere_)) {
        return "torch::profiler::impl::GlobalStateManager<ProfilerStateBase>::singleton";
    }
    return nullptr;
}

Ref open_range(const State &state, PyObject *name, bool is_launch) {
    if (name == nullptr) return {};
    Ref text = Ref::steal(PyUnicode_FromFormat("tzero: %S%s", name, is_launch ? "[grid]" : ""));
    if (!text) return {};
    Ref range = Ref::steal(PyObject_CallOneArg(state.profilers.range.get(), text.get()));
    if (!range) return {};
    Ref entered = Ref::steal(PyObject_CallMethodNoArgs(range.get(), state.names.enter.get()));
    return entered ? range : Ref();
}

Ref open_launch_range(const State &state, PyObject *kernel) {
    Ref name = Ref::steal(PyObject_GetAttr(kernel, state.names.function_name.get()));
    return open_range(state, name.get(), true);
}

void close_range(const State &state, const Ref &range) {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    Ref left = Ref::steal(PyObject_CallMethodObjArgs(range.get(), state.names.exit.get(), Py_None,
                                                     Py_None, Py_None, nullptr));
    if (!left) PyErr_WriteUnraisable(range.get());
    if (type != nullptr) PyErr_Restore(type, value, trace);
}

}  // namespace tzero
