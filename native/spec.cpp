#include "spec.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "guards.h"

namespace tzero {

namespace {

template <typename T> void put(char *at, T value) { std::memcpy(at, &value, sizeof value); }

// Whether an integer is a value of type T.
template <typename T> bool is_value_of(const Argument &argument) {
    const auto wide = static_cast<uint64_t>(argument.integer);
    if (argument.is_unsigned) {
        return std::is_unsigned_v<T> && static_cast<uint64_t>(static_cast<T>(wide)) == wide;
    }
    if (argument.integer < 0 && std::is_unsigned_v<T>) return false;
    return static_cast<int64_t>(static_cast<T>(argument.integer)) == argument.integer;
}

template <typename T> bool put_integer(char *at, const Argument &argument) {
    if (argument.kind != Kind::integer && argument.kind != Kind::boolean) return false;
    if (!is_value_of<T>(argument) && !off(Guard::integer_width)) return false;
    put(at, static_cast<T>(argument.integer));
    return true;
}

// Converts a number to a double exactly; false if it cannot be.
bool as_double(const Argument &argument, double *out) {
    if (argument.kind == Kind::floating) {
        *out = argument.floating;
        return true;
    }
    if ((argument.kind == Kind::integer || argument.kind == Kind::boolean) &&
        !argument.is_unsigned && argument.integer >= -(1LL << 53) &&
        argument.integer <= (1LL << 53)) {
        *out = static_cast<double>(argument.integer);
        return true;
    }
    return false;
}

bool put_floating(char *at, Type type, const Argument &argument) {
    double number = 0;
    if (!as_double(argument, &number)) return false;
    const auto single = static_cast<float>(number);
    uint32_t bits = 0;
    std::memcpy(&bits, &single, sizeof bits);
    switch (type) {
    case Type::f64:
        put(at, number);
        return true;
    case Type::f32:
        put(at, single);
        return true;
    case Type::bf16:
        put(at, static_cast<uint16_t>(bits >> 16));
        return true;
    default:
        break;
    }
    if (PyFloat_Pack2(number, at, PY_LITTLE_ENDIAN) != 0) {
        PyErr_Clear();  // too large for 16 bits: Triton reports it
        return false;
    }
    return true;
}

}  // namespace

uint64_t hash_of(const uint64_t *words, size_t count) {
    uint64_t hash = 0x9e3779b97f4a7c15u;
    for (size_t k = 0; k < count; ++k) {
        hash ^= words[k];
        hash *= 0xff51afd7ed558ccdu;
        hash ^= hash >> 32;
    }
    return hash;
}

int is_view(const std::vector<uint64_t> &words, const std::vector<Ref> &constants,
            const View &view) {
    if (words.size() != view.word_count ||
        std::memcmp(words.data(), view.words, view.word_count * sizeof(uint64_t)) != 0) {
        return 0;
    }
    return same_constants(constants, view);
}

int same_constants(const std::vector<Ref> &constants, const View &view) {
    if (constants.size() != view.constant_count) return 0;
    for (size_t k = 0; k < view.constant_count; ++k) {
        PyObject *mine = constants[k].get();
        if (mine == view.constants[k]) continue;
        if (Py_TYPE(mine) != Py_TYPE(view.constants[k])) return 0;
        const int same = PyObject_RichCompareBool(mine, view.constants[k], Py_EQ);
        if (same <= 0) return same;
    }
    return 1;
}

bool put_one(char *at, Type type, const Argument &argument) {
    switch (type) {
    case Type::pointer:
        if (argument.kind != Kind::tensor) return false;
        put(at, argument.address);
        return true;
    case Type::boolean:
        if (argument.kind != Kind::boolean) return false;
        put(at, static_cast<uint8_t>(argument.integer));
        return true;
    case Type::i8: return put_integer<int8_t>(at, argument);
    case Type::u8: return put_integer<uint8_t>(at, argument);
    case Type::i16: return put_integer<int16_t>(at, argument);
    case Type::u16: return put_integer<uint16_t>(at, argument);
    case Type::i32: return put_integer<int32_t>(at, argument);
    case Type::u32: return put_integer<uint32_t>(at, argument);
    case Type::i64: return put_integer<int64_t>(at, argument);
    case Type::u64: return put_integer<uint64_t>(at, argument);
    case Type::tensor_map: return argument.kind == Kind::tensor;  // `encode_maps` writes it
    default: return put_floating(at, type, argument);
    }
}

int Spec::visit(visitproc visit, void *arg) const {
    for (const Ref &each : constants) Py_VISIT(each.get());
    for (const Ref *each : {&kernel, &caches, &table, &key, &device, &launcher, &name}) {
        Py_VISIT(each->get());
    }
    if (shortcut) {
        for (const Slot &each : shortcut->slots) Py_VISIT(each.same.get());
    }
    for (const ScratchNeed &each : scratch) Py_VISIT(each.allocators.get());
    return 0;
}

int SpecTable::find(const View &view, Spec **out) {
    *out = nullptr;
    if (last_ != nullptr) {
        Spec *spec = last_;
        SpecUse use(spec);
        const int same = is_view(spec->words, spec->constants, view);
        if (same < 0) return -1;
        if (same > 0 && spec->in_table) {
            *out = spec;
            return 0;
        }
    }
    // Comparing runs Python code, which may change the table, so the candidates are collected
    // first.
    const auto range = by_hash_.equal_range(hash_of(view.words, view.word_count));
    std::vector<Spec *> candidates;
    for (auto at = range.first; at != range.second; ++at) candidates.push_back(at->second);
    for (Spec *spec : candidates) {
        if (std::find(in_order_.begin(), in_order_.end(), spec) == in_order_.end()) continue;
        SpecUse use(spec);
        const int same = is_view(spec->words, spec->constants, view);
        if (same < 0) return -1;
        if (same > 0 && spec->in_table) {
            last_ = spec;
            *out = spec;
            return 0;
        }
    }
    return 0;
}

void SpecTable::add(Spec *spec, size_t most) {
    std::vector<Spec *> dropped;
    if (in_order_.size() >= std::max<size_t>(most, 1)) {
        Spec *oldest = in_order_.front();
        in_order_.erase(in_order_.begin());
        const auto range = by_hash_.equal_range(hash_of(oldest->words.data(), oldest->words.size()));
        for (auto at = range.first; at != range.second; ++at) {
            if (at->second == oldest) {
                by_hash_.erase(at);
                break;
            }
        }
        oldest->in_table = false;
        if (last_ == oldest) last_ = nullptr;
        dropped.push_back(oldest);
    }
    by_hash_.emplace(hash_of(spec->words.data(), spec->words.size()), spec);
    in_order_.push_back(spec);
    spec->in_table = true;
    last_ = spec;
    for (Spec *each : dropped) {
        if (--each->uses == 0) delete each;
    }
}

void SpecTable::clear() {
    std::vector<Spec *> dropped;
    dropped.swap(in_order_);
    by_hash_.clear();
    last_ = nullptr;
    for (Spec *each : dropped) each->in_table = false;
    for (Spec *each : dropped) {
        if (--each->uses == 0) delete each;
    }
}

int SpecTable::visit(visitproc visit, void *arg) const {
    for (const Spec *each : in_order_) {
        const int result = each->visit(visit, arg);
        if (result != 0) return result;
    }
    return 0;
}

bool fits(const Spec &spec, const Argument *arguments) {
    char nowhere[parameter_bytes];
    return std::all_of(spec.moves.begin(), spec.moves.end(), [&](const Move &move) {
        return put_one(nowhere, move.type, arguments[move.index]);
    });
}

bool pack(const Spec &spec, const Argument *arguments, char *block) {
    for (const Move &move : spec.moves) {
        if (!put_one(block + move.offset, move.type, arguments[move.index])) return false;
    }
    return true;
}

}  // namespace tzero
