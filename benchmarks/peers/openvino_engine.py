"""OpenVINO GenAI on the CPU. The model is a GGUF file of a Llama or Qwen, in few of the format's types."""

import numpy as np
import openvino
import openvino_genai


class OpenVINOEngine:
    """Continuous batching with its own defaults, but for the tokens of a step: 256 of them slow prompts down."""

    def __init__(self, model: str, num_threads: int) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = 2048
        scheduler.cache_size = 2  # GiB
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": num_threads}
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU", properties)

    def prepare(self, num_requests: int, num_tokens: int) -> None:
        pass

    def generate(self, prompts: list[list[int]], num_out: int) -> list[int]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = num_out, True, False
        tensors = [openvino.Tensor(np.array([ids], np.int64)) for ids in prompts]
        results = self.pipeline.generate(tensors, [config] * len(prompts))
        return [len(result.m_generation_ids[0]) for result in results]


def create(model: str, num_threads: int) -> OpenVINOEngine:
    return OpenVINOEngine(model, num_threads)
