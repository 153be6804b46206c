"""Text to tokens and back."""

import pytest

from pelton.server.errors import APIError, parse_request
from pelton.server.protocol import DetokenizeRequest, TokenizeRequest
from pelton.server.tokens import TokenHandler
from tests.server.handlers import USER, run, served
from tests.support.fake_async_llm import FakeAsyncLLM


def tokenize(**fields):
    llm = FakeAsyncLLM()
    return run(TokenHandler(llm, served(llm)).tokenize(parse_request(TokenizeRequest, fields))).model_dump()


def detokenize(**fields):
    llm = FakeAsyncLLM()
    return run(TokenHandler(llm, served(llm)).detokenize(parse_request(DetokenizeRequest, fields))).model_dump()


def test_a_text() -> None:
    assert tokenize(prompt="Hello there!") == {
        "count": 3,
        "max_model_len": 2048,
        "tokens": [19556, 665, 17],
        "token_strs": None,
    }
    assert tokenize(prompt="Hello there!", return_token_strs=True)["token_strs"] == ["Hello", " there", "!"]
    assert tokenize(prompt="")["tokens"] == []


def test_a_conversation() -> None:
    whole = tokenize(messages=USER)["tokens"]
    text = detokenize(tokens=whole)["prompt"]
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    shorter = tokenize(messages=USER, add_generation_prompt=False)["tokens"]
    assert whole[: len(shorter)] == shorter
    assert detokenize(tokens=shorter)["prompt"].endswith("Hi<|im_end|>\n")
    assert detokenize(tokens=tokenize(messages=USER, continue_final_message=True)["tokens"])["prompt"].endswith("\nHi")
    with pytest.raises(ValueError, match="takes no templates from requests"):
        tokenize(messages=USER, chat_template="{{ 1 }}")


@pytest.mark.parametrize("text", ["Hi", "<|im_start|>é 👩‍🚀\n\n", ""])
def test_there_and_back(text) -> None:
    assert detokenize(tokens=tokenize(prompt=text)["tokens"]) == {"prompt": text}


@pytest.mark.parametrize("fields", [{}, {"prompt": "a", "messages": USER}, {"prompt": None, "messages": None}])
def test_a_text_or_a_conversation(fields) -> None:
    with pytest.raises(APIError, match="prompt or messages must be given, and not both"):
        tokenize(**fields)


def test_tokens_that_are_none() -> None:
    with pytest.raises(ValueError, match=r"^tokens has 49152, which is outside the vocabulary \(0 to 49151\)$"):
        detokenize(tokens=[5, 49152])
    with pytest.raises(APIError, match=r"^tokens\[1\] must be greater than or equal to 0, got -1$"):
        detokenize(tokens=[5, -1])


def test_other_models_are_not_here() -> None:
    with pytest.raises(APIError, match="does not exist"):
        tokenize(prompt="a", model="other")
    with pytest.raises(APIError, match="does not exist"):
        detokenize(tokens=[5], model="other")
