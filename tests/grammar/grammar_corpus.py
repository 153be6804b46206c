"""Context-free grammars in both notations, with a program that knows the language; and texts that are no grammars."""

from collections.abc import Callable
from typing import NamedTuple

from tests.grammar import language_checks


class Language(NamedTuple):
    name: str
    lark: str
    gbnf: str
    is_member: Callable[[str], bool]
    texts: tuple[str, ...]
    """Some of its texts, which are mutated too."""


LANGUAGES = (
    Language(
        name="arithmetic",
        lark=r"""
            // Precedence by layers.
            start: sum
            sum: product (("+" | "-") product)*
            product: factor (("*" | "/") factor)*
            factor: "-" factor | "(" sum ")" | NUMBER
            NUMBER: /[0-9]+(\.[0-9]+)?/
        """,
        gbnf=r"""
            # Precedence by layers.
            root    ::= product (("+" | "-") product)*
            product ::= factor (("*" | "/") factor)*
            factor  ::= "-" factor | "(" root ")" | number
            number  ::= [0-9]+ ("." [0-9]+)?
        """,
        is_member=language_checks.is_arithmetic,
        texts=("1", "-1", "1+2*3", "(1+2)*3.25/--4", "((((7))))", "1-1-1/1/1", "12.50*(3-(4+5)*6)"),
    ),
    Language(
        name="left-recursive arithmetic",
        lark="""
            start: start "+" product | start "-" product | product
            product: product "*" factor | product "/" factor | factor
            factor: "(" start ")" | "-" factor | digits ("." digits)?
            digits: digits DIGIT | DIGIT
            DIGIT: /[0-9]/
        """,
        gbnf="""
            root ::= root "+" product | root "-" product | product
            product ::= product "*" factor | product "/" factor | factor
            factor ::= "(" root ")" | "-" factor | digits ("." digits)?
            digits ::= digits [0-9] | [0-9]
        """,
        is_member=language_checks.is_arithmetic,
        texts=("1", "-1", "1+2*3", "(1+2)*3.25/--4", "1-1-1/1/1"),
    ),
    Language(
        name="SQL",
        lark=r"""
            start: people | orders
            people: "SELECT " people_columns " FROM people" (" WHERE " people_condition)? sorting? limit?
            orders: "SELECT " order_columns " FROM orders" (" WHERE " order_condition)? limit?
            people_columns: "*" | "COUNT(*)" | person (", " person)*
            order_columns: "*" | "SUM(total)" | purchase (", " purchase)*
            people_condition: people_term ((" AND " | " OR ") people_term)*
            people_term: person comparison value | "NOT " people_term | "(" people_condition ")" | person " IS NULL"
            order_condition: order_term ((" AND " | " OR ") order_term)*
            order_term: purchase comparison value | purchase " IN (SELECT name FROM people)"
            person: "name" | "age" | "city"
            purchase: "id" | "name" | "total"
            comparison: " = " | " < " | " > " | " <> " | " LIKE "
            value: NUMBER | TEXT
            sorting: " ORDER BY " person (" DESC")?
            limit: " LIMIT " /[0-9]{1,4}/
            NUMBER: /-?[0-9]{1,9}/
            TEXT: /'([^'\x00-\x1f]|'')*'/
        """,
        gbnf=r"""
            root ::= people | orders
            people ::= "SELECT " people-columns " FROM people" (" WHERE " people-condition)?
                       (" ORDER BY " person order)? limit?
            orders ::= "SELECT " order-columns " FROM orders" (" WHERE " order-condition)? limit?
            people-columns ::= "*" | "COUNT(*)" | person (", " person)*
            order-columns ::= "*" | "SUM(total)" | purchase (", " purchase)*
            people-condition ::= people-term ((" AND " | " OR ") people-term)*
            people-term ::= person comparison value | "NOT " people-term | "(" people-condition ")" | person " IS NULL"
            order-condition ::= order-term ((" AND " | " OR ") order-term)*
            order-term ::= purchase comparison value | purchase " IN (SELECT name FROM people)"
            person ::= "name" | "age" | "city"
            purchase ::= "id" | "name" | "total"
            comparison ::= " = " | " < " | " > " | " <> " | " LIKE "
            value ::= "-"? [0-9]{1,9} | "'" ([^'\x00-\x1f] | "''")* "'"
            order ::= (" DESC")?
            limit ::= " LIMIT " [0-9]{1,4}
        """,
        is_member=language_checks.is_query,
        texts=(
            "SELECT * FROM people",
            "SELECT name, age FROM people WHERE age > 30 AND (city = 'Köln' OR NOT age < 5) ORDER BY age DESC LIMIT 9",
            "SELECT COUNT(*) FROM people WHERE name LIKE 'O''Hara%'",
            "SELECT SUM(total) FROM orders WHERE name IN (SELECT name FROM people) AND total < -5",
        ),
    ),
    Language(
        name="CSV",
        lark=r"""
            start: row+
            row: field "," field "," field "\n"
            field: PLAIN? | QUOTED
            PLAIN: /[^,"\r\n\x00]+/
            QUOTED: /"([^"\x00]|"")*"/
        """,
        gbnf=r"""
            root ::= row+
            row ::= field "," field "," field "\n"
            field ::= [^,"\r\n\x00]* | "\"" ([^"\x00] | "\"\"")* "\""
        """,
        is_member=language_checks.is_csv_of_three_columns,
        texts=("a,b,c\n", ",,\n", '"a ""quoted"" one","b,\r\nc",é\n1,2,3\n', "x,,\n,y,\n,,z\n"),
    ),
    Language(
        name="brackets",
        lark="""
            start: pair*
            pair: "(" start ")" | "[" start "]" | "{" start "}"
        """,
        gbnf="""
            root ::= pair*
            pair ::= "(" root ")" | "[" root "]" | "{" root "}"
        """,
        is_member=language_checks.is_balanced,
        texts=("", "()", "([]{})", "(" * 200 + ")" * 200, "[({})]" * 20),
    ),
    Language(
        name="palindromes",
        lark="""
            start: "a" start "a" | "b" start "b" | "é" start "é" | "a" | "b" | "é" |
        """,
        gbnf="""
            root ::= "a" root "a" | "b" root "b" | "é" root "é" | "a" | "b" | "é" | ""
        """,
        is_member=language_checks.is_palindrome,
        texts=("", "a", "éé", "abéba", "abba", "aaaaaaa", "bébabéb"),
    ),
    Language(
        name="JSON",
        lark=r"""
            start: WS? value WS?
            value: object | array | STRING | NUMBER | "true" | "false" | "null"
            object: "{" WS? (pair (comma pair)*)? "}"
            pair: STRING WS? ":" WS? value WS?
            array: "[" WS? (value WS? ("," WS? value WS?)*)? "]"
            comma: "," WS?
            STRING: /"([^"\\\x00-\x1f]|\\(["\\\/bfnrt]|u[0-9a-fA-F]{4}))*"/
            NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/
            WS: /[ \t\r\n]+/
        """,
        gbnf=r"""
            root ::= ws value ws
            value ::= object | array | string | number | "true" | "false" | "null"
            object ::= "{" ws (pair ("," ws pair)*)? "}"
            pair ::= string ws ":" ws value ws
            array ::= "[" ws (value ws ("," ws value ws)*)? "]"
            string ::= "\"" ([^"\\\x00-\x1f] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
            number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
            ws ::= [ \t\r\n]*
        """,
        is_member=language_checks.is_json,
        texts=(
            "null",
            " [ ] ",
            '{"a": [1, -2.5e+3, {"é😀": ""}], "b\\u00e9\\n": false}',
            '"\\ud83d\\ude00"',
            "0",
            "[[[[]]]]",
            '{"": {"": {}}}',
        ),
    ),
    Language(
        name="Lisp",
        lark=r"""
            start: "'"* (ATOM | INTEGER | STRING | list)
            list: "(" (start (" " start)*)? ")"
            ATOM: /[a-z+*\/=<>?!-]+/
            INTEGER: /-?[0-9]+/
            STRING: /"[^"\\\n]*"/
        """,
        gbnf=r"""
            root ::= "'"* (atom | integer | string | list)
            list ::= "(" (root (" " root)*)? ")"
            atom ::= [a-z+*/=<>?!-]+
            integer ::= "-"? [0-9]+
            string ::= "\"" [^"\\\n]* "\""
        """,
        is_member=language_checks.is_lisp,
        texts=("x", "-12", "()", "(+ 1 2)", '(define (f x) \'(a "é" ()))', "''((()))", "(-)", "(a -1 -)"),
    ),
)


