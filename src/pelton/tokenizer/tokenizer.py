"""The tokenizer: text to token ids and back, and conversations to text."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import tokenizers

from pelton.tokenizer.backend_errors import backend_errors
from pelton.tokenizer.chat_template import ChatTemplate
from pelton.tokenizer.detokenizer import (
    ByteLevelDetokenizer,
    IncrementalDetokenizer,
    TokenBytes,
    WindowDetokenizer,
)

_NO_TOKENS: frozenset[int] = frozenset()
_NOT_VARIABLES = frozenset({
    "chat_template", "continue_final_message", "max_length", "padding", "processor_kwargs",
    "return_assistant_tokens_mask", "return_dict", "return_tensors", "tokenize", "tokenizer_kwargs", "truncation",
})  # fmt: skip
"""Arguments of the method of this name in transformers and vLLM. No template would see them."""


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
        self._template_source = chat_template
        self._named_templates = dict(named_templates or {})
        self._prefix = list(prefix)
        self._suffix = list(suffix)

    @property
    def vocab_size(self) -> int:
        """Tokens, added ones included. A model may have more rows than that."""
        return self._backend.get_vocab_size(with_added_tokens=True)

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
            token_ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return self._surrounded(token_ids) if add_special_tokens else token_ids

    def _surrounded(self, token_ids: list[int]) -> list[int]:
        prefix, suffix = self._prefix, self._suffix
        rest = token_ids[len(prefix) :] if token_ids[: len(prefix)] == prefix else token_ids
        ended = not suffix or rest[-len(suffix) :] == suffix
        return prefix + rest + ([] if ended else suffix)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; ids outside the vocabulary have none. Raises ValueError for negative ids."""
        try:
            if self._is_byte_level:
                detokenizer = self.detokenizer(skip_special_tokens)
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

    def detokenizer(self, skip_special_tokens: bool = True) -> IncrementalDetokenizer:
        """For the text of one growing sequence."""
        if self._is_byte_level:
            return ByteLevelDetokenizer(self._visible_bytes if skip_special_tokens else self._all_bytes)
        return WindowDetokenizer(self._backend, self._special_ids if skip_special_tokens else _NO_TOKENS)

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **extras: Any,
    ) -> str:
        """The prompt of a conversation; `extras` are further variables of the model's template.

        With tools, the model's template for them is taken if it has one of its own. Raises ValueError if the model
        has no template, or if the template refuses the messages.
        """
        if elsewhere := sorted(_NOT_VARIABLES.intersection(extras)):
            raise ValueError(f"apply_chat_template has no argument {', '.join(elsewhere)}, and gives the text only")
        for tool in tools or ():
            if not isinstance(tool, Mapping):
                raise ValueError(f"a tool must be a dictionary that describes it (JSON schema), got {tool!r}")
        template = self._tool_template if tools is not None and self._tool_template else self._chat_template
        if template is None:
            others = f"; it has only {', '.join(self._named_templates)}" if self._named_templates else ""
            raise ValueError(f"the model has no chat template{others}; send a plain prompt instead of messages")
        return template.render(messages, add_generation_prompt, tools=tools, **extras)

    @cached_property
    def _chat_template(self) -> ChatTemplate | None:
        source = self._template_source
        return None if source is None else ChatTemplate(source, self._special_tokens)

    @cached_property
    def _tool_template(self) -> ChatTemplate | None:
        source = self._named_templates.get("tool_use")
        return None if source is None else ChatTemplate(source, self._special_tokens)

    @cached_property
    def _is_byte_level(self) -> bool:
        decoder = self._backend.decoder
        state = json.loads(decoder.__getstate__()) if decoder is not None else {}
        return [part["type"] for part in state.get("decoders", [state] if state else [])] == ["ByteLevel"]

    @cached_property
    def _visible_bytes(self) -> TokenBytes:
        return TokenBytes(self._backend, self._special_ids)

    @cached_property
    def _all_bytes(self) -> TokenBytes:
        return TokenBytes(self._backend, _NO_TOKENS)
