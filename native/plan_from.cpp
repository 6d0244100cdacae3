// From what Python says of a plan to the plan. Nothing here is on the way of a hit; everything is
// checked, so that a replay need not.

#include "plan.h"

#include <exception>
#include <initializer_list>

#include "binary.h"

namespace tzero::plan {

namespace {

// The plan cannot be kept: the Python error is set if what Python says makes no sense, and is not if
// the world has changed since.
struct Unmade : std::exception {};

void wrong(const char *what) {
    PyErr_Format(PyExc_ValueError, "a plan's description is malformed: %s", what);
    throw Unmade{};
}

template <typename... Outs> void parse(PyObject *tuple, const char *format, Outs... outs) {
    if (!PyTuple_CheckExact(tuple)) wrong("a tuple is expected");
    if (!PyArg_ParseTuple(tuple, format, outs...)) throw Unmade{};
}

// Calls `each` with every item of a tuple.
template <typename Each> void for_each(PyObject *tuple, Each each) {
    if (!PyTuple_CheckExact(tuple)) wrong("a tuple is expected");
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple); ++k) each(PyTuple_GET_ITEM(tuple, k));
}

class Maker {
  public:
    Maker(State &state, size_t leaves) : state_(state), leaves_(leaves) {}

    std::unique_ptr<Plan> make(PyObject *said) {
        PyObject *object, *watches, *slots, *functions, *steps, *result;
        parse(said, "OOOOOO", &object, &watches, &slots, &functions, &steps, &result);
        plan_->object = Ref::borrow(object);
        for_each(watches, [&](PyObject *each) { watch(each); });
        for_each(slots, [&](PyObject *each) { slot(each); });
        for_each(functions, [&](PyObject *each) { function(each); });
        for_each(steps, [&](PyObject *each) { step(each); });
        plan_->result = value(result);
        return std::move(plan_);
    }

  private:
    void watch(PyObject *said) {
        PyObject *where, *name, *object, *check;
        int how = 0;
        parse(said, "OUOiO", &where, &name, &object, &how, &check);
        if (how < 0 || how >= Watch::count) wrong("how to watch a name");
        Watch made;
        made.in_cell = PyCell_Check(where);
        if (!made.in_cell && !PyDict_CheckExact(where)) wrong("a name is in a dict, or a cell");
        made.where = Ref::borrow(where);
        made.name = Ref::borrow(name);
        made.value = Ref::borrow(object);
        made.check = Ref::borrow(check);
        made.how = static_cast<Watch::How>(how);
        made.by_version = !made.in_cell && made.how != Watch::asks && is_noted(where);
        if (is_container(object)) plan_->tables.push_back(plan_->watches.size());
        plan_->watches.push_back(std::move(made));
    }

    // Has the version of a dict kept; false if there are too many.
    bool is_noted(PyObject *dict) {
        for (const Namespace &each : plan_->namespaces) {
            if (each.dict.get() == dict) return true;
        }
        if (plan_->namespaces.size() >= most_namespaces) return false;
        plan_->namespaces.push_back({Ref::borrow(dict), Seen()});
        return true;
    }

    void slot(PyObject *said) {
        Slot made;
        PyObject *sizes;
        Geometry &geometry = made.geometry;
        parse(said, "nn(iiiO)", &made.leaf, &made.watch, &geometry.dtype, &geometry.device_type,
              &geometry.device_index, &sizes);
        if (made.leaf >= static_cast<Py_ssize_t>(leaves_)) wrong("a slot's leaf");
        if (made.watch >= static_cast<Py_ssize_t>(plan_->watches.size())) wrong("a slot's guard");
        for_each(sizes, [&](PyObject *each) {
            const long long number = PyLong_AsLongLong(each);
            if (number == -1 && PyErr_Occurred()) throw Unmade{};
            geometry.sizes_and_strides.push_back(number);
        });
        if (made.watch >= 0) watched(made);
        if (plan_->slots.size() >= most_slots) wrong("too many slots");
        const size_t at = plan_->slots.size();
        if (made.leaf >= 0) plan_->arguments.emplace_back(at, static_cast<size_t>(made.leaf));
        if (made.watch >= 0) plan_->watched.push_back(at);
        plan_->slots.push_back(std::move(made));
    }

    // The words of a tensor that a global or a closure holds.
    void watched(Slot &slot) {
        PyObject *tensor = plan_->watches[slot.watch].value.get();
        const PyTypeObject *type = Py_TYPE(tensor);
        uint64_t words[most_tensor_words];
        size_t count = 0;
        const void *address = nullptr;
        if ((type != state_.tensors.tensor && type != state_.tensors.parameter) ||
            read_tensor_words(state_.tensors, state_.torch, tensor, words, &count, &address) !=
                Reading::done) {
            throw Unmade{};
        }
        if (!slot.geometry.fits(state_.tensors, state_.torch, tensor)) throw Unmade{};
        slot.words.assign(words, words + count);
    }

