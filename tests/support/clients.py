"""What the tests of clients have in common."""

import openai

from tests.support.served import Served

MAX_MODEL_LEN = 512
MODEL = "smollm2"
PARIS = "The capital of France is"
SKY = [{"role": "user", "content": "Why is the sky blue?"}]


def serve_smollm2(*flags: str) -> Served:
    return Served(MODEL, "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "16", *flags)


def assert_error(error: openai.APIStatusError, status: int, param: str | None, *words: str) -> None:
    """The whole of it, as the `openai` package reads it."""
    assert error.status_code == status
    body = error.body
    assert body == {"message": body["message"], "type": type(error).__name__, "param": param, "code": status}
    assert (error.param, error.code, error.type) == (param, str(status), type(error).__name__)
    for word in words:
        assert word in error.message
    for leak in ("Traceback", "/work", ".py", "0x"):
        assert leak not in error.message
    assert error.response.headers["x-request-id"] == error.request_id
