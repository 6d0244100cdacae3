// tzero._native: the extension module. See DESIGN.md for ownership, the GIL and failures.
//
// Enters: the interpreter, through multi-phase initialisation; then, once, the objects of torch,
// Triton and tzero that launches read (`configure`). Leaves: a module object that owns all its
// state, so that a second interpreter or import gets its own; and the limits and enums that Python
// uses.

#include "python.h"

#include <iterator>
#include <new>

#include "binary.h"
#include "captures.h"
#include "enums.h"
#include "following.h"
#include "frames.h"
#include "guards.h"
#include "plan.h"
#include "ring.h"
#include "sizes.h"
#include "spec.h"
#include "state.h"
#include "timestamps.h"
#include "tracing.h"

#ifdef Py_GIL_DISABLED
#error "tzero relies on the GIL, which this Python is built without: use the ordinary build"
#endif

#ifndef TZERO_VERSION
#error "TZERO_VERSION is given by setup.py: the version of the package this is built for"
#endif

namespace tzero {

State *state_of(PyObject *module) { return static_cast<State *>(PyModule_GetState(module)); }

namespace {

PyObject *version(PyObject *module, PyObject *) {
    return Ref(state_of(module)->version).release();
}

// The DLPack functions of a tensor type; null with the Python error set.
const dlpack::ExchangeApi *exchange_api(PyObject *capsule) {
    auto *api = static_cast<const dlpack::ExchangeApi *>(
        PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    if (api == nullptr) return nullptr;
    const dlpack::Header *header = &api->header;
    while (header != nullptr && header->major != dlpack::major_version) header = header->previous;
    api = reinterpret_cast<const dlpack::ExchangeApi *>(header);
    if (api == nullptr || api->tensor_from_object == nullptr) {
        PyErr_SetString(PyExc_ImportError, "this torch offers no DLPack exchange API of version 1");
        return nullptr;
    }
    return api;
}

// Forgets the versions of objects that `configure` may have replaced.
void forget_versions(State &state) {
    state.knobs_seen.valid = false;
    for (Seen &each : state.unwatched) each.clear();
    for (Seen &each : state.quiet) each.clear();
}

// The `!=` of a class, if its module defines it; else empty.
Ref own_inequality(const State &state, PyTypeObject *type) {
    PyObject *found = _PyType_Lookup(type, state.names.differs.get());
    if (found == nullptr || !PyFunction_Check(found)) return {};
    Ref module = Ref::steal(PyObject_GetAttrString(reinterpret_cast<PyObject *>(type), "__module__"));
    PyObject *its = PyFunction_GET_MODULE(found);
    if (!module || its == nullptr) {
        PyErr_Clear();
        return {};
    }
    const int same = PyObject_RichCompareBool(its, module.get(), Py_EQ);
    if (same < 0) PyErr_Clear();
    return same == 1 ? Ref::borrow(found) : Ref();
}

PyObject *configure(PyObject *module, PyObject *args, PyObject *kwargs) {
    static const char *const keywords[] = {
        "tensor", "parameter", "exchange_api", "knobs", "more_knobs", "hook_chain", "runtime_knobs",
        "driver", "driver_slot", "events", "observers", "watched", "log_cache", "debug_level",
        "get_num_threads", "launch_failed", "cuda_driver", "constexpr", "current", "const_expr",
        "callable", "descriptor", "size", "subscripts", "partial", "lookalike", "dtype", "device",
        "handle", "storage", nullptr};
    PyObject *tensor, *parameter, *capsule, *knobs, *more_knobs, *hook_chain, *runtime_knobs;
    PyObject *driver, *driver_slot, *events, *observers, *watched, *log_cache, *debug_level;
    PyObject *get_num_threads, *launch_failed, *cuda_driver, *constexpr_type, *current,
        *const_expr, *callable, *descriptor, *size, *subscripts, *partial, *lookalike,
        *dtype, *device;
    Py_ssize_t handle = -1, storage = -1;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "$O!O!OO!O!OOOUO!UOO!O!OOO!O!OO!O!OO!OO!OO!O!nn:configure", const_cast<char **>(keywords),
            &PyType_Type, &tensor, &PyType_Type, &parameter, &capsule, &PyDict_Type, &knobs,
            &PyTuple_Type, &more_knobs, &hook_chain, &runtime_knobs, &driver, &driver_slot,
            &PyDict_Type, &events, &observers, &watched, &PyDict_Type, &log_cache, &PyLong_Type,
            &debug_level, &get_num_threads, &launch_failed, &PyType_Type, &cuda_driver,
            &PyType_Type, &constexpr_type, &current, &PyType_Type, &const_expr,
            &PyType_Type, &callable, &descriptor, &PyType_Type, &size, &subscripts, &PyType_Type,
            &partial, &lookalike, &PyType_Type, &dtype, &PyType_Type, &device, &handle, &storage)) {
        return nullptr;
    }
    State *state = state_of(module);
    const dlpack::ExchangeApi *api = exchange_api(capsule);
    if (api == nullptr) return nullptr;
    state->tensor_type = Ref::borrow(tensor);
    state->parameter_type = Ref::borrow(parameter);
    state->exchange_capsule = Ref::borrow(capsule);
    state->tensors.tensor = reinterpret_cast<PyTypeObject *>(tensor);
    state->tensors.parameter = reinterpret_cast<PyTypeObject *>(parameter);
    state->tensors.api = api;
    state->tensors.handle = storage >= 0 && state->tensors.shim.open() ? handle : -1;
    state->tensors.storage = storage;
    state->knobs = Ref::borrow(knobs);
    state->more_knobs = Ref::borrow(more_knobs);
    state->hook_chain = Ref::borrow(hook_chain);
    state->runtime_knobs = Ref::borrow(runtime_knobs);
    state->driver = Ref::borrow(driver);
    state->driver_slot = Ref::borrow(driver_slot);
    state->events = Ref::borrow(events);
    state->names.observers = Ref::borrow(observers);
    state->watched = Ref::borrow(watched);
    state->log_cache = Ref::borrow(log_cache);
    state->debug_level = Ref::borrow(debug_level);
    state->get_num_threads = Ref::borrow(get_num_threads);
    state->launch_failed = Ref::borrow(launch_failed);
    state->cuda_driver = Ref::borrow(cuda_driver);
    state->constexpr_type = Ref::borrow(constexpr_type);
    state->constexpr_differs = own_inequality(*state, reinterpret_cast<PyTypeObject *>(constexpr_type));
    state->current = Ref::borrow(current);
    state->const_expr = Ref::borrow(const_expr);
    state->jit_callable = Ref::borrow(callable);
    state->descriptor = Ref::borrow(descriptor);
    state->torch_size = Ref::borrow(size);
    state->subscripts.find = Ref::borrow(subscripts);
    state->subscripts.partial_type = Ref::borrow(partial);
    state->lookalikes.find = Ref::borrow(lookalike);
    state->lookalikes.dtype_type = Ref::borrow(dtype);
    state->lookalikes.device_type = Ref::borrow(device);
    state->leaf_types.constant = reinterpret_cast<PyTypeObject *>(const_expr);
    forget_versions(*state);
    state->configured = true;
    Py_RETURN_NONE;
}

PyObject *open_cuda(PyObject *module, PyObject *) {
    State *state = state_of(module);
    state->memory.open();
    return PyBool_FromLong(state->cuda.open());
}

// -- plans ----------------------------------------------------------------------------------------

PyObject *open_torch(PyObject *module, PyObject *) {
    State *state = state_of(module);
    state->torch.ready = false;
    if (state->tensors.handle < 0) {
        return PyUnicode_FromString("a known place for a tensor's C++ object");
    }
    const char *missing = state->torch.open();
    return PyUnicode_FromString(missing == nullptr ? "" : missing);
}

PyObject *configure_plans(PyObject *module, PyObject *args, PyObject *kwargs) {
    static const char *const keywords[] = {"dtype", "layout", "memory_format", "device", "size",
                                           "measure", "key_set", "plain_keys",
                                           "plain_included", "plain_excluded", "settings", "ready",
                                           "storage", "gradients", "makes_views", "view_key",
                                           "keys_of_views", nullptr};
    PyObject *dtype = nullptr, *layout = nullptr, *memory_format = nullptr, *device = nullptr;
    PyObject *size = nullptr, *measure = nullptr, *settings = nullptr;
    Py_ssize_t key_set = 0;
    unsigned long long plain_keys = 0, plain_included = 0, plain_excluded = 0;
    unsigned long long view_key = 0, keys_of_views = 0;
    int ready = 0, makes_views = 0;
    Py_ssize_t storage = -1, gradients = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!O!O!O!O!O!nKKKO!pnnpKK:configure_plans",
                                     const_cast<char **>(keywords), &PyType_Type, &dtype,
                                     &PyType_Type, &layout, &PyType_Type, &memory_format,
                                     &PyType_Type, &device, &PyType_Type, &size,
                                     &PyDict_Type, &measure, &key_set, &plain_keys,
                                     &plain_included, &plain_excluded, &PyDict_Type, &settings,
                                     &ready, &storage, &gradients, &makes_views, &view_key,
                                     &keys_of_views)) {
        return nullptr;
    }
    State *state = state_of(module);
    LeafTypes &types = state->leaf_types;
    const std::pair<Ref *, PyTypeObject **> all[] = {
        {&state->dtype_type, &types.dtype},   {&state->layout_type, &types.layout},
        {&state->device_type, &types.device}, {&state->memory_format_type, &types.memory_format},
        {&state->size_type, &types.size},
    };
    PyObject *const given[] = {dtype, layout, device, memory_format, size};
    for (size_t k = 0; k < std::size(all); ++k) {
        *all[k].first = Ref::borrow(given[k]);
        *all[k].second = reinterpret_cast<PyTypeObject *>(given[k]);
    }
    types.index = state->names.index.get();
    types.type = state->names.type.get();
    types.value = state->names.value.get();
    state->measure = Ref::borrow(measure);
    state->settings = Ref::borrow(settings);
    state->plain_settings.clear();
    forget_versions(*state);
    state->torch.key_set = key_set;
    state->torch.plain_keys = plain_keys;
    state->torch.plain_included = plain_included;
    state->torch.plain_excluded = plain_excluded;
    state->torch.storage = storage;
    state->torch.gradients = gradients;
    state->torch.makes_views = makes_views != 0 && state->torch.views.are_known();
    state->torch.view_key = view_key;
    state->torch.keys_of_views = keys_of_views;
    state->torch.ready = ready != 0;
    Py_RETURN_NONE;
}

