"""The tokenizer: text to token ids and back, and conversations to text."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

import tokenizers

from pelton.checks import check_flag
from pelton.error_text import shown
from pelton.tokenizer.backend_errors import backend_errors
from pelton.tokenizer.detokenizer import (
    ByteLevelDetokenizer,
    IncrementalDetokenizer,
    TokenBytes,
    WindowDetokenizer,
    byte_of,
)
from pelton.tokenizer.messages import check_messages
from pelton.tokenizer.template_text import MissingChatTemplateError, read_chat_template
from pelton.tokenizer.token_bound import TokenBound, lost_bytes
from pelton.tokenizer.word_forms import word_forms

if TYPE_CHECKING:
    from pelton.tokenizer.chat_template import ChatTemplate

_NO_TOKENS: frozenset[int] = frozenset()
_NOT_VARIABLES = frozenset({
    "max_length", "padding", "processor_kwargs", "return_assistant_tokens_mask", "return_dict", "return_tensors",
    "tokenizer_kwargs", "truncation",
})  # fmt: skip
"""Arguments of the method of this name in transformers and vLLM. No template would see them."""
_SAME_EVERYWHERE = {"ByteFallback", "Fuse", "Replace"}
"""Decoders for which it does not matter where in a text a token is."""
_COMPILED_TEMPLATES = 16
"""How many of them are kept."""


class Tokenizer:
    """A model's vocabulary, with its conventions.

    `prefix` and `suffix` are the ids that the model wants around a text. `special_tokens` maps roles to tokens
    (`bos_token`, `eos_token` ...), as chat templates know them. `named_templates` are chat templates for special
    purposes; `tool_use` is the only one with a known purpose.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        special_tokens: Mapping[str, str],
        chat_template: str | None,
        named_templates: Mapping[str, str] | None = None,
    ) -> None:
        self._backend = backend
        self._special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        self._special_tokens = dict(special_tokens)
        self._own_template = chat_template
        self._named_templates = dict(named_templates or {})
        self._prefix = list(prefix)
        self._suffix = list(suffix)
        self._compiled = lru_cache(_COMPILED_TEMPLATES)(partial(_compiled, special_tokens=self._special_tokens))

    @property
    def vocab_size(self) -> int:
        """Tokens, added ones included. A model may have more rows than that."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def text_token_ids(self) -> list[int]:
        """Ids of the tokens that texts are made of, ascending: neither special nor otherwise added ones."""
        added = self._backend.get_added_tokens_decoder()
        return sorted(set(self._backend.get_vocab(with_added_tokens=False).values()).difference(added))

    @property
    def special_token_ids(self) -> list[int]:
        """Ids of the tokens that are no text, ascending."""
        return sorted(self._special_ids)

    def special_token_id(self, role: str) -> int | None:
        """The id of a special token by its role, such as `eos_token`; None if there is none."""
        token = self._special_tokens.get(role)
        return None if token is None else self._backend.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, in which special tokens may be spelled out.

        `add_special_tokens`: put the tokens around it that the model wants (beginning and end of sequence), unless
        the text itself begins or ends with them. Bytes that the vocabulary lacks have no tokens (SmolLM2 lacks some
        control characters), as in the models' own tokenizers. Raises ValueError for text that is not valid Unicode,
        or that the vocabulary has neither tokens nor an unknown token for.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at position {error.start}, "
                "which is not valid Unicode"
            ) from None
        with backend_errors("the tokenizer cannot encode this text"):
            # As a batch, for then the library lets other threads run meanwhile.
            token_ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return self._surrounded(token_ids) if add_special_tokens else token_ids

    def fewest_tokens(self, text: str) -> int:
        """`encode` gives at least so many: a bound that is known at once. 0 where nothing is known."""
        return self._token_bound.fewest_tokens(text)

    def _surrounded(self, token_ids: list[int]) -> list[int]:
        prefix, suffix = self._prefix, self._suffix
        rest = token_ids[len(prefix) :] if token_ids[: len(prefix)] == prefix else token_ids
        ended = not suffix or rest[-len(suffix) :] == suffix
        return prefix + rest + ([] if ended else suffix)

    def truncate(self, token_ids: Sequence[int], length: int) -> list[int]:
        """The last `length` of the ids that `encode` gave a text, or all if there are no more.

        The ids that the model wants around a text stay where they are. Raises ValueError if these alone are more.
        """
        if len(token_ids) <= length:
            return list(token_ids)
        num_around = len(self._prefix) + len(self._suffix)
        if length < num_around:
            raise ValueError(f"{length} is too few, for the model wants {num_around} tokens around every text")
        return [*self._prefix, *token_ids[len(token_ids) - length + len(self._prefix) :]]

    def word_forms(self, word: str) -> list[list[int]]:
        """Token ids of a word, every way it may stand in a text: first in a text or line, after a space, and inside
        another word. Spaces at its beginning do not count. Empty if the vocabulary lacks the word or a part of it.

        A longer token may hold the word too (Llama 3 has one for an opening parenthesis with a letter); those are not
        among them. Raises ValueError as `encode` does.
        """
        if self._is_byte_level and not self._lost_bytes.isdisjoint(word.encode(errors="surrogatepass")):
            return []
        forms = word_forms(partial(self.encode, add_special_tokens=False), word)
        unknown = self._unknown_token
        if unknown is None or unknown in word:
            return forms
        unknown_id = self._backend.token_to_id(unknown)
        return [form for form in forms if unknown_id not in form]

    def decode(
        self,
        token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """The text of token ids; ids outside the vocabulary have none. Raises ValueError for negative ids.

        `spaces_between_special_tokens` is as for `detokenizer`.
        """
        try:
            if self._is_byte_level or not spaces_between_special_tokens:
                detokenizer = self.detokenizer(skip_special_tokens, spaces_between_special_tokens)
                return detokenizer.add(token_ids) + detokenizer.finish()
            return self._backend.decode(token_ids, skip_special_tokens=skip_special_tokens)
        except OverflowError:
            raise ValueError(f"token ids must be in [0, 2**32), got {list(token_ids)!r}") from None

    def token_text(self, token_id: int) -> str:
        """The text of one token, special or not; U+FFFD where it holds a part of a character.

        It is what the token adds to a text: the space before a word stays, also where `decode` drops it at the
        beginning.
        """
        if self._is_byte_level:
            return self._all_bytes[token_id].decode("utf-8", "replace")
        # Decoders treat the first token of a text in their own way.
        alone = self.decode([token_id], skip_special_tokens=False)
        return self.decode([token_id, token_id], skip_special_tokens=False)[len(alone) :]

    def is_shortened_first(self, token_id: int) -> bool:
        """Whether a token adds less to a text that it begins: decoders may drop the space before the first word."""
        decoders = self._decoder_types
        if self._is_byte_level or (decoders and set(decoders) <= _SAME_EVERYWHERE):
            return False
        return self.decode([token_id], skip_special_tokens=False) != self.token_text(token_id)

    def token_bytes(self, token_id: int) -> bytes:
        """What one token, special or not, adds to a text, as UTF-8: also where it holds a part of a character."""
        if self._is_byte_level:
            return self._all_bytes[token_id]
        token = self._backend.id_to_token(token_id)
        if token is not None and "ByteFallback" in self._decoder_types and (byte := byte_of(token)) is not None:
            return byte
        return self.token_text(token_id).encode()

    def detokenizer(
        self, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> IncrementalDetokenizer:
        """For the text of one growing sequence.

        `spaces_between_special_tokens`: keep the space that some decoders (WordPiece) put between two added tokens next
        to each other. It only matters where special tokens are not skipped.
        """
        if self._is_byte_level:
            return ByteLevelDetokenizer(self._visible_bytes if skip_special_tokens else self._all_bytes)
        if skip_special_tokens:
            return WindowDetokenizer(self._backend, skipped=self._special_ids)
        joined = _NO_TOKENS if spaces_between_special_tokens else self._spaced_ids
        return WindowDetokenizer(self._backend, joined=joined)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tokenize: bool = False,
        **extras: Any,
    ) -> str:
        """The prompt of a conversation; `extras` are further variables of the template.

        `continue_final_message`: end the prompt with the final message's content, for the model to go on with it.
        `chat_template`: the text of a template, or the path of its file, instead of the model's own. With tools, the
        model's template for them is taken if it has one. `tokenize` is transformers' and vLLM's; it can only be
        False. Raises ValueError for messages that are none, and if there is no template, or if it refuses the messages.
        """
        if elsewhere := sorted(_NOT_VARIABLES.intersection(extras)):
            raise ValueError(f"apply_chat_template has no argument {', '.join(elsewhere)}, and gives the text only")
        check_flag("tokenize", tokenize)
        if tokenize:
            raise ValueError(
                "tokenize is True, but apply_chat_template gives the text only; set tokenize=False, and give its "
                "text to encode(text, add_special_tokens=False)"
            )
        check_flag("add_generation_prompt", add_generation_prompt)
        check_flag("continue_final_message", continue_final_message)
        if add_generation_prompt and continue_final_message:
            raise ValueError(
                "continue_final_message is True, and add_generation_prompt would begin another message; "
                "set add_generation_prompt=False"
            )
        if not isinstance(tools, Sequence | None) or isinstance(tools, str | bytes):
            raise ValueError(f"tools must be a list of tools, got {type(tools).__name__}")
        for tool in tools or ():
            if not isinstance(tool, Mapping):
                raise ValueError(f"a tool must be a dictionary that describes it (JSON schema), got {shown(tool)}")
        check_messages(messages)
        template = self._template(chat_template, tools is not None)
        if continue_final_message:
            return template.render_unfinished(messages, tools=tools, **extras)
        return template.render(messages, add_generation_prompt, tools=tools, **extras)

    def template_text(self, chat_template: str | None = None, *, has_tools: bool = False) -> str | None:
        """The text of the template that conversations with or without tools get; None if there is none.

        `chat_template` goes before the model's own, as in `apply_chat_template`. Raises ValueError for a file that
        cannot be read.
        """
        if chat_template is not None:
            return read_chat_template(chat_template)[0]
        return self._named_templates.get("tool_use", self._own_template) if has_tools else self._own_template

    def _template(self, given: object, has_tools: bool) -> "ChatTemplate":
        """The template to take."""
        if given is not None:
            text, path = read_chat_template(given)
            return self._compiled(text, path=path)
        own = self.template_text(has_tools=has_tools)
        if own is None:
            others = f"; it has only {', '.join(self._named_templates)}" if self._named_templates else ""
            raise MissingChatTemplateError(f"the model has no chat template{others}")
        return self._compiled(own)

    @cached_property
    def _token_bound(self) -> TokenBound:
        return TokenBound(self._backend)

    @cached_property
    def _decoder_types(self) -> list[str]:
        """Kinds of the decoder's steps, in order."""
        decoder = self._backend.decoder
        state = json.loads(decoder.__getstate__()) if decoder is not None else {}
        return [part["type"] for part in state.get("decoders", [state] if state else [])]

    @cached_property
    def _is_byte_level(self) -> bool:
        return self._decoder_types == ["ByteLevel"]

    @cached_property
    def _spaced_ids(self) -> frozenset[int]:
        """Added tokens, if the decoder puts spaces between them."""
        spaced = not self._decoder_types or "WordPiece" in self._decoder_types
        return frozenset(self._backend.get_added_tokens_decoder()) if spaced else _NO_TOKENS

    @cached_property
    def _unknown_token(self) -> str | None:
        """What stands for text that the vocabulary lacks."""
        return getattr(self._backend.model, "unk_token", None) or self._special_tokens.get("unk_token")

    @cached_property
    def _lost_bytes(self) -> frozenset[int]:
        """Bytes that a byte-level vocabulary has no tokens for."""
        return lost_bytes(self._backend)

    @cached_property
    def _visible_bytes(self) -> TokenBytes:
        return TokenBytes(self._backend, self._special_ids)

    @cached_property
    def _all_bytes(self) -> TokenBytes:
        return TokenBytes(self._backend, _NO_TOKENS)


def _compiled(source: str, *, special_tokens: Mapping[str, str], path: str | None = None) -> "ChatTemplate":
    """Jinja is loaded for the first template."""
    from pelton.tokenizer.chat_template import ChatTemplate

    return ChatTemplate(source, special_tokens, path)
