// Makes a plan from its description. Nothing here runs on a hit. Everything is checked here, so
// that a replay need not check it.

#include "plan.h"

#include <algorithm>
#include <exception>
#include <tuple>

#include "binary.h"
#include "captures.h"
#include "fields.h"
#include "selecting.h"
#include "state.h"

namespace tzero::plan {

namespace {

// The plan cannot be kept: something it depends on has changed since it was recorded. No Python
// error is set. A description that makes no sense is `Malformed`, with the Python error set.
struct Outdated : std::exception {};

class Maker {
  public:
    Maker(State &state, size_t leaves) : state_(state), leaves_(leaves) {}

    std::unique_ptr<Plan> make(const Fields &plan) {
        plan_->object = plan.any("plan");
        plan.for_each("guards", [&](PyObject *each) { guard(Fields(each)); });
        plan.for_each("slots", [&](PyObject *each) { slot(Fields(each)); });
        if (plan_->slots.size() > most_slots) plan.wrong("slots", "a tuple of fewer items");
        plan.for_each("functions", [&](PyObject *each) { function(each); });
        if (const Ref found = plan.optional("sizes")) sizes(Fields(found.get()));
        plan.for_each("steps", [&](PyObject *each) { step(Fields(each)); });
        if (plan_->sized && launch_steps_ != plan_->sized->launches.size()) {
            plan.wrong("sizes", "sizes with a launch for each launch step");
        }
        plan_->result = value(plan, "result");
        plan.for_each("bare", [&](PyObject *each) { bare(plan, each); });
        for (const size_t slot : plan_->watched) {
            plan_->held.push_back(plan_->watches[plan_->slots[slot].watch].value.get());
        }
        std::sort(plan_->held.begin(), plan_->held.end());
        for (const Part &each : plan_->parts) {
            const size_t steps = plan_->steps.size();
            const bool fits = std::all_of(each.again.begin(), each.again.end(),
                                          [&](size_t k) { return k < each.after; });
            if (each.after > steps || !fits) plan.wrong("steps", "parts that end among the steps");
        }
        if (plan_->parts.empty()) find_runs(state_, *plan_);  // else graphs hold whole parts
        return std::move(plan_);
    }

  private:
    void guard(const Fields &fields) {
        Watch made;
        made.where = fields.any("where");
        made.in_cell = PyCell_Check(made.where.get());
        if (!made.in_cell && !PyDict_CheckExact(made.where.get())) {
            fields.wrong("where", "a dict or a cell");
        }
        made.name = fields.any("name");
        made.value = fields.any("value");
        made.function = fields.any("function");
        made.kind = static_cast<Watch::Kind>(fields.index("kind", Watch::count));
        made.by_version =
            !made.in_cell && reads_a_name(made.kind) && keeps_version(made.where.get());
        if (const char *expected = made.expected()) fields.wrong("value", expected);
        if (made.kind >= Watch::code && made.kind <= Watch::items) keep_object(made);
        if (made.kind <= Watch::absent && is_container(made.value.get())) {
            plan_->tables.push_back({plan_->watches.size(), Seen()});
        }
        if (!made.by_version) plan_->unversioned.push_back(plan_->watches.size());
        plan_->watches.push_back(std::move(made));
    }

    // Python makes a dict for each guard on an object, which nobody else has.
    static void keep_object(Watch &watch) {
        if (watch.in_cell || PyDict_GET_SIZE(watch.where.get()) != 1) return;
        watch.object = Ref::borrow(watch.now());
        if (!watch.object && PyErr_Occurred()) throw Malformed{};
        if (watch.object && watch.kind == Watch::own_dict) {
            watch.own = _PyObject_GetDictPtr(watch.object.get());
        }
    }

    void bare(const Fields &plan, PyObject *item) {
        long long leaf = 0;
        PyObject *names = nullptr;
        const bool is_pair =
            PyTuple_CheckExact(item) && PyArg_ParseTuple(item, "LO!", &leaf, &PyTuple_Type, &names);
        if (!is_pair || leaf < 0 || static_cast<size_t>(leaf) >= leaves_) {
            PyErr_Clear();
            plan.wrong("bare", "tuples of a leaf and a tuple of names");
        }
        plan_->bare.push_back({static_cast<size_t>(leaf), Ref::borrow(names)});
    }

