"""Compiles the constraints of requests, beside the steps, and keeps those that were used last."""

import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from logging import getLogger
from threading import Lock

import msgspec

from pelton.config import StructuredOutputsConfig
from pelton.core.messages import EngineCoreRequest
from pelton.core.request import CONSTRAINT_FAILED, ConstraintError, Request
from pelton.error_text import described
from pelton.grammar.backend import GrammarBackend, OutputVocabulary, UnsupportedGrammarError
from pelton.grammar.compile_pool import CompilePool, Task
from pelton.grammar.constraint import CompiledConstraint, GrammarConstraint
from pelton.grammar.lasting_grammar import LastingGrammar
from pelton.grammar.parallel import ParallelAdvance
from pelton.grammar.registry import load_backend
from pelton.ops import mask_words
from pelton.structured_outputs_params import StructuredOutputsParams

logger = getLogger(__name__)

MAX_CACHE_BYTES = 512 << 20
"""Of memory, for compiled constraints that are kept."""
_NUM_THREADS = 2
_ENCODER = msgspec.msgpack.Encoder()


@dataclass
class _Compilation:
    """One constraint, and the requests that wait for it."""

    task: Task[CompiledConstraint]
    waiting: dict[str, tuple[Request, float]] = field(default_factory=dict)
    """By id, and until when: in seconds of the manager's clock."""


