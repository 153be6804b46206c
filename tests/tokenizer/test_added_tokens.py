"""What tokenizer_config.json says of added tokens, against transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from pelton.tokenizer.from_folder import tokenizer_from_folder

TEXTS = ["<s>hello</s>", "a <s> b", "a<s>b </s>", "</s></s>", "hello"]


def edited(folder: Path, added_tokens: list[dict[str, Any]] | None) -> Path:
    """Replace the added tokens of tokenizer.json."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    if added_tokens is not None:
        content["added_tokens"] = added_tokens
    path.write_text(json.dumps(content))
    return folder


def entry(content: str, **flags: bool) -> dict[str, Any]:
    defaults = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"content": content, **defaults, **flags}


@pytest.mark.parametrize(
    "config",
    [
        {"bos_token": "<s>", "eos_token": "</s>"},
        {"eos_token": "</s>", "additional_special_tokens": ["<s>"]},
        {"added_tokens_decoder": {"1": entry("<s>"), "2": entry("</s>")}},
        {
            "added_tokens_decoder": {"1": entry("<s>", lstrip=True, rstrip=True)},
            "bos_token": "<s>",
            "eos_token": "</s>",
        },
    ],
)
@pytest.mark.parametrize("added", [[], None], ids=["as ordinary tokens", "as added tokens"])
def test_as_in_transformers(
    config: dict[str, Any], added: list[dict[str, Any]] | None, make_folder: Callable[..., Path]
) -> None:
    folder = edited(make_folder(config), added)
    tokenizer = tokenizer_from_folder(folder)
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    for text in TEXTS:
        token_ids = tokenizer.encode(text, add_special_tokens=False)
        assert token_ids == reference.encode(text, add_special_tokens=False), text
        assert tokenizer.decode(token_ids) == reference.decode(
            token_ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


def test_what_the_vocabulary_lacks_is_left_out(make_folder: Callable[..., Path]) -> None:
    tokenizer = tokenizer_from_folder(make_folder({"pad_token": "<none>"}))
    assert tokenizer.special_token_id("pad_token") is None


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"added_tokens_decoder": {"1": {"content": "<s>", "lstrip": "yes"}}}, "flags that are not true or false"),
        ({"additional_special_tokens": 5}, "additional_special_tokens must be a list of tokens, got 5"),
        ({"additional_special_tokens": [5]}, "must hold strings or objects with a content, got 5"),
        ({"split_special_tokens": True}, "split_special_tokens is set"),
        ({"add_prefix_space": True}, "add_prefix_space is set"),
    ],
)
def test_refuses(config: dict[str, Any], problem: str, make_folder: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match=problem):
        tokenizer_from_folder(make_folder(config))


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"])
def test_links_that_lead_nowhere_are_not_absent(name: str, make_folder: Callable[..., Path]) -> None:
    folder = make_folder({})
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to("pruned")
    with pytest.raises(ValueError, match=f"{name} cannot be read"):
        tokenizer_from_folder(folder)