    static bool reads_a_name(Watch::Kind kind) {
        return kind == Watch::same || kind == Watch::equal || kind == Watch::absent;
    }

    // Whether the version of a dict is kept; not if there are too many dicts.
    bool keeps_version(PyObject *dict) {
        for (const Namespace &each : plan_->namespaces) {
            if (each.dict.get() == dict) return true;
        }
        if (plan_->namespaces.size() >= most_namespaces) return false;
        plan_->namespaces.push_back({Ref::borrow(dict), Seen()});
        return true;
    }

    void slot(const Fields &fields) {
        Slot made;
        made.leaf = fields.optional_index("leaf", leaves_);
        made.watch = fields.optional_index("guard", plan_->watches.size());
        Geometry &geometry = made.geometry;
        geometry.dtype = number(fields, "dtype");
        geometry.device_type = number(fields, "device_type");
        geometry.device_index = number(fields, "device_index");
        for (const char *each : {"size", "stride"}) {
            fields.for_each(each, [&](PyObject *item) {
                geometry.sizes_and_strides.push_back(integer_from(item));
            });
        }
        if (made.watch >= 0) read_watched(made);
        const size_t at = plan_->slots.size();
        if (made.leaf >= 0) plan_->arguments.emplace_back(at, static_cast<size_t>(made.leaf));
        if (made.watch >= 0) plan_->watched.push_back(at);
        plan_->slots.push_back(std::move(made));
    }

    // Reads the key of a tensor that a global or a closure holds.
    void read_watched(Slot &slot) {
        PyObject *tensor = plan_->watches[slot.watch].value.get();
        const PyTypeObject *type = Py_TYPE(tensor);
        uint64_t words[most_tensor_words];
        size_t count = 0;
        const void *address = nullptr;
        if ((type != state_.tensors.tensor && type != state_.tensors.parameter) ||
            read_tensor_words(state_.tensors, state_.torch, tensor, words, &count, &address) !=
                Reading::done) {
            throw Outdated{};
        }
        if (!slot.geometry.fits(state_.tensors, state_.torch, tensor)) throw Outdated{};
        slot.words.assign(words, words + count);
    }

    void function(PyObject *object) {
        Function made;
        made.object = Ref::borrow(object);
        made.is_launchable = PyObject_TypeCheck(
            object, reinterpret_cast<PyTypeObject *>(state_.launchable.get()));
        AttributesOf attributes;
        if (attributes.read(state_, made) < 0) throw Malformed{};
        const Answer unhooked = no_run_hooks(state_, attributes.get());
        if (unhooked == Answer::error) throw Malformed{};
        if (unhooked == Answer::no) throw Outdated{};
        if (read_environment(state_, attributes.get(), &made.environment) < 0) throw Malformed{};
        plan_->functions.push_back(std::move(made));
    }

    void step(const Fields &fields) {
        const auto kind = static_cast<Step::Kind>(fields.index("kind", Step::count));
        const Py_ssize_t number = fields.integer("number", 0, INT32_MAX);
        const Ref details = fields.any("details");
        plan_->steps.push_back({kind, add(kind, Fields(details.get())), number});
    }

    // Adds the details of a step to those of its kind; their number there.
    size_t add(Step::Kind kind, const Fields &details) {
        switch (kind) {
        case Step::allocate: return kept(plan_->allocates, allocate(details));
        case Step::fill: return kept(plan_->fills, fill(details));
        case Step::copy: return kept(plan_->copies, copy(details));
        case Step::view: return kept(plan_->views, view(details));
        case Step::call: return kept(plan_->calls, call(details));
        case Step::read: {
            Call made = call(details);
            if (made.result.kind != Value::constant) details.wrong("result", "a constant");
            return kept(plan_->calls, std::move(made));
        }
        case Step::part: return kept(plan_->parts, part(details));
        default: break;
        }
        const size_t number = launch_steps_++;
        if (plan_->sized) {
            if (number >= plan_->sized->launches.size()) return number;  // an error, see `make`
            const size_t first = plan_->sized->launches[number].variants.front().launch;
            plan_->functions[plan_->launches[first].function].launches.push_back(number);
            return number;
        }
        Launch made = launch(details);
        read_grid(details, made.grid);
        plan_->functions[made.function].launches.push_back(number);
        return kept(plan_->launches, std::move(made));
    }

