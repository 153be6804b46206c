import re
from copy import deepcopy
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from pelton.tokenizer import Tokenizer
from pelton.tokenizer.chat_template import ChatTemplate
from tests.tokenizer.backends import byte_level
from tests.tokenizer.chat_templates import CONVERSATIONS, DOCUMENTS, TEMPLATES, TOOLS

USER = [{"role": "user", "content": "Hi <&> é"}]


SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source: str, messages: Any = USER, add_generation_prompt: bool = True, **extras: Any) -> str:
    return ChatTemplate(source, SPECIAL).render(messages, add_generation_prompt, **extras)


def rendered_by_transformers(source: str, messages: Any = USER, **options: Any) -> str:
    reference = PreTrainedTokenizerFast(tokenizer_object=byte_level(), **SPECIAL)
    return reference.apply_chat_template(messages, chat_template=source, tokenize=False, **options)


@pytest.mark.parametrize("name", ["truncation", "return_dict"])
def test_arguments_of_transformers_are_no_variables(name: str, smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match=f"has no argument {name}, and gives the text only"):
        smollm2.apply_chat_template([{"role": "user", "content": "Hi"}], **{name: True})


def test_the_text_only(smollm2: Tokenizer) -> None:
    """What works with transformers and vLLM: tokenize=False."""
    options: dict[str, Any] = {"add_generation_prompt": True, "chat_template": "{{ tokenize is defined }}"}
    assert smollm2.apply_chat_template(USER, tokenize=False) == smollm2.apply_chat_template(USER)
    assert smollm2.apply_chat_template(USER, tokenize=False, **options) == "False"
    with pytest.raises(ValueError, match=r"^tokenize is True, .* encode\(text, add_special_tokens=False\)$"):
        smollm2.apply_chat_template(USER, tokenize=True)
    with pytest.raises(ValueError, match="tokenize must be True or False, got None"):
        smollm2.apply_chat_template(USER, tokenize=None)  # type: ignore[arg-type]


def test_a_conversation_has_messages(smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match="the conversation is empty; it needs at least one message"):
        smollm2.apply_chat_template([])


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
def test_renders_like_transformers(source: str) -> None:
    expected = rendered_by_transformers(source, add_generation_prompt=True, color="red")
    assert render(source, color="red") == expected


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_usual_templates_render_like_transformers(name: str, conversation: str) -> None:
    source, messages = TEMPLATES[name], CONVERSATIONS[conversation]
    for add_generation_prompt, tools, documents, extras in product(
        (True, False), (None, TOOLS), (None, DOCUMENTS), ({}, {"date": "today", "enable_thinking": False})
    ):
        options = {"add_generation_prompt": add_generation_prompt, "tools": tools, "documents": documents, **extras}
        try:
            expected = rendered_by_transformers(source, messages, **options)
        except (TemplateError, TypeError, AttributeError):
            with pytest.raises(ValueError, match="the chat template refuses these messages"):
                render(source, messages, **options)
        else:
            assert render(source, messages, **options) == expected


def test_every_usual_template_takes_some_conversation() -> None:
    for source in TEMPLATES.values():
        assert render(source, CONVERSATIONS["one question"])
        assert render(source, CONVERSATIONS["several turns"])


def test_what_is_none_is_absent() -> None:
    message = {"role": "assistant", "content": None}
    assert render("{{ messages[0].content is defined }}", [message]) == "False"
    assert message == {"role": "assistant", "content": None}


def test_generation_is_a_scope() -> None:
    source = "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}"
    assert render(source) == rendered_by_transformers(source) == "21"


