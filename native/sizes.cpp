#include "sizes.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "enums.h"
#include "fields.h"

namespace tzero::plan {

namespace {

bool floor_divide(int64_t a, int64_t b, int64_t *out) {
    if (b == 0) return false;
    if (b == -1) return !__builtin_sub_overflow(int64_t{0}, a, out);
    *out = a / b - (a % b != 0 && (a < 0) != (b < 0));
    return true;
}

// The remainder has the sign of the divisor.
bool modulo(int64_t a, int64_t b, int64_t *out) {
    if (b == 0) return false;
    if (b == -1) {
        *out = 0;
        return true;
    }
    const int64_t rest = a % b;
    *out = rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
    return true;
}

bool ceil_divide(int64_t a, int64_t b, int64_t *out) {
    int64_t sum = 0;
    if (b == 0) return false;
    if (b != INT64_MIN && !__builtin_add_overflow(a, b - 1, &sum)) {
        return floor_divide(sum, b, out);
    }
    const __int128 wide = static_cast<__int128>(a) + b - 1;
    __int128 quotient = wide / b;
    if (wide % b != 0 && (wide < 0) != (b < 0)) --quotient;
    *out = static_cast<int64_t>(quotient);
    return *out == quotient;
}

bool power(int64_t a, int64_t b, int64_t *out) {
    if (b < 0) return false;
    if (a >= -1 && a <= 1) {
        *out = b == 0 || a == 1 ? 1 : a == 0 ? 0 : b % 2 == 0 ? 1 : -1;
        return true;
    }
    if (b >= 64) return false;
    *out = 1;
    for (int64_t k = 0; k < b; ++k) {
        if (__builtin_mul_overflow(*out, a, out)) return false;
    }
    return true;
}

bool left(int64_t a, int64_t b, int64_t *out) {
    if (b < 0 || (b >= 64 && a != 0)) return false;
    *out = a == 0 ? 0 : static_cast<int64_t>(static_cast<uint64_t>(a) << b);
    return a == 0 || *out >> b == a;
}

bool right(int64_t a, int64_t b, int64_t *out) {
    if (b < 0) return false;
    *out = a >> std::min<int64_t>(b, 63);
    return true;
}

bool next_power_of_2(int64_t a, int64_t *out) {
    __int128 n = static_cast<__int128>(a) - 1;
    for (const int shift : {1, 2, 4, 8, 16, 32}) n |= n >> shift;
    n += 1;
    *out = static_cast<int64_t>(n);
    return *out == n;
}

int64_t bit_length(int64_t a) {
    const uint64_t size = a < 0 ? 0 - static_cast<uint64_t>(a) : static_cast<uint64_t>(a);
    return size == 0 ? 0 : 64 - __builtin_clzll(size);
}

// The rounded ratio of two integers that a double holds exactly.
bool rounded(Node::Operation operation, int64_t a, int64_t b, int64_t *out) {
    constexpr int64_t most = int64_t{1} << 53;
    if (b == 0 || a <= -most || a >= most || b <= -most || b >= most) return false;
    const double ratio = static_cast<double>(a) / static_cast<double>(b);
    const double whole = operation == Node::ceil    ? std::ceil(ratio)
                         : operation == Node::floor ? std::floor(ratio)
                                                    : std::trunc(ratio);
    *out = static_cast<int64_t>(whole);
    return true;
}

bool of_one(Node::Operation operation, int64_t a, int64_t *out) {
    switch (operation) {
    case Node::negative: return !__builtin_sub_overflow(int64_t{0}, a, out);
    case Node::invert: *out = ~a; return true;
    case Node::absolute:
        *out = a;
        return a >= 0 || !__builtin_sub_overflow(int64_t{0}, a, out);
    case Node::next_power_of_2: return next_power_of_2(a, out);
    default: *out = bit_length(a); return true;
    }
}

bool takes_one(Node::Operation operation) {
    return operation == Node::negative || operation == Node::invert ||
           operation == Node::absolute || operation == Node::next_power_of_2 ||
           operation == Node::bit_length;
}

bool of_two(Node::Operation operation, int64_t a, int64_t b, int64_t *out) {
    switch (operation) {
    case Node::add: return !__builtin_add_overflow(a, b, out);
    case Node::subtract: return !__builtin_sub_overflow(a, b, out);
    case Node::multiply: return !__builtin_mul_overflow(a, b, out);
    case Node::floor_divide: return floor_divide(a, b, out);
    case Node::modulo: return modulo(a, b, out);
    case Node::power: return power(a, b, out);
    case Node::left: return left(a, b, out);
    case Node::right: return right(a, b, out);
    case Node::both: *out = a & b; return true;
    case Node::either: *out = a | b; return true;
    case Node::differing: *out = a ^ b; return true;
    case Node::least: *out = std::min(a, b); return true;
    case Node::most: *out = std::max(a, b); return true;
    case Node::ceil_divide: return ceil_divide(a, b, out);
    default: return rounded(operation, a, b, out);
    }
}

bool compared(Condition::Comparison comparison, int64_t left, int64_t right) {
    switch (comparison) {
    case Condition::equal: return left == right;
    case Condition::unequal: return left != right;
    case Condition::less: return left < right;
    case Condition::less_or_equal: return left <= right;
    case Condition::greater: return left > right;
    default: return left >= right;
    }
}

// ---- descriptions -------------------------------------------------------------------------------

[[noreturn]] void wrong(const char *what, const char *expected, PyObject *found) {
    PyErr_Format(PyExc_ValueError, "%s of sizes must be %s, not %R", what, expected, found);
    throw Malformed{};
}

// The integers of a tuple with as many.
template <size_t count> void integers(PyObject *tuple, const char *what, int64_t (&out)[count]) {
    if (!PyTuple_CheckExact(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        wrong(what, count == 3 ? "a tuple of three integers" : "a tuple of four integers", tuple);
    }
    for (size_t k = 0; k < count; ++k) {
        out[k] = integer_from(PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(k)));
    }
}

bool is_below(int64_t index, size_t count) {
    return index >= 0 && static_cast<size_t>(index) < count;
}

Node node_from(PyObject *tuple, size_t before) {
    int64_t found[3];
    integers(tuple, "a node", found);
    if (!is_below(found[0], Node::count)) wrong("a node", "an operation of native code", tuple);
    const Node made{static_cast<Node::Operation>(found[0]), found[1], found[2]};
    if (made.operation != Node::constant &&
        (!is_below(made.a, before) || (!takes_one(made.operation) && !is_below(made.b, before)))) {
        wrong("a node", "an operation on earlier formulas", tuple);
    }
    return made;
}

Condition condition_from(PyObject *tuple, size_t formulas) {
    int64_t found[4];
    integers(tuple, "a condition", found);
    if (!is_below(found[0], Condition::count) || !is_below(found[1], formulas) ||
        !is_below(found[2], formulas)) {
        wrong("a condition", "a comparison of two formulas", tuple);
    }
    return {static_cast<Condition::Comparison>(found[0]), static_cast<size_t>(found[1]),
            static_cast<size_t>(found[2]), found[3] != 0};
}

// ---- functions of the module --------------------------------------------------------------------

PyObject *class_of(PyObject *, PyObject *value) {
    const long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) return nullptr;
    return PyLong_FromUnsignedLongLong(size_class(number));
}

// The values as a tuple, or None.
PyObject *computed(PyObject *inputs, PyObject *nodes, PyObject *conditions) {
    const auto given = static_cast<size_t>(PyTuple_GET_SIZE(inputs));
    const Formulas formulas = formulas_from(given, nodes, conditions);
    std::vector<int64_t> values(formulas.size());
    for (size_t k = 0; k < given; ++k) {
        values[k] = integer_from(PyTuple_GET_ITEM(inputs, static_cast<Py_ssize_t>(k)));
    }
    if (!formulas.compute(values.data()) || !formulas.hold(values.data())) Py_RETURN_NONE;
    Ref made = Ref::steal(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
    for (size_t k = 0; made && k < values.size(); ++k) {
        PyObject *each = PyLong_FromLongLong(values[k]);
        if (each == nullptr) return nullptr;
        PyTuple_SET_ITEM(made.get(), static_cast<Py_ssize_t>(k), each);
    }
    return made.release();
}

PyObject *computed_sizes(PyObject *, PyObject *args) {
    PyObject *inputs = nullptr, *nodes = nullptr, *conditions = nullptr;
    if (!PyArg_ParseTuple(args, "O!O!O!:computed_sizes", &PyTuple_Type, &inputs, &PyTuple_Type,
                          &nodes, &PyTuple_Type, &conditions)) {
        return nullptr;
    }
    try {
        return computed(inputs, nodes, conditions);
    } catch (const Malformed &) {
        return nullptr;
    } catch (const std::bad_alloc &) {
        return PyErr_NoMemory();
    }
}

PyMethodDef size_functions[] = {
    {"size_class", class_of, METH_O,
     PyDoc_STR("size_class($module, value, /)\n--\n\n"
               "What Triton specializes an integer on, as a number.")},
    {"computed_sizes", computed_sizes, METH_VARARGS,
     PyDoc_STR("computed_sizes($module, inputs, nodes, conditions, /)\n--\n\n"
               "The values of formulas as a replay computes them; None if one has no value or a "
               "condition is not met.")},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool Formulas::compute(int64_t *values) const {
    int64_t *out = values + inputs;
    for (const Node &node : nodes) {
        if (node.operation == Node::constant) {
            *out = node.a;
        } else if (takes_one(node.operation)) {
            if (!of_one(node.operation, values[node.a], out)) return false;
        } else if (!of_two(node.operation, values[node.a], values[node.b], out)) {
            return false;
        }
        ++out;
    }
    return true;
}

bool Formulas::hold(const int64_t *values) const {
    return std::all_of(conditions.begin(), conditions.end(), [&](const Condition &each) {
        return compared(each.comparison, values[each.left], values[each.right]) == each.truth;
    });
}

Formulas formulas_from(size_t inputs, PyObject *nodes, PyObject *conditions) {
    Formulas made;
    made.inputs = inputs;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(nodes); ++k) {
        made.nodes.push_back(node_from(PyTuple_GET_ITEM(nodes, k), made.size()));
    }
    if (made.size() > most_formulas) {
        PyErr_Format(PyExc_ValueError, "sizes must have at most %zu formulas, not %zu",
                     most_formulas, made.size());
        throw Malformed{};
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(conditions); ++k) {
        made.conditions.push_back(
            condition_from(PyTuple_GET_ITEM(conditions, k), made.size()));
    }
    return made;
}

uint64_t size_class(int64_t value) {
    const uint64_t width = value < INT32_MIN || value > INT32_MAX ? 1 : 0;
    return width | (value == 1 ? 4u : 0u) | ((value & 15) == 0 ? 8u : 0u);
}

int add_sizes(PyObject *module) {
    if (PyModule_AddIntConstant(module, "MOST_FORMULAS", most_formulas) < 0 ||
        add_enum(module, "SIZE_OPERATIONS", size_operation_names) < 0 ||
        add_enum(module, "SIZE_COMPARISONS", size_comparison_names) < 0 ||
        add_enum(module, "SIZE_SOURCES", size_source_names) < 0) {
        return -1;
    }
    return PyModule_AddFunctions(module, size_functions);
}

}  // namespace tzero::plan
