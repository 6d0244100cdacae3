#include "classes.h"

#include <algorithm>

#include "guards.h"

namespace tzero {

namespace {

constexpr size_t most_of_a_class = 32;

// Like `hash_of`, of the kept words.
uint64_t hash_of_kept(const Mask &mask, const uint64_t *words) {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (size_t k = 0; k < mask.kept.size(); ++k) {
        hash ^= words[k] & mask.kept[k];
        hash *= 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash;
}

// Whether a call is of the class of an entry: 1 or 0, or -1 with the Python error set.
int is_of_class(const Entry &entry, const View &view) {
    const std::vector<uint64_t> &kept = entry.mask->kept;
    if (kept.size() != view.word_count) return 0;
    uint64_t differing = 0;
    for (size_t k = 0; k < kept.size(); ++k) {
        differing |= (entry.words[k] ^ view.words[k]) & kept[k];
    }
    if (differing != 0 && !off(Guard::plan_others_fixed)) return 0;
    return same_constants(entry.constants, view);
}

// Whether the entry's plan applies to a call: 1 or 0, or -1 with the Python error set.
int applies(Entry *entry, const Leaves &leaves, Found *out) {
    const int same = is_of_class(*entry, leaves.view());
    if (same <= 0) return same;
    const int marked = entry->plan->sized->marks.are_same(leaves);
    if (marked <= 0) return marked;
    out->applied = entry->plan->sized->applied(*entry->plan, leaves);
    if (out->applied == nullptr) return 0;
    out->entry = entry;
    return 1;
}

}  // namespace

int Classes::find_latest(const Leaves &leaves, const Entry **tried, Found *out) {
    *tried = latest_;
    if (latest_ == nullptr) return 0;
    return applies(latest_, leaves, out) < 0 ? -1 : 0;
}

int Classes::find(const Leaves &leaves, const Entry *tried, Found *out) {
    for (const auto &mask : masks_) {
        if (mask->kept.size() != leaves.word_count) continue;
        const auto found = mask->classes.find(hash_of_kept(*mask, leaves.words));
        if (found == mask->classes.end()) continue;
        for (Entry *entry : found->second) {
            if (entry == tried) continue;
            const int answer = applies(entry, leaves, out);
            if (answer < 0) return -1;
            if (answer == 0) continue;
            use(entry, found->second);
            return 0;
        }
    }
    return 0;
}

void Classes::use(Entry *entry, std::vector<Entry *> &of_class) {
    latest_ = entry;
    by_use_.splice(by_use_.begin(), by_use_, entry->place);
    const auto at = std::find(of_class.begin(), of_class.end(), entry);
    std::rotate(of_class.begin(), at, at + 1);
}

// The mask of an entry's free words; one that is there already, or a new one.
Mask *Classes::mask_of(const Entry &entry) {
    std::vector<uint64_t> kept(entry.words.size(), ~uint64_t{0});
    for (const plan::Input &input : entry.plan->sized->inputs) {
        if (input.is_free) kept[input.word] = 0;
    }
    for (const auto &mask : masks_) {
        if (mask->kept == kept) return mask.get();
    }
    masks_.push_back(std::make_unique<Mask>());
    masks_.back()->kept = std::move(kept);
    return masks_.back().get();
}

bool Classes::add(std::unique_ptr<Entry> made, const Leaves &leaves, size_t most) {
    if (!made->plan->sized->resolve(leaves)) return false;
    made->mask = mask_of(*made);
    made->hash = hash_of_kept(*made->mask, made->words.data());
    std::vector<Entry *> &of_class = made->mask->classes[made->hash];
    std::vector<Entry *> dropped;
    for (Entry *each : of_class) {
        if (each->plan->object.get() == made->plan->object.get()) dropped.push_back(each);
    }
    if (of_class.size() - dropped.size() >= most_of_a_class) {
        const auto last = std::find_if(of_class.rbegin(), of_class.rend(), [&](Entry *each) {
            return std::find(dropped.begin(), dropped.end(), each) == dropped.end();
        });
        dropped.push_back(*last);
    }
    latest_ = made.release();
    latest_->in_table = true;
    of_class.insert(of_class.begin(), latest_);
    by_use_.push_front(latest_);
    latest_->place = by_use_.begin();
    for (Entry *each : dropped) take_out(each);
    while (by_use_.size() > std::max<size_t>(most, 1)) {
        dropped.push_back(by_use_.back());
        take_out(by_use_.back());
    }
    for (Entry *each : dropped) release(each);
    return true;
}

void Classes::take_out(Entry *entry) {
    Mask &mask = *entry->mask;
    const auto found = mask.classes.find(entry->hash);
    std::vector<Entry *> &of_class = found->second;
    of_class.erase(std::find(of_class.begin(), of_class.end(), entry));
    if (of_class.empty()) mask.classes.erase(found);
    if (mask.classes.empty()) {
        const auto is_it = [&](const std::unique_ptr<Mask> &each) { return each.get() == &mask; };
        masks_.erase(std::find_if(masks_.begin(), masks_.end(), is_it));
    }
    by_use_.erase(entry->place);
    entry->mask = nullptr;
    entry->in_table = false;
    if (latest_ == entry) latest_ = nullptr;
}

void Classes::drop(Entry *entry) {
    if (!entry->in_table) return;
    take_out(entry);
    release(entry);
}

void Classes::forget(PyObject *which) {
    std::vector<Entry *> dropped;
    for (Entry *each : by_use_) {
        if (each->is_of(which)) dropped.push_back(each);
    }
    for (Entry *each : dropped) take_out(each);
    for (Entry *each : dropped) release(each);
}

int Classes::visit(visitproc visit, void *arg) const {
    for (const Entry *entry : by_use_) {
        const int result = entry->visit(visit, arg);
        if (result != 0) return result;
    }
    return 0;
}

}  // namespace tzero