def test_the_date() -> None:
    assert render("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}


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
        ("{% set ns = namespace(__class__=1) %}", "a namespace has no __class__"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "a namespace has no _x"),
        ("{{ dict.__globals__.json }}", "unsafe"),
        ("{{ dict.mro()[1] }}", "no attribute 'mro'"),
        ("{% for i in range(10**9) %}{% endfor %}", "takes more than 500000 steps"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "not valid: maximum recursion depth"),
        ("{% if 1 %}" * 500 + "{% endif %}" * 500, "not valid: maximum recursion depth"),
        ("{% for a in b %}" * 50 + "{% endfor %}" * 50, "not valid: too many statically nested blocks"),
    ],
)
def test_refuses(source: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        render(source)


UNFINISHED: dict[str, list[dict[str, Any]]] = {
    "plain": [*USER, {"role": "assistant", "content": "Once upon"}],
    "a space at the end": [*USER, {"role": "assistant", "content": " Once\n upon  \n"}],
    "twice": [{"role": "user", "content": "aaa"}, {"role": "assistant", "content": "a"}],
    "as in the template": [*USER, {"role": "assistant", "content": "end"}],
    "nothing yet": [*USER, {"role": "assistant", "content": ""}],
    "a thought": [*USER, {"role": "assistant", "content": "<think>Hm.</think>6"}],
    "the user's": [{"role": "user", "content": "Why is <b> & é"}],
    "with a call": [*CONVERSATIONS["tools"][:2], {"role": "assistant", "content": "It is "}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]}],
    "a picture last": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}]}],
    "no content": CONVERSATIONS["tools"][:2],
    "no text": [*USER, {"role": "assistant", "content": [{"type": "image"}]}],
}


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("conversation", UNFINISHED)
def test_unfinished_messages_end_like_those_of_transformers(name: str, conversation: str) -> None:
    source, messages = TEMPLATES[name], UNFINISHED[conversation]
    given = deepcopy(messages)
    try:
        expected = rendered_by_transformers(source, messages, continue_final_message=True)
    except (TemplateError, TypeError, AttributeError, ValueError):
        expected = None
    if expected is None:
        with pytest.raises(ValueError, match=r"no text to continue|cannot be continued|refuses these messages"):
            ChatTemplate(source, SPECIAL).render_unfinished(messages)
    else:
        assert ChatTemplate(source, SPECIAL).render_unfinished(messages) == expected
    assert messages == given


def test_a_message_that_the_template_changes_cannot_be_continued() -> None:
    """Also where what the message says stands somewhere else."""
    source = "{% for m in messages %}{{ m.content | replace('6', '') }};{% endfor %}6"
    template = ChatTemplate(source, SPECIAL)
    assert template.render_unfinished([*USER, {"role": "assistant", "content": "7"}]).endswith(";7")
    with pytest.raises(
        ValueError, match=r"the chat template changes the final message's content.* cannot be continued"
    ):
        template.render_unfinished([*USER, {"role": "assistant", "content": "6"}])
    with pytest.raises(ValueError, match="cannot be continued"):
        ChatTemplate("always the {same}", SPECIAL).render_unfinished(USER)


def test_refuses_to_continue_what_has_no_text() -> None:
    with pytest.raises(ValueError, match="no text to continue"):
        ChatTemplate(TEMPLATES["macros"], SPECIAL).render_unfinished([*USER, {"role": "assistant"}])


def test_smollm2_goes_on(smollm2: Tokenizer) -> None:
    messages = [{"role": "system", "content": "S"}, *USER, {"role": "assistant", "content": "Well, "}]
    prompt = smollm2.apply_chat_template(messages, add_generation_prompt=False, continue_final_message=True)
    whole = smollm2.apply_chat_template(messages, add_generation_prompt=False)
    assert prompt.endswith("<|im_start|>assistant\nWell, ")
    assert whole == prompt + "<|im_end|>\n"


def test_a_prompt_goes_on_or_begins_anew(smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"continue_final_message is True, .* set add_generation_prompt=False"):
        smollm2.apply_chat_template(USER, continue_final_message=True)


@pytest.mark.parametrize("given", [None, 5, "Hi", {"role": "user", "content": "Hi"}, iter(USER)])
@pytest.mark.parametrize("unfinished", [False, True])
def test_a_conversation_is_a_list(given: Any, unfinished: bool, smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match="a conversation must be a list of messages, got"):
        smollm2.apply_chat_template(given, add_generation_prompt=False, continue_final_message=unfinished)


@pytest.mark.parametrize("tools", [5, {}, "tools", TOOLS[0]])
def test_tools_are_a_list(tools: Any, smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match="tools must be a list of tools, got"):
        smollm2.apply_chat_template(USER, tools=tools)


@pytest.mark.parametrize("name", ["add_generation_prompt", "continue_final_message"])
@pytest.mark.parametrize("value", [None, 1, "yes"])
def test_switches_are_true_or_false(name: str, value: Any, smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match=f"{name} must be True or False, got {value!r}"):
        smollm2.apply_chat_template(USER, **{name: value})