PyObject *configure_graphs(PyObject *module, PyObject *args, PyObject *kwargs) {
    static const char *const keywords[] = {"settings", "watched", "tell", "modules", "profilers",
                                           nullptr};
    PyObject *settings = nullptr, *watched = nullptr, *tell = nullptr, *modules = nullptr;
    PyObject *profilers = nullptr;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "$O!OOO!O:configure_graphs",
                                     const_cast<char **>(keywords), &PyDict_Type, &settings,
                                     &watched, &tell, &PyDict_Type, &modules, &profilers)) {
        return nullptr;
    }
    graph::Keeper &graphs = state_of(module)->graphs;
    graphs.settings = Ref::borrow(settings);
    graphs.watched = Ref::borrow(watched);
    graphs.tell = Ref::borrow(tell);
    graphs.modules = Ref::borrow(modules);
    graphs.profilers = Ref::borrow(profilers);
    graphs.forget_settings();
    Py_RETURN_NONE;
}

PyObject *graphs(PyObject *module, PyObject *) {
    State &state = *state_of(module);
    const std::string why_not = state.graphs.why_not(state);
    return Py_BuildValue("(KKKKs)", static_cast<unsigned long long>(state.graphs.count()),
                         static_cast<unsigned long long>(state.graphs.bytes()),
                         static_cast<unsigned long long>(state.graphs.made()),
                         static_cast<unsigned long long>(state.graphs.dropped()), why_not.c_str());
}

