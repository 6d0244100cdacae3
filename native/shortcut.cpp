#include "shortcut.h"

#include <cstring>

#include "facts.h"
#include "reading.h"
#include "spec.h"

namespace tzero {

namespace {

bool is_constant(Kind kind) {
    return kind == Kind::constant_integer || kind == Kind::constant_boolean ||
           kind == Kind::constant_floating || kind == Kind::constant_none ||
           kind == Kind::constant_object;
}

template <typename T> void put(char *at, T value) { std::memcpy(at, &value, sizeof value); }

bool read_tensor_alike(const Tensors &tensors, const Slot &slot, PyObject *value, char *block) {
    const PyTypeObject *type = Py_TYPE(value);
    if (type != tensors.tensor && type != tensors.parameter) return false;
    SeenTensor seen;
    if (!see_through_shim(tensors, value, &seen)) return false;
    if (bits_of(seen, slot.specializes && slot.aligns) != slot.bits) return false;
    if (slot.passes) put(block + slot.offset, seen.address);
    return true;
}

bool read_integer_alike(const Slot &slot, PyObject *value, char *block) {
    int32_t number = 0;
    if (!PyLong_CheckExact(value) || !small_integer(value, &number)) return false;
    const auto pattern = static_cast<uint64_t>(int64_t{number});
    if (bits_of(pattern, bits_32, slot.specializes, slot.aligns) != slot.bits) return false;
    if (!slot.passes) return true;
    if (slot.type == Type::i32) {
        put(block + slot.offset, number);
        return true;
    }
    Argument argument{};
    argument.kind = Kind::integer;
    argument.integer = number;
    return put_one(block + slot.offset, slot.type, argument);
}

bool read_floating_alike(const Slot &slot, PyObject *value, char *block) {
    if (!PyFloat_CheckExact(value)) return false;
    if (!slot.passes) return true;
    if (slot.type == Type::f32) {
        put(block + slot.offset, static_cast<float>(PyFloat_AS_DOUBLE(value)));
        return true;
    }
    Argument argument{};
    argument.kind = Kind::floating;
    argument.floating = PyFloat_AS_DOUBLE(value);
    return put_one(block + slot.offset, slot.type, argument);
}

// Only the types that the constant had are known to compare without Python code.
bool is_same_constant(const Slot &slot, PyObject *value) {
    if (value == slot.same.get()) return true;
    if (slot.kind == Kind::constant_object || Py_TYPE(value) != Py_TYPE(slot.same.get())) {
        return false;
    }
    Argument read{};
    const Reading reading =
        slot.is_option ? read_option(value, &read) : read_constant(value, &read);
    return reading == Reading::done && read.kind == slot.kind && read.bits == slot.bits;
}

bool read_one_alike(const Tensors &tensors, const Slot &slot, PyObject *value, char *block) {
    switch (slot.kind) {
    case Kind::tensor: return read_tensor_alike(tensors, slot, value, block);
    case Kind::integer: return read_integer_alike(slot, value, block);
    case Kind::floating: return read_floating_alike(slot, value, block);
    case Kind::none: return value == Py_None;
    case Kind::boolean:
        if (!PyBool_Check(value)) return false;
        if (slot.passes) put(block + slot.offset, static_cast<uint8_t>(value == Py_True));
        return true;
    default: return is_same_constant(slot, value);
    }
}

// Which move takes an argument; null if none does, or several.
const Move *move_of(const Spec &spec, size_t parameter) {
    const Move *found = nullptr;
    for (const Move &move : spec.moves) {
        if (move.index != parameter) continue;
        if (found != nullptr) return nullptr;
        found = &move;
    }
    return found;
}

}  // namespace

std::unique_ptr<Shortcut> shortcut_to(const Spec &spec, const Form &form,
                                      const std::vector<Parameter> &parameters,
                                      PyObject *const *arguments, const Facts &facts) {
    const size_t count = parameters.size() + form.options.size();
    const bool is_simple = spec.refusal.empty() && spec.is_plain && !facts.is_nested &&
                           !facts.runs_python && facts.word_count == 2 * count + 1;
    if (!is_simple) return nullptr;
    auto made = std::make_unique<Shortcut>(Shortcut{facts.words[0], {}});
    made->slots.reserve(count);
    size_t passed = 0;
    for (size_t k = 0; k < count; ++k) {
        const bool is_option = k >= parameters.size();
        Slot slot{};
        slot.kind = static_cast<Kind>(facts.words[2 * k + 1]);
        slot.bits = facts.words[2 * k + 2];
        slot.is_option = is_option;
        slot.parameter = k;
        slot.place = is_option ? form.options[k - parameters.size()] : form.place[k];
        if (!is_option) {
            slot.specializes = parameters[k].specialize;
            slot.aligns = parameters[k].align;
            if (const Move *move = move_of(spec, k)) {
                slot.passes = true;
                slot.type = move->type;
                slot.offset = move->offset;
                ++passed;
            }
        }
        const bool fits = slot.kind == Kind::boolean ? slot.type == Type::boolean
                          : slot.kind == Kind::tensor ? slot.type == Type::pointer
                                                      : true;
        if (slot.passes && (!fits || is_constant(slot.kind) || slot.kind == Kind::none)) {
            return nullptr;
        }
        if (is_constant(slot.kind)) {
            slot.same = slot.place < 0 ? parameters[k].fallback : Ref::borrow(arguments[slot.place]);
        }
        made->slots.push_back(std::move(slot));
    }
    return passed == spec.moves.size() ? std::move(made) : nullptr;
}

bool read_alike(const Tensors &tensors, const Shortcut &shortcut,
                const std::vector<Parameter> &parameters, PyObject *const *arguments, char *block) {
    for (const Slot &slot : shortcut.slots) {
        PyObject *value = slot.place < 0 ? parameters[slot.parameter].fallback.get()
                                         : arguments[slot.place];
        if (!read_one_alike(tensors, slot, value, block)) return false;
    }
    return true;
}

}  // namespace tzero
