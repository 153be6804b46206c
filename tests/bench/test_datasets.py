import json
import logging
import unicodedata
from collections import Counter
from dataclasses import replace
from importlib.resources import files

import pytest

from pelton.bench.dataset_config import DatasetConfig
from pelton.bench.datasets import make_requests, make_with_warmups
from tests.support.tiny_llama import smollm2_tokenizer

RANDOM = DatasetConfig(num_prompts=30, random_input_len=40, random_output_len=12)
PREFIXES = DatasetConfig(
    "prefix_repetition",
    num_prompts=17,
    prefix_repetition_prefix_len=24,
    prefix_repetition_suffix_len=8,
    prefix_repetition_num_prefixes=5,
    prefix_repetition_output_len=6,
)


def made(config):
    return make_requests(config, smollm2_tokenizer())


class TestRandom:
    def test_lengths_are_exact(self):
        requests = made(RANDOM)
        assert len(requests) == 30
        assert {(len(request.prompt), request.prompt_len, request.output_len) for request in requests} == {(40, 40, 12)}

    def test_the_seed_decides(self):
        assert made(RANDOM) == made(RANDOM)
        other = made(replace(RANDOM, seed=1))
        assert not {request.prompt for request in other} & {request.prompt for request in made(RANDOM)}

    def test_range_ratio_spreads_both_lengths_over_the_whole_interval(self):
        config = replace(RANDOM, num_prompts=2000, random_input_len=10, random_output_len=5, random_range_ratio=0.3)
        requests = made(config)
        assert {request.prompt_len for request in requests} == set(range(7, 14))
        assert {request.output_len for request in requests} == {4, 5, 6}
        counts = Counter(request.prompt_len for request in requests)
        assert min(counts.values()) > 0.7 * 2000 / 7  # evenly: 3 standard deviations are about 0.17 of the mean

    def test_lengths_are_at_least_one(self):
        config = replace(RANDOM, num_prompts=200, random_input_len=1, random_output_len=1, random_range_ratio=0.9)
        assert {(request.prompt_len, request.output_len) for request in made(config)} == {(1, 1)}

    def test_there_are_no_special_tokens(self):
        tokenizer = smollm2_tokenizer()
        ids = {token for request in made(replace(RANDOM, num_prompts=3000)) for token in request.prompt}
        special = set(tokenizer._backend.get_added_tokens_decoder())
        assert special
        assert not ids & special
        assert len(ids) > 0.9 * (tokenizer.vocab_size - len(special))  # the rest of the vocabulary is used

    def test_short_prompts_differ_too(self):
        # Of 2,000 prompts of one token, about 40 would be there already without a second draw.
        config = replace(RANDOM, num_prompts=2000, random_input_len=1)
        assert len({request.prompt for request in made(config)}) == 2000

    def test_more_prompts_than_there_are_is_an_error(self, monkeypatch):
        tokenizer = smollm2_tokenizer()
        monkeypatch.setattr(type(tokenizer), "text_token_ids", property(lambda _: [5, 6, 7]))
        assert len(make_requests(replace(RANDOM, num_prompts=9, random_input_len=2), tokenizer)) == 9
        with pytest.raises(ValueError, match="too few different prompts of 2 tokens: the vocabulary has 3 tokens"):
            make_requests(replace(RANDOM, num_prompts=10, random_input_len=2), tokenizer)

    def test_a_prefix_comes_before_the_own_tokens_of_all(self):
        requests = made(replace(RANDOM, random_prefix_len=16))
        assert {request.prompt_len for request in requests} == {56}
        assert len({request.prompt[:16] for request in requests}) == 1
        assert len({request.prompt[16] for request in requests}) > 20

    def test_a_tokenizer_is_needed(self):
        with pytest.raises(ValueError, match="dataset random needs the model's tokenizer"):
            make_requests(RANDOM, None)


class TestPrefixRepetition:
    def test_prompts_are_shared_out_among_prefixes(self):
        requests = made(PREFIXES)
        assert {(request.prompt_len, request.output_len) for request in requests} == {(32, 6)}
        prefixes = Counter(request.prompt[:24] for request in requests)
        assert sorted(prefixes.values()) == [3, 3, 3, 4, 4]
        assert len({request.prompt[24:] for request in requests}) == 17

    def test_prefixes_are_not_in_order(self):
        prefixes = [request.prompt[:24] for request in made(replace(PREFIXES, num_prompts=50))]
        assert prefixes[:5] != prefixes[5:10]

    def test_the_seed_decides(self):
        assert made(PREFIXES) == made(PREFIXES)
        assert made(PREFIXES) != made(replace(PREFIXES, seed=1))


