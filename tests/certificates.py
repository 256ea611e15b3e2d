"""Certificates for servers on loopback, signed by an authority of our own that nobody knows."""

import datetime
import ssl
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True, slots=True)
class Certificate:
    """What a server serves with, and the file by which clients know its authority."""

    context: ssl.SSLContext
    authority_file: Path


def make_certificate(folder: Path) -> Certificate:
    """Make an authority, and have it sign a certificate for 127.0.0.1."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _signed("authority of a test", "authority of a test", authority_key, authority_key, is_authority=True)
    certificate = _signed("127.0.0.1", "authority of a test", key, authority_key, is_authority=False)
    authority_file, chain = folder / "authority.pem", folder / "server.pem"
    authority_file.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    chain.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return Certificate(context, authority_file)


def _signed(
    subject: str,
    issuer: str,
    key: ec.EllipticCurvePrivateKey,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(_named(subject))
        .issuer_name(_named(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if not is_authority:
        address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
        builder = builder.add_extension(address, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
