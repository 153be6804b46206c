"""The asyncio front over engine cores that are played: what comes for each request, and how requests end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import wraps
from types import SimpleNamespace

import msgspec
import pytest
import zmq

from pelton import SamplingParams
from pelton.config import EngineArgs
from pelton.core.control_messages import CoreInfo, CoreReady
from pelton.core.messages import EngineCoreOutput, EngineCoreOutputs, EngineStats
from pelton.engine.async_llm import AsyncLLM
from pelton.engine.async_mp_client import AsyncMPClient
from pelton.engine.core_connections import IDLE, CoreConnections, CoreState, FrontEndAddresses
from pelton.engine.core_sockets import routing_id
from pelton.engine.errors import EngineDeadError, QueueFullError
from pelton.engine.served_model import ServedModel
from pelton.sampling_params import RequestOutputKind
from tests.support.tiny_llama import smollm2_tokenizer, tiny_llama

PATIENCE = 60.0
DELTA, FINAL_ONLY = RequestOutputKind.DELTA, RequestOutputKind.FINAL_ONLY
TEXT = " the quick brown fox jumps over the lazy dog"


class FakeClient:
    """Notes what the cores are asked; their outputs come when the test says so."""

    num_queued = AsyncMPClient.num_queued

    def __init__(self, num_ranks: int, max_num_seqs: int) -> None:
        cores = [CoreState(rank) for rank in range(num_ranks)]
        for core in cores:
            core.info = CoreInfo(100, 16, 256, max_num_seqs, "", False)
        self.connections = SimpleNamespace(cores=cores, up=cores, addresses=SimpleNamespace(index=3))
        self.added: dict[str, int] = {}
        self.aborted: list[str] = []
        self.is_healthy = True
        self.num_shutdowns = 0
        self.chosen: list[tuple[int, int | None]] = []
        self.next_rank = 0
        self._outputs: asyncio.Queue[EngineCoreOutputs] = asyncio.Queue()

    @property
    def has_work(self) -> bool:
        return bool(self.added)

    def choose_rank(self, num_requests, pinned=None):
        self.chosen.append((num_requests, pinned))
        return self.next_rank if pinned is None else pinned

    def add_requests(self, requests, rank):
        self.added |= {request.request_id: rank for request in requests}
        self.connections.cores[rank].num_sent += len(requests)

    def abort_requests(self, request_ids, rank=None):
        self.aborted += request_ids

    async def next_outputs(self):
        return await self._outputs.get()

    async def collect_metrics(self):
        return self.connections.on_metrics_call()

    def shutdown(self):
        self.num_shutdowns += 1

    def emit(self, *outputs: EngineCoreOutput, rank: int = 0, stats: EngineStats = IDLE) -> None:
        self._outputs.put_nowait(EngineCoreOutputs(list(outputs), stats, rank))


class World:
    def __init__(self, llm: AsyncLLM, client: FakeClient) -> None:
        self.llm = llm
        self.client = client

    async def add(self, name="r", prompt="Hello", *, rank=None, **params):
        """A stream, and the core's ids of its choices."""
        before = set(self.client.added)
        params = SamplingParams(**{"max_tokens": 50, "output_kind": DELTA, **params})
        stream = await self.llm.add_request(prompt, params, request_id=name, data_parallel_rank=rank)
        return stream, [request_id for request_id in self.client.added if request_id not in before]

    async def settle(self) -> None:
        """Until everything that was emitted has been handled."""
        while not self.client._outputs.empty():
            await asyncio.sleep(0)
        for _ in range(10):
            await asyncio.sleep(0)


@asynccontextmanager
async def world(num_ranks=1, max_num_seqs=2, **options) -> AsyncIterator[World]:
    args = EngineArgs.create(model=tiny_llama())
    client = FakeClient(num_ranks, max_num_seqs)
    llm = AsyncLLM(args, ServedModel(args), client, smollm2_tokenizer(), **options)
    try:
        yield World(llm, client)
    finally:
        await llm.shutdown()
        assert client.num_shutdowns == 1


def in_loop(test):
    """A test that is a coroutine."""

    @wraps(test)  # with its fixtures
    def run(**fixtures):
        asyncio.run(asyncio.wait_for(test(**fixtures), PATIENCE))

    return run


def tokens(text: str = TEXT) -> list[int]:
    return smollm2_tokenizer().encode(text, False)


async def collect(stream) -> list:
    return [output async for output in stream]


def new_token(request_id: str, token_id: int, finish_reason: str | None = None) -> EngineCoreOutput:
    return EngineCoreOutput(request_id, [token_id], finish_reason)


