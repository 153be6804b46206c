"""A few hundred requests at once, each with its own parameters; the engine batches whatever fits."""

import time

from pelton import LLM, SamplingParams

NUM_REQUESTS = 300
TOPICS = ("a river", "a lighthouse", "the first snow", "an old clock", "a night train", "bread")


def main() -> None:
    topics = [TOPICS[index % len(TOPICS)] for index in range(NUM_REQUESTS)]
    prompts = [f"Note {index}: the best thing about {topic} is" for index, topic in enumerate(topics)]
    # With a seed, a request draws the same random numbers in every run, whatever it is batched with.
    sampling_params = [
        SamplingParams(temperature=0.8, top_p=0.95, seed=index, max_tokens=16 + index % 49)
        for index in range(NUM_REQUESTS)
    ]
    llm = LLM(model="smollm2")
    start = time.perf_counter()
    outputs = llm.generate(prompts, sampling_params)
    seconds = time.perf_counter() - start

    num_prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    num_output_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    print(outputs[0].outputs[0].text)
    print(
        f"{len(outputs)} requests in {seconds:.1f} s: {num_prompt_tokens} prompt tokens, "
        f"{num_output_tokens} output tokens, {num_output_tokens / seconds:.0f} output tokens/s"
    )


if __name__ == "__main__":
    main()
