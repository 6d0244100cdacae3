// `Nearest`: which hint is nearest to the shapes of a call. Its counterpart is `Selector.nearest`.
//
// Enters: the shapes of all hints, once; then those of calls. Leaves: the number of a hint, or None
// if Python must answer, which reads more kinds of shapes and reports errors. It must not know what
// hints are for.
//
// src/tzero/tune/select.py defines the distance. Both round to the same steps, so that they choose
// the same hint. Here every distance is computed on each call: nothing is allocated or cached.

#include "selecting.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>

#include "state.h"

namespace tzero {

namespace {

// MOST_HINTS, MOST_DIMS, _STEPS and BELOW_ONE of select.py, which has the reasons and works without
// this module; tests/native/test_descriptions.py compares them.
constexpr Py_ssize_t most_hints = 1 << 8;
constexpr Py_ssize_t most_dims = (1 << 8) - 1;
constexpr int32_t steps = 1 << 10;
constexpr int32_t below_one = -steps;

constexpr uint64_t largest = INT64_MAX;

// One dimension of all hints of a family, in steps; `counts` is -1 (all bits set) for a hint with a
// known size, and 0 for one with a dynamic size.
struct Column {
    std::vector<int32_t> marks;
    std::vector<int32_t> counts;

    void push(int32_t mark, bool known) {
        marks.push_back(mark);
        counts.push_back(known ? -1 : 0);
    }
};

// Hints with the same ranks, and their numbers, in order.
struct Family {
    std::vector<Py_ssize_t> ranks;
    std::vector<Py_ssize_t> numbers;
    std::vector<Column> columns;
};

// What `nearest_hint` was asked last: the plans of one kernel ask the same one after the other.
struct Asked {
    std::vector<Py_ssize_t> ranks;
    std::vector<int64_t> sizes;
    size_t number = 0;
    bool is_known = false;
};

struct Hints {
    std::vector<Family> families;  // the one with the most hints first
    Column totals;                 // the elements of every hint
    mutable Asked latest;
};

struct Nearest {
    PyObject_HEAD
    Hints *hints;
};

Nearest *nearest_of(PyObject *object) { return reinterpret_cast<Nearest *>(object); }

// ---- reading shapes -----------------------------------------------------------------------------

enum class Size { known, dynamic, invalid };

Size read_size(PyObject *object, int64_t *size) {
    if (object == Py_None) return Size::dynamic;
    if (!PyLong_CheckExact(object)) return Size::invalid;
    int overflow = 0;
    *size = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0 && *size >= 0 ? Size::known : Size::invalid;
}

// Whether an object is a tuple with the iteration and length of tuples, such as torch.Size.
bool is_tuple(PyObject *object) {
    const PyTypeObject *type = Py_TYPE(object);
    return type == &PyTuple_Type ||
           (PyTuple_Check(object) && type->tp_iter == PyTuple_Type.tp_iter &&
            type->tp_as_sequence->sq_length == PyTuple_Type.tp_as_sequence->sq_length);
}

// The shapes of a call as Python has them, and as native code has computed them. `rank` is that of
// tensor `k`; `each_size` calls a function with each of its sizes in order, -1 for a dynamic one, and
// is false if one is invalid.
class Tuples {
  public:
    explicit Tuples(PyObject *shapes) : shapes_(shapes) {}

    size_t count() const { return static_cast<size_t>(PyTuple_GET_SIZE(shapes_)); }
    Py_ssize_t rank(size_t k) const { return PyTuple_GET_SIZE(shape(k)); }

    template <typename Each> bool each_size(size_t k, Each each) const {
        PyObject *sizes = shape(k);
        for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(sizes); ++n) {
            int64_t size = 0;
            const Size read = read_size(PyTuple_GET_ITEM(sizes, n), &size);
            if (read == Size::invalid) return false;
            each(read == Size::known ? size : -1);
        }
        return true;
    }

  private:
    PyObject *shape(size_t k) const {
        return PyTuple_GET_ITEM(shapes_, static_cast<Py_ssize_t>(k));
    }

    PyObject *shapes_;
};

class Computed {
  public:
    Computed(const std::vector<Py_ssize_t> &ranks, const std::vector<int64_t> &sizes)
        : ranks_(ranks), next_(sizes.data()) {}

    size_t count() const { return ranks_.size(); }
    Py_ssize_t rank(size_t k) const { return ranks_[k]; }

    // To be called for each tensor in order.
    template <typename Each> bool each_size(size_t k, Each each) {
        for (Py_ssize_t n = 0; n < ranks_[k]; ++n) each(*next_++);
        return true;
    }

  private:
    const std::vector<Py_ssize_t> &ranks_;
    const int64_t *next_;
};

bool are_shapes(PyObject *shapes) {
    if (!is_tuple(shapes)) return false;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(shapes); ++k) {
        if (!is_tuple(PyTuple_GET_ITEM(shapes, k))) return false;
    }
    return true;
}

