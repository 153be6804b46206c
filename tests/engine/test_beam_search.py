"""Beam search against searches that are written down plainly, and against transformers."""

import itertools
import json
import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from pelton import LLM
from pelton.config.sampling import SamplingConfig
from pelton.core.outputs import Logprob
from pelton.engine.beam_search import BeamSearch, BeamSearchSequence, next_token_params, own_params
from pelton.sampling_params import BeamSearchParams
from tests.support.tiny_models import logprobs_of, save_folder, tiny_model

Model = Callable[[list[int]], np.ndarray]
"""Token ids -> log probabilities [V] of the next."""

CLOSE = 1e-4
"""Share by which scores may differ. They are around -1 and fall with the length penalty."""
CONTEXT = 64


class Text:
    """In place of a tokenizer: the text of ids is their list."""

    def decode(self, token_ids, skip_special_tokens=True):
        assert not skip_special_tokens
        return str(list(token_ids))


def random_model(seed: int, vocab_size: int) -> Model:
    """Log probabilities that depend on all tokens before."""

    def next_logprobs(tokens: list[int]) -> np.ndarray:
        logits = np.random.default_rng([seed, *tokens]).normal(0.0, 2.0, vocab_size)
        return logits - np.log(np.exp(logits).sum())

    return next_logprobs


def top(logprobs: np.ndarray, count: int) -> dict[int, Logprob]:
    """As the engine gives them: without those that are impossible."""
    best = np.argsort(-logprobs, kind="stable")[: min(count, np.isfinite(logprobs).sum())].tolist()
    return {token_id: Logprob(float(logprobs[token_id]), rank, "") for rank, token_id in enumerate(best, 1)}


def run(model: Model, prompt: list[int], params: BeamSearchParams, eos=(), context=CONTEXT):
    """Returns the sequences, and how many steps it took."""
    search, num_steps = BeamSearch(prompt, params, eos, context), 0
    while search.live:
        search.advance([top(model(sequence.tokens), 2 * params.beam_width) for sequence in search.live])
        num_steps += 1
    return search.result(Text()).sequences, num_steps


def score(sequence: BeamSearchSequence, params: BeamSearchParams) -> float:
    length = len(sequence.tokens) - (sequence.finish_reason == "stop" and params.include_stop_str_in_output)
    return sequence.cum_logprob / length**params.length_penalty


def plain_search(
    model: Model, prompt: list[int], params: BeamSearchParams, eos: Sequence[int], context: int
) -> list[tuple[float, list[int]]]:
    """Beam search to the very end, whatever has been found: (score, tokens without EOS), the best first."""
    width, penalty = params.beam_width, params.length_penalty
    live, found = [(0.0, prompt)], []
    while live and len(live[0][1]) < min(context, len(prompt) + params.max_tokens):
        longer = []
        for total, tokens in live:
            logprobs = model(tokens)
            for token_id in np.argsort(-logprobs, kind="stable")[: 2 * width].tolist():
                following = (total + logprobs[token_id], [*tokens, token_id])
                if token_id in eos and not params.ignore_eos:
                    found.append((following[0] / len(tokens) ** penalty, tokens))
                else:
                    longer.append(following)
        live = sorted(longer, key=lambda pair: -pair[0])[:width]
    found += [(total / len(tokens) ** penalty, tokens) for total, tokens in live]
    return sorted(found, key=lambda pair: -pair[0])[:width]


