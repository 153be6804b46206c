"""What the tools of a chat request ask for, and how its answers are read."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PrivateAttr, model_validator

from pelton.chat_parsing import (
    ChatParser,
    Tool,
    ToolChoice,
    call_constraint,
    detect,
    find_reasoning_parser,
    find_tool_parser,
    free_constraint,
    in_words_of_tools,
    make_tool_parser,
    read_tool_choice,
    read_tools,
)
from pelton.chat_parsing.reasoning_parsers import ReasoningParser
from pelton.chat_parsing.tool_parsers import ToolParser
from pelton.engine.async_llm import AsyncLLM
from pelton.server.field_types import Flag, one_of
from pelton.server.structured_outputs import Constraint, named


class ToolFields(BaseModel):
    """Functions that the model may call."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    tools: list[dict[str, Any]] | None = None
    """Functions, as in OpenAI's interface, with JSON schemas of their arguments."""
    tool_choice: Annotated[str | dict[str, Any], one_of("none, auto, required, or a function")] | None = None
    """`none`, `auto`, `required`, or one function. Default: `auto` if there are tools."""
    parallel_tool_calls: Flag | None = None
    """Whether an answer may have several calls. Default: true."""
    include_reasoning: Flag | None = None
    """Whether the answer has the model's reasoning, too. Default: true."""
    _tools: list[Tool] = PrivateAttr(default_factory=list)
    _choice: ToolChoice = PrivateAttr(ToolChoice("none"))

    @property
    def choice_of_tools(self) -> ToolChoice:
        """`tool_choice`, as it was read."""
        return self._choice

    @property
    def tools_for_template(self) -> list[dict[str, Any]] | None:
        """None where there are none, or the model is not to know of them."""
        return self.tools if self.tools and self._choice.mode != "none" else None

    def free_constraint(self, parser: type[ToolParser], answer: Constraint | None) -> Constraint | None:
        """What the answer must look like if the model may call or not, and this parser reads its calls; `answer`: what
        it must look like if it is none. Raises ValueError that names the tools, or the field of the answer."""
        paths = {"structural_tag": "tools", "json": "tools"}
        if answer is not None:
            paths = {**answer.paths, **dict.fromkeys(paths, f"{answer.path} or tools")}
        try:
            params = free_constraint(
                self._tools,
                parser,
                None if answer is None else answer.params,
                parallel=self.parallel_tool_calls is not False,
            )
        except ValueError as error:
            if answer is None:
                raise ValueError(named(str(error), paths, "structural_tag")) from None
            raise ValueError(
                f"tool_choice is 'auto', but {answer.path} leaves no room for a call: {error}; leave that out, or set "
                "tool_choice to 'none' or 'required'"
            ) from None
        return None if params is None else Constraint(params, paths, in_words_of_tools)

    def calls_constraint(self) -> Constraint | None:
        """What the answer must look like, if it must be a call. Raises ValueError that names the tools."""
        names = [tool.name for tool in self._tools]
        field = "tools" if self._choice.name is None else f"tools[{names.index(self._choice.name)}].function.parameters"
        paths = {"json": field}
        try:
            params = call_constraint(self._tools, self._choice, parallel=self.parallel_tool_calls is not False)
        except ValueError as error:
            raise ValueError(named(str(error), paths, "json")) from None
        if params is None:
            return None
        return Constraint(params, paths, in_words_of_tools if self._choice.name is None else str)

    @model_validator(mode="after")
    def _read(self) -> "ToolFields":
        # Here, for large requests are read beside the event loop.
        self._tools = read_tools(self.tools)
        self._choice = read_tool_choice(self.tool_choice, self._tools)
        return self


@dataclass(frozen=True)
class AnswerReading:
    """How the text of each choice of a request becomes a message."""

    choice: ToolChoice
    tool_parser: str | None
    """Of a model that is free to call or not."""
    is_parallel: bool
    reasoning: Callable[[], ReasoningParser] | None
    """None: all of the text is the answer."""

    @classmethod
    def of(
        cls, request: ToolFields, conventions: "ModelConventions", prompt: str, continued: str | None = None
    ) -> "AnswerReading":
        """`prompt`: its text. `continued`: the message at its end, if the model goes on with it.

        Raises ValueError where nobody would know a call from other text.
        """
        choice = request.choice_of_tools
        if choice.mode == "auto" and not conventions.may_choose:
            raise ValueError(
                "tool_choice is 'auto', which this server does not take; set it to 'required', to a function or to "
                "'none'"
            )
        return cls(
            choice,
            conventions.tool_parser,
            request.parallel_tool_calls is not False,
            conventions.reasoning(prompt, continued),
        )

    def __post_init__(self) -> None:
        self.new_parser()  # whether there can be one

    @property
    def free_parser(self) -> type[ToolParser] | None:
        """Of the calls of a model that is free to call or not."""
        if self.choice.mode != "auto" or self.tool_parser is None:
            return None
        return find_tool_parser(self.tool_parser)

    @property
    def is_plain(self) -> bool:
        """Whether all of the text is the answer."""
        return self.choice.mode == "none" and self.reasoning is None

    def new_parser(self) -> ChatParser | None:
        """For one choice; None where all of its text is the answer."""
        if self.is_plain:
            return None
        tool_parser = make_tool_parser(self.choice, self.tool_parser, parallel=self.is_parallel)
        return ChatParser(tool_parser, None if self.reasoning is None else self.reasoning())

    def finish_reason(self, given: str | None, parser: ChatParser | None) -> str | None:
        """Of a choice that has ended for this reason. A call of a function that the request named ends as usual."""
        if given == "stop" and parser is not None and parser.has_calls and self.choice.mode != "named":
            return "tool_calls"
        return given


class ModelConventions:
    """What a server knows of how its model writes tool calls and reasoning."""

    def __init__(self, tool_parser: str | None, reasoning_parser: str | None, *, may_choose: bool = True) -> None:
        """`tool_parser`: name of the format of calls, or None if it is not known; `may_choose`: whether the model may
        be left to decide on calls.

        Raises ValueError for parsers that there are not.
        """
        if tool_parser is not None:
            find_tool_parser(tool_parser)
        self.tool_parser = tool_parser
        self.may_choose = may_choose
        self._reasoning_parser = None if reasoning_parser is None else find_reasoning_parser(reasoning_parser)

    def reasoning(self, prompt: str, continued: str | None) -> Callable[[], ReasoningParser] | None:
        """What makes a parser for each choice after this prompt."""
        parser = self._reasoning_parser
        if parser is None:
            return None
        is_inside = parser.begins_inside(prompt, continued)
        return lambda: parser(is_inside=is_inside)


def model_conventions(
    llm: AsyncLLM, chat_template: str | None, tool_call_parser: str, *, may_choose: bool
) -> ModelConventions:
    """For a server with these settings; `tool_call_parser` may be auto: what the chat template tells."""
    name: str | None = tool_call_parser
    if tool_call_parser == "auto":
        name = detect(llm.tokenizer.template_text(chat_template, has_tools=True) or "")
    return ModelConventions(name, llm.args.structured_outputs.reasoning_parser, may_choose=may_choose)
