"""Texts that tokenizers have trouble with."""

# ruff: noqa: RUF001 - other scripts are the point

CORPUS = {
    "empty": "",
    "space": " ",
    "spaces": "  leading, three   inside, trailing  ",
    "tabs": "\tone\t\ttwo \t three\t",
    "newlines": "a\nb\n\nc\n\n\n   d\n \n\n",
    "windows": "first\r\nsecond\r\n\r\nthird\rfourth\r",
    "other spaces": "a\u00a0b\u2003c\u3000d\u200be\ufefff\u2028g\u0085h",
    "long runs": "x" + " " * 70 + "y" + "\n" * 40 + "z" + "\t" * 35 + "=" * 80 + "-" * 33 + "0" * 40,
    "control": "a\x00b\x01\x02c\x07\x1b[0m\x7f\x80\x9f",
    "english": "Hello, world! It's the 3rd of May, isn't it? They'LL say WE'VE SEEN \u2018it\u2019s\u2019 here.",
    "digits": "1 12 123 1234 12345 3.14159 1,000,000 0x1F 2\u00b3 \u00bd \u0663\u0664 \u2167 1e-9 v1.2.3",
    "capitals": "HTTPServer camelCase snake_case SCREAMING_CASE iPhone McDonald \u01c5 \u1e9e stra\u00dfe STRASSE",
    "code": (
        'def f(x: int) -> str:\n    """Doc."""\n    return f"{x:>10}" if x else None  # why?\n\n\nclass A(B):\n\tpass\n'
    ),
    "markup": (
        '<table class="a"><tr><td>&nbsp;</td></tr></table>\n<!-- x --><br/>\n# Title\n* **bold** `code` [a](b)\n'
        "```c\n```"
    ),
    "paths": "C:\\Users\\x\\file.txt /usr/lib/x.so https://example.org/a?b=c&d=%20#e user@example.org",
    "german": "Die Größe der Türme überraschte Jörg: „Äußerst schön!“, rief er, 75 € wert.",
    "french": "L'été, à Noël, où l'œuvre naïve coûtait 1\u202f000 €, ça n'a pas plu : « hélas ! »",
    "vietnamese": "Tiếng Việt có nhiều dấu: Cửa Việt, nghĩa, ỷ lại, Đặng.",
    "czech, polish, turkish": "Příliš žluťoučký kůň; zażółć gęślą jaźń; İstanbul'da ılık ığdır",
    "russian": "Съешь ещё этих мягких французских булок, да выпей чаю. Ёлка.",
    "greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ὀδυσσεύς, ᾧ, Ω \u2126",
    "hebrew": "שלום עולם! בְּרֵאשִׁית בָּרָא",
    "arabic": "السلام عليكم، كيف حالك؟ اَلْعَرَبِيَّةُ ۱۲۳",
    "hindi": "नमस्ते दुनिया, क्षत्रिय श्री १२३ हिन्दी",
    "tamil": "தமிழ் எழுத்துக்கள் கொண்டாட்டம்",
    "thai": "สวัสดีชาวโลก การทดสอบภาษาไทยที่ไม่มีการเว้นวรรค ๑๒๓",
    "khmer": "កាន់តែពិសេសអាច ភាសាខ្មែរ",
    "chinese": "你好，世界！今天是2024年5月1日，天气很好。繁體字測試「引號」。",
    "japanese": "こんにちは世界。カタカナ、ひらがな、漢字。ｶﾀｶﾅ ーーー「テスト」12個",
    "korean": "안녕하세요 세계! 한국어 테스트 \u1112\u1161\u11ab",
    "composed": "\u00e9\u00e5\u1ea5 caf\u00e9",
    "combining": "e\u0301 a\u030a a\u0302\u0301 Z\u0351\u036b\u0343\u036a\u0302a\u0334\u0322 q\u0307\u0323",
    "emoji": "🙂🙂 😀😃 🚀🔥 ❤️ ❤ 1️⃣ 🇩🇪🇫🇷 👍🏽 \U0001fae8",
    "joined emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 👩🏿‍🚀 🧑‍🤝‍🧑😶‍🌫️",
    "rare": "𓂀 𝕳𝖊𝖑𝖑𝖔 𠮷 \U0001f9ff \ue000 \ufffd \U000e0041 \U0010ffff",
    "math": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β), ∑ᵢ xᵢ² ≤ 1, ℵ₀ → ∞",
    "lone marks": "\u0301x \u200dx \ufe0fx \u200f\u202ex\u202c",
    "long word": "Donaudampfschifffahrtselektrizitätenhauptbetriebswerkbauunterbeamtengesellschaft" * 4,
    "long nonsense": "qzxjkvbp" * 60 + "xkcdéöß日本語" * 30,
    "repetition": "ab" * 50 + " " + "aba" * 40 + " " + "anana" * 20 + " the the the the" * 10,
    "byte tokens spelled out": "<0x41> <0x0A> <0xE6><0x97><0xA5> <0xZZ>",
    "look like special tokens": "<|im_start <im_end|> <s <unk [CLS [INST] <<SYS>> <|endoftext <pad",
}

LITERAL_SPACE_SYMBOL = "a▁b ▁ ▁▁c"
"""SentencePiece's symbol for a space, in a text."""

FRAGMENTS = [
    *("a", "b", "ab", "aa", "the", "The", "ing", "Hello", "1", "12", "é", "e\u0301", "ß", "日本", "語", "ก", "ا", "ש"),
    *(" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "\x00", "\x07", "\u200d", "\ufffd", "\u00a0"),
    *("🙂", "👩‍👩‍👧", "<", ">", "</", "<table>", "<0x41>", "-", "--", "=", "==", ".", "...", "'s"),
]
"""Pieces that random texts are made of."""