    void function(PyObject *object) {
        Function made;
        made.object = Ref::borrow(object);
        made.is_launchable = PyObject_TypeCheck(
            object, reinterpret_cast<PyTypeObject *>(state_.launchable.get()));
        AttributesOf attributes;
        if (attributes.read(state_, made) < 0) throw Unmade{};
        if (no_run_hooks(state_, attributes.get()) != Answer::yes) throw Unmade{};
        if (read_world(state_, attributes.get(), &made.world) < 0) throw Unmade{};
        plan_->functions.push_back(std::move(made));
    }

    void step(PyObject *said) {
        int kind = 0;
        Py_ssize_t number = 0;
        PyObject *rest;
        parse(said, "inO", &kind, &number, &rest);
        size_t at = 0;
        switch (kind) {
        case Step::allocate: at = allocate(rest); break;
        case Step::fill: at = fill(rest); break;
        case Step::view: at = view(rest); break;
        case Step::call: at = call(rest); break;
        case Step::launch: at = launch(rest); break;
        default: wrong("the kind of a step");
        }
        plan_->steps.push_back({static_cast<Step::Kind>(kind), at, number});
    }

    size_t allocate(PyObject *said) {
        Allocate made;
        Py_ssize_t slot = 0;
        PyObject *quick, *quick_args, *plain, *plain_args, *plain_kwargs, *ring;
        Py_ssize_t changes = 0;
        parse(said, "niOOOO!O!On", &slot, &made.device, &quick, &quick_args, &plain, &PyTuple_Type,
              &plain_args, &PyDict_Type, &plain_kwargs, &ring, &changes);
        made.changes = changes;
        made.slot = slot_at(slot);
        if (quick != Py_None) {
            if (!PyTuple_CheckExact(quick_args)) wrong("an allocation's arguments");
            made.quick = Ref::borrow(quick);
            made.quick_args = Ref::borrow(quick_args);
            if (PyCFunction_CheckExact(quick) && PyCFunction_GET_FLAGS(quick) == METH_VARARGS) {
                made.direct = PyCFunction_GET_FUNCTION(quick);
            }
        }
        made.plain = Ref::borrow(plain);
        made.plain_args = Ref::borrow(plain_args);
        made.plain_kwargs = Ref::borrow(plain_kwargs);
        if (ring != Py_None) {
            if (reinterpret_cast<PyObject *>(Py_TYPE(ring)) != state_.ring.get() ||
                state_.torch.storage < 0 || state_.torch.gradients < 0) {
                wrong("an allocation's ring");
            }
            made.ring = Ref::borrow(ring);
        }
        return kept(plan_->allocates, std::move(made));
    }

    size_t fill(PyObject *said) {
        Fill made;
        Py_ssize_t slot = 0, bytes = 0, size = 0, version = 0;
        const char *pattern = nullptr;
        PyObject *function, *number;
        parse(said, "niy#nOOn", &slot, &made.device, &pattern, &size, &bytes, &function, &number,
              &version);
        made.version = version;
        made.slot = slot_at(slot);
        if (size < 1 || bytes < 0 || bytes % size != 0) wrong("a fill's size");
        made.pattern.assign(pattern, static_cast<size_t>(size));
        made.bytes = static_cast<size_t>(bytes);
        made.function = Ref::borrow(function);
        made.number = Ref::borrow(number);
        return kept(plan_->fills, std::move(made));
    }

    size_t view(PyObject *said) {
        View made;
        Py_ssize_t slot = 0, base = 0;
        int is_empty = 0;
        parse(said, "nnnp", &slot, &base, &made.offset, &is_empty);
        made.slot = slot_at(slot);
        made.base = slot_at(base);
        made.is_empty = is_empty != 0;
        return kept(plan_->views, made);
    }

    size_t call(PyObject *said) {
        Call made;
        PyObject *function, *name, *args, *keywords, *result;
        parse(said, "OUOO!O", &function, &name, &args, &PyTuple_Type, &keywords, &result);
        made.function = Ref::borrow(function);
        made.name = Ref::borrow(name);
        for_each(args, [&](PyObject *each) { made.args.push_back(value(each)); });
        const auto named = static_cast<size_t>(PyTuple_GET_SIZE(keywords));
        if (named > made.args.size()) wrong("a call's names");
        if (made.args.size() > most_arguments) wrong("a call's arguments");
        if (named > 0) made.keywords = Ref::borrow(keywords);
        made.result = value(result);
        return kept(plan_->calls, std::move(made));
    }

