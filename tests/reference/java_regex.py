r"""Patterns of java.util.regex and names of topics, for tests that compare with Java's own answers.

TABLE has what people write, and each construct of java.util.regex.Pattern's page; `random_pattern` strings parts
together, nested and repeated, right and wrong ones.
"""

from __future__ import annotations

import random

NAMES = [
    "a", "b", "A", "Z", "0", "9", "_", "-", ".", "ab", "abc", "aa", "aaa", "aab", "abab", "ABC", "aBc", "a1", "a-b",
    "a.b", "a_b", "b-a", "orders", "orders-eu", "orders.eu.v2", "ORDERS", "Orders-2024", "x9", "k", "K", "s", "S",
    "i", "I", "foo-bar-baz", "foofoo", "barbar-7", "0-1-2", "__consumer_offsets", "dbserver1.inventory.customers",
    "a" * 9, "prod.eu-west-1.payments_v3", "test-ab-ba", "zzz", "cc.cc", "user_events_2024-11-01",
]  # fmt: skip

TABLE = [
    # Usual patterns.
    "orders", "^orders$", "orders.*", "orders|users", "^orders-(eu|us)$", r"dbserver1\.inventory\..*", "[a-z]+", ".*",
    r"^[^_].*", r"^(?!__).*", r"^(?!.*test).*$", "(?i)orders", "(?i:ORD)ers", "orders-\\d{4}", r"user_.*_\d+-\d+-\d+",
    # Classes.
    "[a-z&&[^b]]", "^[a-z&&[^bc]]+$", "[a-c&&b-d]", "[abc&&bcd]", "[a-z&&[def]]", "[^a-z&&[^b]]", "[a-d[m-p]]",
    "[a-z&&[^m-p]]", "[a&&b]", "[^ab[0-9]]", "[]a]", "[^]a]", "[a-]", "[-a]", r"[\-a]", r"[\w&&[^\d]]", r"[\d\-.]",
    "[a&b]", "[&a]", "[a&]", "[&&a]", "[a&&]", "[a-z&&[b]c]", "[a&&[b]&c]", "[a[b]&&c]", "[a-c&&[^b]&&[a-z]]", "[^^]",
    "[a^]", "[.]", "[$]", "[(]", "[a-z-0]", "[a-", "[", "[]", "[^]", "[z-a]", r"[\p{Lower}&&[^a]]", r"[^\p{Lower}]",
    "[[a]]", "[[^a]b]", "[^[^a]]", r"[a-\d]", r"[\x61-\x63]", r"[\Qa-c\E]", "[a[", "[{}]", "[*+?]",
    # Predefined and properties.
    r"\d", r"\D", r"\w+", r"\W", r"\s", r"\S", r"\h", r"\H", r"\v", r"\V", r"\R", r"\X", r"a\Rb", r"^\X+$",
    r"\N{DIGIT ONE}", r"\p{Lower}", r"\p{Upper}", r"\p{Alpha}+", r"\p{Digit}", r"\p{Alnum}", r"\p{Punct}",
    r"\p{Graph}", r"\p{Print}", r"\p{Blank}", r"\p{Cntrl}", r"\p{XDigit}", r"\p{Space}", r"\p{ASCII}", r"\P{Lower}",
    r"\P{ASCII}", r"\pL", r"\PL", r"\p{L}", r"\p{Lu}", r"\p{Ll}", r"\p{Lt}", r"\p{N}", r"\p{Nd}", r"\p{P}", r"\p{Pd}",
    r"\p{Pc}", r"\p{Po}", r"\p{S}", r"\p{Z}", r"\p{C}", r"\p{M}", r"\p{LC}", r"\p{LD}", r"\p{L1}", r"\p{all}",
    r"\p{IsL}", r"\p{IsLu}", r"\p{IsLatin}", r"\p{IsLatn}", r"\p{IsGreek}", r"\p{IsCommon}", r"\p{IsAlphabetic}",
    r"\p{IsLowercase}", r"\p{isLowercase}", r"\p{IsUPPERCASE}", r"\p{IsDigit}", r"\p{IsPunctuation}", r"\p{IsLetter}",
    r"\p{IsWhite_Space}", r"\p{IsHex_Digit}", r"\p{IsAssigned}", r"\p{IsIdeographic}", r"\p{InBasicLatin}",
    r"\p{InBasic_Latin}", r"\p{InBASIC LATIN}", r"\p{InGreek}", r"\p{InGreekAndCoptic}", r"\p{script=Latin}",
    r"\p{sc=Cyrl}", r"\p{block=BasicLatin}", r"\p{blk=Thai}", r"\p{gc=Lu}", r"\p{general_category=Nd}", r"\p{GC=Lu}",
    r"\p{IsControl}", r"\p{Alphabetic}", r"\p{Foo}", r"\p{IsFoo}", r"\p{InFoo}", r"\p{foo=bar}", r"\p{}", r"\p{L",
    r"\p", r"\pX", r"\p{javaLowerCase}", r"\p{javaUpperCase}", r"\p{javaMirrored}", r"\p{javaWhitespace}",
    r"\p{javaLetterOrDigit}", r"\p{javaJavaIdentifierStart}", r"\p{javaJavaIdentifierPart}",
    r"\p{javaUnicodeIdentifierStart}", r"\p{javaUnicodeIdentifierPart}", r"\p{javaDigit}", r"\p{javaTitleCase}",
    r"\p{javaIdentifierIgnorable}", r"\p{javaSpaceChar}", r"\p{javaDefined}", r"\p{javaISOControl}", r"(?i)\p{Lower}",
    r"(?i)\p{Upper}", r"(?i)\p{Lu}", r"(?i)\p{Ll}", r"(?i)\p{IsLowercase}", r"(?i)\p{IsUppercase}",
    r"(?i)\p{javaLowerCase}", r"(?i)\P{Lower}", r"(?i)[^\p{Lu}]", r"(?i)\p{gc=Lt}", r"(?U)\p{Lower}",
    r"(?U)\p{Punct}", r"(?U)\w+", r"(?U)\b", r"(?iU)\p{Upper}", r"(?U)\p{Alpha}", r"(?U)\p{XDigit}", r"(?U)\p{L}",
    r"(?U)\p{LOWER}",
    # Quotes and escapes.
    r"\Qa.b\E", r"\Qa.b", r"\Q\E", r"a\Q.\Eb", r"\Qab\E+", r"\Q[a-z]\E", r"\Q\d\E", r"\Qa\\E", r"\E", r"a\Qb\Q\E",
    r"\060\Q1\E", r"\x3\Q0\E", r"\x30\Q1\E", r"\Q1\E", r"a\.b", r"a\-b", r"\_", r"\x61", r"\x{61}", r"\u0061",
    r"\0141", r"\060", r"\0", r"\08", r"\c!", r"\cA", r"\e", r"\a", r"\t", r"\n", r"\r", r"\f", r"\y", r"\Y", r"\j",
    r"\x6", r"\u006", r"\x{110000}", r"\x{}", "\\", r"\c", r"\N{FOO}", r"\N", r"\#", r"\é", "é", "[à-ü]", "[^é]",
    r"\x{1F600}", r"\ud83d\ude00",
    # Ends and boundaries.
    "^a", "a$", "^$", r"\Aa", r"a\z", r"a\Z", r"\Ga", r"\bbar\b", r"\Bar", r"\b", r"\B", r"\b{g}", r"a\b{g}b",
    r"\b{x}", "(?m)^a", "(?m)a$", "a^", "$a", "^^a", "a$$", "^*a", "$+", r"\b*a", r"(?m)^.*$", "(?d)a$", "(?s).",
    "a|^b", "(^a|b$)",
    # Quantifiers.
    "a?", "a*", "a+", "a{2}", "a{2,}", "a{2,3}", "a{0}", "^a{0,1}$", "a??", "a*?", "a+?", "a{2}?", "a{2,3}?", "a?+",
    "a*+", "a++", "a{2}+", "^a*+a", "^a++b", "^a?+a$", "^(a|ab){2}+$", "^(?:ab|a)++b", "(a*)*", "(a*)+b", "(a?){3}",
    "(a|b)*c", "a**", "a+++", "a?*", "*a", "+", "?", "a{", "a{x}", "{", "}", "a}", "{2}", "a{2}{3}", "a{,3}",
    "a{3,2}", "a{2", "a{2,", "a{2147483647}", "a{2147483648}", "a|{2}", "(){2}", "ab{2}", "a{ 2}", "x{0,0}a",
    # Groups.
    "(a)(b)", "(?:a)b", "(?<x>a)b", r"(?<x>a)\k<x>", r"(a)\1", r"(a|b)\1", r"(a)(b)\2", r"(a)\2", r"\1(a)", r"(a)\10",
    r"(a)\11", r"(?<x>a)\1", r"\k<x>(?<x>a)", r"\k<y>", r"\kx", r"(a\1)", r"(?<x>a)(?<x>b)", "(?<1x>a)", "(?<x_y>a)",
    "(?<x", "(?<x>", "(", ")", "a)", "(a", "()", "(|a)", "a||b", "|", "(?>a|ab)c", "(?>ab|a)b", "(?>a*)a", "(?>a*?)b",
    "(?=a)ab", "(?!a)b", "(?=a)*b", "a(?=b)", "a(?!b)", "(?<=a)b", "(?<!a)b", "(?<=a|bc)b", "(?<!a|oo)-",
    "(?<=a{2})b", "(?<=a?)b", "(?<=a{1,2})b", "(?<=a+)b", "(?<=(a))b", r"(?<=\.)eu", "(?<!^)a", "(?<=^|-)bar",
    "(?'x'a)", "(?P<x>a)", "(?#c)a", "(?", "(?z)", "(?$)", "(?@)", "(?<>a)", r"(?i)(a)\1", r"(a)(?i)\1", r"(?i)(b)\1",
    r"(foo)\1",
    # Flags.
    "(?i)ABC", "(?i)[A-C]", "(?i)[^A-C]", "(?iu)k", "(?iu)\u212a", "(?i)\u212a", "(?iu)\u017f", "(?iu)\u0131",
    "(?iu)\u0130", "(?iu)[\u212a]", "(?iu)[\u212a-\u212b]", "(?-i)a", "(?i-i)A", "(?i)a(?-i)B", "a(?i)B|C",
    "(a(?i)b)C", "(?i:A)b", "(?i-s:A)b", "(?x) a b # c", "(?x)[a b]", "(?x)a {2}", "(?x)a\\ b", "(?x) ( ?:a)",
    "(?x)(? :a)", "(?x:a b)c d", "(?x)a #", "(?x)[a #]", "(?xi) A \\Q B\\E", "(?s-)a", "(?i", "(?i-", "(?-)a",
    "(?--i)a", "(?ii)A", "(?c)a", "(?idmsuxU)A", "(?x)\\  a", "(?x)a{2 }", "(?x)[^ a]", "(?x)[ ^a]", "(?x)a | b",
    "(?i)[a-z&&[^B]]", "(?i)é", "(?i)_", "(?i)[_-a]",
]  # fmt: skip

