"""A certificate authority of one's own, and the certificate of a server on this machine."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files in PEM: who signs, and what a server at 127.0.0.1 shows (as a client it shows the same)."""

    authority: Path
    certificate: Path
    key: Path

    @classmethod
    def make(cls, folder: Path) -> Self:
        """Write an authority and a certificate that it has signed into a folder."""
        made = cls(folder / "ca.pem", folder / "server.pem", folder / "server.key")
        signer, own = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
        authority = _certificate("aiforge test authority", signer, signer, None)
        made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
        signed = _certificate("aiforge test server", own, signer, authority)
        made.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        made.key.write_bytes(
            own.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return made

    @property
    def query(self) -> str:
        """What a URL says to trust this authority."""
        return f"ssl_ca_certs={self.authority}"

    @property
    def options(self) -> dict[str, str]:
        """What a server is told, but for its port; also what goes between servers is encrypted."""
        return {
            "tls-cert-file": str(self.certificate),
            "tls-key-file": str(self.key),
            "tls-ca-cert-file": str(self.authority),
            "tls-auth-clients": "no",
            "tls-replication": "yes",
        }


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    authority: x509.Certificate | None,
) -> x509.Certificate:
    """Signed by `authority`, or by itself as an authority."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    here = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority.subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _DAY)
        .not_valid_after(now + _DAY)
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(here, critical=False)
        .sign(signer, hashes.SHA256())
    )
