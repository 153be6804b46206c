"""One list of arguments for Python and for the command line."""

import argparse
from dataclasses import fields

import pytest

from pelton.config import CacheConfig, EngineArgs, ExecutionConfig, ModelConfig, SamplingConfig, SchedulerConfig
from pelton.config.options import doc_of

REFUSED = [
    ("model", ""),
    ("model", None),
    ("model", 5),
    ("revision", ""),
    ("revision", 5),
    ("revision", "/main"),
    ("revision", "../main"),
    ("revision", "a branch"),
    ("dtype", "float16"),
    ("dtype", "float"),
    ("dtype", None),
    ("dtype", ["float32"]),
    ("quantization", "int3"),
    ("quantization", None),
    ("quantization", ["int8"]),
    ("max_model_len", 0),
    ("max_model_len", "64"),
    ("max_model_len", 64.0),
    ("max_model_len", True),
    ("max_logprobs", -2),
    ("max_logprobs", None),
    ("block_size", 0),
    ("block_size", "16"),
    ("kv_cache_dtype", "fp8"),
    ("kv_cache_dtype", "half"),
    ("kv_cache_dtype", 16),
    ("kv_cache_memory_bytes", 0),
    ("kv_cache_memory_bytes", 1e9),
    ("num_gpu_blocks_override", 1),
    ("enable_prefix_caching", 1),
    ("enable_prefix_caching", None),
    ("prefix_caching_hash_algo", "md5"),
    ("prefix_caching_hash_algo", None),
    ("max_num_batched_tokens", 0),
    ("max_num_seqs", 0),
    ("max_num_seqs", True),
    ("long_prefill_token_threshold", -1),
    ("scheduling_policy", "lifo"),
    ("logprobs_mode", "raw"),
    ("logprobs_mode", None),
    ("generation_config", "vllm"),
    ("generation_config", True),
    ("logits_processors", "module:Class"),
    ("logits_processors", None),
    ("num_threads", 0),
    ("num_threads", True),
    ("num_threads", 1025),
    ("num_threads", "2"),
    ("enforce_eager", None),
    ("check_nan", 1),
    ("distributed_executor_backend", "ray"),
    ("distributed_executor_backend", None),
]


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_refused_values(name, value):
    with pytest.raises(ValueError, match=f"^{name} must be .*got ") as caught:
        EngineArgs.create(**{name: value})
    assert repr(value) in str(caught.value)


def test_choices_are_named():
    with pytest.raises(ValueError, match="one of sha256, builtin, got 'md5'"):
        EngineArgs.create(prefix_caching_hash_algo="md5")
    with pytest.raises(ValueError, match="one of fcfs, priority, got 'lifo'"):
        EngineArgs.create(scheduling_policy="lifo")


def test_formats_of_other_engines_come_with_a_remedy():
    with pytest.raises(
        ValueError, match=r"^dtype must be one of auto, float32, bfloat16, got 'half'; bfloat16 takes as"
    ):
        EngineArgs.create(dtype="half")
    with pytest.raises(ValueError, match=r"^kv_cache_dtype must be .*got 'float'; write float32$"):
        parse("--kv-cache-dtype", "float")


@pytest.mark.parametrize(
    ("quantization", "remedy"),
    [
        (None, "write auto to take the weights .* none to widen them"),
        ("gguf", "auto takes the weights of a GGUF file as they are stored"),
        ("fp8", "int8 takes as little memory"),
        ("awq", "int4 takes as little memory, and is made of weights that are not quantized"),
        ("gptq", "int4 takes as little memory, and is made of weights that are not quantized"),
        ("bitsandbytes", "int8 and int4 take as little memory"),
    ],
)
def test_quantization_of_other_engines_comes_with_a_remedy(quantization, remedy):
    message = rf"^quantization must be one of auto, none, int8, int4, got {quantization!r}; {remedy}$"
    with pytest.raises(ValueError, match=message):
        EngineArgs.create(quantization=quantization)


def test_values_can_be_checked_only_between_launches():
    with pytest.raises(ValueError, match=r"^check_nan is True, but .*; set enforce_eager too$"):
        EngineArgs.create(check_nan=True)
    assert EngineArgs.create(check_nan=True, enforce_eager=True).execution == ExecutionConfig(None, True, True)


def test_contradictory_values_are_refused_by_name():
    with pytest.raises(ValueError, match="only one of num_gpu_blocks_override and kv_cache_memory_bytes"):
        EngineArgs.create(num_gpu_blocks_override=10, kv_cache_memory_bytes=1 << 30)


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_quantized_weights_need_bfloat16_inputs(quantization):
    with pytest.raises(ValueError, match=rf"^quantization is '{quantization}', but dtype is 'float32'.*; leave dtype"):
        EngineArgs.create(dtype="float32", quantization=quantization)
    with pytest.raises(ValueError, match=r"^quantization is 'int"):
        parse("--dtype", "float32", "--quantization", quantization)
    for dtype in ("auto", "bfloat16"):
        assert EngineArgs.create(dtype=dtype, quantization=quantization).model.quantization == quantization
    assert EngineArgs.create(dtype="float32", quantization="none").model.dtype == "float32"


