"""Compile native/ into one shared library per instruction-set level; does nothing when nothing has changed.

Exit status: 0 the libraries are there; 1 they could not be compiled; 3 there is no C++17 compiler, 4 no CMake or Ninja,
and so no libraries. Needs Python's standard library only. hatch_build.py imports this.
"""

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCES = REPOSITORY / "native"
IN_PLACE = REPOSITORY / "src" / "pelton" / "ops" / "cpu" / "lib"
"""Where an editable installation looks for the libraries."""

FAILED, NO_COMPILER, NO_TOOLS = 1, 3, 4
TOOLS = {"cmake": (3, 20), "ninja": (1, 10)}
"""Name -> oldest version."""

# gcc 10 is the first that knows all of AVX-512 BF16, and 11 is the oldest clang that is worth trying.
PROBE = """
#include <memory>
#include <string_view>
#if defined(__clang__) ? __clang_major__ < 11 : __GNUC__ < 10
#error "too old"
#endif
extern "C" int probe() { return static_cast<int>(std::make_unique<std::string_view>("x")->size()); }
"""
ADVICE = """
    There is no C++17 compiler here (g++ from 10 on, or clang++ from 11 on; CXX=/path/to/one names another), so the
    native kernels are left out. Pelton works without them, but many times slower: its operators are numpy's then.
    To get them, install a compiler and then install Pelton again. On Debian and Ubuntu: apt install g++; on Fedora:
    dnf install gcc-c++; on macOS: xcode-select --install.
"""


def say(text: str) -> None:
    print(f"scripts/build_native.py: {text}", file=sys.stderr, flush=True)


def find_compiler(cross: str = "") -> str | None:
    """Path of a C++ compiler that works and is new enough."""
    names = [f"{cross}-g++"] if cross else [os.environ.get("CXX"), "c++", "g++", "clang++"]
    paths = (shutil.which(name) for name in names if name)
    return next((path for path in paths if path and works(path)), None)


def works(compiler: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="pelton-") as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(PROBE)
        command = [compiler, "-std=c++17", "-shared", "-fPIC", str(source), "-o", str(source.with_suffix(".so"))]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0


def find_tool(name: str) -> str | None:
    """Path of the first on PATH that runs and is new enough.

    A script of another environment does not run while pip builds in one of its own.
    """
    for folder in os.get_exec_path():
        if path := shutil.which(name, path=folder):
            result = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            found = re.search(r"(\d+)\.(\d+)", result.stdout)
            if found and not result.returncode and (int(found[1]), int(found[2])) >= TOOLS[name]:
                return path
    return None


def missing_tools() -> list[str]:
    return [name for name in TOOLS if not find_tool(name)]


def key_of(options: argparse.Namespace) -> str:
    """Changes with everything that the libraries are made from, but for the system's headers."""
    names = [os.environ.get("CXX"), "c++", "g++", "clang++", f"{options.cross}-g++"]
    compilers = [os.path.realpath(path) for name in names if name and (path := shutil.which(name))]
    ages = [(path, os.stat(path).st_mtime_ns) for path in compilers]
    flags = [os.environ.get(name, "") for name in ("CXX", "CXXFLAGS", "LDFLAGS")]
    digest = hashlib.sha256(repr((sorted(vars(options).items()), ages, flags)).encode())
    for source in [Path(__file__).resolve(), *sorted(SOURCES.rglob("*"))]:
        if source.is_file():
            content = source.read_bytes()
            digest.update(f"{source} {len(content)} ".encode() + content)
    return digest.hexdigest()


def run_quietly(command: Sequence[str | Path]) -> bool:
    """Shows standard output on a terminal, where Ninja keeps to one line, and after a failure."""
    if sys.stderr.isatty():
        return subprocess.run(command, stdout=sys.stderr, check=False).returncode == 0
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        sys.stderr.write(result.stdout)
    return result.returncode == 0


