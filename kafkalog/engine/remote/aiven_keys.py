"""Keys of encrypted segments: an AES-GCM data key for each segment, wrapped by a pair of RSA keys.

    ring = KeyRing.read({"key1": ("public.pem", "private.pem")}, active="key1")

A manifest stores the data key as `<key pair id>:<base64>`, encrypted by RSA with OAEP (SHA3-512, also for MGF1).  It
also stores the additional data that authenticates each chunk.  An encrypted chunk is 12 bytes of nonce, the ciphertext,
16 bytes of tag.  AES comes from `cryptography`; RSA comes from pycryptodome, because the former has no OAEP with SHA3.
`pip install kafkalog[encryption]` installs both.  This module is imported only for encrypted segments.

The facts come from the plugin's AesEncryptionProvider, RsaEncryptionProvider and SegmentEncryptionMetadataV1.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from typing import Any

from kafkalog.engine.files import OS_FILES, Files
from kafkalog.errors import (
    IllegalArgumentException,
    KafkaStorageException,
    MissingPackageException,
    RemoteStorageException,
)

try:
    from Crypto.Cipher import PKCS1_OAEP
    from Crypto.Hash import SHA3_512
    from Crypto.PublicKey import RSA
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError as error:
    raise MissingPackageException(
        "encrypted segments need the packages cryptography and pycryptodome", hint="pip install 'kafkalog[encryption]'"
    ) from error

NONCE_BYTES, TAG_BYTES = 12, 16
KEY_BITS = 256


class SegmentKey:
    """The data key of one segment."""

    overhead_bytes = NONCE_BYTES + TAG_BYTES

    def __init__(self, key: bytes, aad: bytes, wrapped: str) -> None:
        self._cipher = AESGCM(key)
        self._aad = aad
        self._wrapped = wrapped

    def __repr__(self) -> str:
        return f"SegmentKey(wrapped by {self._wrapped.partition(':')[0]!r})"

    def encrypt(self, piece: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, piece, self._aad)

    def decrypt(self, piece: bytes, shown: str, position: int) -> bytes:
        """Decrypts bytes; raises RemoteStorageException at `shown` and `position` if they were changed."""
        try:
            return self._cipher.decrypt(piece[:NONCE_BYTES], piece[NONCE_BYTES:], self._aad)
        except (InvalidTag, ValueError) as error:
            raise RemoteStorageException(
                "the encrypted bytes have been changed: their authentication tag does not match",
                path=shown,
                position=position,
            ) from error

    def to_json(self) -> dict[str, Any]:
        """Returns the key as the manifest stores it."""
        return {"dataKey": self._wrapped, "aad": base64.b64encode(self._aad).decode()}


class KeyRing:
    """Pairs of RSA keys by id: `active` wraps new data keys; each pair unwraps the data keys that it wrapped."""

    def __init__(self, pairs: Mapping[str, tuple[bytes, bytes]], active: str) -> None:
        """Loads keys in PEM format: public (SubjectPublicKeyInfo) and private (PKCS #8)."""
        if active not in pairs:
            raise IllegalArgumentException(f"Encryption key '{active}' must be provided")
        self._active = active
        self._public, self._private = {}, {}
        for name, (public, private) in pairs.items():
            if not name.strip() or ":" in name:
                raise IllegalArgumentException(f"the key pair id is {name!r}; expected a name without a colon")
            try:
                wraps, unwraps = RSA.import_key(public), RSA.import_key(private)
                if not unwraps.has_private():
                    raise ValueError("the private key is a public key")
                if (wraps.n, wraps.e) != (unwraps.n, unwraps.e):
                    raise ValueError("the public and the private key belong to different pairs")
                self._public[name] = PKCS1_OAEP.new(wraps, hashAlgo=SHA3_512)
                self._private[name] = PKCS1_OAEP.new(unwraps, hashAlgo=SHA3_512)
            except (ValueError, IndexError, TypeError) as error:
                raise IllegalArgumentException(f"key pair {name!r}: expected RSA keys as PEM ({error})") from None

    @classmethod
    def read(cls, paths: Mapping[str, tuple[str, str]], active: str, files: Files = OS_FILES) -> KeyRing:
        """Reads keys from files; `paths` has the paths of the public and the private key by the pair's id."""
        pairs = {}
        for name, (public, private) in paths.items():
            try:
                pairs[name] = files.read_bytes(public), files.read_bytes(private)
            except OSError as error:
                raise KafkaStorageException.because_of(error, f"cannot read the key pair {name!r}") from error
        return cls(pairs, active)

    def new_key(self) -> SegmentKey:
        key, aad = AESGCM.generate_key(KEY_BITS), os.urandom(KEY_BITS // 8)
        wrapped = base64.b64encode(self._public[self._active].encrypt(key)).decode()
        return SegmentKey(key, aad, f"{self._active}:{wrapped}")

    def key_of(self, encryption: Mapping[str, Any], shown: str) -> SegmentKey:
        """Returns the data key that a manifest stores."""
        text = encryption["dataKey"]
        name, colon, wrapped = text.partition(":")
        if not colon or ":" in wrapped:
            raise RemoteStorageException(
                "the manifest's data key does not have the form <key pair id>:<base64>", path=shown
            )
        private = self._private.get(name)
        if private is None:
            raise RemoteStorageException(
                f"its data key was wrapped by the key pair {name!r}, which was not given",
                path=shown,
                hint="also give this pair: with encryption=, or on the command line with --key-pair",
            )
        try:
            key = private.decrypt(base64.b64decode(wrapped, validate=True))
            return SegmentKey(key, base64.b64decode(encryption["aad"], validate=True), text)
        except (ValueError, TypeError) as error:
            raise RemoteStorageException(
                f"its data key cannot be unwrapped by the key pair {name!r}",
                path=shown,
                hint="give the pair that wrapped it this id: with encryption=, --key-pair, or Spark's remote.keyPairs",
            ) from error