    // ---- plans over sizes -------------------------------------------------------------------

    void sizes(const Fields &fields) {
        plan_->sized = std::make_unique<Sized>();
        Sized &sized = *plan_->sized;
        const Ref free = fields.tuple("free");
        fields.for_each("inputs", [&](PyObject *each) {
            const auto at = static_cast<Py_ssize_t>(sized.inputs.size());
            const auto [source, leaf, dim] = three(fields, "inputs", each);
            if (source >= Input::count || leaf >= leaves_ || dim >= most_dimensions ||
                at >= PyTuple_GET_SIZE(free.get())) {
                fields.wrong("inputs", "sources among the leaves, with a flag in free for each");
            }
            sized.inputs.push_back({static_cast<Input::Source>(source), leaf, dim,
                                    PyTuple_GET_ITEM(free.get(), at) == Py_True});
        });
        sized.formulas = formulas_from(sized.inputs.size(), fields.tuple("nodes").get(),
                                       fields.tuple("conditions").get());
        fields.for_each("slots", [&](PyObject *each) {
            sized.slots.push_back(sized_slot(fields, each, sized.slots.size()));
        });
        if (sized.slots.size() != plan_->slots.size()) {
            fields.wrong("slots", "a tuple with an item for each slot of the plan");
        }
        fields.for_each("launches",
                        [&](PyObject *each) { sized.launches.push_back(sized_launch(Fields(each))); });
        if (const Ref found = fields.optional("choice")) sized.choice = choice(Fields(found.get()));
        if (const Ref found = fields.optional("marks")) sized.marks = marks(Fields(found.get()));
    }

    Choice choice(const Fields &fields) const {
        Choice made;
        made.nearest = fields.any("nearest");
        if (!is_nearest(state_, made.nearest.get())) fields.wrong("nearest", "a Nearest");
        fields.for_each("shapes", [&](PyObject *each) {
            if (!PyTuple_CheckExact(each)) fields.wrong("shapes", "tuples of formulas or None");
            made.ranks.push_back(PyTuple_GET_SIZE(each));
            for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(each); ++k) {
                PyObject *item = PyTuple_GET_ITEM(each, k);
                made.sizes.push_back(item == Py_None ? -1
                                                     : static_cast<Py_ssize_t>(
                                                           formula(fields, "shapes", item)));
            }
        });
        made.asked.resize(made.sizes.size());
        made.has_config.assign(hint_count(made.nearest.get()), 0);
        fields.for_each("hints", [&](PyObject *each) {
            const auto number = static_cast<size_t>(integer_from(each));
            if (number >= made.has_config.size()) fields.wrong("hints", "numbers of its hints");
            made.has_config[number] = 1;
        });
        return made;
    }

    Marks marks(const Fields &fields) const {
        Marks made;
        made.attribute = fields.text("attribute");
        fields.for_each("of_leaf", [&](PyObject *each) {
            if (each != Py_None && !PyFrozenSet_CheckExact(each)) {
                fields.wrong("of_leaf", "a frozenset or None for each leaf");
            }
            made.of_leaf.push_back(each == Py_None ? Ref() : Ref::borrow(each));
        });
        if (made.of_leaf.size() != leaves_) {
            fields.wrong("of_leaf", "a tuple with an item for each leaf");
        }
        return made;
    }

    // A tuple of three integers, none negative.
    static std::tuple<size_t, size_t, size_t> three(const Fields &fields, const char *name,
                                                    PyObject *item) {
        long long a = 0, b = 0, c = 0;
        if (!PyTuple_CheckExact(item) || !PyArg_ParseTuple(item, "LLL", &a, &b, &c) || a < 0 ||
            b < 0 || c < 0) {
            PyErr_Clear();
            fields.wrong(name, "tuples of three integers, none negative");
        }
        return {static_cast<size_t>(a), static_cast<size_t>(b), static_cast<size_t>(c)};
    }

    size_t formula(const Fields &fields, const char *name, size_t number) const {
        if (!plan_->sized || number >= plan_->sized->formulas.size()) {
            fields.wrong(name, "formulas of the plan");
        }
        return number;
    }

