"""Hold two conversations offline; the model's own chat template makes prompts of them."""

from pelton import LLM, SamplingParams


def main() -> None:
    conversations = [
        [
            {"role": "system", "content": "You answer in one short sentence."},
            {"role": "user", "content": "Why is the sky blue?"},
        ],
        [
            {"role": "user", "content": "Name a river."},
            {"role": "assistant", "content": "The Rhine."},
            {"role": "user", "content": "Which sea does it flow into?"},
        ],
    ]
    llm = LLM(model="smollm2")
    outputs = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=48))
    for conversation, output in zip(conversations, outputs, strict=True):
        print(f"{conversation[-1]['content']} {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
