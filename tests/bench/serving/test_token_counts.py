from pelton.bench.requests import BenchRequest
from pelton.bench.serving.request_result import RequestResult
from pelton.bench.serving.token_counts import fill_token_counts
from tests.support.tiny_llama import smollm2_tokenizer

ASKED = BenchRequest("What is a turbine?", 5)


def answer(text="one two", *, output_len=0, gaps=(0.1,), error="", prompt_len=0):
    return RequestResult(0.0, itls=list(gaps), text=text, output_len=output_len, error=error, prompt_len=prompt_len)


def count(results, tokenizer=None, request=ASKED):
    return fill_token_counts(results, [request] * len(results), tokenizer)


def test_what_the_server_says_stays():
    results = [answer(output_len=9, prompt_len=4), answer(error="stream cut")]
    assert count(results, smollm2_tokenizer()) == "usage"
    assert [result.output_len for result in results] == [9, 0]
    assert results[0].prompt_len == 4


def test_by_the_tokenizer():
    results = [answer(), answer("x")]
    assert count(results, smollm2_tokenizer()) == "tokenizer"
    encode = smollm2_tokenizer().encode
    assert [result.output_len for result in results] == [len(encode("one two")), len(encode("x"))]
    assert results[0].prompt_len == len(encode("What is a turbine?"))


def test_prompts_without_usage():
    """Whether or not the answers have it."""
    messages = [{"role": "user", "content": "What is a turbine?"}]
    results = [answer(output_len=4), answer()]
    count(results, smollm2_tokenizer(), BenchRequest(None, 5, messages=messages))
    text = smollm2_tokenizer().apply_chat_template(messages, add_generation_prompt=True)
    expected = len(smollm2_tokenizer().encode(text, add_special_tokens=False))
    assert [result.prompt_len for result in results] == [expected] * 2


def test_conversations_that_no_template_takes():
    results = [answer()]
    count(results, Surrounding(), BenchRequest(None, 5, messages=[{"role": "user", "content": "x"}]))
    assert results[0].prompt_len == 0


def test_by_events():
    results = [answer(gaps=[0.1, 0.2]), answer(gaps=[])]
    assert count(results) == "events"
    assert [result.output_len for result in results] == [3, 1]
    assert results[0].prompt_len == 0


def test_some_answers_with_usage_and_some_without():
    assert count([answer(output_len=9), answer()]) == "usage and events"


def test_the_dataset_knows_its_prompts():
    results = [answer(), answer(output_len=3), answer(error="HTTP 503: busy")]
    count(results, request=BenchRequest((5, 6, 7), 5, prompt_len=3))
    assert [result.prompt_len for result in results] == [3, 3, 3]


def test_an_answer_of_no_tokens_has_none():
    results = [answer("", gaps=[])]
    assert count(results) == "usage"
    assert results[0].output_len == 0


class Surrounding:
    """A tokenizer that puts a token before every text, which no answer has."""

    def apply_chat_template(self, messages, **options):
        raise ValueError("the model has no chat template")

    def encode(self, text, add_special_tokens=True):
        return [0] * add_special_tokens + [1] * len(text.split())


def test_only_prompts_have_tokens_around_them():
    results = [answer("one two three")]
    count(results, Surrounding())
    assert results[0].output_len == 3
    assert results[0].prompt_len == 5
