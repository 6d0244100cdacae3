// `Dispatching`, the base class of a kernel over a host function: finds and replays a call's plan.
//
//     add(x, y) ─► leaves and key ─► entry ── a plan ──► replayed
//                                     ├ a fallback ──► the host function runs as written
//                                     ├ none: a plan over sizes, if one applies ──► replayed
//                                     └ none: Python's `_missed` makes the call and describes the
//                                       entry, which is kept under the key read before the call
//
// Calls that cannot be decided here go to `__call__`, the implementation in Python.

#include "python.h"

#include <algorithm>
#include <cstddef>
#include <new>
#include <optional>
#include <unordered_map>

#include "classes.h"
#include "entries.h"
#include "enums.h"
#include "fallback.h"
#include "fields.h"
#include "given.h"
#include "guards.h"
#include "kernel.h"
#include "leaves.h"
#include "plan.h"
#include "quiet.h"
#include "steady.h"
#include "timestamps.h"

namespace tzero {

namespace {

struct Dispatcher {
    State *state = nullptr;  // of the module, which the type keeps alive
    std::vector<Parameter> parameters;
    Variadic variadic;
    std::vector<char> by_value;  // for each: whether the value of a number is in the key
    size_t mask = 0;             // how often `by_value` has changed
    Forms forms;
    EntryTable entries;
    Classes classes;              // the plans over sizes
    bool found_in_class = false;  // whether the latest plan was one of these
    size_t most_entries = 1;
    uint64_t clock = 0;
    uint64_t replays = 0;     // how many calls were replayed
    uint64_t observed = 0;    // and how many an observer saw
    uint64_t unkeyed = 0;     // how many fallbacks were of calls that have no key
    uint64_t generation = 0;  // how often Python has had plans forgotten
    bool prepared = false;
    Ref abstract;  // ABCMeta, if objects count by identity
    Steady steady;
    Ref name;  // of the kernel, once it was needed
};

// Who looks at a call.
struct Observed {
    bool is_profiled;
    Times times;
};

// The stages of a call that `_look` does.
#define TZERO_STAGES(EACH) EACH(reading) EACH(lookup) EACH(guards)
struct Stage {
    enum Kind : int { TZERO_STAGES(TZERO_ENUMERATOR) count };
};
constexpr const char *stage_names[] = {TZERO_STAGES(TZERO_ENUMERATOR_NAME)};

struct Dispatching {
    PyObject_HEAD
    vectorcallfunc call;
    Dispatcher *dispatcher;
};

Dispatcher *dispatcher_of(PyObject *object) {
    return reinterpret_cast<Dispatching *>(object)->dispatcher;
}

// Python makes the call.
PyObject *in_python(const Dispatcher &dispatcher, const Given &call) {
    const Given &given = call.written == nullptr ? call : *call.written;
    Ref twin = Ref::steal(PyObject_GetAttr(reinterpret_cast<PyObject *>(Py_TYPE(given.self)),
                                           dispatcher.state->names.call.get()));
    if (!twin) return nullptr;
    const auto count = static_cast<size_t>(given.count());
    std::vector<PyObject *> arguments(count + 1);
    arguments[0] = given.self;
    std::copy_n(given.arguments, count, arguments.begin() + 1);
    return PyObject_Vectorcall(twin.get(), arguments.data(),
                               static_cast<size_t>(given.positional) + 1, given.names);
}

bool read_leaves(const Dispatcher &dispatcher, const Given &given, const Form &form,
                 const Modes &modes, Leaves *out) {
    const State &state = *dispatcher.state;
    LeafReader reader(state.tensors, state.torch, state.leaf_types, state.cuda,
                      dispatcher.abstract.get(), out);
    if (!reader.start(modes)) return false;
    const auto &parameters = dispatcher.parameters;
    for (size_t k = 0; k < parameters.size(); ++k) {
        PyObject *value = argument_of(parameters, given, form, k);
        if (!reader.read(value, dispatcher.by_value[k] != 0, parameters[k].constant)) return false;
    }
    return true;
}

// Adds parameters whose values are in the key from now on, and drops the entries if there are any:
// their keys lack the value. False with the Python error set.
bool widen(Dispatcher &dispatcher, PyObject *by_value) {
    if (!PyTuple_CheckExact(by_value) ||
        static_cast<size_t>(PyTuple_GET_SIZE(by_value)) != dispatcher.parameters.size()) {
        PyErr_SetString(PyExc_TypeError, "by_value must be a tuple with a bool for each parameter");
        return false;
    }
    bool grew = false;
    for (size_t k = 0; k < dispatcher.by_value.size(); ++k) {
        const bool now = PyTuple_GET_ITEM(by_value, static_cast<Py_ssize_t>(k)) == Py_True;
        if (!now || dispatcher.by_value[k] != 0) continue;
        dispatcher.by_value[k] = 1;
        grew = true;
    }
    if (grew) {
        ++dispatcher.mask;
        dispatcher.entries.forget(nullptr);
        dispatcher.classes.forget(nullptr);
    }
    return true;
}

// Cache miss: Python makes the call, and describes how to replay the next one like it. The key is
// that from before the call, which may change its arguments; it is read again only if `by_value`
// grew.
PyObject *missed(Dispatcher &dispatcher, const Given &given, const Form &form, const Modes &modes,
                 const Leaves &leaves) {
    State &state = *dispatcher.state;
    auto entry = std::make_unique<Entry>();
    entry->remember(leaves);
    const size_t mask = dispatcher.mask;
    Environment before, after;
    Ref args, kwargs;
    if (read_knobs(state, &before) < 0 || !collect(given, &args, &kwargs)) return nullptr;
    const Names &names = state.names;
    const Ref &method = leaves.has_unread ? names.unread : names.missed;
    Ref said = Ref::steal(
        PyObject_CallMethodObjArgs(given.self, method.get(), args.get(), kwargs.get(), nullptr));
    if (!said) return nullptr;
    if (!PyTuple_CheckExact(said.get()) || PyTuple_GET_SIZE(said.get()) != 2) {
        PyErr_SetString(PyExc_TypeError,
                        "_missed must return a result, and None or "
                        "(bound, plan, fallback, by_value, generation)");
        return nullptr;
    }
    Ref result = Ref::borrow(PyTuple_GET_ITEM(said.get(), 0));
    PyObject *known = PyTuple_GET_ITEM(said.get(), 1);
    if (known == Py_None || !dispatcher.prepared) return result.release();
    PyObject *bound = nullptr, *plan = nullptr, *fallback = nullptr, *by_value = nullptr;
    unsigned long long generation = 0;
    if (!PyArg_ParseTuple(known, "OOOOK", &bound, &plan, &fallback, &by_value, &generation)) {
        return nullptr;
    }
    if (!widen(dispatcher, by_value)) return nullptr;
    std::unique_ptr<Leaves> again;
    if (dispatcher.mask != mask) {
        again = std::make_unique<Leaves>();
        if (!read_leaves(dispatcher, given, form, modes, again.get())) return result.release();
        entry->remember(*again);
    }
    const Leaves &read = again ? *again : leaves;
    if (fallback != Py_None) {
        entry->fallback = std::make_unique<Fallback>(fallback_from(fallback));
    }
    if (plan != Py_None) {
        if (read_knobs(state, &after) < 0) return nullptr;
        const Answer same = same_environment(before, after);
        if (same == Answer::error) return nullptr;
        if (same == Answer::no) return result.release();
        entry->plan = plan::plan_from(state, plan, read.count);
        if (entry->plan == nullptr) return PyErr_Occurred() ? nullptr : result.release();
    }
    // Another thread may have ended the plan since Python found that it lasts.
    if (dispatcher.generation != generation) return result.release();
    entry->bound = Ref::borrow(bound);
    entry->last_used = dispatcher.clock == 0 ? 0 : dispatcher.clock - 1;  // this call's number
    const bool is_fallback = entry->fallback != nullptr;
    if (entry->plan != nullptr && entry->plan->sized != nullptr) {
        if (!dispatcher.classes.add(std::move(entry), read, dispatcher.most_entries)) {
            PyErr_SetString(PyExc_ValueError,
                            "SizesDescription.inputs must be sizes, strides and integers of the "
                            "call that was recorded");
            return nullptr;
        }
    } else {
        dispatcher.entries.add(std::move(entry), dispatcher.most_entries);
    }
    if (!is_fallback) {
        dispatcher.steady.end();
        return result.release();
    }
    // Found again, because adding it may run code that drops it.
    Entry *added = nullptr;
    if (dispatcher.entries.find(leaves.view(), &added) < 0) return nullptr;
    if (added != nullptr && added->fallback != nullptr) {
        dispatcher.steady.note(dispatcher.parameters, given, form, added);
    }
    return result.release();
}

// A call of a host function that is to run as written.
struct Unreplayed {
    std::optional<EntryUse> entry;  // empty if the call has been made
    Ref args;
};

// Runs the host function as written. If that drops the entry, it may be because a value was
// specialized on: then Python completes the call.
PyObject *run_unreplayed(Dispatcher &dispatcher, PyObject *self, const Unreplayed &call) {
    State &state = *dispatcher.state;
    if (!call.entry || !call.args) return nullptr;
    const EntryUse &entry = *call.entry;
    entry->last_used = dispatcher.clock++;
    if (PyTuple_GET_SIZE(entry->fallback->base.get()) == 0) ++dispatcher.unkeyed;
    Ref result = Ref::steal(
        fall_back(state, *entry->fallback, entry->bound.get(), call.args, entry->last_used));
    if (!result || entry->in_table) return result.release();
    Ref settled = Ref::steal(PyObject_CallMethodOneArg(self, state.names.settled.get(),
                                                       entry->bound.get()));
    return settled ? result.release() : nullptr;
}

// Finds how a call is made: 0, or -1 with the Python error set. Any plan that applies is right, so
// the table that had the latest one is asked first.
int find(Dispatcher &dispatcher, const Leaves &leaves, Found *out) {
    const Entry *tried = nullptr;
    if (dispatcher.found_in_class) {
        if (dispatcher.classes.find_latest(leaves, &tried, out) < 0) return -1;
        if (out->entry != nullptr) return 0;
    }
    dispatcher.found_in_class = false;
    if (dispatcher.entries.find(leaves.view(), &out->entry) < 0) return -1;
    if (out->entry != nullptr || dispatcher.classes.size() == 0) return 0;
    if (dispatcher.classes.find(leaves, tried, out) < 0) return -1;
    dispatcher.found_in_class = out->entry != nullptr;
    return 0;
}

// The rest of `replayed`: finds the entry of a call. A function of its own, because the leaves fill
// 20 KB of stack, which nested host functions must not add up.
__attribute__((noinline)) PyObject *looked_up(Dispatcher &dispatcher, const Given &given,
                                              const Form &form, const Modes &modes,
                                              Observed &observed, Unreplayed *unreplayed) {
    State &state = *dispatcher.state;
    Leaves leaves;
    if (!read_leaves(dispatcher, given, form, modes, &leaves)) return in_python(dispatcher, given);
    observed.times.arguments_read();
    Found found;
    if (find(dispatcher, leaves, &found) < 0) return nullptr;
    observed.times.entry_found();
    Entry *entry = found.entry;
    if (entry != nullptr && entry->fallback != nullptr && entry->fallback->is_due(dispatcher.clock)) {
        dispatcher.entries.drop(entry);
        entry = nullptr;
    }
    if (entry != nullptr && entry->fallback != nullptr) {
        unreplayed->entry.emplace(entry);
        dispatcher.steady.note(dispatcher.parameters, given, form, entry);
        unreplayed->args = ordered(dispatcher.parameters, state.leaf_types, given, form);
        return nullptr;
    }
    if (entry == nullptr) return missed(dispatcher, given, form, modes, leaves);
    EntryUse use(entry);
    dispatcher.steady.end();
    if (entry->plan == nullptr) return in_python(dispatcher, given);  // only Python can replay it
    Ref result;
    switch (plan::replay(state, given.self, *entry->plan, leaves, found.applied.get(),
                         observed.is_profiled, &result)) {
    case plan::Replayed::done:
        observed.times.made_here();
        entry->last_used = dispatcher.clock++;
        ++dispatcher.replays;
        return result.release();
    case plan::Replayed::stale:
        if (found.applied) {
            dispatcher.classes.drop(entry);
        } else {
            dispatcher.entries.drop(entry);
        }
        return missed(dispatcher, given, form, modes, leaves);
    case plan::Replayed::elsewhere:
        if (plan::count_hooked(state, *entry->plan) < 0) return nullptr;
        return in_python(dispatcher, given);
    default:
        observed.times.made_here();
        return nullptr;
    }
}

// The name of a kernel; borrowed, or null with the Python error set.
PyObject *name_of(Dispatcher &dispatcher, PyObject *object) {
    if (!dispatcher.name) {
        dispatcher.name = Ref::steal(PyObject_GetAttr(object, dispatcher.state->names.name.get()));
    }
    return dispatcher.name.get();
}

// Counts a call that an observer sees: its plan is not looked up. 0, or -1 with the Python error set.
int count_observed(Dispatcher &dispatcher) {
    const Answer answer = unwatched(*dispatcher.state);
    if (answer == Answer::no) ++dispatcher.observed;
    return answer == Answer::error ? -1 : 0;
}

// Makes a call, unless its entry is a fallback, which it returns in `unreplayed`.
PyObject *replayed(Dispatcher &dispatcher, const Given &given, Observed &observed,
                   Unreplayed *unreplayed) {
    State &state = *dispatcher.state;
    if (!dispatcher.prepared || !state.torch.ready || !state.configured) {
        return in_python(dispatcher, given);
    }
    const Modes modes = state.torch.modes();
    const Answer ours = is_ours(state, modes);
    if (ours == Answer::error) return nullptr;
    if (ours == Answer::no && count_observed(dispatcher) < 0) return nullptr;
    if (observed.times.opened(state) && name_of(dispatcher, given.self) == nullptr) return nullptr;
    size_t number = 0;
    const char *reason = "";
    const Form *form =
        ours == Answer::no
            ? nullptr
            : dispatcher.forms.find(dispatcher.parameters, given.positional, given.names,
                                    Reserved::nothing, &number, &reason);
    if (form == nullptr || !form->options.empty()) return in_python(dispatcher, given);
    if (Entry *entry = dispatcher.steady.entry_for(dispatcher.parameters, given, *form,
                                                      dispatcher.clock)) {
        observed.times.arguments_read();
        unreplayed->entry.emplace(entry);
        unreplayed->args = ordered(dispatcher.parameters, state.leaf_types, given, *form);
        return nullptr;
    }
    return looked_up(dispatcher, given, *form, modes, observed, unreplayed);
}

// Makes a call. Inlined into both of its callers: the usual one does no more than it must.
inline __attribute__((always_inline)) PyObject *made(Dispatcher &dispatcher, const Given &given,
                                                     bool is_profiled) {
    if (Py_EnterRecursiveCall(" while calling a kernel")) return nullptr;
    Observed observed{is_profiled, Times(*dispatcher.state)};
    PyObject *result = nullptr;
    try {
        Unreplayed unreplayed;
        if (!dispatcher.variadic.any()) {
            result = replayed(dispatcher, given, observed, &unreplayed);
        } else {
            Gathered gathered;
            if (gather(dispatcher.parameters, dispatcher.variadic, given, &gathered)) {
                result = replayed(dispatcher, gathered.given, observed, &unreplayed);
            }
        }
        if (unreplayed.entry) {
            observed.times.made_here();
            result = run_unreplayed(dispatcher, given.self, unreplayed);
        }
    } catch (const std::bad_alloc &) {
        PyErr_NoMemory();
    } catch (const Malformed &) {
        result = nullptr;  // with the Python error set
    }
    observed.times.ended(dispatcher.name.get());
    Py_LeaveRecursiveCall();
    return result;
}

// Makes a call in a range that profilers show.
__attribute__((noinline)) PyObject *shown(Dispatcher &dispatcher, const Given &given) {
    const Ref range = open_range(*dispatcher.state, name_of(dispatcher, given.self), false);
    if (!range) return nullptr;
    PyObject *result = made(dispatcher, given, true);
    close_range(*dispatcher.state, range);
    return result;
}

PyObject *dispatching_call(PyObject *object, PyObject *const *args, size_t nargsf,
                           PyObject *names) {
    const Given given{object, args, PyVectorcall_NARGS(nargsf), names};
    Dispatcher &dispatcher = *dispatcher_of(object);
    if (dispatcher.state->profilers.look()) return shown(dispatcher, given);
    return made(dispatcher, given, false);
}

// ---- the type -----------------------------------------------------------------------------------

PyObject *dispatching_new(PyTypeObject *type, PyObject *, PyObject *) {
    PyObject *module = PyType_GetModuleByDef(type, &definition);
    if (module == nullptr) return nullptr;
    PyObject *object = type->tp_alloc(type, 0);
    if (object == nullptr) return nullptr;
    auto *dispatcher = new (std::nothrow) Dispatcher();
    if (dispatcher == nullptr) {
        Py_DECREF(object);
        return PyErr_NoMemory();
    }
    dispatcher->state = state_of(module);
    auto *self = reinterpret_cast<Dispatching *>(object);
    self->dispatcher = dispatcher;
    self->call = dispatching_call;
    return object;
}

int dispatching_traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(object));
    const Dispatcher *dispatcher = dispatcher_of(object);
    if (dispatcher == nullptr) return 0;
    for (const Parameter &parameter : dispatcher->parameters) Py_VISIT(parameter.fallback.get());
    const int result = dispatcher->steady.visit(visit, arg);
    if (result != 0) return result;
    const int exact = dispatcher->entries.visit(visit, arg);
    return exact != 0 ? exact : dispatcher->classes.visit(visit, arg);
}