    size_t formula(const Fields &fields, const char *name, PyObject *number) const {
        return formula(fields, name, static_cast<size_t>(integer_from(number)));
    }

    SizedSlot sized_slot(const Fields &fields, PyObject *item, size_t at) const {
        SizedSlot made;
        if (item == Py_None) return made;
        made.known = true;
        PyObject *sizes = nullptr, *strides = nullptr, *offset = nullptr;
        if (!PyTuple_CheckExact(item) ||
            !PyArg_ParseTuple(item, "O!O!O", &PyTuple_Type, &sizes, &PyTuple_Type, &strides,
                              &offset)) {
            PyErr_Clear();
            fields.wrong("slots", "None or (sizes, strides, offset) for each slot");
        }
        for (PyObject *each : {sizes, strides}) {
            for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(each); ++k) {
                made.sizes_and_strides.push_back(
                    formula(fields, "slots", PyTuple_GET_ITEM(each, k)));
            }
        }
        made.offset = formula(fields, "slots", offset);
        if (at >= plan_->slots.size() || PyTuple_GET_SIZE(sizes) != PyTuple_GET_SIZE(strides) ||
            made.sizes_and_strides.size() !=
                plan_->slots[at].geometry.sizes_and_strides.size()) {
            fields.wrong("slots", "as many sizes and strides as each slot of the plan has");
        }
        return made;
    }

    SizedLaunch sized_launch(const Fields &fields) {
        SizedLaunch made{};
        size_t axis = 0;
        fields.for_each("grid", [&](PyObject *each) {
            if (axis == 3) fields.wrong("grid", "three formulas");
            made.grid[axis++] = formula(fields, "grid", each);
        });
        if (axis != 3) fields.wrong("grid", "three formulas");
        fields.for_each("selectors", [&](PyObject *each) {
            long long number = 0;
            int by_value = 0;
            if (!PyTuple_CheckExact(each) || !PyArg_ParseTuple(each, "Lp", &number, &by_value)) {
                PyErr_Clear();
                fields.wrong("selectors", "tuples of a formula and a bool");
            }
            made.selectors.push_back(
                {formula(fields, "selectors", static_cast<size_t>(number)), by_value != 0});
        });
        fields.for_each("variants", [&](PyObject *each) {
            made.variants.push_back(variant(Fields(each), made.selectors.size()));
        });
        if (made.variants.empty()) fields.wrong("variants", "a tuple with at least one item");
        const size_t function = plan_->launches[made.variants.front().launch].function;
        for (const Variant &each : made.variants) {
            if (plan_->launches[each.launch].function != function) {
                fields.wrong("variants", "binaries of one kernel");
            }
        }
        return made;
    }

    Variant variant(const Fields &fields, size_t selectors) {
        Variant made{};
        fields.for_each("selected",
                        [&](PyObject *each) { made.selected.push_back(integer_from(each)); });
        if (made.selected.size() != selectors) {
            fields.wrong("selected", "a tuple with an item for each selector");
        }
        Launch found = launch(Fields(fields.any("launch").get()));
        fields.for_each("numbers", [&](PyObject *each) {
            const auto [number, type, offset] = three(fields, "numbers", each);
            if (type >= static_cast<size_t>(Type::count) ||
                offset > found.block.size() - parameter_bytes) {
                fields.wrong("numbers", "tuples of a formula, a type and an offset in the block");
            }
            found.computed.push_back(
                {formula(fields, "numbers", number), offset, static_cast<Type>(type)});
        });
        made.launch = kept(plan_->launches, std::move(found));
        return made;
    }

    // The slot of a step that needs its geometry.
    size_t known_slot(const Fields &fields, const char *name = "slot") const {
        const size_t slot = slot_in(fields, name);
        if (plan_->sized && !plan_->sized->slots[slot].known) {
            fields.wrong(name, "a slot whose geometry is in the sizes");
        }
        return slot;
    }

    // ---- steps ------------------------------------------------------------------------------

