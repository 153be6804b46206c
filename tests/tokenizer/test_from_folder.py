import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import processors
from transformers import PreTrainedTokenizerFast

from pelton.tokenizer import Tokenizer
from pelton.tokenizer.from_folder import tokenizer_from_folder
from tests.support.vocabularies import vocabulary_tokenizer
from tests.tokenizer.corpus import CORPUS

BOS = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False}}
HI = [{"role": "user", "content": "Hi"}]


def inside(tokenizer: Tokenizer, text: str = "hello") -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


@pytest.mark.parametrize(
    ("config", "template", "prefix", "suffix"),
    [
        (None, None, [], []),
        (BOS, None, [], []),
        (BOS, "<s> $A", [1], []),
        ({}, "<s> $A", [1], []),
        (BOS, "<s> $A </s>", [1], [2]),
        (BOS, "$A </s>", [], [2]),
        (BOS, "<s> </s> $A", [1, 2], []),
        ({**BOS, "add_bos_token": True}, None, [1], []),
        ({**BOS, "add_bos_token": True}, "<s> $A", [1], []),
        ({**BOS, "add_bos_token": True}, "</s> $A", [1, 2], []),
        ({**BOS, "add_bos_token": False}, "<s> $A", [], []),
        ({**BOS, "add_bos_token": False}, "<s> $A </s>", [], [2]),
        ({**BOS, "add_bos_token": None}, "<s> $A", [1], []),
        ({**BOS, "add_eos_token": True}, "<s> $A", [1], [2]),
        ({**BOS, "add_eos_token": False}, "<s> $A </s>", [1], []),
        ({**BOS, "add_bos_token": True, "add_eos_token": True}, None, [1], [2]),
    ],
)
def test_what_goes_around_a_text(
    config: dict[str, Any] | None,
    template: str | None,
    prefix: list[int],
    suffix: list[int],
    make_folder: Callable[..., Path],
) -> None:
    tokenizer = tokenizer_from_folder(make_folder(config, template))
    plain = inside(tokenizer)
    assert not {1, 2} & set(plain)
    assert tokenizer.decode(plain) == "hello"
    assert tokenizer.encode("hello") == prefix + plain + suffix
    assert tokenizer.encode("") == prefix + suffix
    whole = tokenizer.decode(prefix + plain + suffix, skip_special_tokens=False)
    assert tokenizer.encode(whole) == prefix + plain + suffix


@pytest.mark.parametrize("template", [None, "<s> $A", "<s> $A </s>", "$A </s>"])
def test_agrees_with_transformers_where_the_configuration_is_silent(
    template: str | None, make_folder: Callable[..., Path]
) -> None:
    folder = make_folder(BOS, template)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    tokenizer = tokenizer_from_folder(folder)
    for text in ("", "hello", "a </s> b"):
        assert tokenizer.encode(text) == reference.encode(text)


def save(folder: Path, backend: tokenizers.Tokenizer, config: dict[str, Any]) -> Path:
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def copy_of(name: str) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(vocabulary_tokenizer(name)._backend.to_str())