@in_loop
async def test_outputs_come_one_by_one():
    async with world() as made:
        stream, (core_id,) = await made.add("mine")
        assert (stream.request_id, stream.prompt) == ("mine", "Hello")
        assert stream.prompt_token_ids == tokens("Hello")
        text = ""
        for token_id in tokens():
            made.client.emit(new_token(core_id, token_id))
            output = await anext(stream)
            assert output.request_id == "mine"
            assert output.outputs[0].token_ids == [token_id]
            text += output.outputs[0].text
        made.client.emit(EngineCoreOutput(core_id, [], "length"))
        (last,) = await collect(stream)
        assert last.finished
        assert last.outputs[0].finish_reason == "length"
        assert text + last.outputs[0].text == TEXT


@in_loop
async def test_a_slow_consumer_gets_all_that_has_come_at_once():
    async with world() as made:
        slow, (slow_id,) = await made.add()
        fast, (fast_id,) = await made.add()
        seen = []
        for token_id in tokens()[:5]:
            made.client.emit(new_token(slow_id, token_id), new_token(fast_id, token_id))
            seen.append((await anext(fast)).outputs[0].token_ids)
        assert seen == [[token_id] for token_id in tokens()[:5]]
        output = await anext(slow)
        assert output.outputs[0].token_ids == tokens()[:5]
        for token_id in tokens()[5:]:
            made.client.emit(new_token(slow_id, token_id))
        made.client.emit(EngineCoreOutput(slow_id, [], "length"))
        await made.settle()
        (last,) = await collect(slow)
        assert last.outputs[0].token_ids == tokens()[5:]
        assert output.outputs[0].text + last.outputs[0].text == TEXT
        fast.close()


@in_loop
async def test_one_output_at_the_end():
    async with world() as made:
        stream, (core_id,) = await made.add(output_kind=FINAL_ONLY)
        task = asyncio.create_task(collect(stream))
        for token_id in tokens():
            made.client.emit(new_token(core_id, token_id))
        await made.settle()
        assert not task.done()
        made.client.emit(EngineCoreOutput(core_id, [], "length"))
        (output,) = await task
        assert output.outputs[0].text == TEXT
        assert output.metrics.num_generation_tokens == len(tokens())


@in_loop
async def test_choices():
    async with world() as made:
        stream, core_ids = await made.add(n=3, temperature=1.0)
        assert made.client.chosen == [(3, None)]
        internal = core_ids[0].partition("/")[0]
        assert core_ids == [f"{internal}/{index}" for index in range(3)]
        made.client.emit(*(new_token(core_ids[index], tokens()[index], "length") for index in (2, 0)))
        output = await anext(stream)
        assert [choice.index for choice in output.outputs] == [0, 2]
        assert not output.finished
        made.client.emit(EngineCoreOutput(core_ids[1], [], "error", "it broke"))
        output = await anext(stream)
        (choice,) = output.outputs
        assert (choice.index, choice.finish_reason, choice.stop_reason) == (1, "error", "it broke")
        assert output.finished


@in_loop
async def test_ids_may_be_used_twice_and_are_the_cores_own():
    async with world() as made:
        (one, first), (two, second) = [await made.add("same") for _ in range(2)]
        assert not set(first) & set(second)
        assert all(core_id.startswith("3-") for core_id in (*first, *second))
        await made.llm.abort(["unknown"])
        assert made.client.aborted == []
        await made.llm.abort(["same", "unknown"])
        for stream in (one, two):
            (output,) = await collect(stream)
            assert output.outputs[0].finish_reason == "abort"
        assert sorted(made.client.aborted) == sorted([*first, *second])
        assert made.llm.num_unfinished_requests == 0


@in_loop
async def test_closing_ends_a_request():
    async with world() as made:
        stream, (core_id,) = await made.add()
        made.client.emit(new_token(core_id, tokens()[0]))
        await anext(stream)
        stream.close()
        stream.close()
        assert made.client.aborted == [core_id]
        assert made.llm.num_unfinished_requests == 0
        assert await collect(stream) == []
        made.client.emit(new_token(core_id, tokens()[1]))  # was on its way
        await made.settle()
        assert await collect(stream) == []


@in_loop
async def test_closing_wakes_who_waits():
    async with world() as made:
        stream, _ = await made.add()
        task = asyncio.create_task(collect(stream))
        await made.settle()
        stream.close()
        outputs = await task
        assert [output.outputs[0].finish_reason for output in outputs] in ([], ["abort"])


@in_loop
async def test_closing_after_the_end_aborts_nothing():
    async with world() as made:
        stream, (core_id,) = await made.add()
        made.client.emit(new_token(core_id, tokens()[0], "length"))
        await collect(stream)
        stream.close()
        assert made.client.aborted == []