class NotationCase(NamedTuple):
    """What a piece of notation means."""

    grammar: str
    matches: tuple[str, ...]
    others: tuple[str, ...]


_C = NotationCase

GBNF_NOTATION = (
    _C('root ::= "a"', ("a",), ("", "aa")),
    _C('root::="a"', ("a",), ("",)),
    _C('root ::= "a" "b" | "c"', ("ab", "c"), ("a", "ac")),
    _C('root ::= ("a" | "b") "c"', ("ac", "bc"), ("a", "abc")),
    _C('root ::=\n  "a" |\n  "b"\n', ("a", "b"), ("ab",)),
    _C('root ::= (\n  "a"\n  "b"\n)', ("ab",), ("a",)),
    _C('root ::= "a" # a comment\nother ::= "b"', ("a",), ("b",)),
    _C('# a comment\n\nroot ::= a-b a_c\n\na-b ::= "x"\na_c ::= "y"\n', ("xy",), ("x",)),
    _C('root ::= fooBar foobar\nfooBar ::= "x"\nfoobar ::= "y"', ("xy",), ("xx", "yy")),
    _C('root ::= foo-bar foo_bar\nfoo-bar ::= "x"\nfoo_bar ::= "y"', ("xy",), ("xx", "yy")),
    _C('root ::= start\nstart ::= "x"', ("x",), ("",)),
    _C('root ::= x1\nx1 ::= "a" | x1 "b"', ("a", "abb"), ("b",)),
    _C('root ::= "a"?', ("", "a"), ("aa",)),
    _C('root ::= "ab"*', ("", "ab", "abab"), ("a", "aba")),
    _C('root ::= "ab"+', ("ab", "abab"), ("",)),
    _C('root ::= ("a" "b")+ "c"', ("abc", "ababc"), ("c", "ab")),
    _C('root ::= "a"{3}', ("aaa",), ("aa", "aaaa")),
    _C('root ::= "a"{2,}', ("aa", "aaaa"), ("a",)),
    _C('root ::= "a"{1,2}', ("a", "aa"), ("", "aaa")),
    _C('root ::= "a"{0,2} "b"', ("b", "aab"), ("aaab",)),
    _C('root ::= x{2}\nx ::= "a" | "b" x', ("aa", "baa", "babba"), ("a", "bb")),
    _C("root ::= [a-c]", ("a", "c"), ("d", "-")),
    _C("root ::= [^a-c]", ("d", "é", "\n", "^"), ("a", "")),
    _C("root ::= [abc-]", ("-", "a"), ("d",)),
    _C(r"root ::= [\]\[]", ("]", "["), ("\\",)),
    _C("root ::= [[a]", ("[", "a"), ("b",)),
    _C("root ::= [a&&b]", ("a", "b", "&"), ("c",)),
    _C("root ::= [a~~b]", ("a", "b", "~"), ("c",)),
    _C("root ::= [/.*$]", ("/", ".", "*", "$"), ("a", "\\")),
    _C(r"root ::= [\\]", ("\\",), ("a",)),
    _C(r"root ::= [\n\t\r]", ("\n", "\t", "\r"), ("n", "\\")),
    _C(r"root ::= [\x41-\x43]", ("A", "C"), ("D", "x")),
    _C(r"root ::= [\u00e0-\u00ff]", ("é",), ("e", "u", "0")),
    _C(r"root ::= [\U0001F600-\U0001F64F]", ("😀", "🙏"), ("U", "a")),
    _C("root ::= [à-ü😀]", ("é", "😀"), ("a",)),
    _C("root ::= .", ("a", "é", "😀", "\n"), ("", "ab")),
    _C('root ::= . "b"', ("ab", "bb"), ("b", "abb")),
    _C(r'root ::= "\"\\\n\t\r"', ('"\\\n\t\r',), ("",)),
    _C(r'root ::= "\x41\u00e9\U0001F600"', ("Aé😀",), ("A",)),
    _C(r'root ::= "\u0041"', ("A",), ("u0041", "4")),
    _C(r'root ::= "\u000a"', ("\n",), ("a",)),
    _C(r'root ::= "[\[x\]]"', ("[[x]]",), ("x",)),
    _C('root ::= "é😀日本"', ("é😀日本",), ("é",)),
    _C('root ::= "a/b" "//c" "# d"', ("a/b//c# d",), ("a/b",)),
    _C('root ::= "" "a" ""', ("a",), ("",)),
    _C('root ::= ""', ("",), ("a",)),
    _C('root ::= "a" |', ("a", ""), ("aa",)),
    _C('root ::= "if" name\nname ::= [a-z]+', ("ifx", "ifif"), ("if", "i")),
    _C('root ::= word* "x"\nword ::= [a-z]+', ("x", "ax", "abx", "xx"), ("a", "")),
    _C('root ::= a b\na ::= "a"*\nb ::= "ab"', ("ab", "aab", "aaaab"), ("b", "a")),
    _C('root ::= "a" "b" "c" | "ab" "d"', ("abc", "abd"), ("ab",)),
    _C('root ::= item ("," item)*\nitem ::= [^,]* | "," "!"', ("", "a,b", ",!", ",,!"), ()),
    _C('root ::= [a-z]* [0-9a-z]* "z"', ("z", "a0z", "zz", "0zz"), ("a", "z0")),
    _C('root ::= digit+ "." digit+\ndigit ::= [0-9]', ("1.2", "10.01"), ("1.", ".1")),
    _C('root ::= root "a" | "b"', ("b", "baa"), ("a", "ab")),
    _C('root ::= "a" root | "b"', ("b", "aab"), ("a", "ba")),
    _C('root ::= root root | "a" | ""', ("", "aaaa"), ("b",)),
    _C('root ::= x\nx ::= x | "a"', ("a",), ("aa",)),
    _C('root ::= x "!"\nx ::= y?\ny ::= x', ("!",), ("",)),
    _C('root ::= "a"\nunused ::= "b" unused | "c"', ("a",), ("c",)),
)

