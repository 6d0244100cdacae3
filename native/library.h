// A shared library that is in the process, or can be: functions by their names.
#pragma once

#include <dlfcn.h>

#include <type_traits>

namespace tzero {

class Library {
  public:
    // Stays open for good: torch has these libraries open too.
    Library(const char *name, int flags) : handle_(dlopen(name, flags)) {}

    explicit operator bool() const { return handle_ != nullptr; }

    // Sets `function` to the function of that name; false if there is none.
    template <typename Function> bool find(const char *name, Function &function) const {
        function = reinterpret_cast<Function>(dlsym(handle_, name));
        return function != nullptr;
    }

  private:
    void *handle_;
};

}  // namespace tzero