def test_unknown_names_are_refused_by_name():
    with pytest.raises(
        ValueError, match="unknown engine argument max_model_length, typo; there are model, revision, dtype, quanti"
    ):
        EngineArgs.create(typo=1, max_model_length=64, block_size=16)


def test_sections_take_their_own():
    args = EngineArgs.create(model="m", block_size=8, max_num_seqs=3)
    assert args == EngineArgs(ModelConfig("m"), CacheConfig(block_size=8), SchedulerConfig(max_num_seqs=3))
    assert EngineArgs.create() == EngineArgs()


def test_logits_processors_are_classes_or_names():
    assert EngineArgs.create(logits_processors=[int, "a:B"]).sampling.logits_processors == [int, "a:B"]
    with pytest.raises(ValueError, match="must hold classes or names module:Class, got 5"):
        EngineArgs.create(logits_processors=[5])


def test_configuration_is_frozen():
    with pytest.raises(AttributeError):
        EngineArgs.create().cache.block_size = 8


GIVEN = {
    "model": "some/folder",
    "revision": "refs/pr/2",
    "dtype": "bfloat16",
    "quantization": "int4",
    "max_model_len": 64,
    "max_logprobs": 7,
    "block_size": 8,
    "kv_cache_dtype": "float32",
    "kv_cache_memory_bytes": 123456,
    "enable_prefix_caching": False,
    "prefix_caching_hash_algo": "builtin",
    "max_num_batched_tokens": 99,
    "max_num_seqs": 3,
    "long_prefill_token_threshold": 17,
    "scheduling_policy": "priority",
    "logprobs_mode": "processed_logits",
    "generation_config": "none",
    "reasoning_parser": "qwen3",
    "num_threads": 5,
    "enforce_eager": True,
    "check_nan": True,
    "distributed_executor_backend": "a.b:C",
}


def parse(*flags):
    parser = argparse.ArgumentParser(exit_on_error=False)
    EngineArgs.add_cli_args(parser)
    return EngineArgs.from_cli_args(parser.parse_args(flags))


def test_the_command_line_says_the_same_as_python():
    flags = []
    for name, value in GIVEN.items():
        flag = "--" + name.replace("_", "-")
        negated = flag.replace("--", "--no-", 1)
        flags += [flag if value else negated] if isinstance(value, bool) else [flag, str(value)]
    assert parse(*flags) == EngineArgs.create(**GIVEN)
    others = {"num_gpu_blocks_override", "logits_processors", "structured_outputs_config"}
    assert {*GIVEN, *others} == set(EngineArgs.names())
    settings = parse("--structured-outputs-config", '{"cache_size": 7}')
    assert settings == EngineArgs.create(structured_outputs_config={"cache_size": 7})
    assert settings.structured_outputs.config.cache_size == 7
    processors = ["--logits-processors", "a:B", "--logits-processors", "c.d:E"]
    assert parse(*processors) == EngineArgs.create(logits_processors=["a:B", "c.d:E"])
    assert parse("--num-gpu-blocks-override", "9") == EngineArgs.create(num_gpu_blocks_override=9)
    assert all(getattr(section(EngineArgs(), name), name) != value for name, value in GIVEN.items()), "no defaults"


def section(args, name):
    parts = args.model, args.cache, args.scheduler, args.sampling, args.structured_outputs, args.execution
    return next(part for part in parts if hasattr(part, name))


def test_no_flags_are_the_defaults():
    assert parse() == EngineArgs()


def test_flags_of_the_wrong_type():
    with pytest.raises(argparse.ArgumentError, match="max-num-seqs: invalid int value: 'many'"):
        parse("--max-num-seqs", "many")
    with pytest.raises(argparse.ArgumentError, match="scheduling-policy: invalid choice: 'lifo'"):
        parse("--scheduling-policy", "lifo")


SECTIONS = (ModelConfig, CacheConfig, SchedulerConfig, SamplingConfig, ExecutionConfig)
DECLARED = [declared for kind in SECTIONS for declared in fields(kind)]


@pytest.mark.parametrize("declared", DECLARED, ids=lambda declared: declared.name)
def test_help_comes_from_the_field(monkeypatch, declared):
    monkeypatch.setenv("COLUMNS", "1000")
    parser = argparse.ArgumentParser()
    EngineArgs.add_cli_args(parser)
    action = next(action for action in parser._actions if action.dest == declared.name)
    default = "" if declared.default in (None, ()) else f" Default: {declared.default}."
    assert action.help.replace("%%", "%") == doc_of(declared) + default
    assert doc_of(declared) + default in " ".join(parser.format_help().split())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("auto", "structured_outputs_config must be a dict"),
        ({"size": 1}, "structured_outputs_config has no entry 'size'; there are backend"),
        ({"backend": "outlines"}, "structured_outputs_config: backend must be one of auto, llguidance, xgrammar"),
        ({"cache_size": 0}, "structured_outputs_config: cache_size must be at least 1"),
        ({"max_compile_seconds": 0}, "structured_outputs_config: max_compile_seconds must be more than 0"),
        ({"disable_any_whitespace": 1}, "structured_outputs_config: disable_any_whitespace must be True or False"),
    ],
)
def test_settings_of_structured_output(given, words):
    with pytest.raises(ValueError, match=words):
        EngineArgs.create(structured_outputs_config=given)