def usual_folder(name: str, folder: Path) -> Path:
    """In the manner of a popular model: its vocabulary, its post-processor, its tokenizer_config.json."""
    backend = copy_of(name)

    def token(content: str) -> tuple[str, int]:
        return content, backend.token_to_id(content)

    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 1e30}
    if name == "llama-bpe":
        bos = "<|begin_of_text|>"
        steps = [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(f"{bos} $A", f"{bos} $A {bos} $B", [token(bos)]),
        ]
        backend.post_processor = processors.Sequence(steps)
        config |= {"bos_token": bos, "eos_token": "<|end_of_text|>"}
    elif name == "llama-spm":
        backend.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [token("<s>")])
        config |= {**BOS, "unk_token": "<unk>", "add_bos_token": True, "add_eos_token": False}
    elif name == "qwen2":
        backend.post_processor = processors.ByteLevel(trim_offsets=False)
        config |= {"bos_token": None, "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False}
    elif name == "gemma":
        backend.post_processor = processors.TemplateProcessing("<bos> $A", "<bos> $A <bos> $B", [token("<bos>")])
        added = backend.get_added_tokens_decoder()
        decoder = {str(i): {"content": entry.content, "special": entry.special} for i, entry in added.items()}
        config |= {"bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": True, "add_eos_token": False}
        config |= {"added_tokens_decoder": decoder}
    elif name == "bert-bge":
        backend.enable_truncation(16)
        backend.enable_padding(length=16)
        backend.post_processor = processors.BertProcessing(token("[SEP]"), token("[CLS]"))
        config |= {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    return save(folder, backend, config)


@pytest.mark.parametrize(
    "name", ["llama-bpe", "llama-spm", "qwen2", "bert-bge", pytest.param("gemma", marks=pytest.mark.slow)]
)
def test_the_usual_models(name: str, tmp_path: Path) -> None:
    """The vocabulary of a GGUF file, saved as a folder: both ways in give the same, and what transformers gives."""
    folder = usual_folder(name, tmp_path)
    tokenizer = tokenizer_from_folder(folder)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    for text in CORPUS.values():
        token_ids = tokenizer.encode(text)
        assert token_ids == vocabulary_tokenizer(name).encode(text)
        assert token_ids == reference.encode(text)
        assert tokenizer.decode(token_ids) == reference.decode(
            token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


def test_roberta_ends_a_text_too(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(None)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1))
    tokenizer = tokenizer_from_folder(save(folder, backend, {}))
    assert tokenizer.encode("hello") == [1, *inside(tokenizer), 2]


def test_special_tokens_map_has_the_roles_that_the_configuration_lacks(make_folder: Callable[..., Path]) -> None:
    folder = make_folder({"bos_token": "<unk>", "eos_token": None, "add_eos_token": True})
    roles = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "additional_special_tokens": ["<tool call>"]}
    (folder / "special_tokens_map.json").write_text(json.dumps(roles))
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.special_token_id("bos_token") == 0
    assert tokenizer.special_token_id("eos_token") == 2
    assert tokenizer.encode("hello")[-1] == 2
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": 5}))
    with pytest.raises(ValueError, match=r"special_tokens_map\.json: eos_token must be a string"):
        tokenizer_from_folder(folder)


def test_the_places_of_templates(make_folder: Callable[..., Path]) -> None:
    folder = make_folder({})

    def rendered(**extras: Any) -> str:
        return tokenizer_from_folder(folder).apply_chat_template(HI, **extras)

    with pytest.raises(ValueError, match="no chat template; give one as chat_template, or send a plain prompt"):
        rendered()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "legacy"}))
    assert rendered() == "legacy"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "config"}))
    assert rendered() == "config"
    (folder / "chat_template.jinja").write_text("file")
    assert rendered() == "file"
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert rendered() == "file"
    assert rendered(tools=[]) == "tools"
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ValueError, match="no chat template; it has only tool_use"):
        rendered()


def test_named_templates_of_the_configuration(make_folder: Callable[..., Path]) -> None:
    templates = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    folder = make_folder({"chat_template": templates})
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.apply_chat_template(HI) == "plain"
    assert tokenizer.apply_chat_template(HI, tools=[{"name": "f"}]) == "tools"


