"""OpenVINO GenAI on the CPU. The model is a GGUF file of a Llama or Qwen, in few of the format's types."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino
import openvino_genai
from workloads import MOST_REQUESTS, common_prefix

SHARED_TOKENS = 64
"""A beginning of so many tokens that all prompts share is computed before them: its cache finds it only then."""


class OpenVINOEngine:
    """Continuous batching.

    Settings: `max_num_batched_tokens`, and `properties` of the plugin, by their names.
    """

    def __init__(self, model: str, num_threads: int, settings: Mapping[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 2  # GiB
        scheduler.max_num_seqs = MOST_REQUESTS
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = settings["max_num_batched_tokens"]
        properties = {"INFERENCE_NUM_THREADS": num_threads} | settings["properties"]
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def prepare(self, num_requests: int, num_tokens: int) -> None:
        pass

    def generate(self, prompts: list[list[int]], num_out: int) -> list[int]:
        prefix = common_prefix(prompts)
        if len(prefix) >= SHARED_TOKENS:
            self._run([prefix], 1)
        return self._run(prompts, num_out)

    def _run(self, prompts: list[list[int]], num_out: int) -> list[int]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = num_out, True, False
        tensors = [openvino.Tensor(np.array([ids], np.int64)) for ids in prompts]
        results = self.pipeline.generate(tensors, [config] * len(prompts))
        return [len(result.m_generation_ids[0]) for result in results]


def create(model: str, weight_format: str, num_threads: int, settings: Mapping[str, Any]) -> OpenVINOEngine:
    return OpenVINOEngine(model, num_threads, settings)
