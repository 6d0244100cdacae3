// A trace function that leaves to Python only the frames and instructions which matter to it.
//
//     a frame begins ── of a library ──► nothing
//                    └─ begin(frame) ──► its Instructions, or None
//     an instruction ── its look is `never` ──► nothing
//                    ├─ `if awaited`, and Python awaits nothing ──► nothing
//                    └─ step(frame, entry, operands) ──► how to go on
//     a frame ends   ── leave(frame)
//
// Python decides what may be passed over (`tzero.reading.instructions`), and why that is sound.

#include "following.h"

#include <cstdint>
#include <vector>

#include "enums.h"
#include "frames.h"
#include "state.h"

namespace tzero {

namespace {

enum class Look : uint8_t { unknown, never, if_awaited, always };
constexpr const char *look_names[] = {"unknown", "never", "if_awaited", "always"};

// What `step` answers, added up: trace this frame further; await what the instruction gives, and
// show the next one in any case; show frames of libraries, too.
constexpr long goes_on = 1, awaits = 2, sees_libraries = 4;

// -- instructions ---------------------------------------------------------------------------------

struct Instruction {
    Look look = Look::unknown;
    int depth = 0, count = 0;
    PyObject *entry = nullptr;  // borrowed from `entries`
};

struct Instructions {
    PyObject_HEAD
    PyObject *entries;
    std::vector<Instruction> *all;  // by code unit
};

Instructions *instructions(PyObject *self) {
    return reinterpret_cast<Instructions *>(self);
}

// Read an item of a tuple that is a small number; -1 with the Python error set if it is none.
int number_at(PyObject *tuple, Py_ssize_t k) {
    const long found = PyLong_AsLong(PyTuple_GET_ITEM(tuple, k));
    if (found < 0 || found > INT32_MAX) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a number is out of range");
        return -1;
    }
    return static_cast<int>(found);
}

// Fill `all` from tuples of the same length; -1 with the Python error set on failure.
int read_instructions(std::vector<Instruction> &all, PyObject *looks, PyObject *depths,
                      PyObject *counts, PyObject *entries) {
    const Py_ssize_t size = PyTuple_GET_SIZE(entries);
    for (PyObject *each : {looks, depths, counts}) {
        if (PyTuple_GET_SIZE(each) != size) {
            PyErr_SetString(PyExc_ValueError, "the tuples differ in length");
            return -1;
        }
    }
    all.resize(static_cast<size_t>(size));
    for (Py_ssize_t k = 0; k < size; ++k) {
        const int look = number_at(looks, k), depth = number_at(depths, k),
                  count = number_at(counts, k);
        if (look < 0 || depth < 0 || count < 0) return -1;
        if (look > static_cast<int>(Look::always)) {
            PyErr_SetString(PyExc_ValueError, "no such look");
            return -1;
        }
        all[static_cast<size_t>(k)] = {static_cast<Look>(look), depth, count,
                                       PyTuple_GET_ITEM(entries, k)};
    }
    return 0;
}

PyObject *instructions_new(PyTypeObject *type, PyObject *args, PyObject *) {
    PyObject *looks = nullptr, *depths = nullptr, *counts = nullptr, *entries = nullptr;
    if (!PyArg_ParseTuple(args, "O!O!O!O!:Instructions", &PyTuple_Type, &looks, &PyTuple_Type,
                          &depths, &PyTuple_Type, &counts, &PyTuple_Type, &entries)) {
        return nullptr;
    }
    Ref self = Ref::steal(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    Instructions *made = instructions(self.get());
    made->entries = Ref::borrow(entries).release();
    try {
        made->all = new std::vector<Instruction>();
        if (read_instructions(*made->all, looks, depths, counts, entries) < 0) return nullptr;
    } catch (const std::bad_alloc &) {
        return PyErr_NoMemory();
    }
    return self.release();
}

int instructions_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(instructions(self)->entries);
    return 0;
}

int instructions_clear(PyObject *self) {
    if (instructions(self)->all != nullptr) instructions(self)->all->clear();
    Py_CLEAR(instructions(self)->entries);
    return 0;
}

void instructions_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    instructions_clear(self);
    delete instructions(self)->all;
    type->tp_free(self);
    Py_DECREF(type);
}