    Allocate allocate(const Fields &fields) {
        Allocate made;
        made.slot = known_slot(fields);
        made.device = device(fields);
        made.changes = fields.integer("changes", 0, INT64_MAX);
        made.quick = fields.optional("quick");
        if (made.quick) {
            PyObject *quick = made.quick.get();
            made.quick_args = fields.tuple("quick_args");
            if (PyCFunction_CheckExact(quick) && PyCFunction_GET_FLAGS(quick) == METH_VARARGS) {
                made.direct = PyCFunction_GET_FUNCTION(quick);
            }
        }
        made.plain = fields.any("plain");
        made.plain_args = fields.tuple("plain_args");
        made.plain_kwargs = fields.dict("plain_kwargs");
        made.ring = fields.optional("ring");
        if (made.ring &&
            (reinterpret_cast<PyObject *>(Py_TYPE(made.ring.get())) != state_.ring.get() ||
             state_.torch.storage < 0 || state_.torch.gradients < 0)) {
            fields.wrong("ring", "None, or a Ring where rings() is true");
        }
        return made;
    }

    Fill fill(const Fields &fields) {
        Fill made;
        made.slot = known_slot(fields);
        made.device = device(fields);
        made.pattern = string(fields, "pattern");
        made.bytes = static_cast<size_t>(fields.integer("bytes", 0, INT64_MAX));
        if (made.pattern.empty() || made.bytes % made.pattern.size() != 0) {
            fields.wrong("bytes", "a multiple of the pattern's length");
        }
        made.function = fields.any("function");
        made.number = fields.any("value");
        made.version = fields.integer("version", 0, INT64_MAX);
        return made;
    }

    Copy copy(const Fields &fields) {
        Copy made{};
        made.to = known_slot(fields, "target");
        made.from = known_slot(fields, "source");
        made.device = device(fields);
        made.itemsize = static_cast<size_t>(fields.integer("itemsize", 1, INT32_MAX));
        made.bytes = static_cast<size_t>(fields.integer("bytes", 0, INT64_MAX));
        made.allocation = -1;
        if (const Ref found = fields.optional("allocation")) {
            Allocate each = allocate(Fields(found.get()));
            if (each.slot != made.to) fields.wrong("allocation", "that of the target");
            made.allocation = static_cast<Py_ssize_t>(kept(plan_->allocates, std::move(each)));
        }
        made.counts = fields.flag("counts");
        made.inference = fields.flag("inference");
        made.version = fields.integer("version", 0, INT64_MAX);
        made.call = call(Fields(fields.any("call").get()));
        return made;
    }

    View view(const Fields &fields) {
        View made;
        made.slot = known_slot(fields);
        made.base = slot_in(fields, "base");
        made.offset = fields.integer("offset", INT64_MIN, INT64_MAX);
        made.is_empty = fields.flag("is_empty");
        made.itemsize = fields.integer("itemsize", 1, INT32_MAX);
        made.is_tensor = fields.flag("is_tensor");
        made.elements = fields.integer("elements", INT64_MIN, INT64_MAX);
        if (made.is_tensor && !state_.torch.makes_views) {
            fields.wrong("is_tensor", "False here");
        }
        return made;
    }

    Call call(const Fields &fields) {
        Call made;
        made.function = fields.any("function");
        made.name = fields.text("name");
        made.args = values(fields, "args");
        if (made.args.size() > most_arguments) fields.wrong("args", "a tuple of fewer items");
        Ref keywords = fields.tuple("keywords");
        const auto named = static_cast<size_t>(PyTuple_GET_SIZE(keywords.get()));
        if (named > made.args.size()) fields.wrong("keywords", "the names of the last of args");
        if (named > 0) made.keywords = std::move(keywords);
        made.result = value(fields, "result");
        return made;
    }

    Part part(const Fields &fields) {
        Part made;
        made.captures = fields.any("captures");
        made.is_native = is_captures(state_, made.captures.get());
        made.device = device(fields);
        made.inputs = numbers(fields, "inputs", plan_->slots.size());
        made.writes = numbers(fields, "writes", plan_->slots.size());
        fields.for_each("outputs", [&](PyObject *each) {
            made.outputs.push_back(kept(plan_->allocates, allocate(Fields(each))));
        });
        made.again = numbers(fields, "again", INT32_MAX);
        made.after = fields.index("after", INT32_MAX);
        return made;
    }

    // Numbers below `count`.
    static std::vector<size_t> numbers(const Fields &fields, const char *name, size_t count) {
        std::vector<size_t> made;
        fields.for_each(name, [&](PyObject *each) {
            made.push_back(static_cast<size_t>(integer_from(each)));
            if (made.back() >= count) fields.wrong(name, "smaller numbers");
        });
        return made;
    }

