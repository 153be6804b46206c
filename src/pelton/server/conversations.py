"""From the messages of a request to a prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

from pelton.engine.async_llm import AsyncLLM
from pelton.engine.input_processor import TokensPrompt
from pelton.server.protocol import ConversationFields, RequestMessage
from pelton.tokenizer.template_text import MissingChatTemplateError, read_chat_template


class ConversationRenderer:
    """Applies the server's chat template, or a request's own."""

    def __init__(self, llm: AsyncLLM, chat_template: str | None, trust_request_chat_template: bool) -> None:
        """Raises ValueError for a template that cannot be read; its path is read once, here."""
        self._llm = llm
        self._chat_template = None if chat_template is None else read_chat_template(chat_template)[0]
        self._trusts_requests = trust_request_chat_template

    async def render(
        self,
        request: ConversationFields,
        messages: Sequence[RequestMessage],
        *,
        add_special_tokens: bool,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> TokensPrompt:
        """`tools`: functions for the template to tell of. `add_special_tokens`: put the tokens around the prompt that
        the model wants, beside what the template writes.

        Raises ValueError that names the field or the message.
        """
        try:
            prompt = await self._llm.render_chat(
                [message.for_template() for message in messages],
                chat_template=self._template(request.chat_template),
                add_generation_prompt=request.begins_message,
                continue_final_message=bool(request.continue_final_message),
                tools=tools,
                chat_template_kwargs=_variables(request),
            )
        except MissingChatTemplateError as error:
            raise ValueError(
                f"{error.problem}; start the server with --chat-template, or send a prompt to /v1/completions"
            ) from None
        if add_special_tokens:
            prompt["prompt_token_ids"] = await self._llm.encode(prompt["prompt"], True)
        return prompt

    def _template(self, given: str | None) -> str | None:
        if given is None:
            return self._chat_template
        if not self._trusts_requests:
            raise ValueError(
                "chat_template is given, but this server takes no templates from requests; leave it out, or start the "
                "server with --trust-request-chat-template"
            )
        if "{" not in given:
            # It would be taken for the path of a file, and those are the server's.
            raise ValueError("chat_template must be the text of a Jinja template, and has no {")
        return given


def _variables(request: ConversationFields) -> dict[str, Any]:
    """Of the template, beside messages."""
    variables = dict(request.chat_template_kwargs or {})
    for name in ("documents", "reasoning_effort"):
        if (value := getattr(request, name)) is not None:
            if name in variables:
                raise ValueError(f"{name} is given twice, for chat_template_kwargs has it, too; leave one of them out")
            variables[name] = value
    return variables
