"""Search the likeliest completions of a prompt with a beam, instead of sampling one."""

from pelton import LLM
from pelton.sampling_params import BeamSearchParams


def main() -> None:
    llm = LLM(model="smollm2")
    params = BeamSearchParams(beam_width=4, max_tokens=12)
    [output] = llm.beam_search([{"prompt": "The capital of France is"}], params)
    for sequence in output.sequences:
        print(f"{sequence.cum_logprob:.2f} {sequence.text!r}")


if __name__ == "__main__":
    main()
