"""Which model, and how much context."""

from dataclasses import dataclass

from pelton.config.options import check_at_least, option


@dataclass(frozen=True)
class ModelConfig:
    """The model to serve, as the user names it."""

    model: str = option(
        "smollm2",
        "An alias (such as smollm2), a GGUF file, or a folder with config.json, safetensors and tokenizer.json.",
    )
    max_model_len: int | None = option(
        None,
        "Longest request, prompt and output, in tokens. Default: the model's context length, "
        "or what the KV cache can hold if that is less.",
        type=int,
    )
    max_logprobs: int = option(20, "Most log probabilities per token that a request may ask for.")

    def __post_init__(self) -> None:
        if not isinstance(self.model, str) or not self.model:
            raise ValueError(f"model must be an alias or a path, got {self.model!r}")
        if self.max_model_len is not None:
            check_at_least("max_model_len", self.max_model_len, 2)  # a prompt and an output
        check_at_least("max_logprobs", self.max_logprobs, 0)