def assert_found(sequences, expected, params) -> None:
    """Equal scores in order, and equal tokens where no other score is as near."""
    assert [score(sequence, params) for sequence in sequences] == pytest.approx(
        [value for value, _ in expected], rel=CLOSE
    )
    for sequence, (value, tokens) in zip(sequences, expected, strict=True):
        if sum(abs(value - other) < -CLOSE * value for other, _ in expected) == 1:
            end = -1 if sequence.finish_reason == "stop" and params.include_stop_str_in_output else None
            assert sequence.tokens[:end] == tokens


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -1.5, 3.0])
@pytest.mark.parametrize("eos", [(), (3,), (1, 5, 7)])
@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("flags", [{}, {"ignore_eos": True}, {"include_stop_str_in_output": True}], ids=str)
def test_finds_what_a_plain_search_finds(width, eos, length_penalty, flags):
    params = BeamSearchParams(beam_width=width, max_tokens=12, length_penalty=length_penalty, **flags)
    for seed in range(5):
        model = random_model(seed, 12)
        sequences, _ = run(model, [4, 2], params, eos)
        assert_found(sequences, plain_search(model, [4, 2], params, eos, CONTEXT), params)


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, -2.0])
def test_a_beam_that_holds_everything_finds_the_best_of_all(length_penalty):
    vocab_size, max_tokens, eos = 3, 4, 1
    width = vocab_size**max_tokens
    params = BeamSearchParams(beam_width=width, max_tokens=max_tokens, length_penalty=length_penalty)
    model, prompt = random_model(7, vocab_size), [2, 0, 2]
    scores = {}
    for tokens in itertools.product(range(vocab_size), repeat=max_tokens):
        end = tokens.index(eos) if eos in tokens else max_tokens
        total = sum(model([*prompt, *tokens[:i]])[tokens[i]] for i in range(min(end + 1, max_tokens)))
        scores[tuple(tokens[: end + 1])] = total / (len(prompt) + end) ** length_penalty
    sequences, _ = run(model, prompt, params, [eos])
    assert [score(sequence, params) for sequence in sequences] == pytest.approx(sorted(scores.values(), reverse=True))


def test_what_a_sequence_says():
    model = random_model(5, 8)
    params = BeamSearchParams(beam_width=3, max_tokens=6)
    sequences, _ = run(model, [0], params, [2, 6])
    assert len(sequences) == 3
    assert {sequence.finish_reason for sequence in sequences} == {"stop", "length"}
    for sequence in sequences:
        output = sequence.tokens[1:]
        if sequence.finish_reason == "stop":
            assert sequence.stop_reason in (2, 6)
            output = [*output, sequence.stop_reason]
        else:
            assert len(output) == 6
            assert sequence.stop_reason is None
        assert not {2, 6}.intersection(output[:-1])
        assert sequence.text == str(sequence.tokens)
        logprobs = [entries[i].logprob for entries, i in zip(sequence.logprobs, output, strict=True)]
        assert sequence.cum_logprob == pytest.approx(sum(logprobs))


def test_the_end_of_sequence_token_is_kept_on_demand():
    model = random_model(5, 8)
    plain, _ = run(model, [0], BeamSearchParams(beam_width=3, max_tokens=6), [2, 6])
    params = BeamSearchParams(beam_width=3, max_tokens=6, include_stop_str_in_output=True)
    kept, _ = run(model, [0], params, [2, 6])
    for one, other in zip(plain, kept, strict=True):
        ending = [other.stop_reason] if other.finish_reason == "stop" else []
        assert other.tokens == one.tokens + ending
        assert other.cum_logprob == one.cum_logprob


def test_ends_at_the_context():
    params = BeamSearchParams(beam_width=2, max_tokens=100)
    sequences, num_steps = run(random_model(2, 8), [1, 2, 3], params, context=10)
    assert num_steps == 7
    assert [(len(sequence.tokens), sequence.finish_reason) for sequence in sequences] == [(10, "length")] * 2


def improbable_after_eos(tokens: list[int]) -> np.ndarray:
    """At first two tokens end the sequence with 0.45 each; whatever goes on has 0.01 a token."""
    first = [0.45, 0.45] + [0.1 / 6] * 6
    later = [0.01] * 7 + [0.93]
    return np.log(first if len(tokens) == 1 else later)


@pytest.mark.parametrize(("length_penalty", "num_steps"), [(0.0, 1), (-1.0, 1), (5.0, 20)])
def test_stops_early_only_if_nothing_better_can_come(length_penalty, num_steps):
    """With a large penalty a long sequence could still win, however improbable it is."""
    params = BeamSearchParams(beam_width=2, max_tokens=20, length_penalty=length_penalty)
    sequences, taken = run(improbable_after_eos, [5], params, [0, 1])
    assert taken == num_steps
    assert_found(sequences, plain_search(improbable_after_eos, [5], params, [0, 1], CONTEXT), params)


def test_fewer_tokens_are_possible_than_the_beam_holds():
    def only_two(tokens):
        return np.array([math.log(0.75), math.log(0.25), -math.inf, -math.inf])

    sequences, _ = run(only_two, [3], BeamSearchParams(beam_width=4, max_tokens=1))
    assert sorted(sequence.tokens for sequence in sequences) == [[3, 0], [3, 1]]


