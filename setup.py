"""Builds the optional extension ``tzero._native``; everything else is in pyproject.toml.

Where it cannot be built, tzero is installed without it, with a message. ``TZERO_WERROR=1``, for
development and CI, turns compiler warnings into errors. ``TZERO_PORTABLE=1`` builds for systems
that are older than this one, as ``make wheels`` does.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WARNINGS_ARE_ERRORS = os.environ.get("TZERO_WERROR") == "1"
IS_PORTABLE = os.environ.get("TZERO_PORTABLE") == "1"  # see native/portable.h

if "t" in getattr(sys, "abiflags", ""):
    version = ".".join(map(str, sys.version_info[:2]))
    sys.exit(
        f"tzero relies on the GIL, which this Python {version}t is built without: "
        f"install it into the ordinary build, python{version}."
    )


class BuildNative(build_ext):
    """Passes the package's version to the extension, compiles its files in parallel, and prints why
    it could not be built."""

    def run(self) -> None:
        self.has_symbols = self.inplace or self.editable_mode
        super().run()  # which sets `inplace` to another value for a while

    def build_extension(self, ext: Extension) -> None:
        version = self.distribution.get_version()
        ext.define_macros = [("TZERO_VERSION", f'"{version}"')]
        if IS_PORTABLE:
            ext.define_macros.append(("TZERO_PORTABLE", None))
            ext.extra_link_args += ["-Wl,--no-as-needed", "-l:libdl.so.2"]
        if not self.has_symbols:
            ext.extra_compile_args.append("-g0")
            ext.extra_link_args.append("-Wl,-s")
        one_by_one = self.compiler.compile

        def in_parallel(sources, *args, **kwargs):
            with ThreadPoolExecutor(os.cpu_count()) as threads:
                made = threads.map(lambda each: one_by_one([each], *args, **kwargs), sources)
                return [each for objects in made for each in objects]

        self.compiler.compile = in_parallel
        try:
            super().build_extension(ext)
        except Exception as error:
            # setuptools goes on without an optional extension, and would print less.
            print(
                f"tzero: the native extension was not built ({error}). tzero works without it, "
                "but calls cost more. To build it, install a C++17 compiler and the Python headers "
                "(on Debian: g++ and python3-dev), then reinstall tzero-runtime.",
                file=sys.stderr,
            )
            raise


setup(
    cmdclass={"build_ext": BuildNative},
    ext_modules=[
        Extension(
            "tzero._native",
            sources=sorted(glob("native/*.cpp")),
            depends=[*sorted(glob("native/*.h")), "src/tzero/versions.py", "setup.py"],
            language="c++",
            extra_compile_args=[
                "-std=c++17",
                "-fvisibility=hidden",
                "-O3",  # distributions build Python, and so extensions, with -O2
                "-fno-plt",
                "-g1",  # Python's own flags ask for more, which takes a quarter of the time
                "-Wall",
                "-Wextra",
                *(["-Werror"] if WARNINGS_ARE_ERRORS else []),
            ],
            optional=True,
        )
    ],
)
