# Copyright 2026 The tfdear Authors. SPDX-License-Identifier: Apache-2.0
"""Certificates that every rank makes in memory from the job's secret, for mutual TLS.

The key of the job's certificate authority follows from the secret, so all ranks hold the same
authority and nobody else does. Each rank signs a fresh key of its own with it: what was recorded of
one connection opens no other. All who know the secret are equals: a certificate's name finds
mistakes and gives no rights.
"""

from __future__ import annotations

import dataclasses
import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# A clock that is wrong must not keep ranks apart, and no certificate outlives its process.
_VALID_FROM = datetime.datetime(2000, 1, 1)
_VALID_UNTIL = datetime.datetime(9999, 12, 31, 23, 59, 59)
_CURVE = ec.SECP256R1()
_ORDER_OF_CURVE = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_AUTHORITY = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tfdear job")])


@dataclasses.dataclass(frozen=True)
class Certificate:
    """What one side of a connection presents, and what it trusts; all in PEM."""

    authority: bytes  # Whom this rank trusts: certificates signed with the job's key.
    chain: bytes  # This rank's certificate.
    # Not in texts, as of tracebacks with local variables.
    key: bytes = dataclasses.field(repr=False)  # This rank's private key.
    data_key: bytes = dataclasses.field(
        repr=False
    )  # What the job's ranks encrypt data with (TFDEAR_TLS=1); not in PEM.


def name_of(rank: int) -> str:
    """The name in the certificate of a rank."""
    return f"rank-{rank}.tfdear.internal"


def of_rank(secret: bytes, rank: int) -> Certificate:
    """Makes a certificate for a rank of the job with this secret."""
    authority_key = _authority_key(secret)
    key = ec.generate_private_key(_CURVE)
    authority = (
        _builder(_AUTHORITY, authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    name = name_of(rank)
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    own = (
        _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return Certificate(
        authority=authority.public_bytes(serialization.Encoding.PEM),
        chain=own.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        data_key=derive(secret, "tfdear 1 data", 32),
    )


def derive(secret: bytes, purpose: str, num_bytes: int) -> bytes:
    """Bytes for one purpose, from which nothing follows about the secret or other purposes."""
    kdf = HKDF(algorithm=hashes.SHA256(), length=num_bytes, salt=None, info=purpose.encode())
    return kdf.derive(secret)


def _authority_key(secret: bytes) -> ec.EllipticCurvePrivateKey:
    # 48 bytes for a number of 32: no value is likelier than another.
    number = int.from_bytes(derive(secret, "tfdear 1 certificate authority", 48), "big")
    return ec.derive_private_key(1 + number % (_ORDER_OF_CURVE - 1), _CURVE)


def _builder(subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(_AUTHORITY)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_VALID_FROM)
        .not_valid_after(_VALID_UNTIL)
    )