_ATOMS = [
    "a", "b", "c", "A", "0", "-", r"\.", "_", ".", "[ab]", "[^a]", "[a-z]", "[a-z&&[^b]]", r"\d", r"\w", r"\W", r"\D",
    r"\p{Lower}", r"\P{Lu}", r"\pL", r"\p{Punct}", r"\p{IsAlphabetic}", r"\Qa.\E", "[0-9a-f]", "[[ab]-]", r"[\d_]",
    r"\b", r"\B", "^", "$", r"\A", r"\z", r"\x61", r"\R", r"\h", r"[\p{L}&&[^a-m]]", "foo", "bar", "ab", r"[.\-_]",
    "[^-]", r"\-", r"\X", "[&&a]", "[a&&]", "", "#", " ", "{", "}", "]", "[", "\\", r"\E", "&",
]  # fmt: skip
_TIMES = [
    "",
    "",
    "",
    "",
    "?",
    "*",
    "+",
    "{2}",
    "{1,2}",
    "{0,}",
    "??",
    "*?",
    "+?",
    "?+",
    "*+",
    "++",
    "{1,2}+",
    "{2}?",
    "**",
]
_FEW_TIMES = [each for each in _TIMES if not {*each} & {"*", "+", ","}] + ["?+", "{1,2}"]
_GROUPS = [
    "(",
    "(",
    "(?:",
    "(?:",
    "(?>",
    "(?=",
    "(?!",
    "(?<=",
    "(?<!",
    "(?i:",
    "(?x:",
    "(?<n>",
    "(?i-x:",
    "(?U:",
    "(?u:",
]


