"""vLLM's CPU backend. The model is a folder with config.json and safetensors: export.py makes one of a GGUF file."""

from collections.abc import Mapping
from typing import Any

from workloads import MOST_REQUESTS, MOST_TOKENS

DTYPES = {"bf16": "bfloat16", "fp32": "float32"}


class VLLMEngine:
    """`settings` are arguments of its `LLM`. Threads and cache are set in the environment (engines.py)."""

    def __init__(self, model: str, weight_format: str, settings: Mapping[str, Any]) -> None:
        from vllm import LLM

        self.llm = LLM(
            model=model,
            dtype=DTYPES[weight_format],
            skip_tokenizer_init=True,
            max_model_len=MOST_TOKENS,
            max_num_seqs=MOST_REQUESTS,
            **settings,
        )

    def prepare(self, num_requests: int, num_tokens: int) -> None:
        pass

    def generate(self, prompts: list[list[int]], num_out: int) -> list[int]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=num_out, ignore_eos=True, detokenize=False)
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


def create(model: str, weight_format: str, num_threads: int, settings: Mapping[str, Any]) -> VLLMEngine:
    return VLLMEngine(model, weight_format, settings)
