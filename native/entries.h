// The plans of one kernel, by the words of the calls they are for.
#pragma once

#include "python.h"

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "plan.h"
#include "spec.h"

namespace tzero {

struct Entry {
    std::vector<uint64_t> words;
    std::vector<Ref> constants;
    uint64_t hash = 0;
    Ref bound;  // the BoundKernel that the plan is of
    std::unique_ptr<plan::Plan> plan;  // null for one that only Python replays
    uint64_t last_used = 0;

    size_t uses = 1;        // of the table, and of calls that are running
    bool in_table = false;  // a call may still use one that the table has dropped
};

// A reference to an entry while a call uses it: the table may drop it meanwhile.
class EntryUse {
  public:
    explicit EntryUse(Entry *entry) : entry_(entry) { ++entry_->uses; }
    EntryUse(const EntryUse &) = delete;
    EntryUse &operator=(const EntryUse &) = delete;
    ~EntryUse() {
        if (--entry_->uses == 0) delete entry_;
    }

  private:
    Entry *entry_;
};

// Constants here are of types whose comparison runs no Python code, so nothing changes the table
// while it is searched. Letting go of an entry may run some: that comes last in each function.
class EntryTable {
  public:
    EntryTable() = default;
    EntryTable(const EntryTable &) = delete;
    EntryTable &operator=(const EntryTable &) = delete;
    ~EntryTable() { forget(nullptr); }

    // 0 and the entry or null; -1 with the Python error set.
    int find(const View &view, Entry **out);

    // Takes an entry, in the place of one for the same words; those least recently used go where
    // there are more than `most`.
    void add(std::unique_ptr<Entry> entry, size_t most);

    void drop(Entry *entry);
    void forget(PyObject *bound);  // the entries of one bound kernel, or all of them

    size_t size() const { return by_hash_.size(); }
    int visit(visitproc visit, void *arg) const;

    template <typename Each> void each(Each each) const {
        for (const auto &[hash, entry] : by_hash_) each(*entry);
    }

  private:
    void take_out(Entry *entry);

    std::unordered_multimap<uint64_t, Entry *> by_hash_;
    Entry *last_ = nullptr;
};

}  // namespace tzero
