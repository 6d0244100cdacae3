// How the calls of one kernel are made, by their keys: a plan each, or a fallback.
#pragma once

#include "python.h"

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "fallback.h"
#include "leaves.h"
#include "plan.h"
#include "spec.h"

namespace tzero {

struct Mask;

struct Entry {
    std::vector<uint64_t> words;
    std::vector<Ref> constants;
    uint64_t hash = 0;
    Ref bound;  // the BoundKernel of these calls
    // One of the two; both null if only Python can replay it.
    std::unique_ptr<plan::Plan> plan;
    std::unique_ptr<Fallback> fallback;
    uint64_t last_used = 0;

    // Of a plan over sizes, which `Classes` keeps.
    Mask *mask = nullptr;
    std::list<Entry *>::iterator place;

    size_t uses = 1;        // references: the table's, and those of running calls
    bool in_table = false;  // false while a running call uses a dropped entry

    // Copies the key of a call.
    void remember(const Leaves &leaves);

    // Whether it is of a bound kernel or a plan; null: of any.
    bool is_of(PyObject *which) const {
        return which == nullptr || bound.get() == which ||
               (plan && plan->object.get() == which);
    }

    int visit(visitproc visit, void *arg) const;
};

// Ends one reference.
inline void release(Entry *entry) {
    if (--entry->uses == 0) delete entry;
}

// A reference to an entry during a call, since the table may drop it meanwhile.
class EntryUse {
  public:
    explicit EntryUse(Entry *entry) : entry_(entry) { ++entry_->uses; }
    EntryUse(const EntryUse &) = delete;
    EntryUse &operator=(const EntryUse &) = delete;
    ~EntryUse() { release(entry_); }

    Entry &operator*() const { return *entry_; }
    Entry *operator->() const { return entry_; }

  private:
    Entry *entry_;
};

// Comparing the constants of a key runs no Python code, so the table does not change while it is
// searched. Releasing an entry may run some, so each function does that last.
class EntryTable {
  public:
    EntryTable() = default;
    EntryTable(const EntryTable &) = delete;
    EntryTable &operator=(const EntryTable &) = delete;
    ~EntryTable() { forget(nullptr); }

    // 0 and the entry or null; -1 with the Python error set.
    int find(const View &view, Entry **out);

    // Adds an entry, and drops one with the same key; evicts the least recently used if there are
    // more than `most`.
    void add(std::unique_ptr<Entry> entry, size_t most);

    void drop(Entry *entry);
    void forget(PyObject *which);  // the entries of one bound kernel or plan, or all of them

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