def test_less_likely_tokens_than_asked_for_are_not_taken():
    """An engine adds the token that it sampled."""
    search = BeamSearch([1], BeamSearchParams(beam_width=1, max_tokens=5), [9], CONTEXT)
    search.advance([{9: Logprob(-8.0, 7, ""), 4: Logprob(-0.5, 1, ""), 5: Logprob(-1.0, 2, "")}])
    assert [sequence.tokens for sequence in search.live] == [[1, 4]]
    search.advance([{4: Logprob(-0.5, 1, ""), 9: Logprob(-1.0, 2, "")}])
    search.fail("enough")
    failed = search.result(Text()).sequences
    assert [(sequence.tokens, sequence.finish_reason) for sequence in failed] == [([1, 4, 4], "error")]


def test_a_failure_is_not_hidden_by_what_was_complete():
    search = BeamSearch([1], BeamSearchParams(beam_width=2, max_tokens=5), [9], CONTEXT)
    search.advance([{9: Logprob(-0.5, 1, ""), 4: Logprob(-1.0, 2, "")}])
    search.fail("the model broke")
    sequences = search.result(Text()).sequences
    assert [(s.tokens, s.finish_reason, s.stop_reason) for s in sequences] == [
        ([1, 4], "error", "the model broke"),
        ([1], "stop", 9),
    ]


def test_all_may_end_at_once():
    search = BeamSearch([1], BeamSearchParams(beam_width=1, max_tokens=5), [8, 9], CONTEXT)
    search.advance([{9: Logprob(-0.5, 1, ""), 8: Logprob(-1.0, 2, "")}])
    assert not search.live
    assert [s.stop_reason for s in search.result(Text()).sequences] == [9]


@pytest.mark.parametrize(
    ("params", "sampling", "words"),
    [
        ({"beam_width": 11}, {}, r"beam_width is 11, .* 22 tokens, but max_logprobs allows 20; choose a smaller"),
        ({"beam_width": 51}, {"max_logprobs": -1}, "beam_width is 51, .* the model has 100"),
        ({"temperature": 0.5}, {}, "temperature is 0.5, but logprobs_mode='raw_logprobs'"),
        ({}, {"logprobs_mode": "raw_logits"}, "logprobs_mode is 'raw_logits'"),
        ({}, {"logprobs_mode": "processed_logits"}, "logprobs_mode is 'processed_logits'"),
        ({"length_penalty": 1e3}, {}, r"length_penalty must be in \[-120.9, 120.9\] for a context of 143 .* 1000"),
        ({"length_penalty": -1e3}, {}, "length_penalty must be in"),
    ],
)
def test_refused(params, sampling, words):
    with pytest.raises(ValueError, match=words):
        next_token_params(
            BeamSearchParams(**{"beam_width": 2, "max_tokens": 5} | params), SamplingConfig(**sampling), 100, 143
        )


def test_other_parameters_are_refused():
    with pytest.raises(ValueError, match="params must be BeamSearchParams, got dict"):
        own_params({"beam_width": 2})


@pytest.mark.parametrize(("name", "value"), [("beam_width", "x"), ("max_tokens", 0), ("length_penalty", math.nan)])
def test_parameters_are_checked_again(name, value):
    params = BeamSearchParams(beam_width=2, max_tokens=5)
    setattr(params, name, value)
    with pytest.raises(ValueError, match=f"^{name} must be"):
        own_params(params)


def test_parameters_are_the_searchs_own():
    params = BeamSearchParams(beam_width=2, max_tokens=5)
    own = own_params(params)
    params.beam_width = 9
    assert own == BeamSearchParams(beam_width=2, max_tokens=5)


@pytest.mark.parametrize("length_penalty", [120.0, -120.0])
def test_extreme_length_penalties_do_not_overflow(length_penalty):
    params = BeamSearchParams(beam_width=2, max_tokens=8, length_penalty=length_penalty)
    next_token_params(params, SamplingConfig(), 100, 143)
    sequences, _ = run(random_model(3, 12), [1] * 135, params, [3], context=143)
    assert all(math.isfinite(score(sequence, params)) for sequence in sequences)


@pytest.mark.parametrize(
    ("mode", "temperature", "expected"),
    [("raw_logprobs", 1.0, 0.0), ("processed_logprobs", 0.0, 1.0), ("processed_logprobs", 0.5, 0.5)],
)
def test_parameters_of_the_requests(mode, temperature, expected):
    params = BeamSearchParams(beam_width=3, max_tokens=9, temperature=temperature)
    request = next_token_params(params, SamplingConfig(logprobs_mode=mode), 100, 64)
    assert (request.temperature, request.logprobs, request.max_tokens, request.seed) == (expected, 6, 1, 0)


