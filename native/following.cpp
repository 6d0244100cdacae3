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
#include "monitoring.h"
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
    PyObject *among;    // a tuple of dicts by the ids of code objects that are shown in libraries too
    PyObject *empty;
    PyTypeObject *stepping;
    const Names *names;  // of the module that the type keeps
    bool awaits, sees_libraries;
};

// What a followed frame has as its `f_trace`: who follows it, and the instructions of its code.
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

// Whether a frame runs code that is shown in any case; -1 with the Python error set on failure.
int runs_shown_code(Follower *self, PyFrameObject *frame) {
    Ref code = Ref::steal(reinterpret_cast<PyObject *>(PyFrame_GetCode(frame)));
    Ref id = Ref::steal(PyLong_FromVoidPtr(code.get()));
    if (!id) return -1;
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(self->among); ++k) {
        const int found = PyDict_Contains(PyTuple_GET_ITEM(self->among, k), id.get());
        if (found != 0) return found;
    }
    return 0;
}

// Whether a frame is known to be of a library; -1 with the Python error set on failure.
int is_of_library(Follower *self, PyFrameObject *frame) {
    if (self->sees_libraries) return 0;
    Ref globals = Ref::steal(PyFrame_GetGlobals(frame));
    if (!globals) return -1;
    if (!PyDict_Check(globals.get())) return 0;
    PyObject *name = PyDict_GetItemWithError(globals.get(), self->names->function_name.get());  // borrowed
    if (name == nullptr || !PyUnicode_CheckExact(name)) return PyErr_Occurred() ? -1 : 0;
    PyObject *found = PyDict_GetItemWithError(self->modules, name);
    if (found == nullptr) return PyErr_Occurred() ? -1 : 0;
    return found == Py_True ? 1 : 0;
}

// Let each instruction of a frame be shown, and no lines. CPython 3.13 looks whether a frame is traced
// when the attribute is set, and not later.
int trace_by(const Names &names, PyFrameObject *frame, PyObject *stepping) {
    PyObject *object = reinterpret_cast<PyObject *>(frame);
    if (is_monitored()) {
        if (PyObject_SetAttr(object, names.f_trace.get(), stepping) < 0) return -1;
        return monitor_code_of(frame);
    }
    if (PyObject_SetAttr(object, names.f_trace_lines.get(), Py_False) < 0) return -1;
    if (PyObject_SetAttr(object, names.f_trace.get(), stepping) < 0) return -1;
    return PyObject_SetAttr(object, names.f_trace_opcodes.get(), Py_True);
}

// A frame begins or goes on; 0, or -1 with the Python error set.
int begin(PyObject *object, PyFrameObject *frame) {
    Follower *self = follower(object);
    const int of_library = is_of_library(self, frame);
    if (of_library < 0) return -1;
    const int is_shown = of_library > 0 ? runs_shown_code(self, frame) : 1;
    if (is_shown <= 0) return is_shown;
    Ref found = Ref::steal(PyObject_CallOneArg(self->begin, reinterpret_cast<PyObject *>(frame)));
    if (!found) return -1;
    if (found.get() == Py_None) return 0;
    Ref made = Ref::steal(self->stepping->tp_alloc(self->stepping, 0));
    if (!made) return -1;
    stepping(made.get())->follower = Ref::borrow(object).release();
    stepping(made.get())->instructions = found.release();
    return trace_by(*self->names, frame, made.get());
}

// Show an instruction to Python; 0, or -1 with the Python error set.
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
    return 0;
}

// An instruction is about to run; returns as `show`.
int instruct(Follower *self, const std::vector<Instruction> &all, PyFrameObject *frame) {
    const int at = PyFrame_GetLasti(frame);
    constexpr int unit = 2;  // bytes
    static const Instruction none{Look::unknown, 0, 0, Py_None};
    const auto place = static_cast<size_t>(at / unit);
    const Instruction &found = at >= 0 && place < all.size() ? all[place] : none;
    if (found.look == Look::never) return 0;
    if (found.look == Look::if_awaited && !self->awaits) return 0;
    return show(self, reinterpret_cast<PyObject *>(frame), found);
}

