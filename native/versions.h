// Whether a dict or a class has changed since it was read. CPython gives each a version number,
// which changes with every modification; what was found earlier holds while the numbers are the
// same.
//
// Up to CPython 3.12 a dict's version is unique among all dicts and all their states. Later
// releases have none: there `version_of` is 0, which never counts as unchanged, and everything is
// read each time.
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

// The version of a dict when it was read.
class Seen {
  public:
    bool is(PyObject *dict) const { return version_ != 0 && version_ == version_of(dict); }
    void set(uint64_t version) { version_ = version; }
    void clear() { version_ = 0; }

  private:
    uint64_t version_ = 0;
};

// The versions of an object's own dict and of its class when they were read.
class SeenObject {
  public:
    bool is(PyObject *object) const {
        if (version_ == 0 || object != object_) return false;
        PyObject **dict = _PyObject_GetDictPtr(object);
        return dict != nullptr && *dict != nullptr && version_of(*dict) == version_ &&
               Py_TYPE(object)->tp_version_tag == class_;
    }

    // Keeps the versions of an object, which the caller keeps alive while `is` is used.
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
