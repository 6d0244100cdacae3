// One binary and the words it serves: what a hit needs, and nothing else.
#pragma once

#include "python.h"

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "arguments.h"
#include "cuda.h"
#include "versions.h"

namespace tzero {

// How a parameter of the compiled kernel is laid out; the numbers are known to native_launch.py.
enum class Type : int {
    pointer, boolean, i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64, count
};

// From argument `index` to `offset` in the block of parameters.
struct Move {
    size_t index;
    Type type;
    size_t offset;
};

// The words of a launch (which world and way of writing, then two for each argument), and the
// constants that are compared as objects; both lie elsewhere.
struct View {
    const uint64_t *words;
    size_t word_count;
    PyObject *const *constants;
    size_t constant_count;
};

uint64_t hash_of(const uint64_t *words, size_t count);

// Whether these words and constants are those of the view: 1 or 0, or -1 with the Python error set
// if comparing constants raised.
int is_view(const std::vector<uint64_t> &words, const std::vector<Ref> &constants,
            const View &view);

struct Spec {
    std::vector<uint64_t> words;
    std::vector<Ref> constants;  // those that are compared as objects, in order

    // What Triton launched, and where it keeps it.
    Ref kernel, caches, table, key, device;
    Seen device_caches, kernels;  // the dicts that it is found through, when it was

    std::vector<Move> moves;
    size_t bytes = 0;
    bool on_cpu = false;

    // On the CPU: tz_run_packed of the pool, its tz_program, and the launcher that owns both.
    int (*run_packed)(const void *program, const void *packed, const void *spans) = nullptr;
    const void *program = nullptr;
    const void *function = nullptr;
    Ref launcher;
    int64_t work = 0;  // of each program, in element operations; 0: there is no telling

    // On CUDA.
    cuda::Binary binary;
    int device_id = -1;
    Ref name;

    int32_t first_grid[3] = {0, 0, 0};  // for a build that is broken on purpose
    void *first_stream = nullptr;
    bool knows_first_stream = false;

    size_t uses = 1;       // of the table, and of calls that are running
    bool in_table = false;  // a call may still use one that the table has dropped

    int visit(visitproc visit, void *arg) const;
};

// A reference to a spec while a call uses it: the table may drop it meanwhile.
class SpecUse {
  public:
    explicit SpecUse(Spec *spec) : spec_(spec) { ++spec_->uses; }
    SpecUse(const SpecUse &) = delete;
    SpecUse &operator=(const SpecUse &) = delete;
    ~SpecUse() {
        if (--spec_->uses == 0) delete spec_;
    }

  private:
    Spec *spec_;
};

// Specs by their words; the oldest goes when there are too many.
class SpecTable {
  public:
    SpecTable() = default;
    SpecTable(const SpecTable &) = delete;
    SpecTable &operator=(const SpecTable &) = delete;
    ~SpecTable() { clear(); }

    // The spec for this view. -1 with the Python error set if comparing constants raised; else
    // 0, and `out` is the spec or null.
    int find(const View &view, Spec **out);

    void add(Spec *spec, size_t most);
    void clear();
    int visit(visitproc visit, void *arg) const;

  private:
    std::unordered_multimap<uint64_t, Spec *> by_hash_;
    std::vector<Spec *> in_order_;
    Spec *last_ = nullptr;
};

// Writes one argument as a parameter of this type; false if it has a value or a type that the
// parameter cannot take.
bool put_one(char *at, Type type, const Argument &argument);

// Whether every parameter takes the value of its argument.
bool fits(const Spec &spec, const Argument *arguments);

// Writes the arguments where the kernel expects them; false if one has a value or a type that the
// parameter cannot take, which Triton then says.
bool pack(const Spec &spec, const Argument *arguments, char *block);

}  // namespace tzero
