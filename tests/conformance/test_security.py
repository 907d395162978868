"""Security on Kafka's classes and on ours: ACLs, quotas, names of principals, settings and messages of SASL."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafkalog.engine.files import ManualClock, SystemClock
from kafkalog.errors import IllegalArgumentException
from kafkalog.server.request import ConnectionInfo, KafkaPrincipal, Request
from kafkalog.server.security.acls import (
    AclFilter,
    AclOperation,
    AclPermissionType,
    PatternType,
    ResourceType,
    StandardAcl,
    cidr_range,
    host_matches,
)
from kafkalog.server.security.authorizer import StandardAuthorizer
from kafkalog.server.security.distinguished_name import subject_of
from kafkalog.server.security.jaas import parse_jaas
from kafkalog.server.security.oauthbearer import InvalidToken, UnsecuredValidator, parse_initial_response
from kafkalog.server.security.principal_mapper import SslPrincipalMapper
from kafkalog.server.security.quotas import ClientQuotaManager
from kafkalog.server.security.rates import TokenBucket, WindowedRate
from kafkalog.server.security.sasl import SaslException
from kafkalog.server.security.scram import ScramMechanism, ScramSaslServer, credential_of
from tests.broker import kraft
from tests.conformance import kafka_jars

MAIN = "io.kafkalog.conformance.Security"
pytestmark = pytest.mark.jvm


@pytest.fixture(scope="module")
def ask(kafka_driver: kafka_jars.Driver) -> Callable[[list[dict[str, Any]]], list[Any]]:
    """Asks the real classes many questions in one JVM."""

    def run(questions: list[dict[str, Any]]) -> list[Any]:
        classpath = os.pathsep.join([kafka_driver.classpath, kraft.classpath().classpath])
        done = subprocess.run(
            kafka_jars.Driver(kafka_driver.java, classpath).command(main=MAIN),
            input="".join(json.dumps(each) + "\n" for each in questions),
            capture_output=True,
            text=True,
            timeout=300,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("answer ")]
        assert len(lines) == len(questions), done.stderr[-3000:]
        return [json.loads(line.removeprefix("answer ")) for line in lines]

    return run


# --- ACLs ------------------------------------------------------------------------------------------------

NAMES = ["a", "ab", "abc", "b", "bar", "hardcode", "hard", "*", "*a", "ab*", "foo.bar", "foo.", "ü", "z"]
PATTERNS = [*NAMES, "*", "*"]
HOSTS = ["*", "*", "127.0.0.1", "10.0.0.1", "10.0.0.0/8", "0:0:0:0:0:0:0:1", "fe80::/10", "bad/range", "1.2.3.4/40"]
CLIENTS = ["127.0.0.1", "10.0.0.1", "10.255.255.255", "11.0.0.0", "::1", "fe80::1:2", "0.0.0.0"]
KINDS = ["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID"]
OPERATIONS = [each.name for each in AclOperation if each > AclOperation.ANY]


def acl_row(rng: random.Random) -> list[str]:
    return [
        rng.choice(KINDS[:2]),
        rng.choice(PATTERNS),
        rng.choice(("LITERAL", "PREFIXED")),
        rng.choice(("User:alice", "User:bob", "User:*", "Group:alice")),
        rng.choice(HOSTS),
        rng.choice(("ALL", "READ", "WRITE", "DESCRIBE", "ALTER", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "DELETE")),
        rng.choice(("ALLOW", "ALLOW", "DENY")),
    ]


def acl_of(row: list[str]) -> StandardAcl:
    return StandardAcl(
        ResourceType[row[0]],
        row[1],
        PatternType[row[2]],
        row[3],
        row[4],
        AclOperation[row[5]],
        AclPermissionType[row[6]],
    )


def filter_row(rng: random.Random) -> list[str | None]:
    return [
        rng.choice(("ANY", *KINDS[:2])),
        rng.choice((None, *NAMES)),
        rng.choice(("ANY", "MATCH", "LITERAL", "PREFIXED")),
        rng.choice((None, None, "User:alice", "User:*")),
        rng.choice((None, None, *HOSTS)),
        rng.choice(("ANY", "ANY", "READ", "ALL")),
        rng.choice(("ANY", "ANY", "ALLOW", "DENY")),
    ]


def acl_question(rng: random.Random) -> dict[str, Any]:
    rows = {tuple(acl_row(rng)) for _ in range(rng.choice((0, 1, 3, 8, 40)))}
    requests = [
        [
            rng.choice(("alice", "bob", "carol", "admin")),
            rng.choice(CLIENTS),
            rng.choice(OPERATIONS),
            rng.choice(KINDS[:2]),
            rng.choice((*NAMES, None)),
        ]
        for _ in range(40)
    ]
    for row in requests:
        if row[4] is None and row[2] == "ALL":
            row[2] = "READ"  # authorizeByResourceType refuses ALL
    return {
        "op": "acls",
        "super": "User:admin",
        "open": rng.choice(("true", "false")),
        "acls": sorted(map(list, rows)),
        "requests": requests,
        "filters": [filter_row(rng) for _ in range(20)],
    }


def our_acls(question: dict[str, Any]) -> dict[str, Any]:
    authorizer = StandardAuthorizer(
        question["super"].split(";"), allow_everyone_if_no_acl_found=question["open"] == "true"
    )
    authorizer.replace(map(acl_of, question["acls"]))
    answers = []
    for name, host, operation, kind, resource in question["requests"]:
        request = Request(3, 12, connection=ConnectionInfo(host, principal=KafkaPrincipal("User", name)))
        if resource is None:
            answers.append(authorizer.authorize_by_resource_type(request, operation, kind))
        else:
            answers.append(authorizer.authorize(request, operation, kind, resource))
    filters = [
        AclFilter(
            ResourceType[row[0]],
            row[1],
            PatternType[row[2]],
            row[3],
            row[4],
            AclOperation[row[5]],
            AclPermissionType[row[6]],
        )
        for row in question["filters"]
    ]
    return {"answers": answers, "found": [sum(map(each.matches, authorizer.acls)) for each in filters]}


def test_acls(ask: Callable[[list[dict[str, Any]]], list[Any]]) -> None:
    questions = [acl_question(random.Random(seed)) for seed in range(400)]
    for question, wanted in zip(questions, ask(questions), strict=True):
        assert our_acls(question) == wanted, question["acls"]
    allowed = [answer for question in questions for answer in our_acls(question)["answers"]]
    assert 0.1 < sum(allowed) / len(allowed) < 0.9


def test_ranges_of_hosts(ask: Callable[[list[dict[str, Any]]], list[Any]]) -> None:
    patterns = [
        *("10.0.0.0/8", "10.1.2.3/32", "10.1.2.3/31", "0.0.0.0/0", "256.0.0.1/8", "10.0.0.0/33", "10.0.0/8", "/8"),
        *("10.0.0.0/", "::/0", "fe80::/10", "fe80::1/128", "fe80::1/129", "fe80::1/-1", "fe80::1/x", "fe80:/10", "::1"),
        *("::ffff:10.0.0.1/100", "fe80::1/+10", "1:2:3:4:5:6:7:8/64", "010.0.0.1/24", "10.0.0.0/08", "a/b", "[::1]/64"),
    ]
    hosts = ["10.0.0.1", "10.1.2.3", "0.0.0.0", "255.255.255.255", "0:0:0:0:0:0:0:1", "fe80:0:0:0:0:0:0:1"]
    wanted = ask([{"op": "cidr", "pattern": pattern, "hosts": hosts} for pattern in patterns])
    for pattern, theirs in zip(patterns, wanted, strict=True):
        try:
            cidr_range(pattern)
            problem = None
        except IllegalArgumentException as error:
            problem = error.message
        assert problem == theirs["problem"], pattern
        assert [host_matches(pattern, host) for host in hosts] == theirs["in"], pattern


# --- quotas ----------------------------------------------------------------------------------------------


def rate_question(rng: random.Random, *, bucket: bool) -> dict[str, Any]:
    now, steps = 1_700_000_000_000, []
    for _ in range(rng.choice((3, 20, 200))):
        now += rng.choice((0, 1, 10, 333, 999, 1000, 2500, 30_000))
        steps.append([now, float(rng.choice((1, 10, 100, 1000, 5000)))])
    return {
        "op": "rate",
        "bucket": bucket,
        "bound": float(rng.choice((1, 50, 500))),
        "window": rng.choice((1, 5)),
        "samples": rng.choice((2, 3, 11)),
        "steps": steps,
    }


def our_rate(question: dict[str, Any]) -> list[int]:
    bound, window_ms, samples = question["bound"], question["window"] * 1000, question["samples"]
    answers = []
    if question["bucket"]:
        bucket = TokenBucket(window_ms, samples)
        for now, value in question["steps"]:
            is_empty = bucket.measure(bound, now) < 0
            answers.append(bucket.throttle_time_ms(bound, now))
            if not is_empty:
                bucket.record(value, bound, now)
    else:
        rate = WindowedRate(window_ms, samples)
        for now, value in question["steps"]:
            rate.record(value, now)
            answers.append(rate.throttle_time_ms(bound, now))
    return answers


@pytest.mark.parametrize("bucket", [False, True])
def test_rates(ask: Callable[[list[dict[str, Any]]], list[Any]], bucket: bool) -> None:
    questions = [rate_question(random.Random(seed), bucket=bucket) for seed in range(200)]
    for question, wanted in zip(questions, ask(questions), strict=True):
        assert our_rate(question) == wanted, question


def test_which_quota_applies(ask: Callable[[list[dict[str, Any]]], list[Any]]) -> None:
    questions: list[dict[str, Any]] = []
    for seed in range(60):
        rng = random.Random(seed)
        entities = {
            (rng.choice((None, "", "alice", "bob")), rng.choice((None, "", "app", "tool")))
            for _ in range(rng.choice((1, 2, 4, 8)))
        } - {(None, None)}
        clients = [[user, client] for user in ("alice", "bob", "carol") for client in ("app", "tool", "other")]
        rows = [[user, client, float(number + 1)] for number, (user, client) in enumerate(sorted(entities, key=str))]
        questions.append({"op": "limits", "quotas": rows, "clients": clients})
    for question, wanted in zip(questions, ask(questions), strict=True):
        manager = ClientQuotaManager(11, 1000)
        manager.replace({(user, client): value for user, client, value in question["quotas"]})
        found = []
        for user, client in question["clients"]:
            limit = manager.max_value_in_quota_window(user, client)
            found.append(limit / 10 if limit < 1e18 else limit)
        assert found == pytest.approx(wanted), question


# --- names -----------------------------------------------------------------------------------------------

RULES = [
    "DEFAULT",
    "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, DEFAULT",
    "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
    "RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/L,DEFAULT",
    "RULE:CN=(.*?),.*/$1$2$12/",
    "RULE:(.*)/x$1y/",
    "RULE:^CN=(.*)$/\\$1/,DEFAULT",
    "RULE:a/b/LX,DEFAULT",
    "RULE:^CN=([^,\\/]*).*$/a\\/$1/",
    "NONSENSE",
    "",
    "DEFAULT,NONSENSE",
    "RULE:nothing/x/",
]
SUBJECTS = [
    "CN=Duke,OU=ServiceUsers,O=Org,C=US",
    "CN=duke, OU=ServiceUsers, O=Org, C=US",
    "cn=alex,ou=Sme,dc=mycp,dc=com",
    "CN=Duke,OU=JavaSoft,O=Sun,L=Nowhere,ST=None,C=DE",
    "CN=Äpfel",
    "O=only",
]


def test_rules_of_principals(ask: Callable[[list[dict[str, Any]]], list[Any]]) -> None:
    wanted = ask([{"op": "map", "rules": rules, "names": SUBJECTS} for rules in RULES])
    for rules, theirs in zip(RULES, wanted, strict=True):
        try:
            mapper = SslPrincipalMapper(rules)
        except IllegalArgumentException:
            assert theirs["error"] == "IllegalArgumentException", rules
            continue
        assert [mapper.get_name(subject) for subject in SUBJECTS] == theirs, rules


DISTINGUISHED = [
    "/C=DE/O=Shop, Inc/OU=Team+L=Berlin/CN=Orders",
    "/CN= lead and trail ",
    '/CN=a"b;c<d>e=f#g\\\\h',
    "/CN=#begins",
    "/emailAddress=a@b.example/CN=mail",
    "/DC=example/DC=com/UID=u1/serialNumber=12/GN=Ann/SN=Lee/title=Dr",
    "/street=Road 1/ST=Land/L=Town/CN=Grüße 漢字",
    "/CN=two/CN=names",
]


def test_subjects_of_certificates(ask: Callable[[list[dict[str, Any]]], list[Any]]) -> None:
    certificates = []
    with tempfile.TemporaryDirectory() as folder:
        for number, subject in enumerate(DISTINGUISHED):
            path = Path(folder, str(number))
            subprocess.run(
                [
                    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
                    *("-utf8", "-multivalue-rdn", "-keyout", os.devnull, "-outform", "DER", "-out", str(path)),
                    *("-subj", subject, "-days", "2"),
                ],
                check=True,
                capture_output=True,
            )
            certificates.append(path.read_bytes())
    questions = [{"op": "subject", "certificate": base64.b64encode(each).decode()} for each in certificates]
    assert [subject_of(each) for each in certificates] == ask(questions)


# --- SASL ------------------------------------------------------------------------------------------------

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
JAAS = [
    f'{PLAIN} required user_alice="secret" user_bob="b\\"c";',
    f"{PLAIN} required username='x y' user_a=plain;",
    f"{PLAIN} REQUISITE; ",
    f'{PLAIN} required user_alice="secret"',
    f"{PLAIN} required user_alice=;",
    f"{PLAIN} required user_alice=12;",
    f"{PLAIN} required user_alice=-abc;",
    f"{PLAIN} required user_alice=.5x;",
    f'{PLAIN} wrong user_alice="x";',
    f"{PLAIN}",
    "",
    f'// comment\n{PLAIN} /* in\nside */ optional a="b";',
    f'{PLAIN} required a="1";{PLAIN} required b="2";',
    f'{PLAIN} required user_ü="ä\\u0041\\101\\n";',
    f'{PLAIN} required "quoted key"="v";',
    f'{PLAIN} required a $b="c";',
    f'{PLAIN} required a="b" ; ;',
    f'{PLAIN} required $a_b-c="d";',
]


def test_jaas(ask: Callable[[list[dict[str, Any]]], list[Any]]) -> None:
    for text, theirs in zip(JAAS, ask([{"op": "jaas", "text": text} for text in JAAS]), strict=True):
        try:
            module, options = parse_jaas(text)
            found: Any = {"module": module, "options": dict(sorted(options.items()))}
        except IllegalArgumentException as error:
            found = {"error": "IllegalArgumentException", "text": error.message}
        assert found == theirs, text


def hostile(rng: random.Random, good: list[bytes]) -> bytes:
    """A message, or one with some bytes changed, added or removed."""
    data = bytearray(rng.choice(good))
    for _ in range(rng.choice((0, 0, 1, 2))):
        at = rng.randrange(len(data) + 1)
        piece = rng.choice([b"", b",", b"=", b"\x00", b"\x01", b"n=", b",m=x,", b"=2C", b"=3D", b"\xff", b" ", b"a=b,"])
        data[at : at + rng.choice((0, 1))] = piece
    return bytes(data)


def test_oauth_messages(ask: Callable[[list[dict[str, Any]]], list[Any]]) -> None:
    good = [
        b"n,,\x01auth=Bearer a.b.c\x01\x01",
        b"n,a=me,\x01host=x\x01auth=bearer  abc==\x01port=1\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01key=value\x01\x01",
    ]
    messages = [hostile(random.Random(seed), good) for seed in range(1500)]
    wanted = ask([{"op": "initial", "bytes": base64.b64encode(each).decode()} for each in messages])
    for message, theirs in zip(messages, wanted, strict=True):
        try:
            found: Any = list(parse_initial_response(message))
        except SaslException:
            found = "SaslException"
        except ValueError:
            found = "IllegalArgumentException"
        assert found == (theirs["error"] if isinstance(theirs, dict) else theirs), message


def test_scram_messages(ask: Callable[[list[dict[str, Any]]], list[Any]]) -> None:
    good = [b"n,,n=user,r=abcDEF", b"n,a=other,n=us=2Cer=3D,r=abc,tokenauth=true", b"n,,m=x,n=user,r=abc,ext=1"]
    messages = [hostile(random.Random(seed), good) for seed in range(1500)]
    wanted = ask([{"op": "first", "bytes": base64.b64encode(each).decode()} for each in messages])
    credential = credential_of(ScramMechanism.SCRAM_SHA_256, "secret", salt=b"salt")
    for message, theirs in zip(messages, wanted, strict=True):
        users: list[str] = []

        def find(user: str, users: list[str] = users) -> Any:
            users.append(user)
            return credential

        server = ScramSaslServer(ScramMechanism.SCRAM_SHA_256, find, lambda: "SERVER")
        try:
            answer = server.evaluate_response(message).decode()
        except SaslException as error:
            if "first message format" in str(error):
                assert isinstance(theirs, dict), message
        else:
            assert users == [theirs[0]], message
            assert answer.startswith(f"r={theirs[1]}SERVER,"), message


def jwt(header: object, claims: object, signature: str = "") -> str:
    def part(value: object) -> str:
        text = value if isinstance(value, str) else json.dumps(value)
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    return f"{part(header)}.{part(claims)}.{signature}"


def test_unsecured_tokens(ask: Callable[[list[dict[str, Any]]], list[Any]]) -> None:
    now = SystemClock().milliseconds() // 1000
    none = {"alg": "none"}
    tokens = [
        jwt(none, {"sub": "alice", "exp": now + 900}),
        jwt(none, {"sub": "alice", "exp": now + 900.5, "iat": now - 10, "scope": ["a", " b "]}),
        jwt(none, {"sub": "alice", "exp": now - 900}),
        jwt(none, {"sub": "alice", "exp": str(now + 900)}),
        jwt(none, {"sub": "alice"}),
        jwt(none, {"sub": " ", "exp": now + 900}),
        jwt(none, {"sub": 1, "exp": now + 900}),
        jwt(none, {"exp": now + 900}),
        jwt(none, {"sub": "alice", "exp": now + 900, "iat": now + 800}),
        jwt(none, {"sub": "alice", "exp": now + 900, "iat": now + 1000}),
        jwt(none, {"sub": "alice", "exp": now + 900, "iat": "x"}),
        jwt({"alg": "HS256"}, {"sub": "alice", "exp": now + 900}),
        jwt(none, {"sub": "alice", "exp": now + 900}, "abc"),
        jwt(none, {"sub": "alice", "exp": now + 900, "scope": "a b"}),
        "a.b",
        "..",
        "a..b",
        jwt("not json", {"sub": "alice", "exp": now + 900}),
        jwt(none, [1, 2]),
    ]
    choices: list[dict[str, str]] = [
        {},
        {"unsecuredValidatorRequiredScope": "a b"},
        {"unsecuredValidatorPrincipalClaimName": "name", "unsecuredValidatorAllowableClockSkewMs": "1000000"},
    ]
    cases = [(options, token) for options in choices for token in tokens]
    wanted = ask([{"op": "unsecured", "options": options, "token": token} for options, token in cases])
    for (options, token), theirs in zip(cases, wanted, strict=True):
        try:
            found: Any = list(UnsecuredValidator(options, ManualClock(now * 1000))(token))
        except InvalidToken as error:
            found = "null" if error.scope is None else error.scope
        # Some malformed tokens are an unexpected exception in Kafka.
        assert found == (theirs.get("scope", "null") if isinstance(theirs, dict) else theirs), (options, token)
