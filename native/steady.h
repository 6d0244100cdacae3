// The run of fallbacks that the latest calls of a kernel were.
//
// After many of them in a row, most calls are made like the latest without being looked up: running
// a host function as written is never wrong, and reading eight tensors costs more than the rest.
#pragma once

#include "python.h"

#include <optional>
#include <vector>

#include "entries.h"
#include "given.h"

namespace tzero {

class Steady {
  public:
    // The entry that the call with this number may be made with, without looking it up; or null.
    // This and `end` are
    // inline, because every replayed call comes here.
    Entry *entry_for(const std::vector<Parameter> &parameters, const Given &given,
                     const Form &form, uint64_t number) {
        if (!latest_ || (*latest_)->fallback->is_due(number)) return nullptr;
        Entry *entry = &**latest_;
        return may_use(*entry, parameters, given, form) ? entry : nullptr;
    }

    // The latest call was a fallback, with this entry.
    void note(const std::vector<Parameter> &parameters, const Given &given, const Form &form,
              Entry *entry);

    // The latest call was none.
    void end() {
        if (fallbacks_ == 0) return;
        fallbacks_ = 0;
        latest_.reset();
    }

    int visit(visitproc visit, void *arg) const;
    void clear() { latest_.reset(); }

  private:
    bool may_use(const Entry &entry, const std::vector<Parameter> &parameters, const Given &given,
                 const Form &form);

    size_t fallbacks_ = 0;               // how many of the latest calls were fallbacks
    std::optional<EntryUse> latest_;     // the last one, if any other would do as well
    std::vector<PyTypeObject *> types_;  // of its arguments; only compared
};

}  // namespace tzero