PyType_Slot instructions_slots[] = {
    {Py_tp_doc,
     const_cast<char *>("Instructions(looks, depths, counts, entries, /)\n--\n\n"
                        "For each code unit of a code object: when Python sees it, how many values "
                        "are on the stack, how many of them it works on, and what to give `step`.")},
    {Py_tp_new, reinterpret_cast<void *>(instructions_new)},
    {Py_tp_traverse, reinterpret_cast<void *>(instructions_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(instructions_clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(instructions_dealloc)},
    {0, nullptr},
};

PyType_Spec instructions_spec = {
    "tzero._native.Instructions", sizeof(Instructions), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, instructions_slots,
};

// -- following ------------------------------------------------------------------------------------

struct Follower {
    PyObject_HEAD
    PyObject *begin, *step, *leave;
    PyObject *modules;  // names of modules, and whether each is a library's
    PyObject *empty;
    PyTypeObject *stepping;
    bool awaits, sees_libraries;
};

// Traces the instructions of the frames that run one code object.
struct Stepping {
    PyObject_HEAD
    PyObject *follower, *instructions;
};

Follower *follower(PyObject *self) {
    return reinterpret_cast<Follower *>(self);
}

Stepping *stepping(PyObject *self) {
    return reinterpret_cast<Stepping *>(self);
}

// Whether an event of a trace function is this one; all have names of their own.
bool is_event(PyObject *event, const char *name) {
    return PyUnicode_Check(event) && PyUnicode_CompareWithASCIIString(event, name) == 0;
}

// The arguments of a trace function: a frame, an event, and a value that is not used here.
bool read_event(PyObject *args, PyObject *&frame, PyObject *&event) {
    PyObject *value = nullptr;
    return PyArg_ParseTuple(args, "O!OO", &PyFrame_Type, &frame, &event, &value) != 0;
}

// Whether a frame is known to be of a library; -1 with the Python error set on failure.
int is_of_library(Follower *self, PyObject *frame) {
    if (self->sees_libraries) return 0;
    Ref globals = Ref::steal(PyFrame_GetGlobals(reinterpret_cast<PyFrameObject *>(frame)));
    if (!globals) return -1;
    if (!PyDict_Check(globals.get())) return 0;
    PyObject *name = PyDict_GetItemString(globals.get(), "__name__");  // borrowed
    if (name == nullptr || !PyUnicode_CheckExact(name)) return 0;
    PyObject *found = PyDict_GetItemWithError(self->modules, name);
    if (found == nullptr) return PyErr_Occurred() ? -1 : 0;
    return found == Py_True ? 1 : 0;
}

// Let each instruction of a frame be traced by a function, and no lines. CPython 3.13 looks whether a
// frame is traced when the attribute is set, and not later.
int trace_by(PyObject *frame, PyObject *function) {
    if (PyObject_SetAttrString(frame, "f_trace_lines", Py_False) < 0) return -1;
    if (PyObject_SetAttrString(frame, "f_trace", function) < 0) return -1;
    return PyObject_SetAttrString(frame, "f_trace_opcodes", Py_True);
}

PyObject *follower_call(PyObject *object, PyObject *args, PyObject *) {
    Follower *self = follower(object);
    PyObject *frame = nullptr, *event = nullptr;
    if (!read_event(args, frame, event)) return nullptr;
    if (self->begin == nullptr || !is_event(event, "call")) Py_RETURN_NONE;
    const int of_library = is_of_library(self, frame);
    if (of_library < 0) return nullptr;
    if (of_library > 0) Py_RETURN_NONE;
    Ref found = Ref::steal(PyObject_CallOneArg(self->begin, frame));
    if (!found || found.get() == Py_None) return found.release();
    Ref made = Ref::steal(self->stepping->tp_alloc(self->stepping, 0));
    if (!made) return nullptr;
    stepping(made.get())->follower = Ref::borrow(object).release();
    stepping(made.get())->instructions = found.release();
    if (trace_by(frame, made.get()) < 0) return nullptr;
    return made.release();
}

// Show an instruction to Python; returns whether the frame is traced further, -1 for an error.
int show(Follower *self, PyObject *frame, const Instruction &at) {
    Ref values = Ref::steal(frame_values(frame, at.depth, at.count, self->empty));
    PyObject *entry = at.entry;
    if (!values) {  // the frame is not what it should be: Python ends the recording, not the call
        PyErr_Clear();
        entry = Py_None;
        values = Ref::steal(PyTuple_New(0));
        if (!values) return -1;
    }
    PyObject *given[] = {frame, entry, values.get()};
    Ref answer = Ref::steal(PyObject_Vectorcall(self->step, given, 3, nullptr));
    if (!answer) return -1;
    const long flags = PyLong_AsLong(answer.get());
    if (flags < 0) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "`step` gives no such answer");
        return -1;
    }
    self->awaits = (flags & awaits) != 0;
    self->sees_libraries = (flags & sees_libraries) != 0;
    return (flags & goes_on) != 0 ? 1 : 0;
}

// An instruction is about to run; returns as `show`.
int instruct(Follower *self, const std::vector<Instruction> &all, PyObject *frame) {
    const int at = PyFrame_GetLasti(reinterpret_cast<PyFrameObject *>(frame));
    constexpr int unit = 2;  // bytes
    static const Instruction none{Look::unknown, 0, 0, Py_None};
    const auto place = static_cast<size_t>(at / unit);
    const Instruction &found = at >= 0 && place < all.size() ? all[place] : none;
    if (found.look == Look::never) return 1;
    if (found.look == Look::if_awaited && !self->awaits) return 1;
    return show(self, frame, found);
}