// What a frame has if this follower follows it, else nothing; -1 with the Python error set on failure.
int stepping_of(PyObject *object, PyFrameObject *frame, Ref &found) {
    const Follower *self = follower(object);
    found = Ref::steal(
        PyObject_GetAttr(reinterpret_cast<PyObject *>(frame), self->names->f_trace.get()));
    if (!found) return -1;
    const bool is_ours = Py_IS_TYPE(found.get(), self->stepping) &&
                         stepping(found.get())->follower == object &&
                         stepping(found.get())->instructions != nullptr;
    if (!is_ours) found = Ref();
    return 0;
}

PyObject *follower_new(PyTypeObject *type, PyObject *args, PyObject *) {
    PyObject *begin = nullptr, *step = nullptr, *leave = nullptr, *modules = nullptr;
    PyObject *among = nullptr, *empty = nullptr;
    if (!PyArg_ParseTuple(args, "OOOO!O!O:Follower", &begin, &step, &leave, &PyDict_Type, &modules,
                          &PyTuple_Type, &among, &empty)) {
        return nullptr;
    }
    for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(among); ++k) {
        if (!PyDict_Check(PyTuple_GET_ITEM(among, k))) {
            PyErr_SetString(PyExc_TypeError, "the codes are no dicts");
            return nullptr;
        }
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
    made->among = Ref::borrow(among).release();
    made->empty = Ref::borrow(empty).release();
    made->stepping = reinterpret_cast<PyTypeObject *>(stepping_type.release());
    made->names = &state_of(module)->names;
    made->awaits = made->sees_libraries = true;
    return self.release();
}

int follower_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Follower *each = follower(self);
    for (PyObject *held : {each->begin, each->step, each->leave, each->modules, each->among, each->empty}) {
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
    Py_CLEAR(each->among);
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

// A debugger that begins later finds it in a frame that was followed, and calls it.
PyObject *stepping_call(PyObject *, PyObject *, PyObject *) {
    Py_RETURN_NONE;
}

PyType_Slot follower_slots[] = {
    {Py_tp_doc, const_cast<char *>("Follower(begin, step, leave, modules, among, empty, /)\n--\n\n"
                                   "A trace function of the frames that Python wants to see, for "
                                   "Traced alone.")},
    {Py_tp_new, reinterpret_cast<void *>(follower_new)},
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

int follow(PyObject *object, PyFrameObject *frame, int event, PyObject *) {
    Follower *self = follower(object);
    if (self->begin == nullptr) return 0;
    if (event == PyTrace_CALL) return begin(object, frame);
    if (event != PyTrace_OPCODE && event != PyTrace_RETURN) return 0;
    Ref found;
    if (stepping_of(object, frame, found) < 0) return -1;
    if (!found) return 0;
    if (event == PyTrace_OPCODE) {
        Ref table = Ref::borrow(stepping(found.get())->instructions);
        return instruct(self, *instructions(table.get())->all, frame);
    }
    self->awaits = true;  // who called it has the result on its stack next
    return Ref::steal(PyObject_CallOneArg(self->leave, reinterpret_cast<PyObject *>(frame))) ? 0 : -1;
}

bool is_follower(const State &state, PyObject *object) {
    return Py_IS_TYPE(object, reinterpret_cast<PyTypeObject *>(state.follower.get()));
}

int add_following(PyObject *module, State *state) {
    if (add_enum(module, "LOOKS", look_names) < 0) return -1;
    const std::pair<const char *, long> answers[] = {
        {"GOES_ON", goes_on}, {"AWAITS", awaits}, {"SEES_LIBRARIES", sees_libraries}};
    for (const auto &[name, answer] : answers) {
        if (PyModule_AddIntConstant(module, name, answer) < 0) return -1;
    }
    Ref made = Ref::steal(PyType_FromModuleAndSpec(module, &instructions_spec, nullptr));
    if (!made || PyModule_AddObjectRef(module, "Instructions", made.get()) < 0) return -1;
    state->follower = Ref::steal(PyType_FromModuleAndSpec(module, &follower_spec, nullptr));
    if (!state->follower || PyModule_AddObjectRef(module, "Follower", state->follower.get()) < 0) {
        return -1;
    }
    state->stepping = Ref::steal(PyType_FromModuleAndSpec(module, &stepping_spec, nullptr));
    return state->stepping ? 0 : -1;
}

}  // namespace tzero