template <typename Shapes, typename Each> bool each_size_of_all(Shapes &shapes, Each each) {
    for (size_t k = 0; k < shapes.count(); ++k) {
        if (!shapes.each_size(k, each)) return false;
    }
    return true;
}

// log2 of a size, in steps. The factor is a power of two, so that the product is exact: contracting
// it with the sum (FMA) does not change the result.
int32_t in_steps(int64_t size) {
    if (size == 0) return below_one;
    return static_cast<int32_t>(std::floor(std::log2(static_cast<double>(size)) * steps + 0.5));
}

// The number of elements of all tensors, at most 2^63 - 1, with dynamic sizes counted as 1; false
// if a size is invalid.
template <typename Shapes> bool count_elements(Shapes &shapes, int64_t *count) {
    uint64_t sum = 0;
    for (size_t k = 0; k < shapes.count(); ++k) {
        uint64_t product = 1;
        const bool read = shapes.each_size(k, [&](int64_t size) {
            if (size < 0) return;
            const auto factor = static_cast<uint64_t>(size);
            product = factor != 0 && product > largest / factor ? largest : product * factor;
        });
        if (!read) return false;
        sum = std::min(sum + product, largest);
    }
    *count = static_cast<int64_t>(sum);
    return true;
}

// ---- choosing -----------------------------------------------------------------------------------

template <typename Shapes> bool has_ranks(const Family &family, const Shapes &shapes) {
    if (shapes.count() != family.ranks.size()) return false;
    for (size_t k = 0; k < family.ranks.size(); ++k) {
        if (shapes.rank(k) != family.ranks[k]) return false;
    }
    return true;
}

// The distances of all hints, summed over columns; and the sums of the signed differences, in which
// larger sizes make up for smaller ones.
class Distances {
  public:
    explicit Distances(size_t count) : count_(count) {
        std::fill_n(sums_, count, 0);
        std::fill_n(off_, count, 0);
    }

    void add(const Column &column, int32_t at) {
        const int32_t *marks = column.marks.data(), *counts = column.counts.data();
        for (size_t k = 0; k < count_; ++k) {
            const int32_t apart = (marks[k] - at) & counts[k];
            sums_[k] += apart < 0 ? -apart : apart;
            off_[k] += apart;
        }
    }

    // The least distance; among equals the least signed difference, and then the first.
    size_t least() const {
        size_t best = 0;
        for (size_t k = 1; k < count_; ++k) {
            if (sums_[k] > sums_[best]) continue;
            if (sums_[k] < sums_[best] || std::abs(off_[k]) < std::abs(off_[best])) best = k;
        }
        return best;
    }

  private:
    size_t count_;
    int32_t sums_[most_hints];  // of at most 24 bits, see MOST_DIMS
    int32_t off_[most_hints];
};

// The number of the nearest hint; -1 if a size is invalid.
template <typename Shapes> Py_ssize_t choose_within(const Family &family, Shapes &shapes) {
    Distances distances(family.numbers.size());
    const Column *column = family.columns.data();
    const bool read = each_size_of_all(shapes, [&](int64_t size) {
        if (size >= 0) distances.add(*column, in_steps(size));
        ++column;
    });
    return read ? family.numbers[distances.least()] : -1;
}

template <typename Shapes> Py_ssize_t choose(const Hints &hints, Shapes &shapes) {
    for (const Family &family : hints.families) {
        if (has_ranks(family, shapes)) return choose_within(family, shapes);
    }
    int64_t count = 0;
    if (!count_elements(shapes, &count)) return -1;
    Distances distances(hints.totals.marks.size());
    distances.add(hints.totals, in_steps(count));
    return static_cast<Py_ssize_t>(distances.least());
}

PyObject *nearest_number(PyObject *object, PyObject *shapes) {
    Tuples given(shapes);
    const Py_ssize_t number = are_shapes(shapes) ? choose(*nearest_of(object)->hints, given) : -1;
    if (number < 0) Py_RETURN_NONE;
    return PyLong_FromSsize_t(number);
}

// ---- making one ---------------------------------------------------------------------------------

Family &family_of(Hints &hints, const Tuples &shapes) {
    for (Family &family : hints.families) {
        if (has_ranks(family, shapes)) return family;
    }
    Family made;
    Py_ssize_t dims = 0;
    for (size_t k = 0; k < shapes.count(); ++k) {
        made.ranks.push_back(shapes.rank(k));
        dims += made.ranks.back();
    }
    made.columns.resize(static_cast<size_t>(dims));
    hints.families.push_back(std::move(made));
    return hints.families.back();
}

