// `run` of an autotuner whose key is tuned: its config's arguments are added, and the kernel inside
// runs.
//
//     tuner.run(x, n, grid=..) ─► key ─► tuner.cache ── a config ──► fn.run(x, n, .., BLOCK=64)
//                                         └ none: Triton's own `run` tunes
//
// The key is the one that Triton makes, and the cache is the autotuner's own dict: results that are
// filled in, dropped or loaded by others count as they do in Triton.

#include "wrappers.h"

#include <alloca.h>

#include <cstdint>
#include <cstring>

#include "reading.h"

namespace tzero {

namespace {

// torch's numbers of dtypes are small.
constexpr int32_t most_dtypes = 64;

// The text of an argument's dtype, as Triton's key has it; empty if it has none, or with the Python
// error set.
Ref dtype_text(State &state, PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
        type == &PyUnicode_Type || value == Py_None) {
        return {};
    }
    const Tensors &tensors = state.tensors;
    int32_t number = -1;
    if ((type == tensors.tensor || type == tensors.parameter) && tensors.handle >= 0) {
        const void *handle = reinterpret_cast<const char *>(value) + tensors.handle;
        if (tensors.shim.dtype(handle, &number) != 0) number = -1;
    }
    const bool is_known = number >= 0 && number < most_dtypes;
    if (is_known && !state.dtype_texts.empty() && state.dtype_texts[number]) {
        return state.dtype_texts[number];
    }
    Ref dtype = Ref::steal(PyObject_GetAttr(value, state.names.dtype.get()));
    if (!dtype) {
        if (PyErr_ExceptionMatches(PyExc_AttributeError)) PyErr_Clear();
        return {};
    }
    Ref text = Ref::steal(PyObject_Str(dtype.get()));
    if (text && is_known) {
        state.dtype_texts.resize(most_dtypes);
        state.dtype_texts[number] = text;
    }
    return text;
}

bool same_items(const std::vector<Ref> &kept, PyObject *list) {
    static_assert(sizeof(Ref) == sizeof(PyObject *), "references are compared as an array");
    return kept.size() == static_cast<size_t>(PyList_GET_SIZE(list)) &&
           (kept.empty() || std::memcmp(kept.data(), reinterpret_cast<PyListObject *>(list)->ob_item,
                                        kept.size() * sizeof(PyObject *)) == 0);
}

std::vector<Ref> items_of(PyObject *list) {
    std::vector<Ref> made;
    made.reserve(static_cast<size_t>(PyList_GET_SIZE(list)));
    for (Py_ssize_t k = 0; k < PyList_GET_SIZE(list); ++k) {
        made.push_back(Ref::borrow(PyList_GET_ITEM(list, k)));
    }
    return made;
}

// Where a name is in a list, or its size.
size_t place_in(const std::vector<Ref> &list, PyObject *name) {
    size_t k = 0;
    while (k < list.size() && !same_name(list[k].get(), name)) ++k;
    return k;
}

TunedForm new_form(const Passed &passed, PyObject *names, PyObject *arg_names, PyObject *keys) {
    TunedForm made;
    made.names = Ref::borrow(names);
    made.positional = passed.positional();
    made.arg_names = items_of(arg_names);
    made.keys = items_of(keys);
    const size_t parameters = made.arg_names.size();
    std::vector<size_t> places(parameters, 0);  // of each parameter; 0 is the autotuner itself
    made.is_odd = passed.positional() > parameters + 1;
    for (size_t k = 1; k < passed.count() && !made.is_odd; ++k) {
        const bool is_named = k >= passed.positional();
        const size_t parameter = is_named ? place_in(made.arg_names, passed.name(k)) : k - 1;
        if (parameter == parameters) continue;  // an option, or the grid
        made.is_odd = places[parameter] != 0;
        places[parameter] = k;
        made.typed.push_back(k);
    }
    for (const Ref &key : made.keys) {
        const size_t parameter = place_in(made.arg_names, key.get());
        if (parameter < parameters && places[parameter] != 0) made.keyed.push_back(places[parameter]);
    }
    return made;
}

constexpr size_t most_forms = 256;

// The form of a call, which the caller shares: another call may replace it among those kept.
std::shared_ptr<const TunedForm> form_of(std::vector<std::shared_ptr<const TunedForm>> &forms,
                                         const Passed &passed, PyObject *names,
                                         PyObject *arg_names, PyObject *keys) {
    if (forms.empty()) forms.resize(most_forms);
    const auto mixed = (hash_of_names(names) ^ reinterpret_cast<uintptr_t>(arg_names) ^
                        passed.positional() << 8) * 0x9e3779b97f4a7c15u;
    std::shared_ptr<const TunedForm> &found = forms[mixed >> 32 & (most_forms - 1)];
    const bool holds = found && found->positional == passed.positional() &&
                       same_names_in(found->names.get(), names) &&
                       same_items(found->arg_names, arg_names) && same_items(found->keys, keys);
    if (!holds) {
        found = std::make_shared<const TunedForm>(new_form(passed, names, arg_names, keys));
    }
    return found;
}

// The key under which Triton keeps the best config of a launch: the values of the arguments that
// the autotuner names, and the dtypes of all. Empty with the Python error set.
Ref tuned_key(State &state, const Passed &passed, const TunedForm &form) {
    const size_t most = form.keyed.size() + form.typed.size();
    auto **parts = static_cast<PyObject **>(alloca((most + 1) * sizeof(PyObject *)));
    size_t count = 0;
    for (const size_t place : form.keyed) parts[count++] = Ref::borrow(passed.at(place)).release();
    for (const size_t place : form.typed) {
        parts[count] = dtype_text(state, passed.at(place)).release();
        if (parts[count] != nullptr) {
            ++count;
        } else if (PyErr_Occurred()) {
            break;
        }
    }
    Ref key = PyErr_Occurred() ? Ref() : Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(count)));
    for (size_t k = 0; k < count; ++k) {
        if (key) {
            PyTuple_SET_ITEM(key.get(), static_cast<Py_ssize_t>(k), parts[k]);
        } else {
            Py_DECREF(parts[k]);
        }
    }
    return key;
}