def compile_all(options: argparse.Namespace, compiler: str, cmake: str, ninja: str) -> list[Path]:
    """-> the libraries; none if it failed."""
    folder = options.build / "cmake"
    # CMake keeps a folder's first compiler, and what it found out about it.
    fingerprint = f"{compiler} {os.stat(compiler).st_mtime_ns} {os.environ.get('CXXFLAGS')} {os.environ.get('LDFLAGS')}"
    marker = options.build / "compiler"
    if not marker.is_file() or marker.read_text() != fingerprint:
        shutil.rmtree(folder, ignore_errors=True)
        marker.write_text(fingerprint)
    settings = {
        "CMAKE_CXX_COMPILER": compiler,
        "CMAKE_MAKE_PROGRAM": ninja,  # CMake remembers that of an environment of pip, which is gone the next time
        "PELTON_WERROR": "ON" if options.werror else "OFF",
        "PELTON_SANITIZE": "ON" if options.sanitize else "OFF",
        "PELTON_EMULATE_AMX": "ON" if options.emulate_amx else "OFF",
        "PELTON_LEVELS": ";".join(options.levels),
    }
    if options.cross:
        settings |= {"CMAKE_SYSTEM_NAME": "Linux", "CMAKE_SYSTEM_PROCESSOR": options.cross.partition("-")[0]}
    configure = [cmake, "-S", SOURCES, "-B", folder, "-G", "Ninja"]
    if not run_quietly([*configure, *(f"-D{name}={value}" for name, value in settings.items())]):
        return []
    jobs = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not run_quietly([ninja, "-C", folder, "-j", str(jobs)]):
        return []
    return sorted((folder / "lib").glob("libpelton_*.so"))


def install(libraries: Sequence[Path], folder: Path) -> None:
    """Into `folder`, which has no others then. Replaced, never written into: a process may have mapped them."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in libraries}
    for old in folder.glob("libpelton_*.so"):
        if old.name not in names:
            old.unlink()
    for path in libraries:
        new = folder / f".{path.name}.new"
        shutil.copy(path, new)
        new.replace(folder / path.name)


def is_current(stamp: Path, key: str, output: Path) -> bool:
    lines = stamp.read_text().splitlines() if stamp.is_file() else []
    return lines[:1] == [key] and all((output / name).is_file() for name in lines[1:])


def build(options: argparse.Namespace) -> int:
    """-> exit status."""
    stamp = options.build / "built"
    key = key_of(options)
    if is_current(stamp, key, options.output):
        return 0
    compiler = find_compiler(options.cross)
    if not compiler:
        install([], options.output)
        say(ADVICE.strip())
        return NO_COMPILER
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    if not cmake or not ninja:
        say("there is no CMake or no Ninja, or it is too old")
        return NO_TOOLS
    say(f"compiling native/ with {compiler}; the first time takes a minute or two")
    stamp.unlink(missing_ok=True)
    libraries = compile_all(options, compiler, cmake, ninja)
    if not libraries:
        say("native/ could not be compiled; see above")
        return FAILED
    install(libraries, options.output)
    stamp.write_text("\n".join([key, *(path.name for path in libraries)]) + "\n")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=IN_PLACE, help="folder of the libraries (default: in src/)")
    parser.add_argument("--build", type=Path, default=REPOSITORY / "build" / "native", help="folder of object files")
    parser.add_argument("--werror", action="store_true", help="a warning is an error")
    parser.add_argument("--levels", nargs="+", default=[], metavar="LEVEL", help="no others than these")
    parser.add_argument("--emulate-amx", action="store_true", help="the level amx, for processors without; not avx2")
    parser.add_argument("--sanitize", action="store_true", help="with AddressSanitizer and UndefinedBehaviorSanitizer")
    parser.add_argument("--cross", default="", metavar="TRIPLE", help="for another processor: aarch64-linux-gnu")
    options = parser.parse_args(arguments)
    options.output, options.build = options.output.resolve(), options.build.resolve()
    options.build.mkdir(parents=True, exist_ok=True)
    with (options.build / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build(options)


if __name__ == "__main__":
    sys.exit(main())