    size_t launch(PyObject *said) {
        Launch made;
        Py_ssize_t function = 0, size = 0;
        PyObject *spec, *pointers, *numbers, *args;
        const char *block = nullptr;
        parse(said, "nOy#OOO(iii)", &function, &spec, &block, &size, &pointers, &numbers, &args,
              &made.grid[0], &made.grid[1], &made.grid[2]);
        if (function < 0 || static_cast<size_t>(function) >= plan_->functions.size()) {
            wrong("a launch's kernel");
        }
        made.function = static_cast<size_t>(function);
        made.spec = spec_from(spec);
        if (made.spec == nullptr) throw Unmade{};
        if (static_cast<size_t>(size) != made.spec->bytes) wrong("a launch's block");
        made.block.assign(block, static_cast<size_t>(size));
        for_each(pointers, [&](PyObject *each) {
            Py_ssize_t slot = 0, offset = 0;
            int aligned = 0;
            parse(each, "nnp", &slot, &offset, &aligned);
            made.pointers.push_back({slot_at(slot), offset_in(made, offset), aligned != 0});
        });
        for_each(numbers, [&](PyObject *each) {
            Py_ssize_t leaf = 0, offset = 0;
            int type = 0;
            parse(each, "nin", &leaf, &type, &offset);
            if (type < 0 || type >= static_cast<int>(Type::count)) wrong("a number's type");
            made.numbers.push_back({leaf_at(leaf), offset_in(made, offset), static_cast<Type>(type)});
        });
        for_each(args, [&](PyObject *each) { made.args.push_back(value(each)); });
        if (made.grid[0] < 0 || made.grid[1] < 0 || made.grid[2] < 0) wrong("a launch's grid");
        if (!made.spec->on_cpu) plan_->device = made.spec->device_id;
        const size_t at = kept(plan_->launches, std::move(made));
        plan_->functions[static_cast<size_t>(function)].launches.push_back(at);
        return at;
    }

    Value value(PyObject *said) {
        Value made;
        int kind = 0;
        Py_ssize_t index = 0;
        PyObject *object, *items, *names;
        parse(said, "inOOO", &kind, &index, &object, &items, &names);
        if (kind < 0 || kind >= Value::count) wrong("the kind of a value");
        made.kind = static_cast<Value::Kind>(kind);
        if (made.kind == Value::tensor) made.index = slot_at(index);
        if (made.kind == Value::scalar) made.index = leaf_at(index);
        made.object = Ref::borrow(object);
        for_each(items, [&](PyObject *each) { made.items.push_back(value(each)); });
        for_each(names, [&](PyObject *each) { made.names.push_back(Ref::borrow(each)); });
        if (made.kind == Value::dict && made.names.size() != made.items.size()) {
            wrong("a dict's names");
        }
        return made;
    }

    size_t slot_at(Py_ssize_t slot) const {
        if (slot < 0 || static_cast<size_t>(slot) >= plan_->slots.size()) wrong("the number of a slot");
        return static_cast<size_t>(slot);
    }

    size_t leaf_at(Py_ssize_t leaf) const {
        if (leaf < 0 || static_cast<size_t>(leaf) >= leaves_) wrong("the number of a leaf");
        return static_cast<size_t>(leaf);
    }

    static size_t offset_in(const Launch &launch, Py_ssize_t offset) {
        if (offset < 0 || static_cast<size_t>(offset) + 8 > launch.block.size()) {
            wrong("a parameter lies outside its block");
        }
        return static_cast<size_t>(offset);
    }

    template <typename T> static size_t kept(std::vector<T> &all, T made) {
        all.push_back(std::move(made));
        return all.size() - 1;
    }

    State &state_;
    size_t leaves_;
    std::unique_ptr<Plan> plan_ = std::make_unique<Plan>();
};

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
        return visit_all(visit, arg, {&each.where, &each.name, &each.value, &each.check});
    });
    if (found == 0) {
        found = first_of(namespaces, [&](const Namespace &each) {
            return visit_all(visit, arg, {&each.dict});
        });
    }
    if (found == 0) {
        found = first_of(functions, [&](const Function &each) {
            for (const Ref &value : each.world.values) Py_VISIT(value.get());
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
    if (found == 0) {
        found = first_of(calls, [&](const Call &each) {
            int inner = visit_all(visit, arg, {&each.function, &each.name, &each.keywords});
            if (inner == 0) inner = values(each.args);
            return inner != 0 ? inner : visit_value(visit, arg, each.result);
        });
    }
    if (found == 0) {
        found = first_of(launches, [&](const Launch &each) {
            const int inner = each.spec->visit(visit, arg);
            return inner != 0 ? inner : values(each.args);
        });
    }
    return found != 0 ? found : visit_value(visit, arg, result);
}

std::unique_ptr<Plan> plan_from(State &state, PyObject *said, size_t leaves) {
    try {
        return Maker(state, leaves).make(said);
    } catch (const Unmade &) {
        return nullptr;
    }
}

}  // namespace tzero::plan