LARK_NOTATION = (
    _C('start: "a"', ("a",), ("", "aa")),
    _C('start: "a" "b" | "c"', ("ab", "c"), ("a",)),
    _C('start: "a"\n     | "b"', ("a", "b"), ("ab",)),
    _C('start: ("a" | "b") "c"', ("ac", "bc"), ("c",)),
    _C('start: "a"?', ("", "a"), ("aa",)),
    _C('start: ("a" "b")*', ("", "abab"), ("a",)),
    _C('start: "ab"+', ("ab", "abab"), ("",)),
    _C('start: "a"~3', ("aaa",), ("aa",)),
    _C('start: "a"~1..2', ("a", "aa"), ("aaa",)),
    _C('start: "a"{2,3}', ("aa", "aaa"), ("a",)),
    _C('start: ["a"] "b"', ("b", "ab"), ("a",)),
    _C('start: "a" // a comment\n// another one\nother: "b"', ("a",), ("b",)),
    _C("start: /[a-c]+/", ("abc",), ("", "d")),
    _C('start: A B\nA: "a" | "x"\nB: A "b"', ("aab", "xxb"), ("ab",)),
    _C('start: LETTER+\nLETTER: "a".."c"', ("abc",), ("d", "")),
    _C('start: "select"i', ("select", "SeLeCT"), ("selec",)),
    _C('%ignore " "\nstart: "a" "b"', ("ab", "a b", "a   b"), ("a", "a\nb")),
    _C('%ignore / +/\nstart: WORD ("," WORD)*\nWORD: /[a-z]+/', ("a,b", "a , b"), ("a b", ",")),
    _C("start: INT\n%import common.INT", ("12",), ("a", "")),
    _C(r'start: "\"\\\n\t\r"', ('"\\\n\t\r',), ("",)),
    _C(r'start: "\x41\u00e9"', ("Aé",), ("A",)),
    _C('start: "é😀日本"', ("é😀日本",), ("é",)),
    _C(r"start: /\// /[\/]/", ("//",), ("/",)),
    _C(r"start: /a.c/", ("abc",), ("a\nc",)),
    _C(r"start: /a.c/s", ("abc", "a\nc"), ("ac",)),
    _C(r"start: /abc/i", ("aBC",), ("ab",)),
    _C(r"start: /[^\x00-\x1f]/", ("é", "a"), ("\n",)),
    _C('start: start "a" | "b"', ("b", "baa"), ("a",)),
    _C('start: "a" start | "b"', ("b", "aab"), ("ba",)),
    _C('start: start start | "a" |', ("", "aaaa"), ("b",)),
    _C('start: x\nx: x | "a"', ("a",), ("aa",)),
    _C('start: "" "a"', ("a",), ("",)),
    _C('start: ""', ("",), ("a",)),
    _C('start: "a"\nunused: "b"', ("a",), ("b",)),
    _C('start: word\n?word: "a" -> letter\n    | "b"', ("a", "b"), ("ab",)),
    _C('!start: "a" _x\n_x: "b"', ("ab",), ("a",)),
    _C('start: %json {"type": "boolean"} "!"', ("true!", "false!"), ("true", "!")),
    _C('start: a b\na: "x"\n\n\nb: "y"\n', ("xy",), ("x",)),
)