@in_loop
async def test_an_iterator_that_is_closed_early_ends_the_request():
    async with world() as made:
        outputs = made.llm.generate("Hello", SamplingParams(output_kind=DELTA), request_id="r")
        task = asyncio.create_task(anext(outputs))
        await made.settle()
        while not made.client.added:
            await asyncio.sleep(0)
        (core_id,) = made.client.added
        made.client.emit(new_token(core_id, tokens()[0]))
        await task
        await outputs.aclose()
        assert made.client.aborted == [core_id]


@in_loop
async def test_a_stop_string_ends_a_request_that_the_core_still_has():
    async with world() as made:
        stream, (core_id,) = await made.add(stop=["brown"])
        for token_id in tokens():
            made.client.emit(new_token(core_id, token_id))
        await made.settle()
        outputs = await collect(stream)
        assert "".join(output.outputs[0].text for output in outputs) == TEXT.partition("brown")[0]
        assert outputs[-1].outputs[0].stop_reason == "brown"
        assert core_id in made.client.aborted


@in_loop
async def test_the_death_of_a_core_ends_its_requests_only():
    async with world(num_ranks=2) as made:
        kept, (kept_id,) = await made.add(rank=0)
        lost, (lost_id,) = await made.add(rank=1)
        made.client.emit(EngineCoreOutput(lost_id, [], "error", "the core ended"), rank=1)
        (output,) = await collect(lost)
        assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("error", "the core ended")
        made.client.emit(new_token(kept_id, tokens()[0], "length"))
        (output,) = await collect(kept)
        assert output.outputs[0].finish_reason == "length"
        metrics = await made.llm.get_metrics()
        counts = {
            (metric.labels["engine"], metric.labels["finished_reason"]): metric.value
            for metric in metrics
            if metric.name == "vllm:request_success" and metric.value
        }
        assert counts == {("0", "length"): 1, ("1", "error"): 1}


@in_loop
async def test_outputs_that_cannot_be_handled_fail_their_requests():
    async with world() as made:
        broken, (broken_id,) = await made.add()
        fine, (fine_id,) = await made.add()
        made.client.emit(EngineCoreOutput(broken_id, ["no token"]))
        (output,) = await collect(broken)
        assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == (
            "error",
            "the output could not be read",
        )
        assert made.client.aborted == [broken_id]
        made.client.emit(new_token(fine_id, tokens()[0], "length"))
        (output,) = await collect(fine)
        assert output.outputs[0].finish_reason == "length"


@in_loop
async def test_many_outputs_at_once():
    async with world(max_num_seqs=1000) as made:
        streams = [await made.add(f"r{index}") for index in range(200)]
        made.client.emit(*(new_token(core_id, tokens()[0], "length") for _, (core_id,) in streams))
        for stream, _ in streams:
            (output,) = await collect(stream)
            assert output.finished
        assert await made.llm.drain(0)


@in_loop
async def test_draining():
    async with world() as made:
        assert await made.llm.drain(0)
        stream, (core_id,) = await made.add()
        assert not await made.llm.drain(0)
        task = asyncio.create_task(made.llm.drain(PATIENCE))
        await made.settle()
        assert not task.done()
        made.client.emit(new_token(core_id, tokens()[0], "length"))
        assert await task
        assert len(await collect(stream)) == 1


@in_loop
async def test_draining_waits_for_requests_that_are_being_tokenized():
    async with world() as made:
        adding = asyncio.create_task(made.add(prompt=TEXT * 3))
        await asyncio.sleep(0)
        assert made.client.added == {}
        draining = asyncio.create_task(made.llm.drain(PATIENCE))
        stream, (core_id,) = await adding
        await made.settle()
        assert not draining.done()
        made.client.emit(new_token(core_id, tokens()[0], "length"))
        assert await draining
        assert len(await collect(stream)) == 1


@in_loop
async def test_draining_waits_for_conversations_and_texts():
    async with world() as made:
        messages = [{"role": "user", "content": TEXT}]

        async def answer():
            prompt = await made.llm.render_chat(messages, chat_template="{{ messages[0].content }}")
            await made.llm.encode(TEXT)
            return await made.add(prompt=prompt)

        answering = asyncio.create_task(answer())
        await asyncio.sleep(0)
        assert made.llm.num_unfinished_requests == 1
        draining = asyncio.create_task(made.llm.drain(PATIENCE))
        stream, (core_id,) = await answering
        await made.settle()
        assert not draining.done()
        assert made.llm.num_unfinished_requests == 1
        made.client.emit(new_token(core_id, tokens()[0], "length"))
        assert await draining
        assert len(await collect(stream)) == 1