def random_pattern(dice: random.Random, depth: int = 3) -> str:
    """Mostly valid patterns.  Only the outermost parts repeat without a limit: nested ones would take too long."""
    parts = []
    for _ in range(dice.randint(1, 4)):
        kind = dice.random()
        if kind < 0.3 and depth:
            part = dice.choice(_GROUPS) + random_pattern(dice, depth - 1) + ("" if dice.random() < 0.01 else ")")
        elif kind < 0.38:
            part = "[" + dice.choice(["", "^"]) + "".join(dice.choices(_CLASS, k=dice.randint(1, 5))) + "]"
        elif kind < 0.42:
            part = dice.choice([r"\1", r"\2", r"\k<n>"])
        elif kind < 0.45:
            part = dice.choice(["(?i)", "(?-i)", "(?x)", "(?s)", "(?m)", "(?U)", "(?iu)"])
        elif kind < 0.5:
            part = "|"
        else:
            part = dice.choice(_ATOMS if dice.random() < 0.1 else _ATOMS[:44])
        parts.append(part + (dice.choice(_TIMES if depth == 3 else _FEW_TIMES) if part and part not in ("|",) else ""))
    return "".join(parts)


_CLASS = [
    "a", "b", "k", "A", "-", "0-9", "a-f", "&&", "&&", "&", "[b-d]", "[^a]", "^", r"\d", r"\p{Lower}", r"\P{L}", "_",
    ".", " ", "#", r"\Qa-\E", r"\-", r"\x61", "]", "[", "s-z", "A-Z",
]  # fmt: skip
