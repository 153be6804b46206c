"""Two prompts that begin alike: the second one reuses the KV blocks of the first."""

from pelton import LLM, SamplingParams

# Whole KV blocks (16 tokens by default) are shared, so the common part should span several of them.
LONG_PREFIX = (
    "You are the keeper of a small hydroelectric station in the mountains. A jet of water strikes the "
    "buckets of the wheel, the wheel turns the generator, and the generator lights the village below. "
    "Visitors come every day, and you answer whatever they ask in one friendly sentence, without technical "
    "terms, and you always mention the weather. A visitor begins to speak: "
)


def main() -> None:
    prompts = [
        "Hello, my name is",
        "The president of the United States is",
    ]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
    llm = LLM(model="smollm2")
    for prompt in prompts:
        [output] = llm.generate(LONG_PREFIX + prompt, sampling_params)
        print(f"Prompt: ...{prompt!r}, generated text: {output.outputs[0].text!r}")
        print(f"  {output.num_cached_tokens} of {len(output.prompt_token_ids)} prompt tokens were cached")


if __name__ == "__main__":
    main()
