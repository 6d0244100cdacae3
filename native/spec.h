// One binary and the key it is for: what a hit needs, and nothing else.
#pragma once

#include "python.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "arguments.h"
#include "cuda.h"
#include "enums.h"
#include "memory.h"
#include "shortcut.h"
#include "versions.h"

namespace tzero {

namespace graph {
struct Site;
}

// How a parameter of the compiled kernel is laid out.
#define TZERO_PARAMETER_TYPES(EACH)                                                              \
    EACH(pointer) EACH(boolean) EACH(i8) EACH(u8) EACH(i16) EACH(u16) EACH(i32) EACH(u32)        \
    EACH(i64) EACH(u64) EACH(f16) EACH(bf16) EACH(f32) EACH(f64) EACH(tensor_map)

enum class Type : int { TZERO_PARAMETER_TYPES(TZERO_ENUMERATOR) count };
constexpr const char *type_names[] = {TZERO_PARAMETER_TYPES(TZERO_ENUMERATOR_NAME)};

// Room for a parameter of any type but a tensor map.
constexpr size_t parameter_bytes = 8;

// Copies argument `index` to `offset` in the block of parameters.
struct Move {
    size_t index;
    Type type;
    size_t offset;
};

// The key of a launch, owned elsewhere: the numbers of its environment and form in one word, two
// words for each argument, and the constants that are compared as objects.
struct View {
    const uint64_t *words;
    size_t word_count;
    PyObject *const *constants;
    size_t constant_count;
};

uint64_t hash_of(const uint64_t *words, size_t count);

// Whether these words and constants equal those of the view: 1 or 0, or -1 with the Python error
// set if comparing constants raised.
int is_view(const std::vector<uint64_t> &words, const std::vector<Ref> &constants,
            const View &view);

// The same, of the constants alone.
int same_constants(const std::vector<Ref> &constants, const View &view);

struct Spec {
    std::vector<uint64_t> words;
    std::vector<Ref> constants;  // compared as objects, in order

    // The compiled kernel, and where Triton keeps it.
    Ref kernel, caches, table, key, device;
    Seen device_caches, kernels;  // the dicts on the way to it, when it was last found

    std::unique_ptr<Shortcut> shortcut;  // for the next launch, if it is like the one that was read
    std::string refusal;  // why native code cannot launch this binary; then the rest is empty

    std::vector<Move> moves;
    size_t bytes = 0;
    bool on_cpu = false;

    // On the CPU: tz_run_packed and tz_program of runtime/pool.h, and the launcher that owns both.
    int (*run_packed)(const void *program, const void *packed, const void *spans) = nullptr;
    const void *program = nullptr;
    const void *function = nullptr;
    Ref launcher;
    int64_t work = 0;  // element operations of a program; 0 if unknown

    // On CUDA.
    cuda::Binary binary;
    int device_id = -1;
    Ref name;
    std::shared_ptr<graph::Site> site;  // of launches by itself, once there was one
    std::vector<cuda::TensorMap> maps;
    std::array<ScratchNeed, 2> scratch;  // global, and of a profiler
    bool is_plain = true;                // neither of these

    int32_t first_grid[3] = {0, 0, 0};  // for the mutation tests
    void *first_stream = nullptr;
    bool knows_first_stream = false;

    size_t uses = 1;       // references: the table's, and those of running calls
    bool in_table = false;  // false while a running call uses a dropped spec

    int visit(visitproc visit, void *arg) const;
};

// A reference to a spec during a call, since the table may drop it meanwhile.
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

// Specs by key; the oldest is evicted when the table is full.
class SpecTable {
  public:
    SpecTable() = default;
    SpecTable(const SpecTable &) = delete;
    SpecTable &operator=(const SpecTable &) = delete;
    ~SpecTable() { clear(); }

    // The spec for this view. -1 with the Python error set if comparing constants raised; else
    // 0, and `out` is the spec or null.
    int find(const View &view, Spec **out);

    // The spec that was found last, or null.
    Spec *last() const { return last_; }

    // Those in the table, the oldest first.
    const std::vector<Spec *> &all() const { return in_order_; }

    void add(Spec *spec, size_t most);
    void clear();
    int visit(visitproc visit, void *arg) const;

  private:
    std::unordered_multimap<uint64_t, Spec *> by_hash_;
    std::vector<Spec *> in_order_;
    Spec *last_ = nullptr;
};

// Writes one argument as a parameter of this type; false if its value or type does not fit.
bool put_one(char *at, Type type, const Argument &argument);

// Whether every argument fits its parameter.
bool fits(const Spec &spec, const Argument *arguments);

// Writes the arguments into the block of parameters; false if one does not fit, which Triton
// reports.
bool pack(const Spec &spec, const Argument *arguments, char *block);

}  // namespace tzero
