"""What the `openai` package makes of the errors and keys of a real server."""

from collections.abc import Iterator

import openai
import pytest

from tests.support.clients import MAX_MODEL_LEN, MODEL, PARIS, SKY, assert_error, serve_smollm2
from tests.support.native import needs_native
from tests.support.served import Served

pytestmark = needs_native
KEY = "sk-secret"


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    with serve_smollm2() as served:
        yield served


@pytest.fixture(scope="module")
def client(server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="EMPTY") as client:
        yield client


def test_models(client, server):
    (model,) = client.models.list()
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "pelton")
    assert model.max_model_len == MAX_MODEL_LEN
    assert client.models.retrieve(MODEL) == model
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 2, "temperature": 0}, "n"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"Paris": 1}}, "logit_bias"),
        ({"logit_bias": {"284": 500}}, "logit_bias"),
        ({"logprobs": 1000}, "logprobs"),
        ({"suffix": "the end"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [49152]}, None),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"extra_body": {"top_k": -2}}, "top_k"),
        ({"extra_body": {"min_p": 2}}, "min_p"),
        ({"extra_body": {"repetition_penalty": 0}}, "repetition_penalty"),
        ({"extra_body": {"min_tokens": 17}}, "min_tokens"),
        ({"extra_body": {"priority": 3}}, "priority"),
        ({"extra_body": {"allowed_token_ids": []}}, "allowed_token_ids"),
        ({"extra_body": {"guided_json": []}}, "guided_json"),
        ({"extra_body": {"guided_regex": "("}}, "guided_regex"),
        ({"extra_body": {"structured_outputs": {"choice": []}}}, "structured_outputs.choice"),
        ({"extra_body": {"use_beam_search": True}}, "use_beam_search"),
        ({"extra_body": {"kv_transfer_params": {"a": 1}}}, "kv_transfer_params"),
    ],
    ids=str,
)
def test_bad_completions(client, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(**{"model": MODEL, "prompt": PARIS, **options})
    assert_error(caught.value, 400, param, param or "prompt")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "Arr"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, "tool_choice"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"modalities": ["text", "audio"]}, "modalities"),
    ],
    ids=str,
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_chats(client, options, param, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": SKY, "stream": stream, **options})
    assert_error(caught.value, 400, param, param)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long(client, stream):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt=[5] * (MAX_MODEL_LEN + 1), stream=stream)
    assert_error(
        caught.value, 400, caught.value.param, f"This model's maximum context length is {MAX_MODEL_LEN} tokens"
    )
    with pytest.raises(openai.BadRequestError, match="maximum context length is 512 tokens"):
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "word " * 600}], stream=stream
        )


def test_an_unknown_model(client):
    for create, what in (
        (client.completions.create, {"prompt": PARIS}),
        (client.chat.completions.create, {"messages": SKY}),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            create(model="gpt-5", **what)
        assert_error(caught.value, 404, "model", "gpt-5", "does not exist")


def test_what_is_not_there(client):
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model=MODEL, input="Hello")


@pytest.fixture(scope="module")
def guarded() -> Iterator[Served]:
    """A server that wants a key, with other names for the model."""
    with Served(
        MODEL,
        *("--api-key", "another", "--api-key", KEY),
        *("--served-model-name", "gpt-4o-mini", "--served-model-name", "small"),
        *("--distributed-executor-backend", "tests.support.serving_executors:InstantExecutor"),
    ) as served:
        yield served


def test_keys(guarded):
    options = {"model": "small", "prompt": PARIS, "max_tokens": 2}
    for key in (KEY, "another"):
        with openai.OpenAI(base_url=guarded.url + "/v1", api_key=key) as client:
            assert client.completions.create(**options).choices
            assert [model.id for model in client.models.list()] == ["gpt-4o-mini", "small"]
    for wrong in ("wrong", KEY + "x", KEY[:-1]):
        with openai.OpenAI(base_url=guarded.url + "/v1", api_key=wrong) as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                client.completions.create(**options)
            assert_error(caught.value, 401, None, "API key")
            with pytest.raises(openai.AuthenticationError):
                client.models.list()
    assert guarded.get("/health") == (200, "")
    assert guarded.get("/metrics")[0] == 200


def test_the_first_name_answers(guarded):
    with openai.OpenAI(base_url=guarded.url + "/v1", api_key=KEY) as client:
        for name in ("gpt-4o-mini", "small"):
            assert client.completions.create(model=name, prompt=PARIS, max_tokens=1).model == "gpt-4o-mini"
        with pytest.raises(openai.NotFoundError):
            client.completions.create(model=MODEL, prompt=PARIS)
