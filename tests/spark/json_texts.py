"""Random texts that are JSON, nearly JSON, or not at all, for what must parse them as Spark does."""

from __future__ import annotations

import json
import random
from typing import Any

DDL = "s string, i int, l bigint, d double, b boolean, o struct<x int, y string, z struct<q double, w array<int>>>, "
DDL += "a array<int>, t array<string>, r array<struct<k string, v bigint>>, m array<array<double>>"
NAMES = ("s", "i", "l", "d", "b", "o", "a", "t", "r", "m", "x", "y", "z", "q", "w", "k", "v", "other", "", "S")
# Scalars that a JSON generator does not write.
SCALARS = (
    "0", "-0", "-0.0", "1", "-1", "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "123456789012345678901234567890", "1.0", "1.5", "-2.50", "1e3",
    "1E-7", "12345678.9", "0.001", "0.00099", "1e400", "-1e400", "1e-400", "100000.0", "1234567.0", "12345678.0",
    "NaN", "Infinity", "-Infinity", "INF", "+INF", "-INF", "+Infinity", "01", "-", "-a", "1.", ".5", "1e", "1e+", "+1",
    "-.5", "-01", "00", "true", "false", "null", "tru", "truex", "true1", "nul", "nullx", "True", "None", "undefined",
    '""', '"NaN"', '"-INF"', '"+INF"', '"INF"', '"Infinity"', '"1"', '"1.5"', '"true"', '"null"', "'x'", "'it\\'s'",
    "'\"'", '"\\u00e9"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\ude00\\ud83d"', '"\\u004eaN"', '"\\x"', '"\\u12"', '"é"',
    '"😀"', '"a\\/b"', '"\\b\\f\\n\\r\\t\\"\\\\"', '"\\u0000"', '"\\u001f"', '"tab\there"', '"nul\x00"', '"open',
    '"\\\'"', "[]", "{}", "[[]]", "[{}]", '{"x":1}', '{"x":"1","y":2}', '{"z":{"q":"a","w":[1,"2"]}}', "[1,2,3]",
    '[1,"x",3]', '["a","b"]', '["a",1,null,{"b":[1.5]}]', '[{"k":"a","v":1},{"k":2,"v":"b"},null]', "[[1],[2.5],null]",
    '[[1,"x"],[2]]', "[1,[2],3]", '{"b":[ 1.0 , "\\u00e9\\/" , true ]}', '{ "p" : { "q" : "😀" } }', "[1 ,2\n]",
    "[1,]", "[,1]", '{"x":1,}', '{"x"}', '{"x":}', '{x:1}', "{'x':1}", '{"x" 1}', '[1 2]', '{"x":tru,"y":"a"}',
    '{"x":1}}', "[1]]", "/* c */ 1", "# 1", "1 // c",
)  # fmt: skip
BROKEN = (
    b"", b" ", b"\n\t ", b"null", b" null ", b"nul", b"true", b"1", b'"x"', b"[]", b"[1]", b'[{"i":1}]', b"x", b"{",
    b"}", b"{}", b"{}x", b"{} {}", b'{"i":1}{"i":2}', b'{"i":1},', b"\xef\xbb\xbf{}", b"\x00", b"\x00{}", b"{}\x00",
    b'{"i":1', b'{"i":1,', b'{"i":', b'{"i"', b'{"i":1,"s":"abc', b'{"s":"\xff"}', b'{"s":"\xed\xa0\x80"}',
    b'{"s":"\xc3","i":1}', b'{"s":"\xe2\x82","i":1}', b'{"s":"\xf0\x9f\x98","i":1}', b'{"\xff":1,"i":2}',
    b'{"o":{"x":tru},"i":5}', b'{"o":{"x":1,"z":{"q":tru}},"i":5}', b'{"i":5,"o":{"x":1,"y":"a\\qb"},"l":6}',
    b'{"a":[1,tru],"i":5}', b'{"a":[tru],"i":5}', b'{"a":[01],"i":5}', b'{"other":{"x":tru},"i":5}', b"--", b"NaN",
    b'{"s":"\xed\xbf"}', b'{"s":"\xed\xbfA","i":1}', b'{"s":"\xed\xa0\xed\xb0\x80"}', b'{"s":"\xed\xa0',
    b'{"i":1,"i":"x"}', b'{"i":"x","i":1}', b'{"i":1,"i":null}', b'{"a":[1],"a":["x"],"i":3}',
    b'{"o":{"x":1},"o":{"y":"a"}}',
    b'{"o":{"x":1},"o":{"x":"a"}}', b'{"o":{"x":1},"o":7}', b'{"s":"ab\\q"}', b'{"s":"ab\\q}', b'{"s":"\n"}',
    b'{"l":' + b"1" * 1001 + b"}", b'{"d":' + b"1" * 1000 + b"}", b'{"other":' + b"1" * 1001 + b',"i":1}',
    b'{"d":0.' + b"1" * 1001 + b',"i":1}', b'{"other":' + b"[" * 600 + b"]" * 600 + b',"i":1}',
    b'{"other":' + b"[" * 1001 + b"]" * 1001 + b',"i":1}', b'{"s":' + b"[" * 998 + b"]" * 998 + b',"i":1}',
    b'{"' + b"n" * 50001 + b'":1,"i":1}', b'{"i":1,"' + b"n" * 50001 + b'":1}', b'{"' + b"n" * 49999 + b'":1,"i":1}',
)  # fmt: skip


