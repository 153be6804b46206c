"""The history of a conversation, whatever happens to an answer."""

import pytest

from pelton import SamplingParams
from pelton.cli.conversation import Conversation
from pelton.core.outputs import CompletionOutput, RequestOutput
from pelton.sampling_params import RequestOutputKind
from tests.support.tiny_llama import smollm2_tokenizer

USER = {"role": "user", "content": "Hi"}
ERROR = "it broke"


def output(text, reason=None):
    stop_reason = ERROR if reason == "error" else None
    completion = CompletionOutput(0, text, [1] * bool(text), None, None, reason, stop_reason)
    return RequestOutput("r", "p", [1], [completion], reason is not None, 0)


class PlayedEngine:
    """Plays steps: outputs, or an exception. `held` is text that comes only when the request is aborted."""

    def __init__(self, *steps, held=""):
        self.tokenizer = smollm2_tokenizer()
        self.num_unfinished_requests = 0
        self.params = None
        self._steps = iter(steps)
        self._held = held

    def next_request_id(self):
        return "r"

    def add_request(self, prompt, params, *, request_id):
        self.num_unfinished_requests = 1
        self.params = params

    def step(self):
        step = next(self._steps)
        if isinstance(step, BaseException):
            raise step
        self.num_unfinished_requests = 0 if step.finished else 1
        return [step]

    def abort_requests(self, request_ids):
        assert request_ids == ["r"]
        if not self.num_unfinished_requests:
            return []
        self.num_unfinished_requests = 0
        return [output(self._held, "abort")]


def conversation_of(engine, system=None):
    return Conversation(engine, SamplingParams(), system=system, chat_template=None)


def ask(engine, num_outputs_wanted=99, raises=None):
    """Messages after one question, and what was shown."""
    shown = []
    conversation = conversation_of(engine)

    def show(output):
        shown.append(output.outputs[0].text)

    def is_stopped():
        return len(shown) >= num_outputs_wanted

    if raises is None:
        conversation.ask("Hi", show, is_stopped)
    else:
        with pytest.raises(raises):
            conversation.ask("Hi", show, is_stopped)
    assert engine.num_unfinished_requests == 0, "nothing is left running"
    return conversation.messages, shown


def assistant(text):
    return {"role": "assistant", "content": text}


def test_an_answer():
    engine = PlayedEngine(output("Good "), output("day"), output("", "stop"))
    assert ask(engine) == ([USER, assistant("Good day")], ["Good ", "day", ""])
    assert engine.params.output_kind is RequestOutputKind.DELTA


def test_an_empty_answer_is_one():
    assert ask(PlayedEngine(output("", "stop"))) == ([USER, assistant("")], [""])


def test_an_answer_that_is_stopped():
    """What could have become a stop string is text after all, and is shown as well."""
    engine = PlayedEngine(output("Good "), output("day"), held="!")
    assert ask(engine, 1) == ([USER, assistant("Good !")], ["Good ", "!"])


def test_an_answer_that_is_stopped_before_its_first_word():
    assert ask(PlayedEngine(), 0) == ([], [""])


@pytest.mark.parametrize(("text", "kept"), [("Good", [USER, assistant("Good")]), ("", [])])
def test_an_answer_that_fails(text, kept):
    assert ask(PlayedEngine(output(text), output("", "error")))[0] == kept


@pytest.mark.parametrize(("steps", "kept"), [([output("Good")], [USER, assistant("Good")]), ([], [])])
def test_an_answer_that_is_interrupted(steps, kept):
    assert ask(PlayedEngine(*steps, KeyboardInterrupt()), raises=KeyboardInterrupt)[0] == kept


def test_restarts():
    engine = PlayedEngine(output("A", "stop"), output("B", "stop"))
    conversation = conversation_of(engine, "Be kind")
    system = {"role": "system", "content": "Be kind"}
    conversation.ask("Hi", lambda output: None, lambda: False)
    assert conversation.messages == [system, USER, assistant("A")]
    conversation.reset()
    assert conversation.messages == [system]
    conversation.ask("Hi", lambda output: None, lambda: False)
    conversation.restart(None)
    assert conversation.messages == []