PyObject *drop_graphs(PyObject *module, PyObject *) {
    state_of(module)->graphs.drop_all("");
    Py_RETURN_NONE;
}

PyObject *open_profilers(PyObject *module, PyObject *) {
    const char *missing = state_of(module)->profilers.open();
    return PyUnicode_FromString(missing == nullptr ? "" : missing);
}

PyObject *configure_profilers(PyObject *module, PyObject *range) {
    Profilers &profilers = state_of(module)->profilers;
    profilers.ready = false;
    profilers.range = Ref::borrow(range);
    profilers.ready = true;
    Py_RETURN_NONE;
}

// For the check that it is what torch says.
PyObject *profilers_look(PyObject *module, PyObject *) {
    const Profilers &profilers = state_of(module)->profilers;
    return Py_BuildValue("NN", PyBool_FromLong(profilers.look_here()),
                         PyBool_FromLong(profilers.look_everywhere()));
}

PyObject *tensor_version(PyObject *module, PyObject *value) {
    const State *state = state_of(module);
    if (Py_TYPE(value) != state->tensors.tensor) {
        PyErr_SetString(PyExc_TypeError, "tensor_version takes a torch.Tensor, and no subclass");
        return nullptr;
    }
    return PyLong_FromLongLong(read_version(state->tensors, state->torch, value));
}