int dispatching_clear(PyObject *object) {
    Dispatcher *dispatcher = dispatcher_of(object);
    if (dispatcher == nullptr) return 0;
    dispatcher->prepared = false;
    dispatcher->steady.clear();
    dispatcher->entries.forget(nullptr);
    dispatcher->classes.forget(nullptr);
    std::vector<Parameter> parameters;
    parameters.swap(dispatcher->parameters);
    return 0;
}

void dispatching_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    dispatching_clear(object);
    delete std::exchange(reinterpret_cast<Dispatching *>(object)->dispatcher, nullptr);
    type->tp_free(object);
    Py_DECREF(type);
}

// _prepare(parameters, by_value, most, abstract=None): called once, before the first call. With
// ABCMeta objects of classes written in Python count by identity.
PyObject *dispatching_prepare(PyObject *object, PyObject *args) {
    PyObject *given = nullptr, *by_value = nullptr, *abstract = Py_None;
    Py_ssize_t most = 0;
    if (!PyArg_ParseTuple(args, "O!O!n|O:_prepare", &PyTuple_Type, &given, &PyTuple_Type,
                          &by_value, &most, &abstract)) {
        return nullptr;
    }
    Dispatcher *dispatcher = dispatcher_of(object);
    if (!dispatcher->parameters.empty() || dispatcher->prepared) {
        PyErr_SetString(PyExc_RuntimeError, "this kernel was prepared before");
        return nullptr;
    }
    std::vector<Parameter> parameters;
    if (read_parameters(given, &parameters) < 0) return nullptr;
    dispatcher->parameters = std::move(parameters);
    dispatcher->variadic = variadic_of(dispatcher->parameters);
    dispatcher->by_value.assign(dispatcher->parameters.size(), 0);
    dispatcher->most_entries = static_cast<size_t>(most > 0 ? most : 1);
    if (abstract != Py_None) dispatcher->abstract = Ref::borrow(abstract);
    if (!widen(*dispatcher, by_value)) return nullptr;
    dispatcher->prepared = dispatcher->parameters.size() <= most_arguments;
    Py_RETURN_NONE;
}

