"""Pelton itself, with its own defaults."""

from collections.abc import Mapping
from typing import Any

from engines import PELTON_FORMATS
from workloads import MOST_TOKENS

from pelton import LLM, SamplingParams


class PeltonEngine:
    def __init__(self, model: str, weight_format: str, num_threads: int, settings: Mapping[str, Any]) -> None:
        arguments = {
            "num_threads": num_threads,
            "max_model_len": MOST_TOKENS,
            **PELTON_FORMATS[weight_format],
            **settings,
        }
        self.llm = LLM(model=model, **arguments)

    def prepare(self, num_requests: int, num_tokens: int) -> None:
        pass

    def generate(self, prompts: list[list[int]], num_out: int) -> list[int]:
        params = SamplingParams(temperature=0, max_tokens=num_out, ignore_eos=True, detokenize=False)
        outputs = self.llm.generate(prompts, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


def create(model: str, weight_format: str, num_threads: int, settings: Mapping[str, Any]) -> PeltonEngine:
    return PeltonEngine(model, weight_format, num_threads, settings)