// ---- launches whose config is known --------------------------------------------------------------

inline bool is_scalar(PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    return type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
           type == &PyUnicode_Type || value == Py_None;
}

constexpr int32_t no_dtype = -1, unknown_dtype = -2;

// torch's number for the dtype of an argument.
inline int32_t dtype_of(const Tensors &tensors, PyObject *value) {
    PyTypeObject *type = Py_TYPE(value);
    if (type == tensors.tensor || type == tensors.parameter) {
        int32_t number = unknown_dtype;
        if (tensors.handle < 0) return unknown_dtype;
        const void *handle = reinterpret_cast<const char *>(value) + tensors.handle;
        const bool is_known = tensors.shim.dtype(handle, &number) == 0 && number >= 0;
        return is_known ? number : unknown_dtype;
    }
    return is_scalar(value) ? no_dtype : unknown_dtype;
}

// Whether a value is the same number or text; "no" means "maybe not".
bool is_same_scalar(PyObject *known, PyObject *value) {
    if (known == value) return true;
    int32_t one = 0, other = 0;
    return PyLong_CheckExact(known) && PyLong_CheckExact(value) && small_integer(known, &one) &&
           small_integer(value, &other) && one == other;
}

bool is_key(const Tensors &tensors, const TunedKey &known, const Passed &passed,
            const TunedForm &form) {
    for (size_t k = 0; k < form.keyed.size(); ++k) {
        if (!is_same_scalar(known.values[k].get(), passed.at(form.keyed[k]))) return false;
    }
    const size_t *places = form.typed.data();
    const int32_t *dtypes = known.dtypes.data();
    for (size_t k = 0, count = form.typed.size(); k < count; ++k) {
        if (dtype_of(tensors, passed.at(places[k])) != dtypes[k]) return false;
    }
    return true;
}

// The config of a launch like one of the latest; null if there is none.
PyObject *known_config(const Tensors &tensors, const Passed &passed, const TunedForm &form,
                       PyObject *cache) {
    for (const TunedKey &known : form.known) {
        if (known.config != nullptr && known.cache.is(cache) &&
            is_key(tensors, known, passed, form)) {
            return known.config;
        }
    }
    return nullptr;
}

