#include "entries.h"

#include <algorithm>

namespace tzero {

void Entry::remember(const Leaves &leaves) {
    words.assign(leaves.words, leaves.words + leaves.word_count);
    constants.clear();
    for (size_t k = 0; k < leaves.constant_count; ++k) {
        constants.push_back(Ref::borrow(leaves.constants[k]));
    }
}

int Entry::visit(visitproc visit, void *arg) const {
    Py_VISIT(bound.get());
    const int result = plan == nullptr ? 0 : plan->visit(visit, arg);
    return result != 0 || fallback == nullptr ? result : fallback->visit(visit, arg);
}

int EntryTable::find(const View &view, Entry **out) {
    *out = nullptr;
    if (last_ != nullptr) {
        const int same = is_view(last_->words, last_->constants, view);
        if (same != 0) {
            *out = same > 0 ? last_ : nullptr;
            return same > 0 ? 0 : -1;
        }
    }
    const auto range = by_hash_.equal_range(hash_of(view.words, view.word_count));
    for (auto at = range.first; at != range.second; ++at) {
        const int same = is_view(at->second->words, at->second->constants, view);
        if (same < 0) return -1;
        if (same > 0) {
            *out = last_ = at->second;
            return 0;
        }
    }
    return 0;
}

void EntryTable::take_out(Entry *entry) {
    const auto range = by_hash_.equal_range(entry->hash);
    for (auto at = range.first; at != range.second; ++at) {
        if (at->second == entry) {
            by_hash_.erase(at);
            break;
        }
    }
    entry->in_table = false;
    if (last_ == entry) last_ = nullptr;
}

void EntryTable::add(std::unique_ptr<Entry> made, size_t most) {
    std::vector<Entry *> dropped;
    std::vector<PyObject *> constants;
    for (const Ref &each : made->constants) constants.push_back(each.get());
    Entry *same = nullptr;
    if (find({made->words.data(), made->words.size(), constants.data(), constants.size()}, &same) <
        0) {
        PyErr_Clear();  // comparing strings and numbers does not raise
    }
    if (same != nullptr) {
        take_out(same);
        dropped.push_back(same);
    }
    while (by_hash_.size() >= std::max<size_t>(most, 1)) {
        const auto oldest = std::min_element(
            by_hash_.begin(), by_hash_.end(), [](const auto &one, const auto &other) {
                return one.second->last_used < other.second->last_used;
            });
        Entry *entry = oldest->second;
        take_out(entry);
        dropped.push_back(entry);
    }
    made->hash = hash_of(made->words.data(), made->words.size());
    by_hash_.emplace(made->hash, made.get());
    last_ = made.release();
    last_->in_table = true;
    for (Entry *each : dropped) release(each);
}

void EntryTable::drop(Entry *entry) {
    if (!entry->in_table) return;
    take_out(entry);
    release(entry);
}

void EntryTable::forget(PyObject *which) {
    std::vector<Entry *> dropped;
    for (const auto &[hash, entry] : by_hash_) {
        if (entry->is_of(which)) dropped.push_back(entry);
    }
    for (Entry *each : dropped) take_out(each);
    for (Entry *each : dropped) release(each);
}

int EntryTable::visit(visitproc visit, void *arg) const {
    for (const auto &[hash, entry] : by_hash_) {
        const int result = entry->visit(visit, arg);
        if (result != 0) return result;
    }
    return 0;
}

}  // namespace tzero