def conversation(question, answer, asking="human", answering="gpt"):
    return {
        "id": "x",
        "conversations": [{"from": asking, "value": question}, {"from": answering, "value": answer}],
    }


class TestShareGpt:
    @pytest.fixture
    def made_of(self, tmp_path):
        def make(content, **fields):
            path = tmp_path / "conversations.json"
            path.write_text(content if isinstance(content, str) else json.dumps(content))
            return made(DatasetConfig("sharegpt", str(path), **fields))

        return make

    def test_first_question_and_length_of_its_answer(self, made_of):
        tokenizer = smollm2_tokenizer()
        question, answer = "How long is the river that we saw?", "It is about ninety kilometres long."
        long = conversation(question, answer)
        long["conversations"] += [{"from": "human", "value": "And the other one?"}]
        (request,) = made_of([long], num_prompts=1)
        assert request.prompt == question
        assert request.prompt_len == len(tokenizer.encode(question))
        assert request.output_len == len(tokenizer.encode(answer))

    def test_turns_before_the_first_question_are_passed_over(self, made_of):
        entry = conversation("What is a weir, and what is it for?", "A low dam across a river.", "user", "chatgpt")
        entry["conversations"].insert(0, {"from": "system", "value": "Be brief."})
        (request,) = made_of([entry], num_prompts=1)
        assert request.prompt == "What is a weir, and what is it for?"

    def test_what_was_left_out_is_told(self, made_of, caplog):
        long = "river " * 1100
        entries = [
            conversation("What is a weir, and what is it for?", "A low dam across a river."),
            conversation("Hi", "Hello, what can I do for you today?"),
            conversation("What is a weir, and what is it for?", "Dam"),
            conversation(long, "That is a very long question indeed."),
            conversation("river " * 1000, long),
            {"conversations": []},
            {"conversations": [{"from": "gpt", "value": "Nobody asked me."}]},
        ]
        with caplog.at_level(logging.INFO, "pelton"):
            requests = made_of(entries, num_prompts=2)
        assert len(requests) == 2
        assert "6 of 7 conversations were left out" in caplog.text
        for part in ("2 without a question and its answer", "2 too short", "2 too long"):
            assert part in caplog.text

    def test_a_given_output_length_takes_the_place_of_the_answers(self, made_of):
        entries = [conversation("What is a weir, and what is it for?", "Dam")]
        (request,) = made_of(entries, num_prompts=1, sharegpt_output_len=9)
        assert request.output_len == 9

    def test_no_more_than_num_prompts_in_the_order_of_the_seed(self, made_of):
        entries = [conversation(f"What is the number {i} good for?", "For counting things.") for i in range(40)]
        first, other = (made_of(entries, num_prompts=10, seed=seed) for seed in (0, 1))
        assert len({request.prompt for request in first}) == 10
        assert first != other
        assert first == made_of(entries, num_prompts=10, seed=0)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ('[\n{"conversations": []},\n{"conversations": [}\n]', "conversations.json, line 3: JSON is malformed"),
            ('[\n{"conversations": []},\n', "conversations.json, line 3: Input data was truncated"),
            ('[{"conversations": []},\n\n{"turns": []}]', r"conversations.json: .*required.*`\$\[1\]`"),
            (
                '[{"conversations": []},\n{"conversations":\n[{"from": "human", "value": 3}]}]',
                r"conversations.json: Expected `str`, got `int`.*`\$\[1\]\.conversations",
            ),
            ('{"conversations": []}', "conversations.json: Expected `array`, got `object`; it must be a list"),
            ('[{"id": ' + "[" * 100_000, "conversations.json is nested too deeply"),
            ("[]", "conversations.json has no usable conversation: the list is empty"),
            ('[{"conversations": []}]', "has no usable conversation: 1 without a question"),
        ],
    )
    def test_errors_name_file_and_line(self, made_of, content, message):
        with pytest.raises(ValueError, match=message):
            made_of(content)

    def test_what_is_no_utf8_is_found(self, tmp_path):
        path = tmp_path / "latin.json"
        path.write_bytes(b'[\n{"conversations": [{"from": "human", "value": "caf\xe9"}]}\n\n]')
        with pytest.raises(ValueError, match=r"latin.json, line 2: Invalid UTF-8"):
            made(DatasetConfig("sharegpt", str(path)))

    def test_a_missing_file_is_named(self, tmp_path):
        with pytest.raises(ValueError, match=r"none.json cannot be read: No such file"):
            made(DatasetConfig("sharegpt", str(tmp_path / "none.json")))