// Keeps the config of a launch, if its key is of numbers, texts and dtypes.
void keep_config(const Tensors &tensors, const Passed &passed, const TunedForm &form,
                 uint64_t version, PyObject *config) {
    TunedKey made;
    for (const size_t place : form.keyed) {
        if (!is_scalar(passed.at(place))) return;
        made.values.push_back(Ref::borrow(passed.at(place)));
    }
    for (const size_t place : form.typed) {
        made.dtypes.push_back(dtype_of(tensors, passed.at(place)));
        if (made.dtypes.back() == unknown_dtype) return;
    }
    made.cache.set(version);
    made.config = config;
    std::swap(form.known[form.next++ % TunedForm::most_known], made);
}

// Whether configs are Triton's, whose arguments are read here as `all_kwargs` does.
bool are_plain_configs(Wrapper *self) {
    auto *type = reinterpret_cast<PyTypeObject *>(self->config);
    if (self->config_version != 0 && type->tp_version_tag == self->config_version) return true;
    const Names &names = self->state->names;
    if (_PyType_Lookup(type, names.all_kwargs.get()) != self->all_kwargs) return false;
    if (_PyType_Lookup(type, names.kwargs.get()) != nullptr ||
        _PyType_Lookup(type, names.pre_hook.get()) != nullptr) {
        return false;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(self->fields); ++k) {
        if (_PyType_Lookup(type, PyTuple_GET_ITEM(self->fields, k)) != nullptr) return false;
    }
    self->config_version = type->tp_version_tag;
    return true;
}

enum class Adding { done, odd, error };

constexpr size_t most_expanded = 64;

// Where what a config adds is kept.
Expanded &expanded_at(Wrapper *self, PyObject *config) {
    if (self->expanded->empty()) self->expanded->resize(most_expanded);
    const auto mixed = reinterpret_cast<uintptr_t>(config) * 0x9e3779b97f4a7c15u;
    return (*self->expanded)[mixed >> 32 & (most_expanded - 1)];
}

Adding add_read_config(Wrapper *self, Passed *passed, const Ref *keep, PyObject **used);

// Adds a config's arguments: those of its kernel, then options. All are kept alive by `keep`.
Adding add_config(Wrapper *self, PyObject *config, Passed *passed, Ref *keep) {
    *keep = Ref::steal(PyObject_GenericGetDict(config, nullptr));
    if (!*keep) return Adding::error;
    Expanded &known = expanded_at(self, config);
    if (known.config.is(keep->get()) && known.kwargs.is(known.dict_of_kwargs)) {
        for (const auto &[name, value] : known.added) passed->add(name, value);
        return Adding::done;
    }
    const size_t before = passed->count();
    PyObject *kwargs = nullptr;
    const Adding added = add_read_config(self, passed, keep, &kwargs);
    if (added != Adding::done) return added;
    known.config.set(version_of(keep->get()));
    known.kwargs.set(version_of(kwargs));
    known.dict_of_kwargs = kwargs;
    known.added.clear();
    for (size_t k = before; k < passed->count(); ++k) {
        known.added.emplace_back(passed->name(k), passed->at(k));
    }
    return Adding::done;
}

// Reads them; `used` is the dict with those of the kernel.
Adding add_read_config(Wrapper *self, Passed *passed, const Ref *keep, PyObject **used) {
    PyObject *kwargs = entry(keep->get(), self->state->names.kwargs, &PyDict_Type);
    PyObject *hook = entry(keep->get(), self->state->names.pre_hook, nullptr);
    *used = kwargs;
    if (kwargs == nullptr || hook == nullptr) return PyErr_Occurred() ? Adding::error : Adding::odd;
    const Py_ssize_t fields = PyTuple_GET_SIZE(self->fields);
    // It has more attributes than Triton's have: `all_kwargs` may be one of them.
    if (PyDict_GET_SIZE(keep->get()) > fields + 2 &&
        PyDict_GetItemWithError(keep->get(), self->state->names.all_kwargs.get()) != nullptr) {
        return Adding::odd;
    }
    if (PyDict_GET_SIZE(kwargs) + fields > static_cast<Py_ssize_t>(Passed::most_added)) {
        return Adding::odd;
    }
    PyObject *name = nullptr, *value = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(kwargs, &at, &name, &value)) {
        if (!PyUnicode_CheckExact(name)) return Adding::odd;
        passed->add(name, value);
    }
    for (Py_ssize_t k = 0; k < fields; ++k) {
        name = PyTuple_GET_ITEM(self->fields, k);
        value = PyDict_GetItemWithError(keep->get(), name);
        if (value == nullptr) return PyErr_Occurred() ? Adding::error : Adding::odd;
        if (value == Py_None) continue;
        if (PyDict_GetItemWithError(kwargs, name) != nullptr) return Adding::odd;
        passed->add(name, value);
    }
    return PyErr_Occurred() ? Adding::error : Adding::done;
}

