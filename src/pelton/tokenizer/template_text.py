"""Texts of chat templates, not compiled yet."""

from pathlib import Path

from pelton.error_text import shown
from pelton.loader.text_files import read_any_text


class MissingChatTemplateError(ValueError):
    """A model has no chat template. Its message has the remedy in Python; `problem` has none."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; give one as chat_template, or send a plain prompt instead of messages")
        self.problem = problem


def read_chat_template(given: object) -> tuple[str, str | None]:
    """The text of a template: what is given, if it has a `{`, and else what is in the file of this name, and that name.

    Raises ValueError for a file that cannot be read, and for what is no template.
    """
    if not isinstance(given, str) or not given:
        raise ValueError(f"chat_template must be the text of a template or the path of a file, got {shown(given)}")
    if "{" in given:
        return given, None
    text = read_any_text(Path(given))
    if "{" not in text:
        raise ValueError(f"{given} is not a chat template: it has no {{")
    return text, given