PyObject *one_more_version(PyObject *module, PyObject *value) {
    const State *state = state_of(module);
    if (Py_TYPE(value) != state->tensors.tensor) {
        PyErr_SetString(PyExc_TypeError, "bump_version takes a torch.Tensor, and no subclass");
        return nullptr;
    }
    bump_version(state->tensors, state->torch, value);
    Py_RETURN_NONE;
}

PyObject *tangent_of(PyObject *module, PyObject *value) {
    const State *state = state_of(module);
    if (Py_TYPE(value) != state->tensors.tensor) {
        PyErr_SetString(PyExc_TypeError, "has_tangent takes a torch.Tensor, and no subclass");
        return nullptr;
    }
    return PyBool_FromLong(has_tangent(state->tensors, state->torch, value));
}

PyObject *makes_views(PyObject *module, PyObject *) {
    return PyBool_FromLong(state_of(module)->torch.makes_views);
}

// For the check that these are the views that torch makes.
PyObject *strided_view(PyObject *module, PyObject *args) {
    const State *state = state_of(module);
    PyObject *tensor = nullptr, *size = nullptr, *stride = nullptr;
    long long offset = 0;
    if (!PyArg_ParseTuple(args, "OO!O!L:strided_view", &tensor, &PyTuple_Type, &size,
                          &PyTuple_Type, &stride, &offset)) {
        return nullptr;
    }
    if (Py_TYPE(tensor) != state->tensors.tensor && Py_TYPE(tensor) != state->tensors.parameter) {
        PyErr_SetString(PyExc_TypeError, "strided_view takes a torch.Tensor, and no subclass");
        return nullptr;
    }
    if (PyTuple_GET_SIZE(size) != PyTuple_GET_SIZE(stride)) {
        PyErr_SetString(PyExc_ValueError, "strided_view takes as many strides as sizes");
        return nullptr;
    }
    if (!state->torch.views.are_known()) Py_RETURN_NONE;
    std::vector<int64_t> geometry;
    for (PyObject *each : {size, stride}) {
        for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(each); ++k) {
            geometry.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(each, k)));
            if (PyErr_Occurred()) return nullptr;
        }
    }
    PyObject *made = view_of(state->tensors, state->torch, tensor, geometry.data(),
                             geometry.size() / 2, offset);
    if (made != nullptr || PyErr_Occurred()) return made;
    Py_RETURN_NONE;
}