INVALID_LARK = (
    "start",
    "start: (",
    'start: "a',
    'start: "a" )',
    "start: /a",
    "start: /(/",
    "start: /[/",
    "start: x",
    "start: X",
    'x: "a"',
    'start: "a"\nstart: "b"',
    'start: "a"\nA: "b"\nA: "c"',
    "start: A\nA: A",
    'start: A\nA: "a" B\nB: A',
    'start: "a" |* "b"',
    "start: *",
    'start: "a"{2',
    'start: "a"{3,2}',
    'start: "a"~3..2',
    "start: /(?=a)b/",
    r"start: /\bword/",
    r"start: /(a)\1/",
    'start: "a" %',
    '%ignore\nstart: "a"',
    "%import foo.BAR\nstart: BAR",
    '%frobnicate "a"\nstart: "a"',
    'start: "\\q"',
    'start: "\\u12"',
    "start: <nothing_of_the_kind>",
    'start: %json {"type": }',
    'start: %json {"type": "strange"}',
    'start: %regex {"x": 1}',
    "start: @elsewhere",
    "start: a\na: b\nb: c",
    'start: "a" start',
    "start: start",
    "start: a\na: a",
    'start: a "x"\na: a "y"',
    'start: ("a"',
    'start:: "a"',
    'start "a"',
    '1start: "a"\nstart: "b"',
    "start: 'a'",
    'start: "a";',
    "start: /[^\\s\\S]/",
    'start: x{2}\nx{a}: a "b"',
    'start: tmpl{"a"}\ntmpl{x}: x x x |',
    'start: "b"\nstart: ',
)

