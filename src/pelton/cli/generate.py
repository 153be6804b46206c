"""`pelton generate`: complete prompts, streaming to the terminal, or requests in JSON lines."""

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from pelton.cli.chat_template_flag import add_chat_template_flag, given_chat_template, render_messages
from pelton.cli.figures import Figures
from pelton.cli.loading import load_engine
from pelton.cli.messages import complain, note
from pelton.cli.parser import CommandParser
from pelton.cli.prompts import NamedPrompt, read_prompts
from pelton.cli.sampling_flags import add_sampling_flags, given_sampling
from pelton.cli.streaming import headings_of, print_in_order
from pelton.config import EngineArgs
from pelton.config.options import flag_of
from pelton.sampling_params import RequestOutputKind, SamplingParams

if TYPE_CHECKING:
    from pelton.engine.input_processor import Prompt
    from pelton.engine.llm_engine import LLMEngine

MAX_TOKENS = 256
"""Default where neither the model nor the user says anything."""

_JSONL_HELP = (
    "requests in JSON lines, - for standard input: objects with prompt, prompt_token_ids or messages, and optionally "
    "id, cache_salt, priority and sampling parameters by their names, for which the flags are defaults; answers come "
    "as JSON lines, in the same order"
)
_OUTPUT_HELP = "where --jsonl writes, instead of to standard output; what the file has is overwritten"
_ONLY_WITH_JSONL = ("logprobs", "prompt_logprobs")


def make_parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="pelton generate",
        description="Complete prompts and stream the text to standard output; figures go to standard error. Without "
        "any prompt, standard input is one.",
    )
    parser.add_argument(
        "prompts",
        nargs="*",
        metavar="PROMPT",
        help="text to complete, - for standard input; several run as one batch",
    )
    parser.add_argument(
        "--file",
        action="append",
        default=[],
        metavar="FILE",
        dest="files",
        help="a file whose text is a prompt, the line end at its end left out; repeatable, after the PROMPTs",
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="wrap each prompt as a user's message in the model's chat template",
    )
    parser.add_argument("--system", metavar="TEXT", help="system message before each prompt; with --chat")
    add_chat_template_flag(parser, "; with --chat or --jsonl")
    parser.add_argument("--jsonl", metavar="FILE", help=_JSONL_HELP)
    parser.add_argument("--output", metavar="FILE", help=_OUTPUT_HELP)
    add_sampling_flags(parser, max_tokens_default=str(MAX_TOKENS))
    EngineArgs.add_cli_args(parser.add_argument_group("engine"))
    return parser


def run(options: argparse.Namespace) -> int:
    """Everything that can be refused without the model is refused before it is loaded."""
    given = given_sampling(options)
    args = EngineArgs.from_cli_args(options)
    if options.jsonl is not None:
        _refuse("--jsonl has its own prompts and messages", options, "prompts", "files", "chat", "system")
    else:
        _check_plain(options, given)
    chat_template = given_chat_template(options.chat_template)
    if options.jsonl is not None:
        return _answer_lines(args, given, options, chat_template)
    prompts = read_prompts(options.prompts, options.files)
    engine, params = load_engine(args, given, max_tokens=MAX_TOKENS)
    return _print_answers(engine, prompts, params, options, chat_template)


def _answer_lines(
    args: EngineArgs, given: Mapping[str, Any], options: argparse.Namespace, chat_template: str | None
) -> int:
    from pelton.cli import jsonl_batch
    from pelton.cli.jsonl_files import empty, open_files

    files = open_files(options.jsonl, options.output, source_flag="--jsonl", output_flag="--output")
    with files as (source, target):
        engine, defaults = load_engine(args, given, max_tokens=MAX_TOKENS)
        empty(target)
        return jsonl_batch.run(
            engine,
            source,
            target,
            defaults,
            chat_template=chat_template,
            max_in_engine=2 * args.scheduler.max_num_seqs,
        )


def _check_plain(options: argparse.Namespace, given: Mapping[str, Any]) -> None:
    """Raise ValueError for flags that are of no use where text is printed."""
    _refuse("it is only for --jsonl", options, "output")
    if not options.chat:
        _refuse("it is only for --chat", options, "system", "chat_template")
    for name in _ONLY_WITH_JSONL:
        if name in given:
            raise ValueError(f"{name} is {given[name]}, but plain text has no place for it; use --jsonl")
    if not given.get("detokenize", True):
        raise ValueError("detokenize is False, but then there is no text to print; use --jsonl")


def _refuse(reason: str, options: argparse.Namespace, *names: str) -> None:
    """Raise ValueError if one of these is given."""
    for name in names:
        if getattr(options, name) not in (None, False, []):
            flag = {"prompts": "PROMPT", "files": "--file"}.get(name, flag_of(name))
            raise ValueError(f"{flag} is given, but {reason}; leave it out")


def _print_answers(
    engine: "LLMEngine",
    prompts: list[NamedPrompt],
    params: SamplingParams,
    options: argparse.Namespace,
    chat_template: str | None,
) -> int:
    params = msgspec.structs.replace(params, output_kind=RequestOutputKind.DELTA)
    figures = Figures()
    request_ids = []
    for prompt in prompts:
        request: Prompt = prompt.text
        if options.chat:
            system = [] if options.system is None else [{"role": "system", "content": options.system}]
            messages = [*system, {"role": "user", "content": prompt.text}]
            request = render_messages(engine.tokenizer, messages, chat_template)
        request_ids.append(engine.add_request(request, params))
    headings = headings_of(request_ids, [prompt.name for prompt in prompts], params.n)
    print_in_order(engine, headings, figures.add)
    note(figures.report())
    for failure in figures.failures:
        complain(f"a request failed: {failure}")
    return 1 if figures.failures else 0