    Launch launch(const Fields &fields) {
        Launch made;
        made.function = fields.index("function", plan_->functions.size());
        made.spec = spec_from(fields.any("binary").get());
        if (made.spec == nullptr) throw Malformed{};
        made.block = string(fields, "block");
        const size_t bytes = made.block.size();
        if (bytes != made.spec->bytes) fields.wrong("block", "as long as the binary's block_bytes");
        fields.for_each("pointers", [&](PyObject *each) {
            const Fields pointer(each);
            made.pointers.push_back({slot_in(pointer, "slot"), offset(pointer, bytes),
                                     pointer.flag("aligned")});
        });
        fields.for_each("scalars", [&](PyObject *each) {
            const Fields scalar(each);
            const size_t type = scalar.index("type", static_cast<size_t>(Type::count));
            made.numbers.push_back({scalar.index("leaf", leaves_), offset(scalar, bytes),
                                    static_cast<Type>(type)});
        });
        made.args = values(fields, "args");
        if (!made.spec->on_cpu) plan_->device = made.spec->device_id;
        return made;
    }

    static void read_grid(const Fields &fields, int32_t grid[3]) {
        size_t axis = 0;
        fields.for_each("grid", [&](PyObject *each) {
            const int64_t size = integer_from(each);
            if (axis == 3 || size < 0 || size > INT32_MAX) fields.wrong("grid", "three sizes");
            grid[axis++] = static_cast<int32_t>(size);
        });
        if (axis != 3) fields.wrong("grid", "three sizes");
    }

    Value value(const Fields &from, const char *name) { return read_value(from.any(name).get()); }

    std::vector<Value> values(const Fields &from, const char *name) {
        std::vector<Value> all;
        from.for_each(name, [&](PyObject *each) { all.push_back(read_value(each)); });
        return all;
    }

    Value read_value(PyObject *description) {
        const Fields fields(description);
        Value made;
        made.kind = static_cast<Value::Kind>(fields.index("kind", Value::count));
        if (made.kind == Value::tensor) made.index = slot_in(fields, "place");
        if (made.kind == Value::scalar) made.index = fields.index("place", leaves_);
        if (made.kind == Value::formula) {
            made.index = fields.index("place", plan_->sized ? plan_->sized->formulas.size() : 0);
        }
        made.object = fields.any("object");
        made.items = values(fields, "items");
        fields.for_each("names",
                        [&](PyObject *each) { made.names.push_back(Ref::borrow(each)); });
        if (made.kind == Value::slice && made.items.size() != 3) {
            fields.wrong("items", "a tuple of start, stop and step");
        }
        if (made.kind == Value::dict && made.names.size() != made.items.size()) {
            fields.wrong("names", "a tuple with a key for each item");
        }
        return made;
    }

    size_t slot_in(const Fields &fields, const char *name) const {
        return fields.index(name, plan_->slots.size());
    }

    static int32_t number(const Fields &fields, const char *name) {
        return static_cast<int32_t>(fields.integer(name, INT32_MIN, INT32_MAX));
    }

    static int device(const Fields &fields) {
        return static_cast<int>(fields.optional_index("cuda_device", INT32_MAX));
    }

    static size_t offset(const Fields &fields, size_t bytes) {
        return fields.index("offset", bytes - parameter_bytes + 1);
    }

    static std::string string(const Fields &fields, const char *name) {
        const Ref bytes = fields.bytes(name);
        return {PyBytes_AS_STRING(bytes.get()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.get()))};
    }

    template <typename T> static size_t kept(std::vector<T> &all, T made) {
        all.push_back(std::move(made));
        return all.size() - 1;
    }

    State &state_;
    size_t leaves_;
    size_t launch_steps_ = 0;
    std::unique_ptr<Plan> plan_ = std::make_unique<Plan>();
};

}  // namespace

std::unique_ptr<Plan> plan_from(State &state, PyObject *description, size_t leaves) {
    try {
        return Maker(state, leaves).make(Fields(description));
    } catch (const Outdated &) {
        return nullptr;
    } catch (const Malformed &) {
        return nullptr;
    }
}

}  // namespace tzero::plan