PyObject *dispatching_tick(PyObject *object, PyObject *) {
    return PyLong_FromUnsignedLongLong(dispatcher_of(object)->clock++);
}

PyObject *dispatching_forget(PyObject *object, PyObject *given) {
    Dispatcher &dispatcher = *dispatcher_of(object);
    ++dispatcher.generation;
    PyObject *which = given == Py_None ? nullptr : given;
    dispatcher.entries.forget(which);
    dispatcher.classes.forget(which);
    Py_RETURN_NONE;
}

PyObject *dispatching_generation(PyObject *object, PyObject *) {
    return PyLong_FromUnsignedLongLong(dispatcher_of(object)->generation);
}

PyObject *dispatching_made(PyObject *object, PyObject *) {
    const Dispatcher &dispatcher = *dispatcher_of(object);
    return Py_BuildValue("(KK)", static_cast<unsigned long long>(dispatcher.replays),
                         static_cast<unsigned long long>(dispatcher.unkeyed));
}

PyObject *dispatching_count(PyObject *object, PyObject *) {
    const Dispatcher &dispatcher = *dispatcher_of(object);
    return PyLong_FromSize_t(dispatcher.entries.size() + dispatcher.classes.size());
}

PyObject *dispatching_used(PyObject *object, PyObject *) {
    // Collected first: creating objects may run the garbage collector, and it other code.
    std::vector<std::pair<Ref, uint64_t>> latest;
    std::unordered_map<PyObject *, size_t> where;
    const auto note = [&](const Entry &entry) {
        const auto [at, is_new] = where.emplace(entry.bound.get(), latest.size());
        if (is_new) latest.emplace_back(entry.bound, 0);
        uint64_t &used = latest[at->second].second;
        used = std::max(used, entry.last_used);
    };
    dispatcher_of(object)->entries.each(note);
    dispatcher_of(object)->classes.each(note);
    Ref made = Ref::steal(PyList_New(0));
    for (const auto &[bound, used] : latest) {
        Ref pair =
            Ref::steal(Py_BuildValue("(OK)", bound.get(), static_cast<unsigned long long>(used)));
        if (!made || !pair || PyList_Append(made.get(), pair.get()) < 0) return nullptr;
    }
    return made.release();
}

