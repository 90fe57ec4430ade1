"""For clients whose server cannot be chosen: a CONNECT proxy that leads every allowed host to one local port.

Such a client is told `HTTPS_PROXY` and to trust the certificate authority made here; it believes to speak to
www.googleapis.com. A host that is not allowed is refused and remembered: nothing goes out.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

GOOGLE = ("www.googleapis.com", "oauth2.googleapis.com", "accounts.google.com")
PIECE = 1 << 16


@dataclass(frozen=True)
class Certificates:
    """PEM files: `authority` to be trusted by the client, `server` (with its key) for the server."""

    authority: Path
    server: Path


def certificates(folder: Path, hosts: Collection[str] = GOOGLE) -> Certificates:
    """A new authority, which vouches for one server under all these names for a day."""
    made = Certificates(folder / "authority.pem", folder / "server.pem")
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "An authority for one test")])
    authority = (
        _builder(authority_name, authority_name, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_signs_certificates(), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    server_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "A server for one test")])
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in hosts])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())  # Python 3.13 wants it
    server = (
        _builder(server_name, authority_name, server_key.public_key())
        .add_extension(names, critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    key = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    made.authority.write_bytes(authority.public_bytes(pem))
    made.server.write_bytes(key + server.public_bytes(pem))
    return made


@dataclass
class Proxy:
    """`url` for HTTPS_PROXY; `led` and `refused` are the hosts that were asked for."""

    url: str
    led: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


@contextmanager
def connect_proxy(port: int, hosts: Collection[str] = GOOGLE) -> Iterator[Proxy]:
    """A proxy that leads `hosts` to `port` of 127.0.0.1, for the time of the `with`."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}")

        def listen() -> None:
            with suppress(OSError):  # the listener was closed: the end
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=_lead, args=(client, port, hosts, proxy), daemon=True).start()

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield proxy
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _lead(client: socket.socket, port: int, hosts: Collection[str], proxy: Proxy) -> None:
    """Read "CONNECT host:port", then hand the bytes to and fro."""
    with client, suppress(OSError):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            piece = client.recv(1)
            if not piece:
                return
            head += piece
        method, target = head.decode().split(" ")[:2]
        host = target.rpartition(":")[0]
        if method != "CONNECT" or host not in hosts:
            proxy.refused.append(target)
            client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        proxy.led.append(host)
        with socket.create_connection(("127.0.0.1", port)) as server:
            client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            _pump(client, server)
            back.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(PIECE):
            sink.sendall(piece)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
    )


def _signs_certificates() -> x509.KeyUsage:
    others = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    unused = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(key_cert_sign=True, crl_sign=True, **unused)