// What a launch reads of an autotuner. Making the key may run Python code that replaces any of it.
struct Tuner {
    Ref configs, arg_names, keys, cache;
};

constexpr size_t most_tuners = 64;

// Where the dict of an autotuner, as it was last read, is kept.
KnownTuner &known_at(Wrapper *self, PyObject *dict) {
    if (self->tuners->empty()) self->tuners->resize(most_tuners);
    const auto mixed = reinterpret_cast<uintptr_t>(dict) * 0x9e3779b97f4a7c15u;
    return (*self->tuners)[mixed >> 32 & (most_tuners - 1)];
}

// Whether it looks as expected; false with the Python error set for an error.
bool read_tuner(Wrapper *self, PyObject *dict, Tuner *out) {
    KnownTuner &known = known_at(self, dict);
    if (known.dict.is(dict)) {
        *out = {Ref::borrow(known.configs), Ref::borrow(known.arg_names), Ref::borrow(known.keys),
                Ref::borrow(known.cache)};
        return PyList_GET_SIZE(known.configs) > 0;
    }
    const Names &names = self->state->names;
    *out = {Ref::borrow(entry(dict, names.configs, &PyList_Type)),
            Ref::borrow(entry(dict, names.arg_names, &PyList_Type)),
            Ref::borrow(entry(dict, names.keys, &PyList_Type)),
            Ref::borrow(entry(dict, names.cache, &PyDict_Type))};
    const bool is_whole = !PyErr_Occurred() && out->configs && out->arg_names && out->keys &&
                          out->cache && entry(dict, names.fn, nullptr) != nullptr;
    if (!is_whole) return false;
    known.dict.set(version_of(dict));
    known.configs = out->configs.get();
    known.arg_names = out->arg_names.get();
    known.keys = out->keys.get();
    known.cache = out->cache.get();
    known.nargs = PyDict_GetItemWithError(dict, names.nargs.get());
    known.best_config = PyDict_GetItemWithError(dict, names.best_config.get());
    return !PyErr_Occurred() && PyList_GET_SIZE(known.configs) > 0;
}

// The config of a launch; empty if it is not tuned, or with the Python error set.
Ref config_of(Wrapper *self, const Passed &passed, PyObject *names, const Tuner &tuner) {
    PyObject *configs = tuner.configs.get();
    if (PyList_GET_SIZE(configs) == 1) return Ref::borrow(PyList_GET_ITEM(configs, 0));
    const std::shared_ptr<const TunedForm> form =
        form_of(*self->forms, passed, names, tuner.arg_names.get(), tuner.keys.get());
    if (form->is_odd) return {};
    const Tensors &tensors = self->state->tensors;
    PyObject *cache = tuner.cache.get();
    if (PyObject *known = known_config(tensors, passed, *form, cache)) return Ref::borrow(known);
    Ref key = tuned_key(*self->state, passed, *form);
    if (!key) return {};
    const uint64_t version = version_of(cache);
    Ref found = Ref::borrow(PyDict_GetItemWithError(cache, key.get()));
    if (found) keep_config(tensors, passed, *form, version, found.get());
    return found;
}

PyObject *grid_in(const Passed &passed, const Names &names) {
    for (size_t k = passed.positional(); k < passed.count(); ++k) {
        if (same_name(passed.name(k), names.grid.get())) return passed.at(k);
    }
    return nullptr;
}

// Sets an attribute unless it has this value. `known` has it while the dict has the same version.
int set_to(PyObject *object, PyObject *dict, const Ref &name, PyObject *value,
           const KnownTuner &tuner, PyObject *KnownTuner::*known) {
    if (tuner.dict.is(dict) && tuner.*known == value) return 0;
    PyObject *now = PyDict_GetItemWithError(dict, name.get());
    if (now == value) return 0;
    if (now == nullptr && PyErr_Occurred()) return -1;
    return PyObject_SetAttr(object, name.get(), value);
}

