"""A native library uses its level's instructions only, shows the C interface only, and needs nothing but libc."""

import itertools
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pelton

FOLDER = Path(pelton.__file__).parent / "ops" / "cpu" / "lib"
LEVELS = ("portable", "avx2", "avx512", "amx") if platform.machine() in ("x86_64", "AMD64") else ("portable",)
NEEDED = re.compile(r"(libc|libm|libpthread|ld-linux-[\w-]+)\.so\.\d+")

PREFIXES = {0x26, 0x2E, 0x36, 0x3E, 0x64, 0x65, 0x66, 0x67, 0xF0, 0xF2, 0xF3}
REX = range(0x40, 0x50)
VEX, EVEX = {0xC4, 0xC5}, {0x62}  # in 64-bit code these bytes mean nothing else
BEYOND_SSE2 = re.compile(  # in the opcode map of SSE2; all that came later but AVX is in two maps of its own
    r"addsubp[sd]|haddp[sd]|hsubp[sd]|lddqu|movddup|movs[hl]dup|fisttp\w*|monitor|mwait|popcnt|lzcnt|extrq|insertq|movnts[sd]"
    r"|cmpxchg16b"
)
MATRICES = r"tile\w+|tdp\w+|ldtilecfg|sttilecfg"
BEYOND_AVX512 = re.compile(MATRICES)
BEYOND_AVX2 = re.compile(  # without EVEX
    r"k\w+|v?aes\w+|v?pclmul\w+|v?gf2p8\w+|sha\d\w+|vsha512\w+|vsm[34]\w+|vpdp\w+|vpmadd52\w+|vcvtne\w+|vbcstne\w+"
    rf"|{MATRICES}|lzcnt|extrq|insertq|movnts[sd]|ad[co]x\w?|rdseed"
)


def library(level: str) -> Path:
    path = FOLDER / f"libpelton_{level}.so"
    if not path.is_file():
        # Continuous integration has a compiler that knows every level.
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{path} was not compiled: scripts/setup says why")
    return path


def output_of(tool: str, *arguments: str | Path) -> str:
    if not shutil.which(tool):
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"needs {tool} (Debian: apt install binutils)")
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout


def instructions(path: Path) -> Iterator[tuple[list[int], str]]:
    """-> bytes and text of every instruction."""
    listing = output_of("objdump", "--disassemble", "--insn-width=15", path)
    for match in re.finditer(r"^ *[0-9a-f]+:\t((?:[0-9a-f]{2} )+) *\t(.*)$", listing, re.MULTILINE):
        yield [int(byte, 16) for byte in match[1].split()], match[2]


def is_beyond(level: str, code: list[int], text: str) -> bool:
    """Whether a processor of x86-64's `level` may not know this instruction."""
    start = 0
    while code[start] in PREFIXES and start < len(code) - 1:
        start += 1
    first, *rest = code[start:]
    names = text.split()  # prefixes come first
    if level == "avx512":
        return any(BEYOND_AVX512.fullmatch(name) for name in names)
    if level == "avx2":
        return first in EVEX or any(BEYOND_AVX2.fullmatch(name) for name in names)
    if first in REX:
        first, *rest = rest or [0]
    later_map = first == 0x0F and rest[0] in (0x38, 0x3A)
    return first in VEX | EVEX or later_map or any(BEYOND_SSE2.fullmatch(name) for name in names)


@cache
def beyond(path: Path) -> dict[str, list[str]]:
    """Level -> instructions of a library that its processors may not know; of all levels but the highest."""
    found: dict[str, list[str]] = {level: [] for level in LEVELS[:-1]}
    num_instructions = 0
    for code, text in instructions(path):
        num_instructions += 1
        for level, texts in found.items():
            if is_beyond(level, code, text):
                texts.append(text)
    assert num_instructions > 1000, f"{path}: objdump's output was not understood"
    return found


x86_only = pytest.mark.skipif(len(LEVELS) == 1, reason="levels are of x86-64")


@x86_only
@pytest.mark.parametrize("level", LEVELS[:-1])
def test_instructions_are_of_the_level(level: str) -> None:
    found = beyond(library(level))[level]
    assert not found, f"{len(found)} instructions, such as {found[:10]}"


@x86_only
@pytest.mark.parametrize(("level", "higher"), list(itertools.combinations(LEVELS, 2)))
def test_instructions_of_a_higher_level_are_found(level: str, higher: str) -> None:
    assert beyond(library(higher))[level]


@pytest.mark.parametrize(
    ("code", "text", "levels"),
    [
        ("0f 58 c1", "addps %xmm1,%xmm0", ""),
        ("f3 0f bc c7", "tzcnt %edi,%eax", ""),  # on an old processor bsf, which is what compilers mean then
        ("66 44 0f 38 00 c1", "pshufb %xmm1,%xmm8", "portable"),
        ("f2 0f 7c c1", "haddps %xmm1,%xmm0", "portable"),
        ("f3 48 0f b8 c7", "popcnt %rdi,%rax", "portable"),
        ("c5 f4 58 c2", "vaddps %ymm2,%ymm1,%ymm0", "portable"),
        ("c4 e2 75 98 c2", "vfmadd132ps %ymm2,%ymm1,%ymm0", "portable"),
        ("c5 f8 92 c0", "kmovw %eax,%k0", "portable avx2"),
        ("c4 e2 75 50 c2", "{vex} vpdpbusd %ymm2,%ymm1,%ymm0", "portable avx2"),
        ("62 f1 74 48 58 c2", "vaddps %zmm2,%zmm1,%zmm0", "portable avx2"),
        ("62 b1 74 28 58 c2", "vaddps %ymm18,%ymm1,%ymm0", "portable avx2"),
        ("67 62 f1 7c 48 10 00", "vmovups (%eax),%zmm0", "portable avx2"),
        ("c4 e2 6a 5c c1", "tdpbf16ps %tmm2,%tmm1,%tmm0", "portable avx2 avx512"),
        ("c4 e2 78 49 c0", "tilerelease", "portable avx2 avx512"),
    ],
)
def test_instructions_that_are_told_apart(code: str, text: str, levels: str) -> None:
    encoded = [int(byte, 16) for byte in code.split()]
    assert [level for level in ("portable", "avx2", "avx512") if is_beyond(level, encoded, text)] == levels.split()


@pytest.mark.skipif(platform.system() != "Linux", reason="reads ELF files")
@pytest.mark.parametrize("level", LEVELS)
def test_only_the_c_interface_is_exported(level: str) -> None:
    names = [line.split()[-1] for line in output_of("nm", "-D", "--defined-only", library(level)).splitlines()]
    assert names
    assert not [name for name in names if not name.startswith("pelton_")]


@pytest.mark.skipif(platform.system() != "Linux", reason="reads ELF files")
@pytest.mark.parametrize("level", LEVELS)
def test_nothing_but_libc_is_needed(level: str) -> None:
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", output_of("readelf", "--dynamic", library(level)))
    assert needed
    assert not [name for name in needed if not NEEDED.fullmatch(name)]