# From here on with an engine.

PROMPTS = [[5, 17, 200, 31], [7] * 20, [300, 4, 4, 19, 250, 61, 8]]
NUM_TOKENS = 10


@pytest.fixture(scope="module")
def model():
    return tiny_model("llama")


@pytest.fixture(scope="module")
def reference(model) -> Model:
    logprobs = logprobs_of(model)
    return lambda tokens: logprobs(tokens, 1)[0]


@pytest.fixture(scope="module")
def eos(reference) -> list[int]:
    """Tokens that searches come across."""
    params = BeamSearchParams(beam_width=3, max_tokens=NUM_TOKENS, ignore_eos=True)
    best = [plain_search(reference, prompt, params, (), CONTEXT)[0][1] for prompt in PROMPTS]
    return sorted({best[0][len(PROMPTS[0]) + 3], best[1][len(PROMPTS[1]) + 6]})


@pytest.fixture(scope="module")
def make_llm(model, eos, tmp_path_factory):
    folder = save_folder(model, tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": eos}))
    (folder / "generation_config.json").unlink(missing_ok=True)
    return lambda **args: LLM(
        model=str(folder), dtype="float32", max_model_len=CONTEXT, num_gpu_blocks_override=200, **args
    )


@pytest.fixture(scope="module")
def llm(make_llm):
    return make_llm()


def search(llm: LLM, prompts, params: BeamSearchParams):
    return [output.sequences for output in llm.beam_search(prompts, params)]


@pytest.mark.parametrize("length_penalty", [1.0, 0.0, 2.0])
@pytest.mark.parametrize("width", [1, 4])
def test_equals_a_plain_search_over_transformers(llm, reference, eos, width, length_penalty):
    params = BeamSearchParams(beam_width=width, max_tokens=NUM_TOKENS, length_penalty=length_penalty)
    found = search(llm, PROMPTS, params)
    for sequences, prompt in zip(found, PROMPTS, strict=True):
        assert_found(sequences, plain_search(reference, prompt, params, eos, CONTEXT), params)
    assert "stop" in {sequence.finish_reason for sequences in found for sequence in sequences}


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.filterwarnings("ignore")
def test_equals_transformers_without_end_of_sequence(llm, model, width):
    params = BeamSearchParams(beam_width=width, max_tokens=NUM_TOKENS, ignore_eos=True)
    for sequences, prompt in zip(search(llm, PROMPTS, params), PROMPTS, strict=True):
        generated = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            num_beams=width,
            num_return_sequences=width,
            do_sample=False,
            max_new_tokens=NUM_TOKENS,
            eos_token_id=-1,
            pad_token_id=0,
            length_penalty=0.0,
            return_dict_in_generate=True,
            output_scores=True,
        )
        totals = model.compute_transition_scores(
            generated.sequences, generated.scores, getattr(generated, "beam_indices", None), normalize_logits=True
        ).sum(1)
        expected = [
            (total / len(tokens), tokens)
            for total, tokens in zip(totals.tolist(), generated.sequences.tolist(), strict=True)
        ]
        assert_found(sequences, expected, params)


def test_temperature(make_llm, reference, eos):
    """Log probabilities of the logits divided by it."""
    llm = make_llm(logprobs_mode="processed_logprobs")

    def colder(tokens):
        logits = reference(tokens) / 0.5
        return logits - np.log(np.exp(logits).sum())

    for temperature, expected in ((0.5, colder), (0.0, reference)):
        params = BeamSearchParams(beam_width=3, max_tokens=NUM_TOKENS, temperature=temperature)
        for sequences, prompt in zip(search(llm, PROMPTS, params), PROMPTS, strict=True):
            assert_found(sequences, plain_search(expected, prompt, params, eos, CONTEXT), params)


def test_a_beam_as_wide_as_half_the_vocabulary(make_llm):
    llm = make_llm(max_logprobs=-1)
    sequences = search(llm, PROMPTS[0], BeamSearchParams(beam_width=160, max_tokens=2))[0]
    assert len(sequences) == 160
    assert all(sequence.finish_reason in ("stop", "length") for sequence in sequences)


def test_the_context_ends_a_search(llm):
    sequences = search(llm, [9] * 60, BeamSearchParams(beam_width=2, max_tokens=50, ignore_eos=True))[0]
    assert [(len(sequence.tokens), sequence.finish_reason) for sequence in sequences] == [(CONTEXT, "length")] * 2
