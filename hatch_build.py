"""Build hook: a wheel gets the native libraries, an editable installation gets them in src/.

Without a C++ compiler the installation goes through as pure Python, with a message (pip shows it with -v only);
sources that do not compile fail it. PELTON_SKIP_NATIVE=1 leaves the libraries out: scripts/setup, whose messages pip
does not hide, compiles them itself.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

sys.path.insert(0, str(Path(__file__).parent / "scripts"))
import build_native

PACKAGE_FOLDER = "pelton/ops/cpu/lib"


class NativeLibraries(BuildHookInterface[Any]):
    """Calls scripts/build_native.py."""

    def dependencies(self) -> list[str]:
        """What pip installs for the build, where the system has no CMake or no Ninja of its own."""
        if self.is_skipped() or not build_native.find_compiler():
            return []
        missing = build_native.missing_tools()
        return [text for text in self.metadata.core.optional_dependencies["native"] if text.startswith(tuple(missing))]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.is_skipped():
            return
        if version == "editable":
            self.build([])
            return
        self.work = tempfile.TemporaryDirectory(prefix="pelton-build-")
        output = Path(self.work.name, "lib")
        self.build(["--output", str(output), "--build", self.work.name])
        libraries = sorted(output.glob("*.so"))
        build_data["force_include"] |= {str(path): f"{PACKAGE_FOLDER}/{path.name}" for path in libraries}
        if libraries:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{own_platform()}"  # loaded by ctypes: any Python will do

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "work"):
            self.work.cleanup()

    def is_skipped(self) -> bool:
        return self.target_name != "wheel" or os.environ.get("PELTON_SKIP_NATIVE", "0") == "1"

    def build(self, arguments: list[str]) -> None:
        status = build_native.main(arguments)
        if status not in (0, build_native.NO_COMPILER):
            raise SystemExit(status)


def own_platform() -> str:
    """This machine's platform tag. What older systems a wheel runs on is for auditwheel to find out (make wheel)."""
    return next(tag for tag in platform_tags() if not tag.startswith(("manylinux", "musllinux")))