PyObject *rings(PyObject *module, PyObject *) {
    const Torch &torch = state_of(module)->torch;
    return PyBool_FromLong(torch.storage >= 0 && torch.gradients >= 0);
}

PyObject *torch_modes(PyObject *module, PyObject *) {
    const Torch &torch = state_of(module)->torch;
    const Modes modes = torch.modes();
    return Py_BuildValue("KKNNLi", static_cast<unsigned long long>(modes.included),
                         static_cast<unsigned long long>(modes.excluded),
                         PyBool_FromLong(static_cast<long>(modes.grad)),
                         PyBool_FromLong(static_cast<long>(modes.deterministic)),
                         static_cast<long long>(torch.function_modes()), torch.threads());
}

PyObject *tensor_words(PyObject *module, PyObject *value) {
    const State *state = state_of(module);
    if (Py_TYPE(value) != state->tensors.tensor && Py_TYPE(value) != state->tensors.parameter) {
        Py_RETURN_NONE;
    }
    uint64_t words[most_tensor_words];
    size_t count = 0;
    const void *address = nullptr;
    if (read_tensor_words(state->tensors, state->torch, value, words, &count, &address) !=
        Reading::done) {
        Py_RETURN_NONE;
    }
    Ref made = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
    for (size_t k = 0; made && k < count; ++k) {
        // Sizes and strides are signed.
        PyObject *word = k < 2 ? PyLong_FromUnsignedLongLong(words[k])
                               : PyLong_FromLongLong(static_cast<int64_t>(words[k]));
        if (word == nullptr) return nullptr;
        PyTuple_SET_ITEM(made.get(), static_cast<Py_ssize_t>(k), word);
    }
    return made.release();
}

PyObject *packed(PyObject *module, PyObject *args) {
    int type = 0;
    PyObject *value = nullptr;
    if (!PyArg_ParseTuple(args, "iO:packed", &type, &value)) return nullptr;
    const Parameter plain;
    Argument argument;
    char bytes[parameter_bytes] = {0};
    if (type <= 0 || type >= static_cast<int>(Type::count) ||
        read_argument(state_of(module)->tensors, plain, value, &argument) != Reading::done ||
        !put_one(bytes, static_cast<Type>(type), argument)) {
        Py_RETURN_NONE;
    }
    return PyBytes_FromStringAndSize(bytes, sizeof bytes);
}

PyObject *recording(PyObject *module, PyObject *delta) {
    const Py_ssize_t change = PyLong_AsSsize_t(delta);
    if (change == -1 && PyErr_Occurred()) return nullptr;
    State *state = state_of(module);
    state->recorders += change;
    return PyLong_FromSsize_t(state->recorders);
}

PyObject *enable_calls(PyObject *module, PyObject *type) {
    State *state = state_of(module);
    if (!PyType_Check(type) ||
        !PyType_IsSubtype(reinterpret_cast<PyTypeObject *>(type),
                          reinterpret_cast<PyTypeObject *>(state->dispatching.get()))) {
        PyErr_SetString(PyExc_TypeError, "enable_calls takes a subclass of Dispatching");
        return nullptr;
    }
    auto *made = reinterpret_cast<PyTypeObject *>(type);
    made->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    PyType_Modified(made);
    Py_RETURN_NONE;
}

#ifdef TZERO_MUTABLE
PyObject *set_guards_off(PyObject *, PyObject *names) {
    decltype(guards_off) chosen;
    for (uint32_t k = 0; k < static_cast<uint32_t>(Guard::count); ++k) {
        Ref name = Ref::steal(PyUnicode_FromString(guard_names[k]));
        if (!name) return nullptr;
        const int is_in = PySequence_Contains(names, name.get());
        if (is_in < 0) return nullptr;
        chosen[k] = is_in != 0;
    }
    guards_off = chosen;
    Py_RETURN_NONE;
}
#endif

