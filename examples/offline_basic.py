"""Complete a few prompts offline: no server, one process."""

from pelton import LLM, SamplingParams


def main() -> None:
    prompts = [
        "Hello, my name is",
        "The president of the United States is",
    ]
    sampling_params = SamplingParams(temperature=0.8, top_p=0.95)
    llm = LLM(model="smollm2")
    outputs = llm.generate(prompts, sampling_params)
    for output in outputs:
        print(f"Prompt: {output.prompt!r}, generated text: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