class TestCustom:
    @pytest.fixture
    def made_of(self, tmp_path):
        def make(content, **fields):
            path = tmp_path / "prompts.jsonl"
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
            return make_requests(DatasetConfig("custom", str(path), **fields), None)

        return make

    def test_prompts_and_conversations(self, made_of):
        messages = [{"role": "user", "content": "Hello"}]
        lines = ['{"prompt": "Sum up: ..."}', json.dumps({"messages": messages, "prompt": None})]
        requests = made_of("\ufeff" + "\r\n".join(lines) + "\n\n", num_prompts=2)
        by_prompt = {request.prompt: request for request in requests}
        assert set(by_prompt) == {"Sum up: ...", None}
        assert by_prompt[None].messages == messages
        assert by_prompt["Sum up: ..."].messages is None
        assert {(request.output_len, request.prompt_len) for request in requests} == {(256, None)}

    def test_each_line_can_say_how_long_its_answer_is(self, made_of):
        content = '{"prompt": "a", "output_tokens": 3}\n{"prompt": "b", "output_tokens": 70}\n'
        requests = made_of(content, num_prompts=2, custom_output_len=-1)
        assert {request.prompt: request.output_len for request in requests} == {"a": 3, "b": 70}

    def test_a_line_that_does_not_say_so_is_named(self, made_of):
        content = '{"prompt": "a", "output_tokens": 3}\n\n{"prompt": "b"}\n'
        with pytest.raises(ValueError, match=r"prompts.jsonl, line 3: there is no output_tokens.*custom_output_len"):
            made_of(content, custom_output_len=-1)

    def test_what_is_not_used_is_told(self, made_of, caplog):
        with caplog.at_level(logging.INFO, "pelton"):
            made_of('{"prompt": "a", "id": 3}\n{"prompt": "b", "output_tokens": 4, "kind": "x"}\n', num_prompts=2)
        assert "only prompt, messages, output_tokens are used, and not id, kind" in caplog.text
        assert "output_tokens is not used, since custom_output_len is 256; -1 takes it" in caplog.text

    def test_nothing_is_told_where_all_is_used(self, made_of, caplog):
        with caplog.at_level(logging.INFO, "pelton"):
            made_of('{"prompt": "a", "output_tokens": 4}\n', num_prompts=1, custom_output_len=-1)
        assert not caplog.text

    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ('{"prompt": "a"', "it is not valid JSON: .* at character"),
            ('["a"]', "it is not a JSON object"),
            ('{"prompt": "a", "prompt": "b"}', "the name 'prompt' occurs twice"),
            ("{}", "it must have either prompt or messages, and has none"),
            (
                '{"prompt": "a", "messages": [{"role": "user", "content": "b"}]}',
                "it must have either prompt or messages, and has both",
            ),
            ('{"prompt": ""}', "prompt must be a text of at least one character"),
            ('{"prompt": [1, 2]}', "prompt must be a text of at least one character"),
            ('{"prompt": "\\ud800"}', "prompt must be valid Unicode"),
            ('{"messages": []}', "the conversation is empty"),
            ('{"messages": [{"content": "b"}]}', "message 0: role must be a string"),
            ('{"prompt": "a", "output_tokens": 0}', "output_tokens must be at least 1, got 0"),
            ('{"prompt": "a", "output_tokens": 1.5}', "output_tokens must be an integer"),
            (b'{"prompt": "caf\xe9"}', "it is not UTF-8"),
        ],
    )
    def test_errors_name_file_and_line(self, made_of, line, message):
        content = b'{"prompt": "good"}\n' + (line if isinstance(line, bytes) else line.encode()) + b"\n"
        with pytest.raises(ValueError, match=rf"prompts.jsonl, line 2: {message}"):
            made_of(content)

    def test_a_file_without_requests_is_refused(self, made_of):
        with pytest.raises(ValueError, match=r"prompts.jsonl has no requests"):
            made_of("\n\n")

    def test_a_folder_cannot_be_read(self, tmp_path):
        with pytest.raises(ValueError, match="cannot be read: Is a directory"):
            make_requests(DatasetConfig("custom", str(tmp_path)), None)

    def test_too_few_are_repeated_all_before_one_comes_again(self, made_of, caplog):
        content = "".join(json.dumps({"prompt": str(i)}) + "\n" for i in range(8))
        prompts = [request.prompt for request in made_of(content, num_prompts=20)]
        assert len(prompts) == 20
        assert set(prompts[:8]) == set(prompts[8:16]) == set(map(str, range(8)))
        assert len(set(prompts[16:])) == 4
        assert prompts[:8] != prompts[8:16]
        assert "num_prompts is 20" in caplog.text
        assert "prompts.jsonl is 8: they are repeated" in caplog.text

    def test_too_few_are_an_error_with_no_oversample(self, made_of):
        with pytest.raises(ValueError, match=r"num_prompts is 2, .* in .*prompts.jsonl is 1; lower num_prompts"):
            made_of('{"prompt": "a"}', num_prompts=2, no_oversample=True)

    def test_just_enough_are_none(self, made_of):
        assert len(made_of('{"prompt": "a"}', num_prompts=1, no_oversample=True)) == 1


