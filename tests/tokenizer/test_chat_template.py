import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from pelton.tokenizer import Tokenizer
from pelton.tokenizer.chat_template import ChatTemplate
from pelton.tokenizer.from_folder import tokenizer_from_folder

USER = [{"role": "user", "content": "Hi <&> é"}]


def render(source: str, messages: Any = USER, **extras: Any) -> str:
    return ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"}).render(messages, True, **extras)


def test_smollm2(smollm2: Tokenizer) -> None:
    system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    user = "<|im_start|>user\nHi <&> é<|im_end|>\n"
    assert smollm2.apply_chat_template(USER) == system + user + "<|im_start|>assistant\n"
    assert smollm2.apply_chat_template(USER, add_generation_prompt=False) == system + user
    own = [{"role": "system", "content": "Be brief."}, *USER]
    assert smollm2.apply_chat_template(own, add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n" + user
    )
    token_ids = smollm2.encode(smollm2.apply_chat_template(own))
    assert token_ids[0] == 1
    assert token_ids.count(2) == 2


@pytest.mark.parametrize(
    "source",
    [
        "{{ bos_token }}{% for m in messages %}\n  {% if m.role %}\n{{ m.content }}\n{% endif %}{% endfor %}",
        "{{ eos_token }}\n{% if add_generation_prompt %}\n  A:{% endif %}\n",
        "{{ messages | tojson }} {{ messages[0] | tojson(indent=2) }}",
        "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% break %}{% endfor %}",
        "{% generation %}{{ messages[0].content }}{% endgeneration %}!",
        "{% if tools is none and documents is none and not absent %}none{% endif %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
        "{{ messages[0]['content'].strip().split(' ')[0] }} {{ color }}",
    ],
)
def test_renders_like_transformers(source: str, make_folder: Callable[..., Path]) -> None:
    folder = make_folder({"bos_token": "<s>", "eos_token": "</s>", "chat_template": source})
    reference = PreTrainedTokenizerFast.from_pretrained(folder)
    expected = reference.apply_chat_template(USER, tokenize=False, add_generation_prompt=True, color="red")
    assert tokenizer_from_folder(folder).apply_chat_template(USER, color="red") == expected


def test_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}


def test_a_template_file_comes_first(make_folder: Callable[..., Path]) -> None:
    folder = make_folder({"chat_template": "config"})
    assert tokenizer_from_folder(folder).apply_chat_template(USER) == "config"
    (folder / "chat_template.jinja").write_text("file")
    assert tokenizer_from_folder(folder).apply_chat_template(USER) == "file"


def test_of_named_templates_the_default_is_taken(make_folder: Callable[..., Path]) -> None:
    templates = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    folder = make_folder({"chat_template": templates})
    assert tokenizer_from_folder(folder).apply_chat_template(USER) == "plain"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates[:1]}))
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer_from_folder(folder).apply_chat_template(USER)


def test_without_a_template_the_remedy_is_named(make_folder: Callable[..., Path]) -> None:
    with pytest.raises(ValueError, match="no chat template; send a prompt"):
        tokenizer_from_folder(make_folder({})).apply_chat_template(USER)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{{ messages", "not valid"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "refuses these messages"),
        ("{{ absent.attribute }}", "undefined"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ raise_exception.__globals__.json }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safely callable"),
        ("{{ messages[0].update({'role': 'x'}) }}", "unsafe|not safely callable"),
        ("{% include '/etc/passwd' %}", "refuses these messages"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "not valid: maximum recursion depth"),
        ("{% if 1 %}" * 500 + "{% endif %}" * 500, "not valid: maximum recursion depth"),
        ("{% for a in b %}" * 50 + "{% endfor %}" * 50, "not valid: too many statically nested blocks"),
    ],
)
def test_refuses(source: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        render(source)


@pytest.mark.parametrize("messages", [["hi"], [{"content": "hi"}], [{"role": 5, "content": "hi"}]])
def test_refuses_what_is_not_a_message(messages: Any) -> None:
    with pytest.raises(ValueError, match="a dictionary with a role"):
        render("{{ messages }}", messages)
