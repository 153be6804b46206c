"""SmolLM2 against transformers: every greedy token and its log probability."""

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pelton import LLM, SamplingParams
from pelton.loader import open_checkpoint
from tests.support.engines import assert_all_same, assert_as_reference, generate
from tests.support.prompts import prompts
from tests.support.tiny_llama import smollm2_tokenizer

NUM_TOKENS = 64
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, logprobs=5, ignore_eos=True)

HF_NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@pytest.fixture(scope="module")
def reference() -> LlamaForCausalLM:
    """The GGUF's tensors, dequantized by the gguf package, in transformers' model."""
    reader = gguf.GGUFReader(open_checkpoint("smollm2").path)

    def value(key: str):
        return reader.fields[f"llama.{key}"].contents()

    config = LlamaConfig(
        vocab_size=value("vocab_size"),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_theta=value("rope.freq_base"),
        max_position_embeddings=value("context_length"),
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    state = {}
    for tensor in reader.tensors:
        array = gguf.dequantize(tensor.data, tensor.tensor_type)
        _, *rest = tensor.name.split(".")
        if tensor.name == "token_embd.weight":
            name = "model.embed_tokens.weight"
        elif tensor.name == "output_norm.weight":
            name = "model.norm.weight"
        else:
            layer, part, _ = rest
            name = f"model.layers.{layer}.{HF_NAMES[part]}.weight"
            if part in ("attn_q", "attn_k"):
                heads = config.num_attention_heads if part == "attn_q" else config.num_key_value_heads
                array = array.reshape(heads, -1, 2, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        state[name] = torch.from_numpy(np.array(array, np.float32))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ["lm_head.weight"]
    assert not unexpected
    return model.eval()


@pytest.fixture(scope="module")
def outputs():
    llm = LLM(model="smollm2", max_num_batched_tokens=512)
    ids = prompts(llm.get_tokenizer())
    return generate(llm, ids, PARAMS)


def test_there_are_enough_prompts(outputs):
    assert len({tuple(output.prompt_token_ids) for output in outputs.values()}) == len(outputs) >= 30
    lengths = [len(output.prompt_token_ids) for output in outputs.values()]
    assert min(lengths) == 1
    assert max(lengths) == 1500
    assert all(len(output.outputs[0].token_ids) == NUM_TOKENS for output in outputs.values())


def test_greedy_tokens_and_logprobs_equal_transformers(reference, outputs):
    """By induction: at every position, given the same tokens before, transformers would choose the same one."""

    def logprobs_of(token_ids: list[int], count: int) -> np.ndarray:
        with torch.inference_mode():
            # Float64 sums: the reference must not be the less exact of the two.
            logits = reference(torch.tensor([token_ids]), logits_to_keep=count).logits[0].double()
        return torch.log_softmax(logits, dim=-1).numpy()

    largest = assert_as_reference(outputs, logprobs_of)
    print(f"largest difference of a logprob: {largest:.1e}")


def test_safetensors_give_the_same_as_gguf(reference, outputs, tmp_path):
    """The same weights, written by transformers in shards and read back with a tokenizer.json."""
    reference.save_pretrained(tmp_path, max_shard_size="200MB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    tokenizer = smollm2_tokenizer()
    tokenizer._backend.save(str(tmp_path / "tokenizer.json"))
    llm = LLM(model=str(tmp_path))
    names = ["chinese", "python", "257 tokens"]
    assert_all_same(generate(llm, {name: outputs[name].prompt_token_ids for name in names}, PARAMS), outputs)
    prompt = "The capital of France is"
    (text_output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    assert text_output.prompt_token_ids == tokenizer.encode(prompt)
    assert "Paris" in text_output.outputs[0].text
