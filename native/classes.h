// The plans over sizes of one kernel, by the keys of their calls without the free words.
//
// A free word of a key is a size, stride or number in which calls of a plan may differ. Calls that
// agree in all other words are a class. A class may have several plans, for calls that met other
// conditions or need other binaries.
#pragma once

#include "python.h"

#include <cstdint>
#include <list>
#include <memory>
#include <unordered_map>
#include <vector>

#include "entries.h"
#include "leaves.h"

namespace tzero {

// Which words of a key are compared: all bits of a word, or none.
struct Mask {
    std::vector<uint64_t> kept;
    std::unordered_map<uint64_t, std::vector<Entry *>> classes;  // by hash, the latest used first
};

// A plan over sizes, and what it is in one call.
struct Found {
    Entry *entry = nullptr;
    std::shared_ptr<const plan::Applied> applied;  // null for other plans
};

// As in `EntryTable`, each function releases entries last.
class Classes {
  public:
    Classes() = default;
    Classes(const Classes &) = delete;
    Classes &operator=(const Classes &) = delete;
    ~Classes() { forget(nullptr); }

    // Finds a plan that applies to a call, other than `tried`. 0, or -1 with the Python error set.
    int find(const Leaves &leaves, const Entry *tried, Found *out);

    // The same, but only tries the plan that was found last, which it returns in `tried`.
    int find_latest(const Leaves &leaves, const Entry **tried, Found *out);

    // Adds an entry with a plan over sizes, whose words are those of a call. False, with no entry
    // added, if that call has not all of the plan's sizes and numbers. Evicts the least recently
    // used of more than `most`.
    bool add(std::unique_ptr<Entry> entry, const Leaves &leaves, size_t most);

    void drop(Entry *entry);
    void forget(PyObject *which);  // the entries of one bound kernel or plan, or all of them

    size_t size() const { return by_use_.size(); }
    int visit(visitproc visit, void *arg) const;

    template <typename Each> void each(Each each) const {
        for (const Entry *entry : by_use_) each(*entry);
    }

  private:
    Mask *mask_of(const Entry &entry);
    void use(Entry *entry, std::vector<Entry *> &of_class);
    void take_out(Entry *entry);

    std::vector<std::unique_ptr<Mask>> masks_;
    std::list<Entry *> by_use_;  // the latest used first
    Entry *latest_ = nullptr;
};

}  // namespace tzero
