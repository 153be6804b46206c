"""An output processor, and a core played by hand."""

from pelton import SamplingParams
from pelton.core.messages import EngineCoreOutput, EngineCoreRequest, TokenLogprobs
from pelton.engine.input_processor import ProcessedRequest
from pelton.engine.output_processor import OutputProcessor
from pelton.loader import open_checkpoint
from pelton.tokenizer import load_tokenizer

TOKENIZER = load_tokenizer(open_checkpoint("smollm2"))
EOS = TOKENIZER.special_token_id("eos_token")


class Played:
    """An output processor with one request, and everything that it has emitted."""

    def __init__(self, tokenizer=TOKENIZER, **params):
        self.processor = OutputProcessor(tokenizer)
        self.outputs = []
        self.aborts = []
        self.messages = self.add("r", **params)

    def add(self, request_id, prompt=(504, 3575), arrival_time=0.0, **params):
        message = EngineCoreRequest(request_id, list(prompt), SamplingParams(**params), arrival_time, [EOS])
        return self.processor.add_request(ProcessedRequest(message, "The capital"))

    def step(self, *token_ids, request_id="r", **fields):
        self.step_all(EngineCoreOutput(request_id, list(token_ids), **fields))

    def step_all(self, *core_outputs):
        processed = self.processor.process(core_outputs)
        self.outputs += [state.make_output() for state in processed.changed]
        self.aborts += processed.aborts

    def play(self, token_ids, finish_reason="length", stop_reason=None):
        """One token per step; the last one ends the request. Stops early if a stop string does."""
        for index, token_id in enumerate(token_ids):
            last = index == len(token_ids) - 1
            self.step(
                token_id,
                finish_reason=finish_reason if last else None,
                stop_reason=stop_reason if last else None,
            )
            if self.aborts:
                break
        return self

    @property
    def texts(self):
        return [output.outputs[0].text for output in self.outputs]

    @property
    def last(self):
        return self.outputs[-1].outputs[0]


def position(sampled, rank, *top):
    """Log probabilities as a worker reports them: [(token, logprob)...], the sampled one first."""
    ids, values = zip(sampled, *top, strict=True)
    return TokenLogprobs(list(ids), list(values), rank)
