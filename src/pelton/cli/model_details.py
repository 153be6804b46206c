"""A model's particulars, from its files, and its programs."""

import math
from collections import Counter
from contextlib import closing

from pelton.config import DecoderConfig, EngineArgs
from pelton.core.kv_spec import layer_groups
from pelton.kv.groups import group_layers
from pelton.kv.managers import blocks_for
from pelton.layers import Target
from pelton.loader import Checkpoint, load_weights
from pelton.loader.weights import formats_by_size
from pelton.models import create_model, record_backbone
from pelton.ops import Program
from pelton.ops.interpreter import NumpyBackend
from pelton.runner.execution import choose_target, start_backend, target_for
from pelton.sampling import record_head, record_scorer
from pelton.sampling_params import SamplingParams
from pelton.tokenizer import Tokenizer, load_tokenizer
from pelton.tokenizer.template_text import MissingChatTemplateError


def describe(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """Names and values, for people. The tensors' data is not read."""
    config = checkpoint.config
    tokenizer = load_tokenizer(checkpoint)
    parameters = create_model(config, Target(NumpyBackend())).parameters().values()
    num_parameters = sum(math.prod(parameter.shape) for parameter in parameters)
    return [
        ("model", checkpoint.name),
        ("path", str(checkpoint.path)),
        ("size", f"{size_text(checkpoint.num_bytes)} on disk"),
        ("in memory", _sizes(checkpoint)),
        ("architecture", config.architecture),
        ("parameters", f"{num_parameters / 1e6:.1f} M"),
        ("layers", str(config.num_layers)),
        ("hidden size", f"{config.hidden_size}, {config.intermediate_size} in the MLP"),
        ("heads", f"{config.num_heads} of {config.head_size}, {config.num_kv_heads} for keys and values"),
        ("vocabulary", f"{config.vocab_size} rows, {tokenizer.vocab_size} tokens"),
        ("context length", f"{config.max_position_embeddings} tokens"),
        ("windows", _windows(config)),
        ("chat template", _chat_template(tokenizer)),
        ("end of sequence", ", ".join(f"{i} {tokenizer.token_text(i)!r}" for i in config.eos_token_ids) or "none"),
        ("sampling defaults", _sampling_defaults(checkpoint)),
    ]


def programs(checkpoint: Checkpoint, args: EngineArgs, *, progress: bool) -> list[Program]:
    """Backbone, head and scorer as an engine with these arguments records them. Loads the weights."""
    config = checkpoint.config
    max_blocks = blocks_for(config.max_position_embeddings, args.cache.block_size)
    with closing(start_backend(args.execution)) as backend:
        model = create_model(config, choose_target(args, backend, checkpoint))
        load_weights(model.parameters(), checkpoint, progress=progress)
        groups = layer_groups(group_layers(model.kv_specs()))
        return [
            record_backbone(model, groups, max_blocks),
            record_head(model, args.sampling),
            record_scorer(model, args.sampling),
        ]


def size_text(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.2f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.1f} MB"


def _sizes(checkpoint: Checkpoint) -> str:
    """What the weights take, for each `dtype` and `quantization`."""
    choices = {"float32": "none", "bfloat16": "none", "int8": "int8", "int4": "int4", "stored": "stored"}
    texts = []
    for name, quantization in choices.items():
        target = target_for(quantization, name, NumpyBackend(), checkpoint)
        parameters = create_model(checkpoint.config, target).parameters().values()
        size = size_text(sum(parameter.num_bytes for parameter in parameters))
        formats = formats_by_size(parameter for parameter in parameters if len(parameter.shape) == 2)
        if name != "stored":
            texts.append(f"{size} as {name}")
        elif formats != ["bf16"]:
            texts.append(f"{size} as stored ({' and '.join(formats)})")
    return ", ".join(texts)


def _windows(config: DecoderConfig) -> str:
    counts = Counter(window for window in config.layer_windows if window is not None)
    if not counts:
        return "none"
    return ", ".join(f"{window} tokens in {number} of {config.num_layers} layers" for window, number in counts.items())


def _chat_template(tokenizer: Tokenizer) -> str:
    try:
        tokenizer.apply_chat_template([{"role": "user", "content": "?"}])
    except MissingChatTemplateError as error:
        return f"no: {error.problem}"
    except ValueError as error:
        return f"no: {error}"
    return "yes"


def _sampling_defaults(checkpoint: Checkpoint) -> str:
    recommended = checkpoint.generation_defaults()
    values = {
        name: recommended.get(name, getattr(SamplingParams(), name)) for name in ("temperature", "top_k", "top_p")
    }
    text = ", ".join(f"{name} {value}" for name, value in (values | recommended).items())
    return text if recommended else f"{text} (the model has none of its own)"
