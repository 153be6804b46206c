"""What is said when the engine is ready."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pelton.config.serving import ServeConfig
from pelton.loader import Checkpoint
from pelton.server.models import own_name

if TYPE_CHECKING:
    from pelton.engine.async_llm import AsyncLLM

_FORMATS = {"gguf": "GGUF", "hf": "safetensors"}


def startup_summary(llm: "AsyncLLM", checkpoint: Checkpoint, config: ServeConfig, urls: Sequence[str]) -> str:
    """Lines for standard error: what is served, how it is computed, and where."""
    names = config.served_model_name or (own_name(llm.model_name),)
    lines = [
        f"Pelton serves {llm.model_name}"
        + (f" as {', '.join(names)}" if list(names) != [llm.model_name] else "")
        + f", contexts of up to {llm.max_model_len} tokens",
        *model_details(llm, checkpoint),
        f"Listening at {', '.join(urls)}",
    ]
    if config.uds is None:
        url = urls[0].replace("://0.0.0.0:", "://127.0.0.1:").replace("://[::]:", "://[::1]:")
        lines.append(f"OpenAI's API: {url}/v1; its description: {url}/openapi.json; web page: {url}/")
    return "\n".join(lines)


def model_details(llm: "AsyncLLM", checkpoint: Checkpoint) -> list[str]:
    """Lines on how the model is computed."""
    infos = llm.core_infos
    cores = "" if len(infos) == 1 else f"{len(infos)} engine cores, each: "
    each = "" if len(infos) == 1 else "each: "
    num_tokens = infos[0].num_blocks * infos[0].block_size
    return [
        f"Model: {checkpoint.config.architecture}, {_FORMATS[checkpoint.format]}, {checkpoint.num_bytes / 1e6:.4g} MB",
        f"Kernels: {cores}{infos[0].description}",
        f"KV cache: {each}{infos[0].num_blocks} blocks, {num_tokens} tokens",
    ]