class StructuredOutputManager:
    """Gives requests their constraints: at once if the grammar is known, or else once it is compiled.

    Requests with the same constraint share its grammar. The vocabulary is loaded with the first one.
    """

    def __init__(
        self,
        config: StructuredOutputsConfig,
        vocab_size: int,
        load_vocabulary: Callable[[], OutputVocabulary],
        *,
        can_force: bool = True,
        num_threads: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`can_force`: whether tokens that constraints leave no choice about need not be sampled. `num_threads` may
        fill masks at the same time."""
        self._config = config
        self._vocab_size = vocab_size
        self._load_vocabulary = load_vocabulary
        self._can_force = can_force
        self._num_threads = num_threads
        self.advance = ParallelAdvance(num_threads)
        self._clock = clock
        self._pool: CompilePool[CompiledConstraint] = CompilePool(_NUM_THREADS)
        self._backends: dict[str, GrammarBackend] = {}
        self._backends_lock = Lock()
        self._vocabulary: OutputVocabulary | None = None
        self._compilations: dict[bytes, _Compilation] = {}
        self._cache: OrderedDict[bytes, CompiledConstraint] = OrderedDict()
        """The one used last is last."""

    def start(self, request: Request) -> bool:
        """Give a request its constraint, or begin to compile it. Returns whether it is there already.

        Raises ConstraintError if its output cannot even begin.
        """
        params = request.message.sampling_params.structured_outputs
        assert params is not None
        key = _ENCODER.encode(params)
        compiled = self._cache.get(key)
        if compiled is not None and not compiled.grammar.is_worn:
            self._cache.move_to_end(key)
            self._constrain(request, compiled)
            return True
        compilation = self._compilations.get(key)
        if compilation is None:
            compilation = _Compilation(self._pool.submit(partial(self._compile, params)))
            self._compilations[key] = compilation
        compilation.waiting[request.id] = request, self._clock() + self._config.max_compile_seconds
        return False

    def poll(self) -> list[tuple[Request, str]]:
        """Requests that wait no longer: each has its constraint now, or else there is a message why not."""
        ended: list[tuple[Request, str]] = []
        for key, compilation in list(self._compilations.items()):
            if compilation.task.is_done:
                del self._compilations[key]
                ended += self._finish(key, compilation)
            elif compilation.waiting:
                ended += self._expire(key, compilation)
        return ended

    @property
    def is_compiling(self) -> bool:
        """Whether something is compiled, or waits for that, perhaps for nobody."""
        return bool(self._compilations)

    def forget(self, request_ids: Collection[str]) -> None:
        """Requests that wait for their constraints no longer."""
        abandoned: list[tuple[bytes, _Compilation]] = []
        for key, compilation in self._compilations.items():
            num_waiting = len(compilation.waiting)
            for request_id in request_ids:
                compilation.waiting.pop(request_id, None)
            if num_waiting and not compilation.waiting:
                abandoned.append((key, compilation))
        for key, compilation in reversed(abandoned):  # those that have not begun first, lest they do now
            self._give_up(key, compilation)

    def wait(self, timeout: float) -> None:
        """Until something is compiled, for so many seconds at most."""
        self._pool.wait(timeout)

    def shutdown(self) -> None:
        """What has not begun is not compiled any more."""
        self.forget([request_id for one in self._compilations.values() for request_id in one.waiting])
        self._cache.clear()
        self.advance.shutdown()

    def _give_up(self, key: bytes, compilation: _Compilation) -> None:
        if not self._pool.give_up(compilation.task):
            del self._compilations[key]

    def _finish(self, key: bytes, compilation: _Compilation) -> list[tuple[Request, str]]:
        requests = [request for request, _ in compilation.waiting.values()]
        task = compilation.task
        if task.error is not None:
            if isinstance(task.error, UnsupportedGrammarError):
                return [(request, f"{CONSTRAINT_FAILED}{task.error}") for request in requests]
            logger.error("a constraint could not be compiled", exc_info=task.error)
            return [(request, f"the constraint could not be compiled: {described(task.error)}") for request in requests]
        assert task.result is not None
        self._cache[key] = task.result
        self._evict()
        return [(request, self._try_to_constrain(request, task.result)) for request in requests]

    def _evict(self) -> None:
        """Leave what was used last, as far as its number and its memory are within the limits."""
        num_bytes = sum(compiled.grammar.num_bytes for compiled in self._cache.values())
        while len(self._cache) > self._config.cache_size or (num_bytes > MAX_CACHE_BYTES and len(self._cache) > 1):
            _, compiled = self._cache.popitem(last=False)
            num_bytes -= compiled.grammar.num_bytes

    def _expire(self, key: bytes, compilation: _Compilation) -> list[tuple[Request, str]]:
        now = self._clock()
        expired = [request for request, deadline in compilation.waiting.values() if deadline < now]
        for request in expired:
            del compilation.waiting[request.id]
        if expired and not compilation.waiting:
            self._give_up(key, compilation)
        message = (
            f"{CONSTRAINT_FAILED}it was not compiled within {self._config.max_compile_seconds:g} seconds; simplify "
            "it, or start the engine with a larger max_compile_seconds in structured_outputs_config"
        )
        return [(request, message) for request in expired]

    def _compile(self, params: StructuredOutputsParams) -> CompiledConstraint:
        """In a thread of the pool."""
        backend = self._backend(params.backend)
        grammar = LastingGrammar(partial(backend.compile, params), max_copies=self._num_threads)
        assert self._vocabulary is not None, "the backend has it"
        return CompiledConstraint.of(grammar, mask_words(self._vocab_size), self._vocabulary.shortened_first_ids)

    def _backend(self, name: str) -> GrammarBackend:
        with self._backends_lock:
            if self._vocabulary is None:
                self._vocabulary = self._load_vocabulary()
            if name not in self._backends:
                self._backends[name] = load_backend(name)(self._vocabulary)
            return self._backends[name]

    def _try_to_constrain(self, request: Request, compiled: CompiledConstraint) -> str:
        """Returns why it cannot be; empty if it is."""
        try:
            self._constrain(request, compiled)
        except ConstraintError as error:
            return f"{CONSTRAINT_FAILED}{error}"
        return ""

    def _constrain(self, request: Request, compiled: CompiledConstraint) -> None:
        message = request.message
        request.constraint = GrammarConstraint(
            compiled,
            request.eos_token_ids | request.stop_token_ids,
            reasoning=message.reasoning,
            can_force=self._can_force and may_be_forced(message),
        )


def may_be_forced(message: EngineCoreRequest) -> bool:
    """Whether a token that is the only one allowed is sure to be sampled, nobody asks how likely it was, and no stop
    string may end the output before it."""
    params = message.sampling_params
    return not (
        params.logprobs is not None
        or params.min_tokens
        or params.stop_strings
        or params.allowed_token_ids is not None
        or message.bad_words_token_ids
    )
