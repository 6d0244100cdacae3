// Whether something may have changed since it was looked at: CPython counts the changes to each dict,
// and to each class. What was found to hold then holds while the numbers are the same.
//
// Up to 3.12 a dict has a number that no other dict, and no other state of this one, has or will have.
// Later ones keep none: there `version_of` is 0, which is never taken for "the same", and everything is
// looked at each time.
#pragma once

#include "python.h"

#include <cstdint>

namespace tzero {

#if PY_VERSION_HEX < 0x030D0000
inline uint64_t version_of(PyObject *dict) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    return reinterpret_cast<PyDictObject *>(dict)->ma_version_tag;
#pragma GCC diagnostic pop
}
#else
inline uint64_t version_of(PyObject *) { return 0; }
#endif

// A dict's version when something was found out about it.
class Seen {
  public:
    bool is(PyObject *dict) const { return version_ != 0 && version_ == version_of(dict); }
    void set(uint64_t version) { version_ = version; }
    void clear() { version_ = 0; }

  private:
    uint64_t version_ = 0;
};

// An object whose attributes are its own dict's and its class's: the versions of both.
class SeenObject {
  public:
    bool is(PyObject *object) const {
        if (version_ == 0 || object != object_) return false;
        PyObject **dict = _PyObject_GetDictPtr(object);
        return dict != nullptr && *dict != nullptr && version_of(*dict) == version_ &&
               Py_TYPE(object)->tp_version_tag == class_;
    }

    // Takes note of an object, which the caller keeps alive as long as this is asked.
    void set(PyObject *object) {
        version_ = 0;
        PyObject **dict = _PyObject_GetDictPtr(object);
        const unsigned tag = Py_TYPE(object)->tp_version_tag;
        if (dict == nullptr || *dict == nullptr || !PyDict_CheckExact(*dict) || tag == 0) return;
        object_ = object;
        class_ = tag;
        version_ = version_of(*dict);
    }

    bool known() const { return version_ != 0; }
    void clear() { version_ = 0; }

  private:
    PyObject *object_ = nullptr;
    unsigned class_ = 0;
    uint64_t version_ = 0;
};

}  // namespace tzero
