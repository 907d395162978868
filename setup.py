"""Builds the extension modules of kafkalog._native; everything else is in pyproject.toml.

Environment:

- KAFKALOG_DEBUG=1 adds Cython's bounds checks, assertions and debug information.
- KAFKALOG_SANITIZE=1 builds with AddressSanitizer and UBSan; run it by `make sanitize`, which preloads the runtime.
- KAFKALOG_SANITIZE=thread builds with ThreadSanitizer, for a Python that was built with it (`make live-tsan`).
"""

import os
import subprocess
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

from distutils.command.install_data import install_data  # isort: skip  # setuptools provides it

DEBUG = os.environ.get("KAFKALOG_DEBUG") == "1"
SANITIZE = {"1": "address,undefined", "thread": "thread"}.get(os.environ.get("KAFKALOG_SANITIZE", ""))
NATIVE = Path("kafkalog/_native")
# Additional C sources by module; nearly all modules need the checksum.
SOURCES = {"offset_map": [str(NATIVE / "src" / "md5.c")]}
COMMON_SOURCE = str(NATIVE / "src" / "crc32c.c")
DEPENDS = sorted(str(path) for path in [*NATIVE.rglob("*.pxd"), *(NATIVE / "src").glob("*.h")])

if sys.platform == "win32":
    compile_args, link_args = ["/O2"], []
else:
    compile_args = ["-O3", "-fno-strict-aliasing", "-Wall", "-Wno-unused-function", "-Wno-sign-compare"]
    link_args = ["-pthread"]  # pthread_atfork is in this library in older glibc versions
if sys.platform != "win32" and not DEBUG and not SANITIZE:
    # Python's flags request debug information, which is five sixths of the modules' bytes.
    compile_args += ["-g0"]
    link_args += ["-Wl,-S"]
if DEBUG:
    compile_args += ["-O1", "-g", "-UNDEBUG"]
if SANITIZE:
    compile_args += ["-O1", "-g", f"-fsanitize={SANITIZE}", "-fno-sanitize-recover=undefined"]
    link_args += [f"-fsanitize={SANITIZE}"]

# Cython checks whether its sources have changed, but not the directives below.
GENERATED = [path for path in Path("build/cython").rglob("*.c") if path.parent.name != "src"]  # files in src are copies
STALE = any(path.stat().st_mtime < Path(__file__).stat().st_mtime for path in GENERATED)

extensions = [
    Extension(
        f"kafkalog._native.{path.parent.name}.{path.stem}",
        [str(path), *SOURCES.get(path.stem, [])],
        include_dirs=[str(NATIVE / "src")],
        depends=[*DEPENDS, COMMON_SOURCE],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
        define_macros=[("CYTHON_EXTERN_C", 'extern "C"')] if sys.platform == "win32" else [],
    )
    for path in sorted(NATIVE.rglob("*.pyx"))
]


class BuildModules(build_ext):
    """Compiles the common source once: otherwise each of the modules, which are built in parallel, would write its
    object file."""

    def build_extensions(self) -> None:
        common = self.compiler.compile([COMMON_SOURCE], output_dir=self.build_temp, extra_postargs=compile_args)
        for module in self.extensions:
            if SOURCES.keys().isdisjoint(module.name.split(".")):
                module.extra_objects = common
        super().build_extensions()


class InstallShared(install_data):
    """Adds the man pages and the shell completions, which the built commands generate.

    They need the command line's packages, which pyproject.toml lists as requirements of the build.  Without them the
    build still gives a working wheel, and warns about what is missing.
    """

    def run(self) -> None:
        build = self.get_finalized_command("build_ext")
        place = Path(self.get_finalized_command("build").build_base).resolve() / "shared"
        here = "." if build.inplace else self.get_finalized_command("build").build_lib
        path = os.pathsep.join([str(Path(here).resolve()), *sys.path])
        command = [sys.executable, "-m", "kafkalog.cli.shared_files", str(place)]
        done = subprocess.run(command, cwd=place.parent, env={**os.environ, "PYTHONPATH": path})
        if done.returncode:
            self.warn("the wheel has no man pages and completions: python -m kafkalog.cli.shared_files failed")
        else:
            files = [file for file in sorted(place.rglob("*")) if file.is_file()]
            self.data_files = [(str(file.parent.relative_to(place)), [str(file)]) for file in files]
        super().run()


CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

setup(
    options={"build_ext": {"parallel": CORES}},
    cmdclass={"build_ext": BuildModules, "install_data": InstallShared},
    data_files=[("share", [])],  # a wheel has data, which InstallShared lists
    ext_modules=cythonize(
        extensions,
        build_dir="build/cython",
        nthreads=CORES if sys.platform == "linux" else 0,  # elsewhere its processes would import this file again
        force=STALE,
        compiler_directives={
            "language_level": 3,
            "boundscheck": DEBUG,
            "wraparound": False,
            "cdivision": True,
            "initializedcheck": False,
            "embedsignature": True,
            "autotestdict": False,  # no doctests in native modules, so no __test__ either
            # Fields that readers read without the log's lock are written in critical sections, in which Cython (since
            # 3.3 at the latest) also reads them in its getters; tested by make live-threads and make live-tsan.
            "freethreading_compatible": True,
        },
    ),
)
