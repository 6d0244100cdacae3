// Owned references and the interpreter's headers; everything in native/ includes this first.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <utility>

#include "portable.h"

// torch throws exceptions through code in here, and passes its own C++ types.
#ifndef __GLIBCXX__
#error "tzero needs the C++ library that torch is built with, libstdc++: use g++ (CXX=g++)"
#endif

namespace tzero {

// An owned reference, released when it goes out of scope. Copies take another reference.
class Ref {
  public:
    Ref() = default;
    Ref(const Ref &other) : object_(other.object_) { Py_XINCREF(object_); }
    Ref(Ref &&other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    ~Ref() { Py_XDECREF(object_); }

    Ref &operator=(Ref other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }

    // Takes over a reference that the caller owns.
    static Ref steal(PyObject *object) {
        Ref made;
        made.object_ = object;
        return made;
    }

    // Takes another reference.
    static Ref borrow(PyObject *object) {
        Py_XINCREF(object);
        return steal(object);
    }

    PyObject *get() const { return object_; }
    PyObject *release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

    // Drops the reference now. The field is empty before the object's destructor runs.
    void clear() { Py_CLEAR(object_); }

  private:
    PyObject *object_ = nullptr;
};

}  // namespace tzero