@in_loop
async def test_shutdown_ends_all_streams():
    async with world() as made:
        streams = [(await made.add())[0] for _ in range(3)]
        task = asyncio.create_task(collect(streams[0]))
        await made.settle()
        await made.llm.shutdown()
        await made.llm.shutdown()
        for outputs in (await task, *[await collect(stream) for stream in streams[1:]]):
            assert [output.outputs[0].finish_reason for output in outputs] == ["abort"]
        assert not made.llm.is_healthy
        with pytest.raises(EngineDeadError):
            await made.add()


@in_loop
async def test_requests_that_are_not_acceptable():
    async with world() as made:
        for prompt, words in (({"prompt_token_ids": [99999]}, "99999"), ({"prompt_token_ids": [1] * 300}, "256")):
            with pytest.raises(ValueError, match=words):
                await made.add(prompt=prompt)
        assert made.client.added == {}
        assert made.llm.num_unfinished_requests == 0
        assert await made.llm.drain(0)


@in_loop
async def test_a_request_is_refused_if_it_had_to_wait_with_too_many():
    """Two run at once, and one may wait."""
    async with world(max_num_queued_reqs=1) as made:
        for _ in range(3):
            await made.add()
        with pytest.raises(QueueFullError, match="2 requests would wait with this one, and the server lets 1") as e:
            await made.add()
        assert e.value.retry_after == 1
        assert len(made.client.added) == 3
        made.client.connections.cores[0].num_received = 3
        made.client.connections.cores[0].stats = EngineStats(1, 0, 0, 0.0, 0, 0, 0, 0)
        with pytest.raises(QueueFullError):
            await made.add(n=3, temperature=1.0)
        await made.add(n=2, temperature=1.0)


@in_loop
async def test_requests_that_come_at_the_same_moment_count():
    async with world(max_num_queued_reqs=3) as made:
        results = await asyncio.gather(*(made.add() for _ in range(20)), return_exceptions=True)
        assert len(made.client.added) == 5
        assert sum(isinstance(result, QueueFullError) for result in results) == 15
        assert made.llm.num_unfinished_requests == 5


@in_loop
async def test_a_request_alone_may_be_larger_than_the_queue():
    async with world(max_num_queued_reqs=1) as made:
        await made.add(n=9, temperature=1.0)
        with pytest.raises(QueueFullError):
            await made.add()


@in_loop
async def test_text_and_tokens():
    async with world() as made:
        assert await made.llm.encode(TEXT, False) == tokens()
        assert await made.llm.decode(tokens()) == TEXT
        assert made.llm.max_model_len == 256
        assert made.llm.vocab_size == 49152
        prompt = await made.llm.render_chat([{"role": "user", "content": "Hi"}])
        assert prompt["prompt_token_ids"]


@in_loop
async def test_a_front_end_that_is_started_again_waits_for_one_core_only(tmp_path):
    """The other one may be loading, and its requests would have nowhere to go meanwhile."""
    addresses = FrontEndAddresses(
        *(0, [f"ipc://{tmp_path}/input"], [f"ipc://{tmp_path}/output"], f"ipc://{tmp_path}/control"),
        *(f"ipc://{tmp_path}/published", 2, 1),
    )
    args = EngineArgs.create(model=tiny_llama())
    model = ServedModel(args)
    connections = CoreConnections(addresses)
    with zmq.Context() as context, context.socket(zmq.DEALER) as core:
        core.setsockopt(zmq.LINGER, 0)
        core.setsockopt(zmq.IDENTITY, routing_id(1))
        core.connect(addresses.inputs[0])
        info = CoreInfo(100, 16, 256, 4, "", False)
        core.send(msgspec.msgpack.encode(CoreReady(1, 0, info)))
        connecting = AsyncLLM.connect(args, model, connections, wait_for_all=False)
        llm = await asyncio.wait_for(connecting, PATIENCE)
        assert llm.core_infos == [info]
        assert llm.is_healthy
        await llm.shutdown()


@in_loop
async def test_a_front_end_that_is_started_first_waits_for_all_cores(monkeypatch):
    waited = []

    class Client(FakeClient):
        def __init__(self, connections, *, stall_timeout):
            super().__init__(2, 4)

        async def wait_until_ready(self):
            waited.append("ready")

    monkeypatch.setattr("pelton.engine.async_llm.DPLBAsyncMPClient", Client)
    connections = SimpleNamespace(addresses=SimpleNamespace(num_ranks=2))
    args = EngineArgs.create(model=tiny_llama())
    llm = await AsyncLLM.connect(args, ServedModel(args), connections)
    await llm.shutdown()
    assert waited == ["ready"]
