"""What constraints cost: time per token, throughput, and compilation.

    .venv/bin/python benchmarks/structured_output.py [--model smollm2] [--rounds 5] [--batches 1 64] [--tokens 128]

Free requests and constrained ones run in turn in one engine, with equal prompts and numbers of tokens: JSON (an array
of records), JSON of any kind, a regular expression, and a choice of a thousand strings. Each constrained round is
compared with the free ones before and after it. `sampled` asks for log probabilities, so that nothing is forced and a
token is a step, as in the free requests. Then the time to compile ten typical schemas, each for the first time.

Ends with one line of JSON.
"""

import argparse
import json
import random
import statistics
import time
from collections.abc import Mapping
from typing import Any

from pelton import LLM, SamplingParams
from pelton.engine.vocabulary import TokenizerVocabulary
from pelton.grammar.registry import load_backend, resolve
from pelton.sampling_params import StructuredOutputsParams

PROMPT_TOKENS = 64
RECORD: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "email": {"type": "string", "pattern": "^[a-z]{3,12}@[a-z]{3,12}\\.(com|org)$"},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 4},
        "active": {"type": "boolean"},
    },
    "required": ["name", "age", "email", "tags", "active"],
    "additionalProperties": False,
}
CONSTRAINTS: dict[str, dict[str, Any]] = {
    "records": {"json": {"type": "array", "items": RECORD, "minItems": 100}},
    "any object": {"json_object": True},
    "regex": {"regex": "([a-z]{2,9} ){200}"},
    "choice": {"choice": [f"{'word ' * 150}{number}" for number in range(1000)]},
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "record": RECORD,
    "records": {"type": "array", "items": RECORD},
    "enum of 1,000": {"enum": [f"value {number}" for number in range(1000)]},
    "date and uuid": {
        "type": "object",
        "properties": {"at": {"type": "string", "format": "date-time"}, "id": {"type": "string", "format": "uuid"}},
        "required": ["at", "id"],
    },
    "optional fields": {
        "type": "object",
        "properties": {f"field{number}": {"type": ["string", "null"]} for number in range(40)},
        "additionalProperties": False,
    },
    "union": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": f"kind{number}"}, "value": {"type": "number"}},
                "required": ["kind", "value"],
                "additionalProperties": False,
            }
            for number in range(20)
        ]
    },
    "recursive": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "string"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value", "children"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "nested 8 deep": {},
    "100 properties": {
        "type": "object",
        "properties": {f"property{number}": {"type": "integer"} for number in range(100)},
        "required": [f"property{number}" for number in range(100)],
        "additionalProperties": False,
    },
}


def nested(depth: int) -> dict[str, Any]:
    if not depth:
        return {"type": "number"}
    return {"type": "object", "properties": {"a": nested(depth - 1), "b": {"type": "string"}}, "required": ["a", "b"]}


SCHEMAS["nested 8 deep"] = nested(8)


def run(
    llm: LLM, prompts: list[list[int]], num_tokens: int, constraint: Mapping[str, Any] | None, logprobs: int | None
):
    """Seconds per token of each request."""
    params = [
        SamplingParams(
            temperature=1.0,
            seed=number,
            max_tokens=num_tokens,
            ignore_eos=constraint is None,
            logprobs=logprobs,
            structured_outputs=None if constraint is None else StructuredOutputsParams(**constraint),
        )
        for number in range(len(prompts))
    ]
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - start
    generated = sum(len(output.outputs[0].token_ids) for output in outputs)
    return seconds / generated * len(prompts), generated / len(prompts)


def compare(llm: LLM, batch: int, num_tokens: int, rounds: int) -> list[dict[str, Any]]:
    rng = random.Random(batch)
    prompts = [[rng.randrange(1000, 40_000) for _ in range(PROMPT_TOKENS)] for _ in range(batch)]
    rows = []
    for is_sampled in (True, False):
        logprobs = 0 if is_sampled else None
        for name, constraint in CONSTRAINTS.items():
            run(llm, prompts, num_tokens, constraint, logprobs)  # compiles, and finds the prompts cached
            free, differences, ratios, lengths = [run(llm, prompts, num_tokens, None, logprobs)[0]], [], [], []
            for _ in range(rounds):
                seconds, length = run(llm, prompts, num_tokens, constraint, logprobs)
                free.append(run(llm, prompts, num_tokens, None, logprobs)[0])
                beside = (free[-1] + free[-2]) / 2
                differences.append(1e3 * (seconds - beside))
                ratios.append(beside / seconds)
                lengths.append(length)
            rows.append(
                {
                    "batch": batch,
                    "constraint": name,
                    "sampled": is_sampled,
                    "free_ms": round(1e3 * statistics.median(free), 3),
                    "added_ms": round(statistics.median(differences), 3),
                    "throughput_ratio": round(statistics.median(ratios), 3),
                    "tokens": round(statistics.median(lengths), 1),
                }
            )
            print(rows[-1], flush=True)
    return rows


def compile_times(llm: LLM, rounds: int) -> list[dict[str, Any]]:
    engine = llm.llm_engine
    vocabulary = TokenizerVocabulary(engine.tokenizer, engine.vocab_size)
    start = time.perf_counter()
    backend = load_backend("llguidance")(vocabulary)
    rows: list[dict[str, Any]] = [
        {"schema": "(vocabulary)", "compile_ms": round(1e3 * (time.perf_counter() - start), 1)}
    ]
    for name, schema in SCHEMAS.items():
        checks, compiles = [], []
        for _ in range(rounds):
            start = time.perf_counter()
            params = resolve(StructuredOutputsParams(json=schema, backend="llguidance"))
            checked = time.perf_counter()
            backend.compile(params).new_matcher()
            checks.append(1e3 * (checked - start))
            compiles.append(1e3 * (time.perf_counter() - checked))
        rows.append(
            {
                "schema": name,
                "check_ms": round(statistics.median(checks), 2),
                "compile_ms": round(statistics.median(compiles), 2),
            }
        )
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--quantization", default="int8")
    options = parser.parse_args()
    llm = LLM(options.model, quantization=options.quantization, max_model_len=1024, max_num_seqs=max(options.batches))
    rows = [row for batch in options.batches for row in compare(llm, batch, options.tokens, options.rounds)]
    compiled = compile_times(llm, options.rounds)
    llm.shutdown()
    print(json.dumps({"model": options.model, "constraints": rows, "schemas": compiled}))


if __name__ == "__main__":
    main()
