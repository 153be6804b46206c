"""A request's tokens and counters: several tokens at once, what ends it, what is pending."""

import pytest

from pelton.core.messages import EngineCoreRequest
from pelton.core.request import Request, RequestStatus
from pelton.sampling_params import SamplingParams

EOS, STOP = 2, 50


def make_request(prompt=(10, 11, 12), max_model_len=100, eos=(EOS,), **params) -> Request:
    message = EngineCoreRequest("r", list(prompt), SamplingParams(**params), arrival_time=0.0, eos_token_ids=list(eos))
    request = Request(message, max_model_len)
    request.status = RequestStatus.RUNNING
    return request


def launch(request: Request) -> None:
    """The scheduler's part: all that there is gets computed, and one token more is on its way."""
    request.num_computed_tokens = request.num_tokens
    request.num_pending_tokens += 1
    request.num_tokens += 1


def assert_consistent(request: Request) -> None:
    assert request.num_tokens == len(request.token_ids) + request.num_pending_tokens
    assert request.num_output_tokens == len(request.token_ids) - request.num_prompt_tokens


@pytest.mark.parametrize("tokens", [[7], [7, 8], [7, 8, 9, 7]])
def test_all_tokens_of_a_step_are_taken(tokens):
    request = make_request(max_tokens=20)
    launch(request)
    assert request.append_sampled(tokens) == len(tokens)
    assert request.token_ids == [10, 11, 12, *tokens]
    assert request.num_output_tokens == len(tokens)
    assert request.num_pending_tokens == 0
    assert request.num_computed_tokens == 3, "sampled tokens are not in the cache yet"
    assert request.status is RequestStatus.RUNNING
    assert_consistent(request)


@pytest.mark.parametrize(
    ("tokens", "num_taken", "status", "stop_reason"),
    [
        ([EOS], 1, "stop", None),
        ([EOS, 7, 8], 1, "stop", None),
        ([7, EOS, 8], 2, "stop", None),
        ([7, 8, EOS], 3, "stop", None),
        ([7, EOS, STOP], 2, "stop", None),
        ([STOP, 7], 1, "stop", STOP),
        ([7, STOP, EOS], 2, "stop", STOP),
        ([7, 8, 9, 7], 4, "length", None),
        ([7, 8, 9, 7, 8], 4, "length", None),
        ([7, 8, 9, 7, EOS], 4, "length", None),
        ([7, 8, 9, EOS], 4, "stop", None),
        ([7, 8, 9, STOP], 4, "stop", STOP),
    ],
)
def test_cut_at_the_token_that_ends_the_request(tokens, num_taken, status, stop_reason):
    request = make_request(max_tokens=4, stop_token_ids=[STOP])
    launch(request)
    assert request.append_sampled(tokens) == num_taken
    assert request.token_ids == [10, 11, 12, *tokens[:num_taken]]
    assert request.status is RequestStatus(status)
    assert request.stop_reason == stop_reason
    assert_consistent(request)


def test_only_output_tokens_end_a_request():
    request = make_request(prompt=(EOS, STOP, EOS), stop_token_ids=[STOP])
    launch(request)
    assert request.append_sampled([7]) == 1
    assert request.status is RequestStatus.RUNNING


def test_eos_ignored_but_not_stop_tokens():
    request = make_request(max_tokens=9, ignore_eos=True, stop_token_ids=[STOP])
    launch(request)
    assert request.append_sampled([EOS, 7, EOS, STOP, 8]) == 4
    assert request.stop_reason == STOP


def test_an_eos_token_that_is_also_a_stop_token_counts_as_eos():
    request = make_request(max_tokens=9, stop_token_ids=[EOS])
    launch(request)
    assert request.append_sampled([EOS]) == 1
    assert (request.status, request.stop_reason) == (RequestStatus.FINISHED_STOPPED, None)


@pytest.mark.parametrize(("max_tokens", "length"), [(None, 6), (50, 6), (3, 6), (2, 5)])
def test_the_context_ends_a_request_too(max_tokens, length):
    request = make_request(max_model_len=6, max_tokens=max_tokens)
    assert request.max_total_tokens == length
    launch(request)
    assert request.append_sampled([7] * 10) == length - 3
    assert request.status is RequestStatus.FINISHED_LENGTH


def test_tokens_of_several_steps_in_flight():
    """Each step is pending as one token until its own result arrives, however many that brings."""
    request = make_request(max_tokens=20)
    launch(request)
    launch(request)
    launch(request)
    assert (request.num_tokens, request.num_pending_tokens, request.num_computed_tokens) == (6, 3, 5)
    request.append_sampled([7])
    assert (request.num_tokens, request.num_pending_tokens) == (6, 2)
    assert_consistent(request)
    request.append_sampled([8, 9])
    assert (request.num_tokens, request.num_pending_tokens) == (7, 1)
    assert_consistent(request)
    request.append_sampled([7])
    assert (request.num_tokens, request.num_pending_tokens) == (7, 0)
    assert request.token_ids == [10, 11, 12, 7, 8, 9, 7]


def test_nothing_computed_and_nothing_in_flight_counts_after_forgetting():
    request = make_request(max_tokens=20)
    request.num_cached_tokens = 2
    launch(request)
    request.append_sampled([7, 8])
    launch(request)
    launch(request)
    request.forget_computed()
    assert request.token_ids == [10, 11, 12, 7, 8], "known tokens are kept"
    assert (request.num_tokens, request.num_pending_tokens, request.num_computed_tokens) == (5, 0, 0)
    assert request.num_preemptions == 1
    assert (request.num_prompt_tokens, request.num_output_tokens, request.num_cached_tokens) == (3, 2, 2)
    assert request.max_total_tokens == 23
    launch(request)
    assert request.append_sampled([9]) == 1
    assert request.token_ids == [10, 11, 12, 7, 8, 9]
    request.forget_computed()
    assert request.num_preemptions == 2
    assert_consistent(request)


def test_the_message_stays_as_it_is():
    message = EngineCoreRequest("r", [1, 2], SamplingParams(), arrival_time=0.0, eos_token_ids=[EOS])
    request = Request(message, 100)
    launch(request)
    request.append_sampled([3])
    assert message.prompt_token_ids == [1, 2]


@pytest.mark.parametrize("tokens", [[7], [EOS], [7, 8]])
def test_only_the_prompt_is_wanted(tokens):
    """max_tokens is 0: the whole prompt is computed, and nothing is taken."""
    request = make_request(max_tokens=0)
    assert request.max_computed_tokens == 3
    launch(request)
    assert request.append_sampled(tokens) == 0
    assert request.token_ids == [10, 11, 12]
    assert request.status is RequestStatus.FINISHED_LENGTH
    assert_consistent(request)


def test_the_last_output_token_is_never_computed():
    assert make_request(max_tokens=5).max_computed_tokens == 7
    assert make_request(max_tokens=1).max_computed_tokens == 3
    assert make_request(max_tokens=None, max_model_len=50).max_computed_tokens == 49


def test_prompt_logprobs_bound_what_the_cache_may_give():
    assert make_request().max_cached_tokens == 2
    request = make_request(prompt_logprobs=0)
    assert request.max_cached_tokens == 0
    request.num_prompt_logprobs = 1
    assert request.max_cached_tokens == 1
    request.num_prompt_logprobs = 2
    launch(request)
    request.append_sampled([7])
    assert request.max_cached_tokens == 3, "all delivered: one token to sample from is left"