def _value(draw: random.Random, depth: int) -> str:
    kind = draw.randrange(10)
    if kind < 4 or depth > 3:
        return draw.choice(SCALARS)
    if kind == 4:
        return str(draw.randrange(-(10**9), 10**9))
    if kind == 5:
        return repr(draw.choice((draw.random(), draw.gauss(0, 1e9), draw.random() * 10 ** draw.randrange(-30, 15))))
    if kind == 6:
        return json.dumps("".join(draw.choices('ab é😀"\\\n', k=draw.randrange(6))), ensure_ascii=draw.random() < 0.5)
    if kind == 7:
        return f"[{','.join(_value(draw, depth + 1) for _ in range(draw.randrange(4)))}]"
    return _object(draw, depth + 1)


def _object(draw: random.Random, depth: int) -> str:
    blank = draw.choice(("", "", "", " ", "\n"))
    names = [draw.choice(NAMES) for _ in range(draw.randrange(6))]
    fields = (f'"{name}"{blank}:{blank}{_value(draw, depth)}' for name in names)
    return "{" + f",{blank}".join(fields) + blank + "}"


def _fitting(draw: random.Random) -> str:
    """JSON whose values are of the types of DDL."""
    made: dict[str, Any] = {
        "s": draw.choice(("", "text", "é", "a\nb", 5, True, {"x": [1, "a"]})), "i": draw.randrange(-5, 5),
        "l": draw.randrange(10**15), "d": draw.random(), "b": draw.random() < 0.5, "o": {"x": 1, "y": "b", "z": None},
        "a": [1, 2, None], "t": ["x", 1], "r": [{"k": "a", "v": 1}, {"v": 2}], "m": [[1, 2.5], []], "other": [{}],
    }  # fmt: skip
    names = draw.sample(list(made), draw.randrange(len(made) + 1))
    return json.dumps({name: made[name] for name in names}, ensure_ascii=draw.random() < 0.5)


def texts(count: int, seed: int) -> list[bytes]:
    """Each of BROKEN, each scalar in each field, and random ones."""
    draw = random.Random(seed)
    found = list(BROKEN)
    found += [f'{{"{name}":{each},"i":7}}'.encode() for name in NAMES[:10] for each in SCALARS]
    while len(found) < count:
        text = _fitting(draw) if draw.random() < 0.2 else _object(draw, 0)
        data = text.encode(errors="surrogatepass")
        if draw.random() < 0.2 and data:
            at = draw.randrange(len(data))
            data = (
                data[:at] + draw.choice((b"", b'"', b"}", b",", b"\xff", b"0", b"\\")) + data[at + draw.randrange(3) :]
            )
        found.append(data)
    return found