PyObject *stepping_call(PyObject *object, PyObject *args, PyObject *) {
    PyObject *frame = nullptr, *event = nullptr;
    if (!read_event(args, frame, event)) return nullptr;
    Ref keep = Ref::borrow(stepping(object)->follower);
    Ref table = Ref::borrow(stepping(object)->instructions);
    if (!keep || !table || follower(keep.get())->step == nullptr) Py_RETURN_NONE;
    Follower *self = follower(keep.get());
    int traced = 1;
    if (is_event(event, "opcode")) {
        traced = instruct(self, *instructions(table.get())->all, frame);
    } else if (is_event(event, "return")) {
        self->awaits = true;  // who called it has the result on its stack next
        Ref left = Ref::steal(PyObject_CallOneArg(self->leave, frame));
        if (!left) return nullptr;
    }
    if (traced < 0) return nullptr;
    return Ref::borrow(traced == 0 ? Py_None : object).release();
}

PyObject *follower_new(PyTypeObject *type, PyObject *args, PyObject *) {
    PyObject *begin = nullptr, *step = nullptr, *leave = nullptr, *modules = nullptr;
    PyObject *empty = nullptr;
    if (!PyArg_ParseTuple(args, "OOOO!O:Follower", &begin, &step, &leave, &PyDict_Type, &modules,
                          &empty)) {
        return nullptr;
    }
    PyObject *module = PyType_GetModule(type);  // borrowed
    if (module == nullptr) return nullptr;
    Ref stepping_type = state_of(module)->stepping;
    if (!stepping_type) {
        PyErr_SetString(PyExc_RuntimeError, "the module is being cleared");
        return nullptr;
    }
    Ref self = Ref::steal(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    Follower *made = follower(self.get());
    made->begin = Ref::borrow(begin).release();
    made->step = Ref::borrow(step).release();
    made->leave = Ref::borrow(leave).release();
    made->modules = Ref::borrow(modules).release();
    made->empty = Ref::borrow(empty).release();
    made->stepping = reinterpret_cast<PyTypeObject *>(stepping_type.release());
    made->awaits = made->sees_libraries = true;
    return self.release();
}

int follower_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Follower *each = follower(self);
    for (PyObject *held : {each->begin, each->step, each->leave, each->modules, each->empty}) {
        Py_VISIT(held);
    }
    Py_VISIT(each->stepping);
    return 0;
}

int follower_clear(PyObject *self) {
    Follower *each = follower(self);
    Py_CLEAR(each->begin);
    Py_CLEAR(each->step);
    Py_CLEAR(each->leave);
    Py_CLEAR(each->modules);
    Py_CLEAR(each->empty);
    Py_CLEAR(each->stepping);
    return 0;
}

int stepping_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(stepping(self)->follower);
    Py_VISIT(stepping(self)->instructions);
    return 0;
}

int stepping_clear(PyObject *self) {
    Py_CLEAR(stepping(self)->follower);
    Py_CLEAR(stepping(self)->instructions);
    return 0;
}

template <int (*clear)(PyObject *)> void dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

PyType_Slot follower_slots[] = {
    {Py_tp_doc, const_cast<char *>("Follower(begin, step, leave, modules, empty, /)\n--\n\n"
                                   "A trace function of the frames that Python wants to see.")},
    {Py_tp_new, reinterpret_cast<void *>(follower_new)},
    {Py_tp_call, reinterpret_cast<void *>(follower_call)},
    {Py_tp_traverse, reinterpret_cast<void *>(follower_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(follower_clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(dealloc<follower_clear>)},
    {0, nullptr},
};

PyType_Spec follower_spec = {
    "tzero._native.Follower", sizeof(Follower), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    follower_slots,
};

PyType_Slot stepping_slots[] = {
    {Py_tp_call, reinterpret_cast<void *>(stepping_call)},
    {Py_tp_traverse, reinterpret_cast<void *>(stepping_traverse)},
    {Py_tp_clear, reinterpret_cast<void *>(stepping_clear)},
    {Py_tp_dealloc, reinterpret_cast<void *>(dealloc<stepping_clear>)},
    {0, nullptr},
};

PyType_Spec stepping_spec = {
    "tzero._native.Stepping", sizeof(Stepping), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, stepping_slots,
};

}  // namespace

int add_following(PyObject *module, State *state) {
    if (add_enum(module, "LOOKS", look_names) < 0) return -1;
    const std::pair<const char *, long> answers[] = {
        {"GOES_ON", goes_on}, {"AWAITS", awaits}, {"SEES_LIBRARIES", sees_libraries}};
    for (const auto &[name, answer] : answers) {
        if (PyModule_AddIntConstant(module, name, answer) < 0) return -1;
    }
    const std::pair<const char *, PyType_Spec *> types[] = {
        {"Instructions", &instructions_spec},
        {"Follower", &follower_spec},
    };
    for (const auto &[name, spec] : types) {
        Ref made = Ref::steal(PyType_FromModuleAndSpec(module, spec, nullptr));
        if (!made || PyModule_AddObjectRef(module, name, made.get()) < 0) return -1;
    }
    state->stepping = Ref::steal(PyType_FromModuleAndSpec(module, &stepping_spec, nullptr));
    return state->stepping ? 0 : -1;
}

}  // namespace tzero
