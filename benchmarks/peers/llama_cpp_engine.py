"""llama.cpp through its Python bindings: all sequences in one batch, as its server does. The model is a GGUF file."""

import ctypes

import llama_cpp
import numpy as np

BATCH = 2048
"""Tokens of a call; its own batch of 512 is what is computed at a time."""


@llama_cpp.llama_log_callback
def _silence(level, text, data):
    pass


class LlamaCppEngine:
    """A context with a sequence for each request, as long as they get."""

    def __init__(self, model: str, num_threads: int) -> None:
        llama_cpp.llama_log_set(_silence, ctypes.c_void_p())
        llama_cpp.llama_backend_init()
        self.num_threads = num_threads
        self.model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        assert self.model, f"llama.cpp cannot load {model}"
        self.num_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        self.context = None

    def prepare(self, num_requests: int, num_tokens: int) -> None:
        if self.context:
            llama_cpp.llama_free(self.context)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = num_requests * -(-num_tokens // 256) * 256
        params.n_batch, params.n_ubatch, params.n_seq_max = BATCH, 512, num_requests
        params.n_threads = params.n_threads_batch = self.num_threads
        params.kv_unified = False
        self.context = llama_cpp.llama_init_from_model(self.model, params)

    def generate(self, prompts: list[list[int]], num_out: int) -> list[int]:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        last = len(prompts[0]) - 1
        entries = [(token, p, s, p == last) for s, ids in enumerate(prompts) for p, token in enumerate(ids)]
        tokens = self._decode(entries)
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
            assert llama_cpp.llama_decode(self.context, self.batch) == 0
            if num_rows := sum(entry[3] for entry in part):
                logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (num_rows, self.num_vocab))
                found += logits.argmax(axis=1).tolist()
        return found


def create(model: str, num_threads: int) -> LlamaCppEngine:
    return LlamaCppEngine(model, num_threads)