// _look(stage, *args, **kwargs): does the first stages of a call, for measurements: reads its
// arguments (`reading`), finds its plan (`lookup`), checks its guards (`guards`). Whether all of
// them succeeded. With None for the stage, the runs of the plan, or False.
PyObject *dispatching_look(PyObject *object, PyObject *const *args, Py_ssize_t count,
                           PyObject *names) {
    Dispatcher &dispatcher = *dispatcher_of(object);
    State &state = *dispatcher.state;
    const bool asks_for_runs = count > 0 && args[0] == Py_None;
    long stage = Stage::lookup;
    if (!asks_for_runs) stage = count > 0 ? PyLong_AsLong(args[0]) : -1;
    if (stage == -1 && PyErr_Occurred()) return nullptr;
    if (count < 1 || !dispatcher.prepared || !state.torch.ready || !state.configured) {
        Py_RETURN_FALSE;
    }
    const Given written{object, args + 1, count - 1, names};
    Gathered gathered;
    const bool gathers = dispatcher.variadic.any();
    if (gathers && !gather(dispatcher.parameters, dispatcher.variadic, written, &gathered)) {
        return nullptr;
    }
    const Given &given = gathers ? gathered.given : written;
    const Modes modes = state.torch.modes();
    const Answer ours = is_ours(state, modes);
    if (ours == Answer::error) return nullptr;
    size_t number = 0;
    const char *reason = "";
    const Form *form = dispatcher.forms.find(dispatcher.parameters, given.positional, given.names,
                                             Reserved::nothing, &number, &reason);
    Leaves leaves;
    if (ours == Answer::no || form == nullptr || !form->options.empty() ||
        !read_leaves(dispatcher, given, *form, modes, &leaves)) {
        Py_RETURN_FALSE;
    }
    if (stage == Stage::reading) Py_RETURN_TRUE;
    Found found;
    if (find(dispatcher, leaves, &found) < 0) return nullptr;
    Entry *entry = found.entry;
    if (entry == nullptr || entry->plan == nullptr) Py_RETURN_FALSE;
    if (stage == Stage::lookup && !asks_for_runs) Py_RETURN_TRUE;
    EntryUse use(entry);
    if (asks_for_runs) return plan::runs_of(*entry->plan, dispatcher.observed);
    const plan::Replayed can = plan::may_replay(state, object, *entry->plan, leaves,
                                                 found.applied.get());
    return can == plan::Replayed::error ? nullptr : PyBool_FromLong(can == plan::Replayed::done);
}

