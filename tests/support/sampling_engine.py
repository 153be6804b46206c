"""A whole engine whose sampling is real and whose logits are exact.

The fake model's hash of what a request has in the cache becomes a row of logits; the real head program samples from it.
No sum is rounded differently in another batch, so outputs must be equal bit by bit, whatever runs beside a request.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from pelton import SamplingParams
from pelton.config import EngineArgs
from pelton.core.kv_spec import KVCacheGroup
from pelton.core.outputs import RequestOutput
from pelton.engine.core_client import InprocClient
from pelton.engine.engine_core import EngineCore
from pelton.engine.input_processor import InputProcessor, Prompt
from pelton.engine.llm_engine import LLMEngine
from pelton.engine.output_processor import OutputProcessor
from pelton.engine.vocabulary import TokenizerVocabulary
from pelton.grammar import StructuredOutputManager
from pelton.ops.interpreter import NumpyBackend
from pelton.runner.head import ReplayedHead
from pelton.runner.input_batch import StepInputs
from pelton.runner.step_limits import StepLimits
from pelton.runner.step_results import StepResults
from pelton.sampling.logits_processor import LogitsProcessor
from tests.support.fakes import BREAKING, DelayedExecutor, FakeModel, FakeWorker, PoisoningPool, full_spec
from tests.support.identity import Identity
from tests.support.tiny_llama import smollm2_tokenizer

EOS = 2
MAX_MODEL_LEN = 160
MODEL_VOCAB_SIZE = BREAKING + 1
BACKEND = NumpyBackend()


class LogitsFromHashes(FakeModel):
    """Some tokens are likelier than others everywhere, so that words come again, and EOS comes at times."""

    def __init__(self, groups: Sequence[KVCacheGroup], num_blocks: int, head: ReplayedHead) -> None:
        super().__init__(groups, num_blocks)
        self._head = head
        self._common = np.random.default_rng(1).standard_normal(MODEL_VOCAB_SIZE, dtype=np.float32) * 3
        self._common[EOS] = 5.0
        self._common[BREAKING] = -30.0

    def run(self, inputs: StepInputs) -> StepResults:
        for slots, table in zip(inputs.slot_mapping, inputs.block_tables, strict=True):
            self._write(inputs, slots, table)
        hidden = np.full((len(inputs.token_ids), MODEL_VOCAB_SIZE), np.nan, np.float32)
        scored = [] if inputs.scoring is None else inputs.scoring.logits_rows.tolist()
        for row in {*inputs.logits_rows.tolist(), *scored}:
            hidden[row] = self.logits(self._next_token(inputs, row))
            if inputs.token_ids[row] == BREAKING:
                hidden[row, 7] = np.nan
        runs = self._head.prepare(hidden, inputs)
        BACKEND.run(runs)
        return self._head.results(runs, inputs)

    def logits(self, digest: int) -> np.ndarray:
        return self._common + np.random.default_rng(digest).standard_normal(MODEL_VOCAB_SIZE, dtype=np.float32)


class _Worker(FakeWorker):
    def __init__(self, args: EngineArgs) -> None:
        super().__init__(args, [full_spec(args.cache.block_size)])
        self.vocab_size = MODEL_VOCAB_SIZE

    def make_model(self, groups: Sequence[KVCacheGroup], num_blocks: int, max_model_len: int) -> FakeModel:
        scheduler = self._args.scheduler
        limits = StepLimits(scheduler.max_num_batched_tokens, scheduler.max_num_seqs, max_model_len, max_blocks=0)
        head = ReplayedHead(BACKEND, Identity(MODEL_VOCAB_SIZE), limits, self._args.sampling)
        return LogitsFromHashes(groups, num_blocks, head)


class SamplingEngine:
    """Made anew for every question: `run` gives outputs by name."""

    def __init__(
        self,
        monkeypatch,
        *,
        num_steps_in_flight: int = 1,
        processors: Sequence[type[LogitsProcessor]] = (),
        **engine_args,
    ) -> None:
        monkeypatch.setattr("pelton.kv.coordinator.BlockPool", PoisoningPool)
        engine_args = {"block_size": 4, "num_gpu_blocks_override": 2000, "max_num_seqs": 64} | engine_args
        args = EngineArgs.create(max_model_len=MAX_MODEL_LEN, logits_processors=processors, **engine_args)
        self.worker = _Worker(args)
        tokenizer = smollm2_tokenizer()
        self.grammars = StructuredOutputManager(
            args.structured_outputs.config,
            MODEL_VOCAB_SIZE,
            lambda: TokenizerVocabulary(tokenizer, MODEL_VOCAB_SIZE),
            can_force=not processors,
        )
        self.core = EngineCore(
            args,
            DelayedExecutor(self.worker),
            MAX_MODEL_LEN,
            grammars=self.grammars,
            num_steps_in_flight=num_steps_in_flight,
        )
        self.core.kv.pool.poison = self.worker.model.poison
        inputs = InputProcessor(
            args, tokenizer, [EOS], MODEL_VOCAB_SIZE, self.core.max_model_len, logits_processors=processors
        )
        self.engine = LLMEngine(InprocClient(self.core), inputs, OutputProcessor(tokenizer), tokenizer)

    def run(self, requests: Mapping[str, tuple[Prompt, SamplingParams]]) -> dict[str, RequestOutput]:
        """Final outputs of requests that are added at once."""
        for name, (prompt, params) in requests.items():
            self.engine.add_request(prompt, params, request_id=name)
        outputs = {}
        for _ in range(20_000):
            if not self.engine.num_unfinished_requests:
                return outputs
            outputs |= {output.request_id: output for output in self.engine.step()}
        raise AssertionError("no end in sight")
