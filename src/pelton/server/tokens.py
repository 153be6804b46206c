"""Text to tokens and back."""

import asyncio
from collections.abc import Sequence

from pelton.engine.async_llm import AsyncLLM
from pelton.server.conversations import ConversationRenderer
from pelton.server.models import ServedModels
from pelton.server.protocol import DetokenizeRequest, TokenizeRequest
from pelton.server.responses import DetokenizeResponse, TokenizeResponse


class TokenHandler:
    """Answers requests for tokens of a text or conversation, and for the text of tokens."""

    def __init__(
        self,
        llm: AsyncLLM,
        models: ServedModels,
        *,
        chat_template: str | None = None,
        trust_request_chat_template: bool = False,
    ) -> None:
        """As for `ChatHandler`."""
        self._llm = llm
        self._models = models
        self._renderer = ConversationRenderer(llm, chat_template, trust_request_chat_template)

    async def tokenize(self, request: TokenizeRequest) -> TokenizeResponse:
        """Raises APIError for a model that is not served, and ValueError."""
        self._models.check(request.model)
        if request.messages is not None:
            prompt = await self._renderer.render(
                request,
                request.messages,
                add_special_tokens=bool(request.add_special_tokens),
                tools=request.tools_for_template,
            )
            token_ids = prompt["prompt_token_ids"]
        else:
            token_ids = await self._llm.encode(request.prompt or "", request.add_special_tokens is not False)
        texts = await asyncio.to_thread(self._texts, token_ids) if request.return_token_strs else None
        # Without checks of each token, of which there may be very many.
        return TokenizeResponse.model_construct(
            count=len(token_ids), max_model_len=self._llm.max_model_len, tokens=token_ids, token_strs=texts
        )

    def _texts(self, token_ids: Sequence[int]) -> list[str]:
        return [self._llm.tokenizer.token_text(token_id) for token_id in token_ids]

    async def detokenize(self, request: DetokenizeRequest) -> DetokenizeResponse:
        """With special tokens, so that tokenizing gives the same. Raises as `tokenize` does."""
        self._models.check(request.model)
        tokenizer = self._llm.tokenizer
        num_tokens = max(tokenizer.vocab_size, self._llm.vocab_size)
        if request.tokens and (highest := max(request.tokens)) >= num_tokens:
            raise ValueError(f"tokens has {highest}, which is outside the vocabulary (0 to {num_tokens - 1})")
        return DetokenizeResponse(prompt=await asyncio.to_thread(tokenizer.decode, request.tokens, False))
