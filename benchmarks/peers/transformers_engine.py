"""transformers: one padded batch through `generate`, which is its fastest way on a CPU for requests of one length.

The model is a folder with config.json and safetensors: export.py makes one of a GGUF file.
"""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM, DynamicCache
from workloads import common_prefix

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
SHARED_TOKENS = 64
"""A beginning that all prompts share is computed once from so many tokens on."""


class TransformersEngine:
    """Settings: `attn_implementation`."""

    def __init__(self, model: str, weight_format: str, num_threads: int, settings: Mapping[str, Any]) -> None:
        torch.set_num_threads(num_threads)
        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=DTYPES[weight_format], **settings).eval()

    def prepare(self, num_requests: int, num_tokens: int) -> None:
        pass

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], num_out: int) -> list[int]:
        ids = torch.tensor(prompts)
        given = {"attention_mask": torch.ones_like(ids), "past_key_values": self._shared(prompts)}
        output = self.model.generate(ids, **given, do_sample=False, max_new_tokens=num_out)
        return [output.shape[1] - ids.shape[1]] * len(prompts)

    def _shared(self, prompts: list[list[int]]) -> DynamicCache | None:
        """The cache of what all prompts begin with, once for each of them; None if that is little."""
        prefix = common_prefix(prompts)
        if len(prefix) < SHARED_TOKENS:
            return None
        cache = DynamicCache(config=self.model.config)
        self.model(torch.tensor([prefix]), past_key_values=cache, logits_to_keep=1)
        cache.batch_repeat_interleave(len(prompts))
        return cache


def create(model: str, weight_format: str, num_threads: int, settings: Mapping[str, Any]) -> TransformersEngine:
    return TransformersEngine(model, weight_format, num_threads, settings)
