// A shared library, and its functions by name.
#pragma once

#include <dlfcn.h>

#include <type_traits>

namespace tzero {

class Library {
  public:
    // Never closed: torch keeps these libraries open anyway.
    Library(const char *name, int flags) : handle_(dlopen(name, flags)) {}

    explicit operator bool() const { return handle_ != nullptr; }

    // Sets `function` to the symbol of that name; false if there is none.
    template <typename Function> bool find(const char *name, Function &function) const {
        function = reinterpret_cast<Function>(dlsym(handle_, name));
        return function != nullptr;
    }

  private:
    void *handle_;
};

}  // namespace tzero