INVALID_GBNF = (
    "root ::=",
    "root",
    "root ::= (",
    'root ::= "a',
    'root ::= "a" )',
    "root ::= [a",
    "root ::= []",
    "root ::= x",
    'x ::= "a"',
    'root ::= "a"\nroot ::= "b"',
    'root := "a"',
    'root : "a"',
    'root = "a"',
    "root ::= *",
    'root ::= "a" | | * "b"',
    'root ::= "a"{',
    'root ::= "a"{2',
    'root ::= "a"{3,2}',
    'root ::= "a"{x}',
    'root ::= "a"{,}',
    "root ::= [z-a]",
    r'root ::= "\q"',
    r'root ::= "\x4"',
    r'root ::= "\u12"',
    r'root ::= "\U00110000"',
    r'root ::= "\ud800"',
    r"root ::= [\q]",
    "root ::= 'a'",
    'root ::= "a" ; "b"',
    'root ::= "a" "b',
    "root ::= root",
    'root ::= "a" root',
    'root ::= x "a"\nx ::= x "b"',
    "root ::= a\na ::= b\nb ::= a",
    "root ::= a\na ::= b",
    '::= "a"',
    'root ::= "a" ::= "b"',
    'root ::= ("a" | "b"',
    'root ::= "a"}',
    "root ::= [^\\x00-\\U0010FFFF]",
    'root ::= "a" & "b"',
    'root ::= !"a"',
    "root ::= /a/",
    "nothing of the kind",
    "{}",
    '{"type": "object"}',
    " ",
    "\n\n",
    "# only a comment",
)
