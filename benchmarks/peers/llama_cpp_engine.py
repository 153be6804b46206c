"""llama.cpp through its Python bindings: all sequences in one batch, as its server does. The model is a GGUF file."""

import ctypes
from collections.abc import Mapping
from typing import Any

import llama_cpp
import numpy as np
from workloads import common_prefix

BATCH = 2048
"""Tokens of a call; `ubatch` of them are computed at a time."""
SHARED_TOKENS = 64
"""A beginning that all prompts share is computed once from so many tokens on."""


@llama_cpp.llama_log_callback
def _silence(level, text, data):
    pass


class LlamaCppEngine:
    """A context with a sequence for each request, as long as they get.

    Settings: `ubatch`, `flash_attention` and `cache_type` ("f16", "q8_0"), as flags of its programs have them.
    """

    def __init__(self, model: str, num_threads: int, settings: Mapping[str, Any]) -> None:
        llama_cpp.llama_log_set(_silence, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        self.num_threads = num_threads
        self.settings = settings
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {model}")
        self.num_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self.context = None

    def prepare(self, num_requests: int, num_tokens: int) -> None:
        if self.context:
            llama_cpp.llama_free(self.context)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = num_requests * -(-num_tokens // 256) * 256
        params.n_batch, params.n_ubatch, params.n_seq_max = BATCH, self.settings["ubatch"], num_requests
        params.n_threads = params.n_threads_batch = self.num_threads
        params.flash_attn_type = int(self.settings["flash_attention"])
        params.type_k = params.type_v = getattr(llama_cpp, f"GGML_TYPE_{self.settings['cache_type'].upper()}")
        params.kv_unified = False
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError(f"llama.cpp makes no context with {dict(self.settings)}")

    def generate(self, prompts: list[list[int]], num_out: int) -> list[int]:
        memory = llama_cpp.llama_get_memory(self.context)
        llama_cpp.llama_memory_clear(memory, True)
        prefix = common_prefix(prompts)
        if len(prefix) < SHARED_TOKENS:
            prefix = []
        self._decode([(token, p, 0, False) for p, token in enumerate(prefix)])
        for sequence in range(1, len(prompts)):
            llama_cpp.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        first, last = len(prefix), len(prompts[0]) - 1
        own = [(s, p, ids[p]) for s, ids in enumerate(prompts) for p in range(first, len(ids))]
        tokens = self._decode([(token, p, s, p == last) for s, p, token in own])
        lengths = [1] * len(tokens)
        for step in range(1, num_out):
            tokens = self._decode([(token, last + step, s, True) for s, token in enumerate(tokens)])
            lengths = [length + 1 for length in lengths]
        return lengths

    def _decode(self, entries: list[tuple[int, int, int, bool]]) -> list[int]:
        """entries: token, position, sequence, wants logits. -> the best token of each that wants logits.

        numpy finds it, many times faster than llama.cpp's sampler, which copies all logits.
        """
        found: list[int] = []
        for start in range(0, len(entries), BATCH):
            part = entries[start : start + BATCH]
            self.batch.n_tokens = len(part)
            for i, (token, position, sequence, wants) in enumerate(part):
                self.batch.token[i], self.batch.pos[i], self.batch.logits[i] = token, position, wants
                self.batch.n_seq_id[i], self.batch.seq_id[i][0] = 1, sequence
            if status := llama_cpp.llama_decode(self.context, self.batch):
                raise RuntimeError(f"llama_decode gives {status}")
            if num_rows := sum(entry[3] for entry in part):
                logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (num_rows, self.num_vocab))
                found += logits.argmax(axis=1).tolist()
        return found


def create(model: str, weight_format: str, num_threads: int, settings: Mapping[str, Any]) -> LlamaCppEngine:
    return LlamaCppEngine(model, num_threads, settings)