// Sets `nargs`, the positional arguments by name, where the hook or a grid function may look at it.
int tell_tuner(const State &state, PyObject *tuner, PyObject *hook, const Passed &passed,
               PyObject *arg_names) {
    PyObject *grid = grid_in(passed, state.names);
    if (hook == Py_None && (grid == nullptr || !PyCallable_Check(grid))) return 0;
    Ref nargs = as_dict(passed, arg_names, passed.positional());
    return nargs ? PyObject_SetAttr(tuner, state.names.nargs.get(), nargs.get()) : -1;
}

// Calls the hook of a config with all arguments by name, and reads the config again, which it may
// have changed. The names of all arguments; empty if Python has to join them, or with the Python
// error set.
Ref after_hook(Wrapper *self, PyObject *config, PyObject *hook, PyObject *arg_names,
               Passed *passed, Ref *keep) {
    Ref called = Ref::borrow(hook);
    Ref all = as_dict(*passed, arg_names, passed->count());
    if (!all || !Ref::steal(PyObject_CallOneArg(called.get(), all.get()))) return {};
    passed->forget_added();
    if (add_config(self, config, passed, keep) != Adding::done) return {};
    return passed->names(*self->names);
}

// Calls `run` of the kernel inside, which the hook may have replaced.
PyObject *run_inside(Wrapper *self, PyObject *tuner, PyObject *dict, PyObject *config,
                     const Ref &names, Passed *passed) {
    Ref fn = Ref::borrow(entry(dict, self->state->names.fn, nullptr));
    if (fn && names) return passed->run(*self->state, names.get(), fn.get());
    if (PyErr_Occurred()) return nullptr;
    passed->forget_added();
    return passed->launch(self->launch, tuner, config);
}

// Launches with a config whose arguments are added and named.
PyObject *launch_tuned(Wrapper *self, PyObject *tuner, PyObject *dict, const Tuner &read,
                       PyObject *config, Ref names, Passed *passed, Ref *keep) {
    const State &state = *self->state;
    Ref hook = Ref::borrow(PyDict_GetItemWithError(keep->get(), state.names.pre_hook.get()));
    const KnownTuner &known = known_at(self, dict);
    if (!hook || set_to(tuner, dict, state.names.best_config, config, known,
                        &KnownTuner::best_config) < 0) {
        return nullptr;
    }
    if (tell_tuner(state, tuner, hook.get(), *passed, read.arg_names.get()) < 0) return nullptr;
    if (hook.get() != Py_None) {
        names = after_hook(self, config, hook.get(), read.arg_names.get(), passed, keep);
        if (!names && PyErr_Occurred()) return nullptr;
    }
    Ref result = Ref::steal(run_inside(self, tuner, dict, config, names, passed));
    const bool is_left = result && set_to(tuner, dict, state.names.nargs, Py_None, known,
                                          &KnownTuner::nargs) == 0;
    return is_left ? result.release() : nullptr;
}

}  // namespace

PyObject *tuned_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names) {
    auto *self = reinterpret_cast<Wrapper *>(object);
    const Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (count < 1 || self->state->recorders != 0) return left_to_triton(self, args, nargsf, names);
    Ref dict = plain_dict(self, args[0]), config, keep, all;
    Passed passed(TZ_SPACE(given(count, names)), args, count, names);
    Tuner read;
    if (dict && read_tuner(self, dict.get(), &read)) {
        config = config_of(self, passed, names, read);
        // Triton tunes, or raises what is wrong with the key.
        if (!config) PyErr_Clear();
    }
    if (config && reinterpret_cast<PyObject *>(Py_TYPE(config.get())) == self->config &&
        are_plain_configs(self) && add_config(self, config.get(), &passed, &keep) == Adding::done) {
        all = passed.names(*self->names);  // none if an argument is given twice: Triton raises
    }
    if (PyErr_Occurred()) return nullptr;
    if (!all) return left_to_triton(self, args, nargsf, names);
    return launch_tuned(self, args[0], dict.get(), read, config.get(), std::move(all), &passed,
                        &keep);
}

}  // namespace tzero
