"""The tensor types of GGUF, and how the ones that Pelton reads become float32.

Block layouts: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and ggml's `ggml-common.h`.
"""

from pelton.loader.gguf import k_quants, quants
from pelton.loader.plain_types import PLAIN_TYPES, TensorType

TYPE_NAMES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 4: "Q4_2", 5: "Q4_3", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1",
    10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS",
    18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32",
    27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0",
    35: "TQ2_0", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""Type number in a tensor info -> name, for every type there is and those that ggml has given up."""

READABLE = PLAIN_TYPES | {
    "Q4_0": TensorType(32, quants.Q4_0, quants.fill_q4_0, quants.split_q4_0),
    "Q4_1": TensorType(32, quants.Q4_1, quants.fill_q4_1, quants.split_q4_1),
    "Q5_0": TensorType(32, quants.Q5_0, quants.fill_q5_0),
    "Q5_1": TensorType(32, quants.Q5_1, quants.fill_q5_1),
    "Q8_0": TensorType(32, quants.Q8_0, quants.fill_q8_0),
    "Q2_K": TensorType(256, k_quants.Q2_K, k_quants.fill_q2_k),
    "Q3_K": TensorType(256, k_quants.Q3_K, k_quants.fill_q3_k),
    "Q4_K": TensorType(256, k_quants.Q4_K, k_quants.fill_q4_k, k_quants.split_q4_k),
    "Q5_K": TensorType(256, k_quants.Q5_K, k_quants.fill_q5_k),
    "Q6_K": TensorType(256, k_quants.Q6_K, k_quants.fill_q6_k),
}