class TestBuiltin:
    def test_no_tokenizer_is_needed_and_order_depends_on_the_seed(self):
        config = DatasetConfig("builtin", num_prompts=60, builtin_output_len=9)
        requests = make_requests(config, None)
        assert len({request.prompt for request in requests}) == 60
        assert {request.output_len for request in requests} == {9}
        assert requests == make_requests(config, None)
        assert requests != make_requests(replace(config, seed=1), None)

    def test_prompts_are_different_and_of_many_kinds(self):
        lines = (files("pelton.bench") / "builtin_prompts.jsonl").read_text(encoding="utf-8").splitlines()
        prompts = [json.loads(line)["prompt"] for line in lines]
        assert len(set(prompts)) == len(prompts) >= 80
        words = [len(prompt.split()) for prompt in prompts]
        assert sum(200 <= number <= 600 for number in words) >= 8
        assert sum(number < 40 for number in words) >= 40
        scripts = {unicodedata.name(char).split()[0] for prompt in prompts for char in prompt if char.isalpha()}
        assert scripts >= {"LATIN", "CYRILLIC", "GREEK", "ARABIC", "HEBREW", "DEVANAGARI", "CJK", "HANGUL", "THAI"}

    def test_more_than_there_are_is_told(self, caplog):
        assert len(make_requests(DatasetConfig("builtin"), None)) == 1000
        assert "usable requests in builtin is" in caplog.text


class TestWarmups:
    """They are other requests of the same dataset, and change nothing about what is measured."""

    @pytest.fixture(params=["random", "prefix_repetition", "sharegpt", "custom", "builtin"])
    def config(self, request, tmp_path):
        if request.param == "random":
            return DatasetConfig(num_prompts=20, random_input_len=1, random_output_len=4, random_prefix_len=3)
        if request.param == "prefix_repetition":
            return PREFIXES
        if request.param == "builtin":
            return DatasetConfig("builtin", num_prompts=60)
        path = tmp_path / "file"
        questions = [f"What is the number {i} good for?" for i in range(40)]
        if request.param == "custom":
            path.write_text("".join(json.dumps({"prompt": question}) + "\n" for question in questions))
        else:
            path.write_text(json.dumps([conversation(question, "For counting things.") for question in questions]))
        return DatasetConfig(request.param, str(path), num_prompts=30)

    @pytest.mark.parametrize("num_warmups", [0, 1, 3, 10])
    def test_no_request_is_in_both(self, config, num_warmups, caplog):
        measured, warmups = make_with_warmups(config, smollm2_tokenizer(), num_warmups)
        assert measured == made(config)
        assert len(warmups) == num_warmups
        prompts = [one.prompt for one in measured + warmups]
        assert len(set(prompts)) == len(prompts)
        assert "warm-up" not in caplog.text

    def test_beginnings_are_others_too(self):
        measured, warmups = make_with_warmups(PREFIXES, smollm2_tokenizer(), 9)
        assert not {one.prompt[:24] for one in measured} & {one.prompt[:24] for one in warmups}
        assert len({one.prompt[:24] for one in warmups}) == PREFIXES.prefix_repetition_num_prefixes

    def test_very_short_prompts_differ_too(self):
        measured, warmups = make_with_warmups(
            replace(RANDOM, num_prompts=1500, random_input_len=1), smollm2_tokenizer(), 1500
        )
        assert len({one.prompt for one in measured + warmups}) == 3000

    @pytest.mark.parametrize("num_prompts", [7, 8, 20])
    def test_too_few_for_both_are_told(self, tmp_path, caplog, num_prompts):
        """What is measured has precedence, whatever no_oversample says about it."""
        path = tmp_path / "prompts.jsonl"
        path.write_text("".join(json.dumps({"prompt": str(i)}) + "\n" for i in range(8)))
        config = DatasetConfig("custom", str(path), num_prompts=num_prompts, no_oversample=num_prompts <= 8)
        measured, warmups = make_with_warmups(config, None, 3)
        assert measured == make_requests(config, None)
        others = {str(i) for i in range(8)} - {one.prompt for one in measured}
        assert {one.prompt for one in warmups[: len(others)]} == others
        assert len(warmups) == 3
        assert f"num_warmups is 3, and besides what is measured there are {len(others)} usable requests" in caplog.text
