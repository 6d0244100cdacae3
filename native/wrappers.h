// Launches through what Triton puts around a kernel: what `wrappers.cpp` and `tuned.cpp` share.
#pragma once

#include "python.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "names.h"
#include "state.h"
#include "versions.h"

namespace tzero {

// A launch of an autotuner whose config is known: what its key is made of, the version of the cache
// that has the config, and that. Versions are of one dict only, which holds the config while it has
// this one.
struct TunedKey {
    Seen cache;
    std::vector<Ref> values;  // numbers and texts
    std::vector<int32_t> dtypes;
    PyObject *config = nullptr;  // borrowed from the cache
};

// What a launch reads of an autotuner, borrowed from its dict while that has this version.
struct KnownTuner {
    Seen dict;
    PyObject *configs = nullptr, *arg_names = nullptr, *keys = nullptr, *cache = nullptr;
    PyObject *best_config = nullptr, *nargs = nullptr;
};

// What a config adds to the arguments, borrowed from its dict and from the one of its arguments,
// while both have these versions.
struct Expanded {
    Seen config, kwargs;
    PyObject *dict_of_kwargs = nullptr;
    std::vector<std::pair<PyObject *, PyObject *>> added;
};

// Which arguments of a launch the key of an autotuner is made of.
struct TunedForm {
    Ref names;
    size_t positional = 0;
    std::vector<Ref> arg_names, keys;
    std::vector<size_t> keyed;  // places of arguments whose values count, and whose dtypes do
    std::vector<size_t> typed;
    bool is_odd = false;  // an argument is given twice, or too many are

    static constexpr size_t most_known = 4;
    mutable std::array<TunedKey, most_known> known;  // the latest, in turn
    mutable size_t next = 0;
};

// A native function in the place of one of Triton's. References are owned.
struct Wrapper {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject *plain;       // Triton's own function
    PyObject *type;        // the class of what is around the kernel
    PyObject *bind;        // of compiled kernels: makes the Bound of one, or null
    PyObject *config;      // of autotuners: the class of configs, or null, like the next three
    PyObject *all_kwargs;  // the function of that class that is not called here
    PyObject *fields;      // a tuple: the options among the fields of a config
    PyObject *launch;      // launches in Python, where a hook has changed a config
    PyTypeObject *approved;  // the class of the latest object, and its version; borrowed
    unsigned version, config_version;
    JoinedNames *names;
    std::vector<std::shared_ptr<const TunedForm>> *forms;
    std::vector<Expanded> *expanded;  // of the latest configs, by their address
    std::vector<KnownTuner> *tuners;  // the latest, likewise
    State *state;  // of the module, which the type keeps alive
};

// The arguments of a launch that is passed on: the object, positional ones, named ones. Those that
// are added are owned.
class Passed {
  public:
    static constexpr size_t most_added = 64;

    // `space` has room for one more before, and for all that is added.
    Passed(PyObject **space, PyObject *const *args, Py_ssize_t count, PyObject *names)
        : space_(space + 1), names_(names), positional_(static_cast<size_t>(count)),
          named_(names == nullptr ? 0 : static_cast<size_t>(PyTuple_GET_SIZE(names))) {
        std::copy(args, args + positional_ + named_, space_);
    }

    size_t positional() const { return positional_; }
    size_t count() const { return positional_ + named_ + added_; }
    PyObject *at(size_t place) const { return space_[place]; }
    PyObject *name(size_t place) const {
        return place < positional_ + named_
                   ? PyTuple_GET_ITEM(names_, static_cast<Py_ssize_t>(place - positional_))
                   : more_[place - positional_ - named_];
    }

    ~Passed() { forget_added(); }
    Passed(const Passed &) = delete;
    Passed &operator=(const Passed &) = delete;

    void add(PyObject *name, PyObject *value) {
        more_[added_++] = Ref::borrow(name).release();
        space_[count() - 1] = Ref::borrow(value).release();
    }
    // The caller keeps the value alive, unless an added one is replaced.
    void replace(size_t place, PyObject *value) {
        if (place >= positional_ + named_) Py_DECREF(std::exchange(space_[place], nullptr));
        space_[place] = place < positional_ + named_ ? value : Ref::borrow(value).release();
    }
    void forget_added() {
        while (added_ > 0) {
            Py_DECREF(space_[count() - 1]);
            Py_DECREF(more_[--added_]);
        }
    }

    // The names of all; as `JoinedNames::joined`.
    Ref names(JoinedNames &known) const { return known.joined(names_, more_, added_, false); }

    // Calls `run` of an object with them.
    PyObject *run(const State &state, PyObject *names, PyObject *object) {
        space_[0] = object;
        return PyObject_VectorcallMethod(state.names.run.get(), space_,
                                         positional_ | PY_VECTORCALL_ARGUMENTS_OFFSET, names);
    }

    // Calls a function with a tuner, a config, and the arguments that were given.
    PyObject *launch(PyObject *function, PyObject *tuner, PyObject *config);

  private:
    PyObject **space_;
    PyObject *names_;
    size_t positional_, named_, added_ = 0;
    PyObject *more_[most_added];
};

// How many arguments a call has.
inline size_t given(Py_ssize_t count, PyObject *names) {
    return static_cast<size_t>(count + (names == nullptr ? 0 : PyTuple_GET_SIZE(names)));
}

// Room on the stack of the caller for a call with this many arguments, as `Passed` needs it.
#define TZ_SPACE(count) \
    (static_cast<PyObject **>(alloca(((count) + Passed::most_added + 2) * sizeof(PyObject *))))

// The first `count` arguments as Triton's dict of them: positional ones by the names of the
// parameters, as far as both go, then named ones.
Ref as_dict(const Passed &passed, PyObject *arg_names, size_t count);

PyObject *left_to_triton(const Wrapper *self, PyObject *const *args, size_t nargsf,
                         PyObject *names);

// The dict of an object whose entries are its attributes; null if it is not known to be.
Ref plain_dict(Wrapper *self, PyObject *object);

// An entry of a dict, borrowed; null if it is missing or of another type.
PyObject *entry(PyObject *dict, const Ref &name, PyTypeObject *type);

// -- tuned.cpp ----------------------------------------------------------------------------------

// `run` of an autotuner.
PyObject *tuned_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names);

// -- compiled.cpp -------------------------------------------------------------------------------

// `compiled[grid]` of a compiled kernel.
PyObject *compiled_call(PyObject *object, PyObject *const *args, size_t nargsf, PyObject *names);

}  // namespace tzero
