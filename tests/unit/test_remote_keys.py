"""Keys of encrypted segments: pairs of RSA keys, the data key in a manifest, and bytes of something else."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from Crypto.PublicKey import RSA

from kafkalog.engine.remote.aiven_keys import NONCE_BYTES, TAG_BYTES, KeyRing, SegmentKey
from kafkalog.errors import IllegalArgumentException, KafkaStorageException, RemoteStorageException

GOLDEN = Path(__file__).parents[1] / "golden" / "tiered" / "aiven"
PUBLIC, PRIVATE = ((GOLDEN / f"{name}.pem").read_bytes() for name in ("public", "private"))


@pytest.fixture(scope="module")
def other() -> tuple[bytes, bytes]:
    key = RSA.generate(2048)
    return key.public_key().export_key(), key.export_key(pkcs=8)


@pytest.fixture
def ring() -> KeyRing:
    return KeyRing({"key1": (PUBLIC, PRIVATE)}, "key1")


def test_a_data_key_is_found_again(ring: KeyRing) -> None:
    key = ring.new_key()
    piece = key.encrypt(b"chunk")
    again = KeyRing({"key1": (PUBLIC, PRIVATE)}, "key1").key_of(key.to_json(), "manifest")
    assert again.decrypt(piece, "log", 0) == b"chunk"
    assert again.to_json() == key.to_json()


def test_a_chunk_is_nonce_ciphertext_tag(ring: KeyRing) -> None:
    key = ring.new_key()
    assert len(key.encrypt(b"")) == NONCE_BYTES + TAG_BYTES == SegmentKey.overhead_bytes == 28
    assert key.encrypt(b"chunk") != key.encrypt(b"chunk")  # no nonce is used twice
    assert key.decrypt(key.encrypt(b""), "log", 0) == b""


def test_each_segment_has_a_key_of_its_own(ring: KeyRing) -> None:
    first, second = ring.new_key(), ring.new_key()
    assert first.to_json() != second.to_json()
    with pytest.raises(RemoteStorageException):
        second.decrypt(first.encrypt(b"chunk"), "log", 0)


def test_no_flipped_bit_is_believed(ring: KeyRing) -> None:
    key = ring.new_key()
    piece = key.encrypt(b"chunk")
    for bit in range(len(piece) * 8):
        flipped = bytearray(piece)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RemoteStorageException, match="their authentication tag does not match") as caught:
            key.decrypt(bytes(flipped), "s3://b/x.log", 77)
        assert (caught.value.path, caught.value.position) == ("s3://b/x.log", 77)


def test_no_cut_piece_is_believed(ring: KeyRing) -> None:
    key = ring.new_key()
    piece = key.encrypt(b"chunk")
    for size in range(len(piece)):
        with pytest.raises(RemoteStorageException):
            key.decrypt(piece[:size], "log", 0)


def test_pairs_may_change(other: tuple[bytes, bytes], ring: KeyRing) -> None:
    """New segments by the active pair, old ones by theirs."""
    old = ring.new_key()
    both = KeyRing({"key1": (PUBLIC, PRIVATE), "key2": other}, "key2")
    assert both.key_of(old.to_json(), "manifest").decrypt(old.encrypt(b"x"), "log", 0) == b"x"
    new = both.new_key()
    assert new.to_json()["dataKey"].startswith("key2:")
    with pytest.raises(RemoteStorageException, match="wrapped by the key pair 'key2', which was not given") as caught:
        ring.key_of(new.to_json(), "s3://b/manifest")
    assert caught.value.path == "s3://b/manifest"


def test_another_pair_of_the_same_name(other: tuple[bytes, bytes], ring: KeyRing) -> None:
    wrong = KeyRing({"key1": other}, "key1")
    with pytest.raises(RemoteStorageException, match="cannot be unwrapped by the key pair 'key1'"):
        wrong.key_of(ring.new_key().to_json(), "manifest")


@pytest.mark.parametrize(
    "text", ["", "key1", "key1:", "key1:!!", "key1:AAAA", "key1:a:b", ":AAAA", "key1:" + "A" * 344]
)
def test_a_data_key_that_is_none(text: str, ring: KeyRing) -> None:
    with pytest.raises(RemoteStorageException) as caught:
        ring.key_of({"dataKey": text, "aad": "AAAA"}, "s3://b/manifest")
    assert caught.value.path == "s3://b/manifest"


def test_a_wrapped_key_of_no_length_that_aes_has(ring: KeyRing) -> None:
    from Crypto.Cipher import PKCS1_OAEP
    from Crypto.Hash import SHA3_512

    wrapped = PKCS1_OAEP.new(RSA.import_key(PUBLIC), hashAlgo=SHA3_512).encrypt(b"seven b")
    with pytest.raises(RemoteStorageException, match="cannot be unwrapped"):
        ring.key_of({"dataKey": "key1:" + base64.b64encode(wrapped).decode(), "aad": "AAAA"}, "manifest")


def test_additional_data_count(ring: KeyRing) -> None:
    key = ring.new_key()
    changed = key.to_json() | {"aad": base64.b64encode(b"other").decode()}
    with pytest.raises(RemoteStorageException, match="their authentication tag does not match"):
        ring.key_of(changed, "manifest").decrypt(key.encrypt(b"x"), "log", 0)
    with pytest.raises(RemoteStorageException, match="cannot be unwrapped"):
        ring.key_of(key.to_json() | {"aad": "!"}, "manifest")


@pytest.mark.parametrize("name", ["", " ", "a:b"])
def test_names_that_a_manifest_cannot_keep(name: str) -> None:
    with pytest.raises(IllegalArgumentException, match="without a colon"):
        KeyRing({name: (PUBLIC, PRIVATE)}, name)


def test_the_active_pair_must_be_there() -> None:
    with pytest.raises(IllegalArgumentException, match="Encryption key 'key2' must be provided"):
        KeyRing({"key1": (PUBLIC, PRIVATE)}, "key2")


@pytest.mark.parametrize("pem", [b"", b"text", PUBLIC[:200], b"\xff" * 40, PRIVATE[:-300]])
def test_keys_that_are_none_are_not_shown(pem: bytes) -> None:
    for pair in ((pem, PRIVATE), (PUBLIC, pem)):
        with pytest.raises(IllegalArgumentException, match="key pair 'key1': expected RSA keys as PEM") as caught:
            KeyRing({"key1": pair}, "key1")
        assert caught.value.__cause__ is None


def test_a_public_key_cannot_unwrap() -> None:
    with pytest.raises(IllegalArgumentException, match=r"'key1'.*private"):
        KeyRing({"key1": (PUBLIC, PUBLIC)}, "key1")


def test_halves_of_two_pairs_are_refused(other: tuple[bytes, bytes]) -> None:
    for pair in ((other[0], PRIVATE), (PUBLIC, other[1])):
        with pytest.raises(IllegalArgumentException, match=r"'key1'.*different pairs"):
            KeyRing({"key1": pair}, "key1")
    KeyRing({"key1": (PRIVATE, PRIVATE)}, "key1")  # the private key contains the public half


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(KafkaStorageException, match="cannot read the key pair 'key1'") as caught:
        KeyRing.read({"key1": (str(GOLDEN / "public.pem"), str(tmp_path / "none.pem"))}, "key1")
    assert "none.pem" in str(caught.value)


def test_nothing_secret_is_shown(ring: KeyRing) -> None:
    key = ring.new_key()
    assert repr(key) == "SegmentKey(wrapped by 'key1')"
    assert "PRIVATE" not in repr(ring)
