"""Outputs that are one of some strings, match a regular expression, or are instances of a JSON schema."""

import json

from pelton import LLM, SamplingParams
from pelton.sampling_params import GuidedDecodingParams, StructuredOutputsParams


def main() -> None:
    llm = LLM(model="smollm2")

    # The older name of StructuredOutputsParams.
    guided_decoding_params = GuidedDecodingParams(choice=["Positive", "Negative"])
    sampling_params = SamplingParams(guided_decoding=guided_decoding_params)
    prompts = ["This sucks", "The weather is beautiful"]
    for output in llm.generate(prompts, sampling_params):
        print(f"Prompt: {output.prompt!r}, sentiment: {output.outputs[0].text!r}")

    date = StructuredOutputsParams(regex=r"[12]\d{3}-[01]\d-[0-3]\d")
    params = SamplingParams(temperature=0.0, structured_outputs=date)
    (output,) = llm.generate(["The first human landed on the moon on"], params)
    print(f"Date: {output.outputs[0].text}")

    city = StructuredOutputsParams(
        json={
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 30}, "capital": {"type": "boolean"}},
            "required": ["city", "capital"],
            "additionalProperties": False,
        }
    )
    params = SamplingParams(temperature=0.0, max_tokens=64, structured_outputs=city)
    (output,) = llm.generate(["A city in France, as JSON:"], params)
    print(f"City: {json.loads(output.outputs[0].text)['city']!r}")


if __name__ == "__main__":
    main()
