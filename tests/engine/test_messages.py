"""Every message crosses a process boundary unchanged."""

import msgspec
import pytest

from pelton import SamplingParams
from pelton.core.messages import (
    EngineCoreOutput,
    EngineCoreRequest,
    ModelRunnerOutput,
    NewRequest,
    RequestError,
    SchedulerOutput,
    TokenLogprobs,
)
from pelton.sampling_params import RequestOutputKind
from tests.support.fakes import FakeEngine, full_spec, sliding_spec

PARAMS = SamplingParams(
    temperature=0.3,
    top_k=40,
    top_p=0.95,
    min_p=0.125,
    n=7,
    presence_penalty=-2.0,
    frequency_penalty=0.5,
    repetition_penalty=1.25,
    bad_words=["no", "ne 🚀"],
    min_tokens=3,
    prompt_logprobs=0,
    logit_bias={0: -100.0, 49151: 0.5},
    allowed_token_ids=[1, 2],
    detokenize=True,
    skip_special_tokens=False,
    spaces_between_special_tokens=False,
    include_stop_str_in_output=True,
    truncate_prompt_tokens=-1,
    extra_args={"scale": 2.0, "names": ["a"]},
    seed=2**64 - 1,
    max_tokens=None,
    ignore_eos=True,
    stop=["\n\n", "🚀", "\0"],
    stop_token_ids=[0, 49151],
    logprobs=5,
    output_kind=RequestOutputKind.DELTA,
)
LOGPROBS = TokenLogprobs([5, 5, 9], [-0.1, -0.1, -1e30], rank=1)

MESSAGES = [
    EngineCoreRequest("r-1", [1, 2, 49151], PARAMS, 12345.678, [2, 0], priority=-(2**63), cache_salt="mandant-é"),
    EngineCoreRequest("", [0], SamplingParams(), 0.0, []),
    EngineCoreRequest("one stop", [0], SamplingParams(stop="one", max_tokens=2**63 - 1, top_k=-1), 0.0, []),
    EngineCoreRequest("c", [1], PARAMS, 0.0, [2], choice=1023, bad_words_token_ids=[[5], [1, 49151]]),
    NewRequest(EngineCoreRequest("r", [1, 2], PARAMS, 0.0, []), [3], [[3, 1], [0, 2]], num_prompt_logprobs=1),
    SchedulerOutput(
        step_id=2**40,
        request_ids=["a", "b"],
        num_scheduled_tokens=[7, 1],
        num_computed_tokens=[0, 100],
        num_logits=[0, 1],
        new_requests=[NewRequest(EngineCoreRequest("a", list(range(9)), PARAMS, 0.0, []), [], [[3], [0]])],
        new_block_ids={"b": [[4], [5]]},
        dropped_request_ids=["c"],
    ),
    LOGPROBS,
    ModelRunnerOutput(3, [[], [5], [1, 2]], {"b": [LOGPROBS, LOGPROBS]}),
    ModelRunnerOutput(4, [[]], {}, {"b": [LOGPROBS]}, {"a": RequestError("broken", True), "c": RequestError("worse")}),
    EngineCoreOutput("r", [5], None, None, [LOGPROBS], [LOGPROBS, LOGPROBS], 16, 123.5),
    EngineCoreOutput("r", [5, 2], "stop", 2),
    EngineCoreOutput("r", [], "error", "RuntimeError: the model broke"),
    EngineCoreOutput("r", [1]),
]


def there_and_back(message):
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_round_trip(message):
    back = there_and_back(message)
    assert back == message
    assert type(back) is type(message)
    assert msgspec.msgpack.encode(back) == msgspec.msgpack.encode(message)


def test_parameters_keep_their_types():
    back = there_and_back(MESSAGES[0]).sampling_params
    assert back.output_kind is RequestOutputKind.DELTA
    assert type(back.temperature) is float
    assert there_and_back(SamplingParams(temperature=1)).temperature == 1.0


def test_defaults_take_no_space():
    assert len(msgspec.msgpack.encode(SamplingParams())) <= 3


@pytest.mark.parametrize("num_groups", [1, 2])
def test_a_whole_run_over_the_wire(monkeypatch, num_groups):
    """Every step and every result goes through bytes, preemptions and chunks included."""
    engine = FakeEngine(
        monkeypatch,
        specs=[full_spec(), sliding_spec(6)][:num_groups],
        num_gpu_blocks_override=[12, 16][num_groups - 1],
        max_model_len=32,
        max_num_batched_tokens=6,
    )
    execute = engine.worker.execute
    monkeypatch.setattr(engine.worker, "execute", lambda step: there_and_back(execute(there_and_back(step))))
    add_request = engine.core.add_request
    monkeypatch.setattr(engine.core, "add_request", lambda message: add_request(there_and_back(message)))
    for number in range(6):
        engine.add(str(number), [number, *range(9)], 12, priority=-number, salt="é" * number or None)
    outputs = []
    while engine.core.has_work:
        outputs += there_and_back(engine.core.step()).outputs
    for output in outputs:
        engine.tokens[output.request_id] += output.new_token_ids
        if output.finish_reason is not None:
            engine.finish_reasons[output.request_id] = output.finish_reason
    engine.assert_as_expected()
    assert engine.core.scheduler.num_preemptions > 0
