"""Varied prompts for comparisons with a reference: scripts, code, chat, lengths from 1 to 1,500 tokens."""

STORY = (
    "The mill stood where the valley narrowed, and in spring the water came down fast enough to shake its walls. "
    "Old Teresa kept the books, her brother kept the wheel, and nobody in the village could remember a year when "
    "either of them had been late. On the first Monday of April a stranger arrived with two mules and a crate. "
    "He said that the crate held a new kind of wheel, one that would turn twice as fast with half the water. "
)

TEXTS = {
    "one token": "\n",
    "one word": "Hello",
    "greeting": "Hello, my name is",
    "president": "The president of the United States is",
    "capital": "The capital of France is",
    "french": "Il était une fois, dans un petit village au bord de la mer,",
    "german": "Die Turbine wandelt die Energie des Wassers in",
    "spanish": "¿Cuál es la diferencia entre una nube y la niebla?",
    "chinese": "人工智能正在改变世界，因为",
    "japanese": "昔々、あるところに、おじいさんと",
    "russian": "Однажды зимним вечером в маленьком городе",
    "arabic": "كان يا ما كان في قديم الزمان",
    "greek and math": "Let α + β = γ and ∑ᵢ xᵢ² ≤ 1, then",
    "emoji": "My week in emojis: 🚀🔥😀 and then 👩‍🚀",
    "python": 'def fibonacci(n: int) -> int:\n    """Return the n-th Fibonacci number."""\n    if n < 2:\n',
    "json": '{"name": "Ada Lovelace", "born": 1815, "works": [{"title": "',
    "sql": "SELECT customer_id, SUM(total) FROM orders WHERE created_at >= '2024-01-01' GROUP BY",
    "digits": "3.14159265358979323846264338327950288419716939937510",
    "whitespace": "a\n\n\n  b\t\tc      d\r\n",
    "list": "Shopping list:\n1. milk\n2. bread\n3.",
    "repetition": "one two three one two three one two three one two",
    "chat": "<|im_start|>user\nExplain in two sentences why ice floats.<|im_end|>\n<|im_start|>assistant\n",
    "chat system": (
        "<|im_start|>system\nYou answer like a pirate.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    "story": STORY,
}


def prompts(tokenizer, *, longest: int = 1500) -> dict[str, list[int]]:
    """Token ids by name; the long ones have exact lengths around block boundaries."""
    ids = {name: tokenizer.encode(text) for name, text in TEXTS.items()}
    long = tokenizer.encode(" ".join(f"Chapter {n}. {STORY}" for n in range(1, 20)))
    for length in (15, 16, 17, 127, 128, 257, 640, 1500):
        if length <= longest:
            ids[f"{length} tokens"] = long[:length]
    return ids
