"""A model as front ends see it: everything but the weights."""

from collections.abc import Sequence

from pelton.config import EngineArgs
from pelton.engine.engine_core import EngineCore
from pelton.engine.input_processor import InputProcessor
from pelton.engine.kv_sizing import requested_model_len
from pelton.engine.params_processor import Resolve
from pelton.engine.vocabulary import TokenizerVocabulary
from pelton.executor import make_executor
from pelton.grammar import OutputVocabulary, StructuredOutputManager
from pelton.grammar.registry import resolve
from pelton.loader import Checkpoint, open_checkpoint
from pelton.runner.cpu_count import available_cores
from pelton.sampling.logits_processor import LogitsProcessor, load_logits_processors
from pelton.tokenizer import Tokenizer, load_tokenizer

_MAX_MASK_THREADS = 8


class ServedModel:
    """An opened checkpoint, and what requests to its model are checked against."""

    def __init__(self, args: EngineArgs, *, progress: bool = False) -> None:
        """Raises ValueError for a model that cannot be read and for arguments that contradict it."""
        self._args = args
        if args.structured_outputs.reasoning_parser is not None:
            from pelton.chat_parsing import find_reasoning_parser

            find_reasoning_parser(args.structured_outputs.reasoning_parser)  # whether there is such a one
        self._logits_processors: Sequence[type[LogitsProcessor]] = load_logits_processors(
            args.sampling.logits_processors
        )
        self.checkpoint: Checkpoint = open_checkpoint(args.model.model, args.model.revision, progress=progress)
        self.generation_defaults: dict[str, float | int] = {}
        """Sampling parameters that the model recommends, by their names."""
        if args.sampling.generation_config != "none":
            try:
                self.generation_defaults = self.checkpoint.generation_defaults()
            except ValueError as error:
                raise ValueError(f"{error}; generation_config='none' goes without") from None
        self.requested_model_len = requested_model_len(args, self.checkpoint.config.max_position_embeddings)

    def load_tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.checkpoint)

    def _load_vocabulary(self) -> OutputVocabulary:
        return TokenizerVocabulary(self.load_tokenizer(), self.checkpoint.config.vocab_size)

    def make_input_processor(
        self, tokenizer: Tokenizer, max_model_len: int, resolve: Resolve = resolve
    ) -> InputProcessor:
        """`max_model_len`: what the engine core can hold. `resolve` finds a backend for a constraint."""
        config = self.checkpoint.config
        return InputProcessor(
            self._args,
            tokenizer,
            config.eos_token_ids,
            config.vocab_size,
            max_model_len,
            logits_processors=self._logits_processors,
            resolve=resolve,
        )

    def make_core(self, *, progress: bool = False, num_sharing: int = 1) -> EngineCore:
        """Load the weights into an engine core of this process; `num_sharing` cores divide the memory among them."""
        executor = make_executor(self._args, self.checkpoint, progress=progress)
        grammars = StructuredOutputManager(
            self._args.structured_outputs.config,
            self.checkpoint.config.vocab_size,
            self._load_vocabulary,
            # Processors of the user's own may rule out what a constraint leaves.
            can_force=not self._args.sampling.logits_processors,
            num_threads=min(self._args.execution.num_threads or available_cores(), _MAX_MASK_THREADS),
        )
        try:
            return EngineCore(
                self._args, executor, self.requested_model_len, grammars=grammars, num_sharing=num_sharing
            )
        except BaseException:
            executor.shutdown()
            raise