@pytest.mark.parametrize(
    ("config", "template", "problem"),
    [
        ({"add_eos_token": True}, None, "add_eos_token is true, and the tokenizer has no eos_token"),
        ({"add_bos_token": True}, None, "add_bos_token is true, and the tokenizer has no bos_token"),
        ({"add_bos_token": True, "bos_token": "<absent>"}, None, "add_bos_token is true, and the tokenizer has no"),
        ({"add_bos_token": "yes"}, None, "add_bos_token must be"),
        ({"add_eos_token": 1}, "<s> $A", "add_eos_token must be"),
        ({"bos_token": 5}, None, "bos_token must be"),
        ({"auto_map": {}}, None, "auto_map"),
        ({"added_tokens_decoder": {"999": {"content": "<new>"}}}, None, "'<new>' as token '999'"),
        ({"added_tokens_decoder": [1]}, None, "added_tokens_decoder must be an object"),
        ({"added_tokens_decoder": 5}, None, "added_tokens_decoder must be an object"),
        ({"added_tokens_decoder": 0}, None, "added_tokens_decoder must be an object"),
        ({"added_tokens_decoder": {"1": "x"}}, None, "added_tokens_decoder must hold .* got 'x' for token '1'"),
        ({"added_tokens_decoder": {"1": {}}}, None, "added_tokens_decoder must hold objects with a content"),
        ({"added_tokens_decoder": {"1": {"content": 5}}}, None, "added_tokens_decoder must hold"),
        ({"chat_template": 5}, None, "chat_template must be a string"),
        ({"chat_template": [{"name": []}]}, None, "chat_template must be a string or a list of objects"),
        ({"chat_template": [5]}, None, "chat_template must be a string or a list of objects"),
        ({"chat_template": [{"name": "default", "template": 5}]}, None, "chat_template must be a string"),
        ({"chat_template": [{"name": "rag"}]}, None, "chat_template must be a string"),
    ],
)
def test_refuses_configurations(
    config: dict[str, Any], template: str | None, problem: str, make_folder: Callable[..., Path]
) -> None:
    with pytest.raises(ValueError, match=problem) as refusal:
        tokenizer_from_folder(make_folder(config, template))
    assert "tokenizer_config.json: " in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        # The library itself panics at this one.
        ({"special_tokens": {}}, "puts '<s>' around a text, and its special_tokens have no such token"),
        ({"special_tokens": {"<s>": {"id": "<s>", "ids": [9999], "tokens": ["<s>"]}}}, "puts token 9999 around a text"),
        ({"single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}]}, "a template with 0 texts, not one"),
    ],
)
def test_refuses_post_processors(changes: dict[str, Any], problem: str, make_folder: Callable[..., Path]) -> None:
    path = make_folder({}, "<s> $A") / "tokenizer.json"
    state = json.loads(path.read_text())
    state["post_processor"] |= changes
    path.write_text(json.dumps(state))
    with pytest.raises(ValueError, match=rf"tokenizer\.json: post_processor .*{problem}"):
        tokenizer_from_folder(path.parent)


FILES = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/rag.jinja",
]


@pytest.mark.parametrize("name", FILES)
def test_reads_only_regular_files(name: str, make_folder: Callable[..., Path]) -> None:
    folder = make_folder({})
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    for make in (path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to("/dev/zero")):
        make()
        with pytest.raises(ValueError, match=rf"{name} cannot be read: it is not a regular file"):
            tokenizer_from_folder(folder)
        path.rmdir() if path.is_dir() else path.unlink()


def test_refuses_a_tokenizer_that_is_too_large(
    make_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pelton.tokenizer.from_folder._MAX_TOKENIZER_BYTES", 1000)
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read: it is larger than 0\.001 MB"):
        tokenizer_from_folder(make_folder({}))


def test_refuses_folders_without_a_usable_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no tokenizer\.json, which Pelton needs for text; copy it from"):
        tokenizer_from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a usable tokenizer"):
        tokenizer_from_folder(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json", "vocab.txt", "tekken.json"])
def test_names_the_remedy_for_other_forms_of_a_vocabulary(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("x")
    remedy = rf"has no tokenizer\.json, only {name}; .* AutoTokenizer\.from_pretrained\(folder\)\.save_pretrained"
    with pytest.raises(ValueError, match=remedy):
        tokenizer_from_folder(tmp_path)


def test_never_cuts_or_fills_up(make_folder: Callable[..., Path]) -> None:
    folder = make_folder(BOS)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=64)
    backend.save(str(folder / "tokenizer.json"))
    tokenizer = tokenizer_from_folder(folder)
    assert tokenizer.decode(tokenizer.encode("xyzzy" * 5)) == "xyzzy" * 5