def test_a_template_of_ones_own(smollm2: Tokenizer) -> None:
    source = "{{ bos_token }}{{ messages[0].content }}{% if add_generation_prompt %}>{{ color }}{% endif %}{{ tools }}"
    assert smollm2.apply_chat_template(USER, chat_template=source, color="red") == "<|im_start|>Hi <&> é>redNone"
    assert smollm2.apply_chat_template(USER, chat_template=source, tools=[]).endswith("[]")
    assert smollm2.apply_chat_template(USER).startswith("<|im_start|>system")
    unfinished = {"add_generation_prompt": False, "continue_final_message": True}
    assert smollm2.apply_chat_template(USER, chat_template=source, **unfinished) == "<|im_start|>Hi <&> é"


def test_a_template_of_ones_own_goes_before_all_others() -> None:
    options: dict[str, Any] = {"special_tokens": {}, "named_templates": {"tool_use": "{# #}for tools"}}
    tokenizer = Tokenizer(byte_level(), chat_template="{# #}own", **options)
    assert tokenizer.apply_chat_template(USER, chat_template="{# #}other", tools=TOOLS) == "other"
    assert tokenizer.apply_chat_template(USER, tools=TOOLS) == "for tools"
    assert tokenizer.apply_chat_template(USER) == "own"
    without = Tokenizer(byte_level(), chat_template=None, **options)
    assert without.apply_chat_template(USER, chat_template="{# #}other") == "other"
    with pytest.raises(ValueError, match="no chat template; it has only tool_use; give one as chat_template"):
        without.apply_chat_template(USER)


@pytest.mark.parametrize("given", ["", 5, b"{{ messages }}", ["{{ messages }}"]])
def test_what_is_no_template(given: Any, smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match="chat_template must be the text of a template or the path of a file, got"):
        smollm2.apply_chat_template(USER, chat_template=given)


def test_the_file_of_a_template(tmp_path: Path, smollm2: Tokenizer) -> None:
    path = tmp_path / "template.jinja"
    with pytest.raises(ValueError, match=r"template.jinja cannot be read: No such file"):
        smollm2.apply_chat_template(USER, chat_template=str(path))
    path.write_text("no template")
    with pytest.raises(ValueError, match=r"template.jinja is not a chat template: it has no \{$"):
        smollm2.apply_chat_template(USER, chat_template=str(path))
    path.write_text("{{ messages[0].content }}")
    assert smollm2.apply_chat_template(USER, chat_template=str(path)) == "Hi <&> é"


def test_a_template_of_ones_own_may_be_wrong(smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match="the chat template is not valid: line 1: unexpected end of template"):
        smollm2.apply_chat_template(USER, chat_template="{{ messages\n")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("\n\n{% if %}", "line 3: Expected an expression"),
        ("\n{{ messages | frobnicate }}", "line 2: No filter named 'frobnicate'"),
        ("\n\n\n{% generation %}", "line 4: Unexpected end of template"),
    ],
)
def test_the_place_of_a_mistake(source: str, problem: str, tmp_path: Path, smollm2: Tokenizer) -> None:
    path = tmp_path / "bad.jinja"
    path.write_text(source)
    with pytest.raises(ValueError, match=rf"^the chat template {re.escape(str(path))} is not valid: {problem}"):
        smollm2.apply_chat_template(USER, chat_template=str(path))


@pytest.mark.parametrize("message", ["hi", {"content": "hi"}, {"role": 5, "content": "hi"}, {"role": ""}])
@pytest.mark.parametrize("unfinished", [False, True])
def test_refuses_what_is_not_a_message(message: Any, unfinished: bool, smollm2: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"^message 1: (a message must be a dict|role must be a string such as user)"):
        smollm2.apply_chat_template([*USER, message], add_generation_prompt=False, continue_final_message=unfinished)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}{% endfor %}",
        "{% for i in range(999) %}{{ range(9999) | sum }}{% endfor %}",
        "{{ range(10**18) }}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
        "{% for a in [[1]] recursive %}{{ loop([a, a]) }}{% endfor %}",
        "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}" + "{% call m() %}" * 15 + "{% endcall %}" * 15,
    ],
)
def test_what_never_ends_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.tokenizer.chat_template._MAX_STEPS", 10_000)
    with pytest.raises(ValueError, match=r"takes more than 10000 steps|maximum recursion depth"):
        render(source)


def test_every_rendering_has_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.tokenizer.chat_template._MAX_STEPS", 200)
    template = ChatTemplate("{% for i in range(99) %}{% endfor %}done", {})
    assert {template.render(USER, True) for _ in range(3)} == {"done"}