// The limits and enums that Python needs to describe kernels and plans. Python has no copies.
int add_constants(PyObject *module) {
    const std::pair<const char *, size_t> limits[] = {
        {"MAP_ALIGNMENT", cuda::map_alignment},
        {"MAP_BYTES", cuda::map_bytes},
        {"MOST_ARGUMENTS", most_arguments},
        {"MOST_MAPS", cuda::most_maps},
        {"MOST_PARAMETERS", most_parameters},
        {"MOST_SLOTS", plan::most_slots},
        {"HEAD_BYTES", head_bytes},
        {"PARAMETER_BYTES", parameter_bytes},
    };
    for (const auto &[name, limit] : limits) {
        if (PyModule_AddIntConstant(module, name, static_cast<long>(limit)) < 0) return -1;
    }
    if (add_enum(module, "DEVICE_TYPES", place_names) < 0 ||
        add_enum(module, "PARAMETER_TYPES", type_names) < 0 ||
        add_enum(module, "VALUE_KINDS", plan::value_kind_names) < 0 ||
        add_enum(module, "GUARD_KINDS", plan::guard_kind_names) < 0 ||
        add_enum(module, "STEP_KINDS", plan::step_kind_names) < 0) {
        return -1;
    }
    return 0;
}

// Refuse to be imported by another version of tzero than the one that this was built for.
int check_version() {
    Ref versions = Ref::steal(PyImport_ImportModule("tzero.versions"));
    if (!versions) return -1;
    return Ref::steal(PyObject_CallMethod(versions.get(), "require_same", "s", TZERO_VERSION)) ? 0 : -1;
}

int exec(PyObject *module) {
    State *state = new (state_of(module)) State();
    if (check_version() < 0) return -1;
    state->version = Ref::steal(PyUnicode_FromString(TZERO_VERSION));
    if (!state->version || intern_all(state->names) < 0 || add_constants(module) < 0) return -1;
    if (plan::add_sizes(module) < 0) return -1;
    if (add_types(module, state) < 0) return -1;
    if (add_dispatching(module, state) < 0) return -1;
    if (add_nearest(module, state) < 0 || add_run(module) < 0) return -1;
    if (add_tracing(module, state) < 0 || add_following(module, state) < 0) return -1;
    if (add_wrappers(module, state) < 0 || add_compiled(module, state) < 0) return -1;
    if (add_timestamps(module, state) < 0 || add_captures(module, state) < 0) return -1;
    return add_ring(module, state);
}

// Everything that may refer back to this module; the rest is strings.
template <typename Visitor> int each_reference(State &state, Visitor visit) {
    for (Ref *each : {&state.launchable, &state.launching, &state.dispatching, &state.ring, &state.nearest,
                      &state.on_grid, &state.bound, &state.on_bound, &state.follower, &state.stepping,
                      &state.get_threshold, &state.set_threshold,
                      &state.timestamps_type, &state.captures, &state.record, &state.timestamps,
                      &state.profilers.range,
                      &state.tensor_type, &state.parameter_type, &state.exchange_capsule,
                      &state.knobs, &state.more_knobs, &state.hook_chain, &state.runtime_knobs,
                      &state.driver, &state.events, &state.watched, &state.log_cache,
                      &state.get_num_threads, &state.launch_failed, &state.cuda_driver,
                      &state.constexpr_type, &state.constexpr_differs, &state.const_expr, &state.jit_callable,
                      &state.descriptor, &state.torch_size, &state.subscripts.find,
                      &state.subscripts.partial_type, &state.lookalikes.find,
                      &state.lookalikes.dtype_type, &state.lookalikes.device_type,
                      &state.dtype_type,
                      &state.layout_type, &state.memory_format_type, &state.device_type,
                      &state.size_type, &state.measure, &state.settings,
                      &state.plain_settings, &state.runtime.object, &state.runtime.debug,
                      &state.runtime.stages_hook, &state.runtime.enter_hook,
                      &state.runtime.exit_hook, &state.runtime.enter_dict,
                      &state.runtime.exit_dict, &state.knobs_seen.compilation_object,
                      &state.knobs_seen.active_object, &state.knobs_seen.enter_calls,
                      &state.knobs_seen.exit_calls}) {
        const int result = visit(*each);
        if (result != 0) return result;
    }
    return state.graphs.each_reference(visit);
}

