"""SmolLM2 against transformers: every greedy token and its log probability."""

import gguf
import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from pelton import LLM, SamplingParams
from pelton.loader import open_checkpoint
from tests.support.engines import NEAR_TIE, assert_as_reference, assert_same_bits, generate
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
    llm = LLM(model="smollm2", dtype="float32", max_num_batched_tokens=512)
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


EDITED = ["capital", "python", "list", "german", "257 tokens"]
EOS = 2
EDITS = {
    "repetition": {"repetition_penalty": 1.3},
    "bad words": {"bad_words": ["Paris", "the", "return", "und"]},
    "min_tokens": {"min_tokens": 12, "ignore_eos": False, "logit_bias": {EOS: 12.0}},
    "bias": {"logit_bias": {198: 4.0, 28: -100.0}},
    "all": {"repetition_penalty": 0.9, "bad_words": ["the", "a"], "logit_bias": {30: 3.0}, "min_tokens": 5},
}


def processors_of(fields: dict, prompt_ids: list[int]) -> list:
    """transformers' processors for these parameters, in the order in which Pelton's act."""
    found = []
    if words := fields.get("bad_words"):
        # What the output must not hold: the prompt does not count, so they see the output only.
        ids = [list(form) for word in words for form in smollm2_tokenizer().word_forms(word)]
        found.append(lambda seen, scores: NoBadWordsLogitsProcessor(ids)(seen[:, len(prompt_ids) :], scores))
    if length := fields.get("min_tokens"):
        found.append(MinNewTokensLengthLogitsProcessor(len(prompt_ids), length, EOS))
    if bias := fields.get("logit_bias"):
        found.append(SequenceBiasLogitsProcessor([[[token_id], value] for token_id, value in bias.items()]))
    if penalty := fields.get("repetition_penalty"):
        found.append(RepetitionPenaltyLogitsProcessor(penalty))
    return found


def test_edited_logits_choose_what_transformers_processors_choose(reference):
    """Greedy tokens with penalties, biases and bans, by induction (fault 20)."""
    llm = LLM(model="smollm2", dtype="float32", max_model_len=512)
    ids = prompts(llm.get_tokenizer())
    cases = [(name, edit) for name in EDITED for edit in EDITS]
    params = [SamplingParams(**{"temperature": 0, "max_tokens": 24, "ignore_eos": True} | EDITS[e]) for _, e in cases]
    found = llm.generate([ids[name] for name, _ in cases], params, use_tqdm=False)
    plain = {
        name: llm.generate(ids[name], SamplingParams(temperature=0, max_tokens=24), use_tqdm=False)[0]
        for name in EDITED
    }
    num_changed = 0
    for (name, edit), output in zip(cases, found, strict=True):
        prompt_ids, token_ids = output.prompt_token_ids, output.outputs[0].token_ids
        num_changed += token_ids != plain[name].outputs[0].token_ids
        with torch.inference_mode():
            sequence = torch.tensor([prompt_ids + token_ids])
            logits = reference(sequence[:, :-1], logits_to_keep=len(token_ids)).logits[0]
        processors = LogitsProcessorList(processors_of(EDITS[edit], prompt_ids))
        for position, token_id in enumerate(token_ids):
            scores = logits[position][None].clone()
            for processor in processors:
                scores = processor(sequence[:, : len(prompt_ids) + position], scores)
            best = scores[0].topk(2)
            if best.values[0] - best.values[1] >= NEAR_TIE:
                assert token_id == best.indices[0], f"{name}, {edit}: token {position}"
    assert num_changed > len(cases) // 2, "the edits matter"


def test_prompt_logprobs_equal_transformers(reference):
    llm = LLM(model="smollm2", dtype="float32", max_num_batched_tokens=200)
    ids = prompts(llm.get_tokenizer())
    params = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=3)
    for name in ("one token", "chinese", "json", "257 tokens"):
        (output,) = llm.generate(ids[name], params, use_tqdm=False)
        assert output.outputs[0].token_ids == []
        assert output.prompt_logprobs[0] is None
        with torch.inference_mode():
            logits = reference(torch.tensor([ids[name]])).logits[0].double()
        expected = torch.log_softmax(logits, dim=-1)
        for position, entries in enumerate(output.prompt_logprobs[1:]):
            assert next(iter(entries)) == ids[name][position + 1]
            for token_id, entry in entries.items():
                assert abs(entry.logprob - expected[position, token_id].item()) < 1e-3, f"{name}, {position}"
            top = [entry.logprob for entry in entries.values() if entry.rank <= 3]
            assert max(top) > expected[position].max() - 1e-3


def test_safetensors_give_the_same_as_gguf(reference, outputs, tmp_path):
    """The same weights, written by transformers in shards and read back with a tokenizer.json."""
    reference.save_pretrained(tmp_path, max_shard_size="200MB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    tokenizer = smollm2_tokenizer()
    tokenizer._backend.save(str(tmp_path / "tokenizer.json"))
    llm = LLM(model=str(tmp_path), dtype="float32")
    names = ["chinese", "python", "257 tokens"]
    assert_same_bits(generate(llm, {name: outputs[name].prompt_token_ids for name in names}, PARAMS), outputs)
    prompt = "The capital of France is"
    (text_output,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    assert text_output.prompt_token_ids == tokenizer.encode(prompt)
    assert "Paris" in text_output.outputs[0].text
