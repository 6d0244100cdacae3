// Shows the garbage collector what a plan refers to.

#include "plan.h"

#include <initializer_list>

namespace tzero::plan {

namespace {

int visit_all(visitproc visit, void *arg, std::initializer_list<const Ref *> refs) {
    for (const Ref *each : refs) Py_VISIT(each->get());
    return 0;
}

int visit_value(visitproc visit, void *arg, const Value &value) {
    Py_VISIT(value.object.get());
    for (const Ref &each : value.names) Py_VISIT(each.get());
    for (const Value &each : value.items) {
        const int result = visit_value(visit, arg, each);
        if (result != 0) return result;
    }
    return 0;
}

template <typename Items, typename Each> int first_of(const Items &items, Each each) {
    for (const auto &item : items) {
        const int result = each(item);
        if (result != 0) return result;
    }
    return 0;
}

}  // namespace

int Plan::visit(visitproc visit, void *arg) const {
    Py_VISIT(object.get());
    auto values = [&](const std::vector<Value> &all) {
        return first_of(all, [&](const Value &each) { return visit_value(visit, arg, each); });
    };
    int found = first_of(watches, [&](const Watch &each) {
        return visit_all(visit, arg, {&each.where, &each.name, &each.value, &each.function, &each.object});
    });
    if (found == 0) {
        found = first_of(namespaces, [&](const Namespace &each) {
            return visit_all(visit, arg, {&each.dict});
        });
    }
    if (found == 0) {
        found = first_of(bare, [&](const Bare &each) { return visit_all(visit, arg, {&each.names}); });
    }
    if (found == 0) {
        found = first_of(functions, [&](const Function &each) {
            for (const Ref &value : each.environment.values) Py_VISIT(value.get());
            for (const auto &[dict, seen] : each.globals) Py_VISIT(dict.get());
            for (const auto &[constant, seen] : each.constants) Py_VISIT(constant.get());
            return visit_all(visit, arg, {&each.object, &each.debug});
        });
    }
    if (found == 0) {
        found = first_of(allocates, [&](const Allocate &each) {
            return visit_all(visit, arg, {&each.quick, &each.quick_args, &each.plain,
                                          &each.plain_args, &each.plain_kwargs, &each.ring});
        });
    }
    if (found == 0) {
        found = first_of(fills, [&](const Fill &each) {
            return visit_all(visit, arg, {&each.function, &each.number});
        });
    }
    auto call = [&](const Call &each) {
        int inner = visit_all(visit, arg, {&each.function, &each.name, &each.keywords});
        if (inner == 0) inner = values(each.args);
        return inner != 0 ? inner : visit_value(visit, arg, each.result);
    };
    if (found == 0) found = first_of(calls, call);
    if (found == 0) found = first_of(copies, [&](const Copy &each) { return call(each.call); });
    if (found == 0) {
        found = first_of(launches, [&](const Launch &each) {
            const int inner = each.spec->visit(visit, arg);
            return inner != 0 ? inner : values(each.args);
        });
    }
    if (found == 0) {
        found = first_of(parts, [&](const Part &each) { return visit_all(visit, arg, {&each.captures}); });
    }
    if (found == 0 && sized) found = sized->visit(visit, arg);
    return found != 0 ? found : visit_value(visit, arg, result);
}

}  // namespace tzero::plan