// Adds the hint with this number; 0, or -1 with the Python error set.
int add_hint(Hints &hints, Py_ssize_t number, PyObject *given) {
    int64_t count = 0;
    Tuples shapes(given);
    if (!are_shapes(given) || !count_elements(shapes, &count)) {
        PyErr_Format(PyExc_TypeError,
                     "hint %zd is %R; Nearest takes tuples of shapes, which are tuples of sizes from "
                     "0 on, below 2**63, or None",
                     number, given);
        return -1;
    }
    Family &family = family_of(hints, shapes);
    if (family.columns.size() > static_cast<size_t>(most_dims)) {
        PyErr_Format(PyExc_ValueError, "hint %zd has %zu dimensions; Nearest takes at most %zd",
                     number, family.columns.size(), most_dims);
        return -1;
    }
    Column *column = family.columns.data();
    each_size_of_all(shapes, [&](int64_t size) {
        column->push(size < 0 ? 0 : in_steps(size), size >= 0);
        ++column;
    });
    family.numbers.push_back(number);
    hints.totals.push(in_steps(count), true);
    return 0;
}

// The hints of a tuple; null with the Python error set.
std::unique_ptr<Hints> hints_from(PyObject *given) {
    const Py_ssize_t count = PyTuple_GET_SIZE(given);
    if (count < 1 || count > most_hints) {
        PyErr_Format(PyExc_ValueError, "Nearest was given %zd hints; it takes 1 to %zd", count,
                     most_hints);
        return nullptr;
    }
    auto hints = std::make_unique<Hints>();
    for (Py_ssize_t k = 0; k < count; ++k) {
        if (add_hint(*hints, k, PyTuple_GET_ITEM(given, k)) < 0) return nullptr;
    }
    std::stable_sort(hints->families.begin(), hints->families.end(),
                     [](const Family &one, const Family &other) {
                         return one.numbers.size() > other.numbers.size();
                     });
    return hints;
}

PyObject *nearest_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static const char *const keywords[] = {"hints", nullptr};
    PyObject *given = nullptr;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Nearest", const_cast<char **>(keywords),
                                     &PyTuple_Type, &given)) {
        return nullptr;
    }
    std::unique_ptr<Hints> hints;
    try {
        hints = hints_from(given);
    } catch (const std::bad_alloc &) {
        return PyErr_NoMemory();
    }
    if (hints == nullptr) return nullptr;
    PyObject *object = type->tp_alloc(type, 0);
    if (object != nullptr) nearest_of(object)->hints = hints.release();
    return object;
}

void nearest_dealloc(PyObject *object) {
    PyTypeObject *type = Py_TYPE(object);
    delete nearest_of(object)->hints;
    type->tp_free(object);
    Py_DECREF(type);
}

PyMethodDef nearest_methods[] = {
    {"number", nearest_number, METH_O,
     PyDoc_STR("number($self, shapes, /)\n--\n\nThe nearest hint; None if Python must choose.")},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot nearest_slots[] = {
    {Py_tp_doc, const_cast<char *>("Nearest(hints)\n--\n\nFinds the nearest hint.")},
    {Py_tp_new, reinterpret_cast<void *>(nearest_new)},
    {Py_tp_dealloc, reinterpret_cast<void *>(nearest_dealloc)},
    {Py_tp_methods, nearest_methods},
    {0, nullptr},
};

// It refers to no Python object, so it needs no garbage collection.
PyType_Spec nearest_spec = {
    "tzero._native.Nearest",
    sizeof(Nearest),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    nearest_slots,
};

}  // namespace

bool is_nearest(const State &state, PyObject *object) {
    return reinterpret_cast<PyObject *>(Py_TYPE(object)) == state.nearest.get();
}

size_t hint_count(PyObject *nearest) { return nearest_of(nearest)->hints->totals.marks.size(); }

size_t nearest_hint(PyObject *nearest, const std::vector<Py_ssize_t> &ranks,
                    const std::vector<int64_t> &sizes) {
    const Hints &hints = *nearest_of(nearest)->hints;
    Asked &latest = hints.latest;
    if (latest.is_known && latest.sizes == sizes && latest.ranks == ranks) return latest.number;
    Computed shapes(ranks, sizes);
    latest.is_known = false;
    latest.number = static_cast<size_t>(choose(hints, shapes));
    latest.sizes = sizes;
    latest.ranks = ranks;
    latest.is_known = true;
    return latest.number;
}

int add_nearest(PyObject *module, State *state) {
    state->nearest = Ref::steal(PyType_FromModuleAndSpec(module, &nearest_spec, nullptr));
    if (!state->nearest || PyModule_AddIntConstant(module, "MOST_HINTS", most_hints) < 0 ||
        PyModule_AddIntConstant(module, "MOST_DIMS", most_dims) < 0 ||
        PyModule_AddIntConstant(module, "STEPS_PER_DOUBLING", steps) < 0) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "Nearest", state->nearest.get());
}

}  // namespace tzero
