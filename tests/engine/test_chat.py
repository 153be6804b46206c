"""Conversations become the prompts that transformers makes of them; everything else is refused by name."""

import json

import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from pelton.engine.chat import as_conversation_list, render_chat
from pelton.loader import open_checkpoint
from pelton.tokenizer import Tokenizer
from tests.support.tiny_llama import smollm2_tokenizer
from tests.support.tiny_models import tiny_tokenizer
from tests.tokenizer.chat_templates import CONVERSATIONS, TEMPLATES, TOOLS

USER = {"role": "user", "content": "Why is the sky blue?"}
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich", "n": 1}}}
SPECIAL = {"bos_token": "<|begin|>", "eos_token": "<|end|>"}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return smollm2_tokenizer()


def transformers_ids(backend: tokenizers.Tokenizer, template: str, special, messages, **options) -> list[int]:
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **special)
    ids: list[int] = theirs.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
    return ids


@pytest.mark.parametrize("name", ["one question", "several turns"])
@pytest.mark.parametrize("options", [{"add_generation_prompt": True}, {"add_generation_prompt": False}], ids=str)
def test_smollm2_gets_the_ids_that_transformers_gives(tokenizer, name, options):
    messages = CONVERSATIONS[name]
    prompt = render_chat(tokenizer, messages, **options)
    template = open_checkpoint("smollm2").metadata["tokenizer.chat_template"]
    expected = transformers_ids(tokenizer._backend, template, tokenizer._special_tokens, messages, **options)
    assert prompt["prompt_token_ids"] == expected
    assert tokenizer.decode(expected, skip_special_tokens=False) == prompt["prompt"]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize(
    ("conversation", "options"),
    [
        ("one question", {}),
        ("one question", {"tools": TOOLS}),
        ("several turns", {"add_generation_prompt": False}),
        ("one question", {"add_generation_prompt": False, "continue_final_message": True}),
    ],
)
def test_usual_templates_give_the_ids_that_transformers_gives(name, conversation, options):
    """The model here wants a BOS before every text, and templates that write it must not get a second one."""
    template, messages = TEMPLATES[name], CONVERSATIONS[conversation]
    tokenizer = Tokenizer(tiny_tokenizer(), prefix=[0], special_tokens=SPECIAL, chat_template=template)
    given = {"date": "today", "enable_thinking": False}
    options = {"add_generation_prompt": True} | options
    expected = transformers_ids(tiny_tokenizer(), template, SPECIAL, messages, **options, **given)
    assert render_chat(tokenizer, messages, **options, chat_template_kwargs=given)["prompt_token_ids"] == expected


def rendered(messages, template=PLAIN, **options) -> str:
    tokenizer = Tokenizer(tiny_tokenizer(), special_tokens=SPECIAL, chat_template=template)
    return render_chat(tokenizer, messages, **options)["prompt"]


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("a", "a"),
        ("", ""),
        ([{"type": "text", "text": "a"}], "a"),
        ([{"type": "text", "text": "a"}, "b", {"type": "text", "text": "c"}], "a\nb\nc"),
        (("a", "b"), "a\nb"),
        ([], ""),
    ],
)
def test_contents(content, text):
    assert rendered([{"role": "user", "content": content}]) == f"user: {text}\n"


@pytest.mark.parametrize("arguments", [CALL["function"]["arguments"], json.dumps(CALL["function"]["arguments"])])
@pytest.mark.parametrize("content", [{}, {"content": None}])
def test_calls_of_tools_may_come_without_content(arguments, content):
    """Templates get arguments as objects, also where they are text, as in OpenAI's interface."""
    call = CALL | {"function": CALL["function"] | {"arguments": arguments}}
    messages = [USER, {"role": "assistant", "tool_calls": [call], **content}, {"role": "tool", "content": "sunny"}]
    given = json.dumps(messages)
    text = rendered(messages, TEMPLATES["headers with tools"], chat_template_kwargs={"date": "today"})
    assert '<call>{"name": "weather", "arguments": {"city": "Zürich", "n": 1}}</call>' in text
    assert json.dumps(messages) == given, "the messages are the user's"


def test_a_call_without_arguments():
    call = {"function": {"name": "now", "arguments": ""}}
    text = "{{ messages[0].tool_calls[0].function.arguments | tojson }}"
    assert rendered([{"role": "assistant", "tool_calls": [call]}], text) == "{}"


def test_other_keys_of_messages_reach_the_template():
    assert rendered([USER | {"name": "Ada"}], "{{ messages[0].name }}") == "Ada"


def test_a_template_as_text_and_as_a_file(tmp_path):
    (tmp_path / "other.jinja").write_text("{{ messages[0].content }}!")
    for template in ("{{ messages[0].content }}!", str(tmp_path / "other.jinja")):
        assert rendered([USER], chat_template=template) == "Why is the sky blue?!"