int traverse(PyObject *module, visitproc visit, void *arg) {
    State *state = state_of(module);
    if (state == nullptr) return 0;
    return each_reference(*state, [&](Ref &each) {
        Py_VISIT(each.get());
        return 0;
    });
}

int clear(PyObject *module) {
    State *state = state_of(module);
    if (state == nullptr) return 0;
    state->configured = false;
    state->torch.ready = state->profilers.ready = false;
    state->leaf_types = {};
    forget_versions(*state);
    state->graphs.forget_settings();
    return each_reference(*state, [](Ref &each) {
        each.clear();
        return 0;
    });
}

void release(void *module) {
    State *state = state_of(static_cast<PyObject *>(module));
    if (state != nullptr) state->~State();
}

// The tables below are read by CPython through pointers to non-const; nothing writes them.
PyMethodDef methods[] = {
    {"version", version, METH_NOARGS,
     PyDoc_STR("version($module, /)\n--\n\nThe version of tzero this extension was built for.")},
    {"configure", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(configure)),
     METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("configure($module, /, *, tensor, parameter, exchange_api, knobs, more_knobs, "
               "hook_chain, runtime_knobs, driver, driver_slot, events, observers, watched, "
               "log_cache, debug_level, get_num_threads, launch_failed, cuda_driver, constexpr, "
               "current, const_expr, callable, descriptor, size, subscripts, partial, lookalike, "
               "dtype, device, handle, storage)\n--\n\nSet the objects of torch, Triton and tzero "
               "that launches read.")},
    {"open_cuda", open_cuda, METH_NOARGS,
     PyDoc_STR("open_cuda($module, /)\n--\n\nOpen CUDA's driver; False if it is not there.")},
    {"open_torch", open_torch, METH_NOARGS,
     PyDoc_STR("open_torch($module, /)\n--\n\n"
               "Find the functions of torch that plans call; the name of a missing one, or ''.")},
    {"configure_plans",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(configure_plans)),
     METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("configure_plans($module, /, *, dtype, layout, memory_format, device, size, "
               "measure, key_set, plain_keys, "
               "plain_included, plain_excluded, settings, ready, storage, gradients, makes_views, "
               "view_key, keys_of_views)\n--\n\n"
               "Set where plans read torch's objects, and whether plans may be native.")},
    {"configure_graphs",
     reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(configure_graphs)),
     METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("configure_graphs($module, /, *, settings, watched, tell, modules, profilers)\n"
               "--\n\nSet where the settings in force are, why launches are watched, or '', what is "
               "told of graphs, a kernel's name and a text, and where profilers say that they are on.")},
    {"graphs", graphs, METH_NOARGS,
     PyDoc_STR("graphs($module, /)\n--\n\nHow many graphs are kept, their bytes on the device, how "
               "many were made and dropped, and why there are none, or ''.")},
    {"drop_graphs", drop_graphs, METH_NOARGS,
     PyDoc_STR("drop_graphs($module, /)\n--\n\nDrop all graphs; hot work gets new ones.")},
    {"open_profilers", open_profilers, METH_NOARGS,
     PyDoc_STR("open_profilers($module, /)\n--\n\n"
               "Find torch's profilers; the name of a missing symbol, or ''.")},
    {"configure_profilers", configure_profilers, METH_O,
     PyDoc_STR("configure_profilers($module, range, /)\n--\n\n"
               "Set what makes a range of a name; ranges are made from now on.")},
    {"profilers_look", profilers_look, METH_NOARGS,
     PyDoc_STR("profilers_look($module, /)\n--\n\n"
               "Whether a profiler looks at this thread, and whether one looks at all; only after "
               "open_profilers has found everything.")},
    {"tensor_version", tensor_version, METH_O,
     PyDoc_STR("tensor_version($module, tensor, /)\n--\n\nThe version counter of a tensor.")},
    {"bump_version", one_more_version, METH_O,
     PyDoc_STR("bump_version($module, tensor, /)\n--\n\nIncrement a tensor's version counter.")},
    {"has_tangent", tangent_of, METH_O,
     PyDoc_STR("has_tangent($module, tensor, /)\n--\n\nWhether functions of torch also compute the "
               "tangent of a tensor; also true if that is unknown.")},
    {"makes_views", makes_views, METH_NOARGS,
     PyDoc_STR("makes_views($module, /)\n--\n\nWhether plans make views of tensors natively.")},
    {"strided_view", strided_view, METH_VARARGS,
     PyDoc_STR("strided_view($module, tensor, size, stride, offset, /)\n--\n\n"
               "A view that starts offset elements after a tensor; None if torch refuses, or does "
               "not have the functions for it.")},
    {"rings", rings, METH_NOARGS,
     PyDoc_STR("rings($module, /)\n--\n\nWhether torch's counts of references were found.")},
    {"torch_modes", torch_modes, METH_NOARGS,
     PyDoc_STR("torch_modes($module, /)\n--\n\nThe modes of torch in this thread, as plans read "
               "them: included and excluded dispatch keys, grad mode, deterministic mode, the "
               "number of function modes, the number of threads.")},
    {"tensor_words", tensor_words, METH_O,
     PyDoc_STR("tensor_words($module, tensor, /)\n--\n\n"
               "The key of a tensor in plans; None for a tensor that only Python reads.")},
    {"packed", packed, METH_VARARGS,
     PyDoc_STR("packed($module, type, value, /)\n--\n\n"
               "A number as the bytes of a parameter; None if it does not fit the type.")},
    {"recording", recording, METH_O,
     PyDoc_STR("recording($module, delta, /)\n--\n\n"
               "Change the number of recorders; while there is one, Python launches.")},
    {"frame_operands", frame_operands, METH_VARARGS,
     PyDoc_STR("frame_operands($module, frame, depth, count, empty, /)\n--\n\n"
               "The upper count of the depth values on a frame's stack, the top last; empty for a "
               "place that holds no value.")},
    {"frame_function", frame_function, METH_O,
     PyDoc_STR("frame_function($module, frame, /)\n--\n\n"
               "The function that a frame runs; None for a module or a class body.")},
    {"enable_calls", enable_calls, METH_O,
     PyDoc_STR("enable_calls($module, type, /)\n--\n\n"
               "Let calls of the instances of a Dispatching class enter native code.")},
#ifdef TZERO_MUTABLE
    {"guards_off", set_guards_off, METH_O,
     PyDoc_STR("guards_off($module, names, /)\n--\n\nDisable these guards, enable all others.")},
#endif
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef_Slot slots[] = {
    {Py_mod_exec, reinterpret_cast<void *>(exec)},
#if PY_VERSION_HEX >= 0x030C0000
    // Several interpreters, if they share the GIL.
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_USED},
#endif
    {0, nullptr},
};

}  // namespace

PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    "tzero._native",
    PyDoc_STR("The native half of tzero; Python can do everything that is in it."),
    sizeof(State),
    methods,
    slots,
    traverse,
    clear,
    release,
};

}  // namespace tzero

PyMODINIT_FUNC PyInit__native() { return PyModuleDef_Init(&tzero::definition); }