PyMethodDef dispatching_methods[] = {
    {"_prepare", dispatching_prepare, METH_VARARGS,
     PyDoc_STR("_prepare($self, parameters, by_value, most, abstract=None, /)\n--\n\n"
               "Set the parameters, each a ParameterDescription, whose numbers count by value, the "
               "most plans to keep, and ABCMeta if objects count by identity.")},
    {"_tick", dispatching_tick, METH_NOARGS,
     PyDoc_STR("_tick($self, /)\n--\n\nAdvance the clock, as every hit does; its value before.")},
    {"_forget", dispatching_forget, METH_O,
     PyDoc_STR("_forget($self, which, /)\n--\n\n"
               "Drop the plans of a bound kernel, or one plan; None: all.")},
    {"_generation", dispatching_generation, METH_NOARGS,
     PyDoc_STR("_generation($self, /)\n--\n\nHow often plans were dropped by _forget.")},
    {"_made", dispatching_made, METH_NOARGS,
     PyDoc_STR("_made($self, /)\n--\n\n"
               "How many calls were replayed, and how many fallbacks had no key.")},
    {"_count", dispatching_count, METH_NOARGS,
     PyDoc_STR("_count($self, /)\n--\n\nThe number of plans.")},
    {"_used", dispatching_used, METH_NOARGS,
     PyDoc_STR("_used($self, /)\n--\n\n"
               "Bound kernels with plans, and the clock at the latest hit of each.")},
    {"_look", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(dispatching_look)),
     METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("_look($self, stage, /, *args, **kwargs)\n--\n\nDo the first stages of a call.")},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef dispatching_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Dispatching, call), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot dispatching_slots[] = {
    {Py_tp_doc, const_cast<char *>("The base class of kernels whose plans are replayed natively.")},
    {Py_tp_new, reinterpret_cast<void *>(dispatching_new)},
    {Py_tp_traverse, reinterpret_cast<void *>(dispatching_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(dispatching_clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(dispatching_dealloc)},
    {Py_tp_methods, dispatching_methods},
    {Py_tp_members, dispatching_members},
    {0, nullptr},
};

// Without the flag for vectorcall, since this class has no `__call__`; `enable_calls` sets it.
PyType_Spec dispatching_spec = {
    "tzero._native.Dispatching",
    sizeof(Dispatching),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    dispatching_slots,
};

}  // namespace

int add_dispatching(PyObject *module, State *state) {
    state->dispatching = Ref::steal(PyType_FromModuleAndSpec(module, &dispatching_spec, nullptr));
    if (!state->dispatching || add_enum(module, "STAGES", stage_names) < 0) return -1;
    return PyModule_AddObjectRef(module, "Dispatching", state->dispatching.get());
}

}  // namespace tzero
