#include "sized.h"

#include <algorithm>

#include "guards.h"
#include "plan.h"
#include "selecting.h"

namespace tzero::plan {

namespace {

constexpr size_t no_launch = SIZE_MAX;

// The launch whose binary is for these values.
size_t chosen(const SizedLaunch &launch, const int64_t *values) {
    auto is_for = [&](const Variant &variant) {
        for (size_t k = 0; k < launch.selectors.size(); ++k) {
            const Selector &selector = launch.selectors[k];
            const int64_t value = values[selector.formula];
            const int64_t now =
                selector.by_value ? value : static_cast<int64_t>(size_class(value));
            if (now != variant.selected[k]) return false;
        }
        return true;
    };
    const auto found = std::find_if(launch.variants.begin(), launch.variants.end(), is_for);
    if (found != launch.variants.end()) return found->launch;
    return off(Guard::plan_variants) ? launch.variants.front().launch : no_launch;
}

// Whether Triton launches such a grid, or nothing if one of the three is 0.
bool is_grid(const SizedLaunch &launch, const int64_t *values) {
    return std::all_of(std::begin(launch.grid), std::end(launch.grid), [&](size_t formula) {
        return values[formula] >= 0 && values[formula] <= INT32_MAX;
    });
}

}  // namespace

bool elements_of(const SizedSlot &slot, const int64_t *values, int64_t *out) {
    *out = 1;
    const size_t dimensions = slot.sizes_and_strides.size() / 2;
    for (size_t k = 0; k < dimensions; ++k) {
        const int64_t size = values[slot.sizes_and_strides[k]];
        if (size < 0 || __builtin_mul_overflow(*out, size, out)) return false;
    }
    return true;
}

bool Choice::is_same(const int64_t *values) const {
    if (!nearest || off(Guard::plan_choice)) return true;
    for (size_t k = 0; k < sizes.size(); ++k) asked[k] = sizes[k] < 0 ? -1 : values[sizes[k]];
    return has_config[nearest_hint(nearest.get(), ranks, asked)] != 0;
}

int Marks::are_same(const Leaves &leaves) const {
    if (!attribute || off(Guard::plan_marks)) return 1;
    for (size_t k = 0; k < of_leaf.size(); ++k) {
        if (!of_leaf[k]) continue;
        PyObject *expected = of_leaf[k].get(), *put = attributes_of(leaves.leaf[k].object);
        const Ref found =
            Ref::borrow(put ? PyDict_GetItemWithError(put, attribute.get()) : nullptr);
        if (!found && PyErr_Occurred()) return -1;
        if (!found || found.get() == Py_None) {
            if (PySet_GET_SIZE(expected) != 0) return 0;
            continue;
        }
        if (!PyAnySet_CheckExact(found.get())) return 0;
        const int same = PyObject_RichCompareBool(found.get(), expected, Py_EQ);
        if (same <= 0) return same;
    }
    return 1;
}

bool Sized::resolve(const Leaves &leaves) {
    if (marks.of_leaf.size() > leaves.count) return false;
    constexpr size_t before_sizes = 3;  // the words of a tensor that come first
    for (Input &input : inputs) {
        if (input.leaf >= leaves.count) return false;
        const Kind kind = leaves.leaf[input.leaf].value.kind;
        const size_t first = leaves.word_of[input.leaf];
        if (input.source == Input::number) {
            if (kind != Kind::integer) return false;
            input.word = first + 1;
            continue;
        }
        if (kind != Kind::tensor) return false;
        const size_t dimensions = dimensions_in(leaves.words[first + 1]);
        if (input.dim >= dimensions) return false;
        input.word = first + before_sizes + input.dim +
                     (input.source == Input::stride ? dimensions : 0);
    }
    return true;
}

bool Sized::read(const Leaves &leaves, int64_t *out) const {
    for (const Input &input : inputs) {
        if (input.source != Input::number) {
            *out++ = static_cast<int64_t>(leaves.words[input.word]);
            continue;
        }
        const Argument &number = leaves.leaf[input.leaf].value;
        if (number.kind != Kind::integer || number.is_unsigned) return false;
        *out++ = number.integer;
    }
    return true;
}

bool Sized::compute(const Plan &plan, int64_t *values, size_t *launch) const {
    if (!formulas.compute(values)) return false;
    if (!formulas.hold(values) && !off(Guard::plan_conditions)) return false;
    if (!choice.is_same(values)) return false;
    int64_t elements = 0, bytes = 0;
    for (const Allocate &each : plan.allocates) {
        if (!elements_of(slots[each.slot], values, &elements)) return false;
    }
    for (const Fill &each : plan.fills) {
        const auto size = static_cast<int64_t>(each.pattern.size());
        if (!elements_of(slots[each.slot], values, &elements) ||
            __builtin_mul_overflow(elements, size, &bytes)) {
            return false;
        }
    }
    for (const Copy &each : plan.copies) {
        const auto size = static_cast<int64_t>(each.itemsize);
        if (!elements_of(slots[each.to], values, &elements) ||
            __builtin_mul_overflow(elements, size, &bytes)) {
            return false;
        }
    }
    for (const View &each : plan.views) {
        if (__builtin_mul_overflow(values[slots[each.slot].offset], each.itemsize, &bytes)) {
            return false;
        }
    }
    for (const SizedLaunch &each : launches) {
        *launch = chosen(each, values);
        if (*launch++ == no_launch || !is_grid(each, values)) return false;
    }
    return true;
}

std::shared_ptr<const Applied> Sized::applied(const Plan &plan, const Leaves &leaves) const {
    if (spare.use_count() != 1) {  // there is none, or a call uses it
        spare = std::make_shared<Applied>();
        spare->values.resize(formulas.size());
        spare->launches.resize(launches.size());
        spare->allocations.resize(plan.allocates.size());
    }
    int64_t *values = spare->values.data();
    if (!read(leaves, values)) return nullptr;
    if (latest && (off(Guard::plan_other_sizes) ||
                   std::equal(values, values + inputs.size(), latest->values.begin()))) {
        return latest;
    }
    if (!compute(plan, values, spare->launches.data())) return nullptr;
    for (Arguments &each : spare->allocations) each.are_current = false;
    latest.swap(spare);
    return latest;
}

int Sized::visit(visitproc visit, void *arg) const {
    Py_VISIT(choice.nearest.get());
    Py_VISIT(marks.attribute.get());
    for (const Ref &each : marks.of_leaf) Py_VISIT(each.get());
    for (const std::shared_ptr<Applied> *kept : {&latest, &spare}) {
        if (!*kept) continue;
        for (const Arguments &each : (*kept)->allocations) Py_VISIT(each.tuple.get());
    }
    return 0;
}

}  // namespace tzero::plan