def test_variables_of_the_template():
    template = "{{ mood }} {{ tools | length }}"
    assert rendered([USER], template, tools=TOOLS, chat_template_kwargs={"mood": "calm"}) == "calm 1"
    assert rendered([USER], "{{ extras }}", chat_template_kwargs={"extras": "more"}) == "more"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "the conversation is empty"),
        ("hello", "a conversation must be a list of messages, got str"),
        ({"role": "user"}, "a conversation must be a list of messages, got dict"),
        (["hello"], "message 0: a message must be a dict with a role and a content, got str"),
        ([USER, None], "message 1: a message must be a dict .* got NoneType"),
        ([{"content": "a"}], "message 0: role must be a string such as user, got None"),
        ([{"role": "", "content": "a"}], "message 0: role must be a string such as user, got ''"),
        ([{"role": 1, "content": "a"}], "message 0: role must be a string such as user, got 1"),
        ([{"role": "user"}], "message 0: content is missing"),
        ([{"role": "user", "content": None}], "message 0: content is missing"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "message 0: content is missing"),
        ([{"role": "user", "content": 5}], "message 0: content must be a string or a list of text parts, got int"),
        ([{"role": "user", "content": {"a": 1}}], "content must be a string or a list of text parts, got dict"),
        ([{"role": "user", "content": [5]}], "a part of content must be a string or a dict .* got int"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "a part of content has the type 'image_url', and Pelton reads only 'text'",
        ),
        ([{"role": "user", "content": [{"text": "a"}]}], "a part of content has the type None"),
        ([{"role": "user", "content": [{"type": "text"}]}], "text of a part of content must be a string, got NoneType"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {}}]}],
            "unknown key 'cache_control' in a part of content",
        ),
        ([{"role": "assistant", "tool_calls": "weather()"}], "message 0: tool_calls must be a list of dicts"),
        ([{"role": "assistant", "tool_calls": ["weather()"]}], "message 0: tool_calls must be a list of dicts"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{'b'"}}]}],
            "message 0: arguments of a tool call must be a dict, or a JSON object as text, got ",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "[1]"}}]}],
            "arguments of a tool call must be a dict, or a JSON object as text, got .\\[1\\]",
        ),
        ([{"role": "user", "content": "\ud800"}], "lone surrogate"),
    ],
)
def test_refused_messages(messages, words):
    with pytest.raises(ValueError, match=f"^.*{words}") as caught:
        rendered(messages)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tools": "weather"}, "tools must be a list of tools, got str"),
        ({"tools": ["weather"]}, "a tool must be a dictionary"),
        ({"chat_template_kwargs": [("a", 1)]}, "chat_template_kwargs must be a dict"),
        ({"chat_template_kwargs": {1: 2}}, "chat_template_kwargs must be a dict"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs has tools, which has a meaning"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs has messages, which"),
        ({"chat_template_kwargs": {"chat_template": "{}"}}, "chat_template_kwargs has chat_template, which"),
        ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs has self, which"),
        ({"chat_template_kwargs": {"truncation": True}}, "truncation"),
        ({"chat_template": 5}, "chat_template must be the text of a template or the path of a file, got 5"),
        ({"chat_template": ""}, "chat_template must be the text of a template or the path of a file, got ''"),
        ({"chat_template": "/no/such/file.jinja"}, "/no/such/file.jinja cannot be read: No such file"),
        ({"chat_template": "{{ messages"}, "template is not valid"),
        ({"chat_template": "{{ raise_exception('roles must alternate') }}"}, "roles must alternate"),
        ({"continue_final_message": True}, "add_generation_prompt"),
        ({"continue_final_message": 1, "add_generation_prompt": False}, "continue_final_message must be True or False"),
        ({"add_generation_prompt": "yes"}, "add_generation_prompt must be True or False"),
    ],
)
def test_refused_options(options, words):
    with pytest.raises(ValueError, match=words):
        rendered([USER], **options)


def test_a_model_without_a_template():
    with pytest.raises(ValueError, match="the model has no chat template"):
        rendered([USER], None)
    assert rendered([USER], None, chat_template="{{ messages[0].role }}") == "user"


def test_one_conversation_or_several():
    assert as_conversation_list([USER]) == [[USER]]
    assert as_conversation_list((USER, USER)) == [(USER, USER)]
    assert as_conversation_list([[USER], [USER, USER]]) == [[USER], [USER, USER]]


@pytest.mark.parametrize("messages", ["hello", b"hello", 5, None, USER, []])
def test_what_is_no_conversation(messages):
    with pytest.raises(ValueError, match=r"^messages "):
        as_conversation_list(messages)
