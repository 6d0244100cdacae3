#include "steady.h"

namespace tzero {

namespace {

// After this many fallbacks in a row, only every so many calls are looked up.
constexpr size_t steady_after = 64;
constexpr size_t looked_up_every = 8;

}  // namespace

bool Steady::may_use(const Entry &entry, const std::vector<Parameter> &parameters,
                     const Given &given, const Form &form) {
    if (!entry.in_table || ++fallbacks_ % looked_up_every == 0) return false;
    for (size_t k = 0; k < parameters.size(); ++k) {
        if (Py_TYPE(argument_of(parameters, given, form, k)) != types_[k]) return false;
    }
    return true;
}

void Steady::note(const std::vector<Parameter> &parameters, const Given &given, const Form &form,
                  Entry *entry) {
    if (++fallbacks_ < steady_after || !entry->fallback->keyless) return;
    const EntryUse use(entry);  // releasing another may run code that drops this one
    latest_.reset();
    latest_.emplace(entry);
    types_.clear();
    for (size_t k = 0; k < parameters.size(); ++k) {
        types_.push_back(Py_TYPE(argument_of(parameters, given, form, k)));
    }
}

int Steady::visit(visitproc visit, void *arg) const {
    if (!latest_ || (*latest_)->in_table) return 0;  // the table visits its entries
    Py_VISIT((*latest_)->bound.get());
    return (*latest_)->fallback->visit(visit, arg);
}

}  // namespace tzero
