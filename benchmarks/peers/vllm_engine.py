"""vLLM's CPU backend. The model is a folder with config.json and safetensors: export.py makes one of a GGUF file."""

import os


class VLLMEngine:
    def __init__(self, model: str) -> None:
        from vllm import LLM

        self.llm = LLM(
            model=model,
            dtype="bfloat16",
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=2048,
        )

    def prepare(self, num_requests: int, num_tokens: int) -> None:
        pass

    def generate(self, prompts: list[list[int]], num_out: int) -> list[int]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=num_out, ignore_eos=True, detokenize=False)
        outputs = self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]


def create(model: str, num_threads: int) -> VLLMEngine:
    cores = sorted(os.sched_getaffinity(0))[:num_threads]
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", ",".join(map(str, cores)))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "4")  # GiB
    return VLLMEngine(model)
