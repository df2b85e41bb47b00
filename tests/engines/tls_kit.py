"""A cluster from the command line whose parties have certificates of their own."""

from __future__ import annotations

import datetime
import ipaddress
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster_kit import PATIENCE
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed import Client, Security
from free_port import free_port

ROLES = ("scheduler", "worker", "client")


def make_certificates(directory: Path) -> None:
    """Write ca.pem, and for each role a certificate and a key that this authority has signed."""
    now = datetime.datetime.now(datetime.timezone.utc)
    authority = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority of a test")])
    for role in ("ca", *ROLES):
        is_authority = role == "ca"
        key = authority if is_authority else ec.generate_private_key(ec.SECP256R1())
        name = issuer if is_authority else x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)])
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(authority, hashes.SHA256())
        )
        pem = serialization.Encoding.PEM
        (directory / f"{role}.pem").write_bytes(certificate.public_bytes(pem))
        if not is_authority:
            key_format, none = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            path = directory / f"{role}.key"
            path.touch(0o600)
            path.write_bytes(key.private_bytes(pem, key_format, none))


class TlsCluster:
    """A scheduler and two workers, each a process that has its own certificate and no other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"tls://127.0.0.1:{free_port()}"
        self._processes: list[subprocess.Popen[bytes]] = []
        make_certificates(directory)
        #: A client's certificate and no other.
        self.security = Security(
            tls_ca_file=str(directory / "ca.pem"),
            tls_client_cert=str(directory / "client.pem"),
            tls_client_key=str(directory / "client.key"),
            require_encryption=True,
        )
        #: The same as variables of the environment, which also the commands of dasktune obey.
        self.environment = {
            "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true",
            "DASK_DISTRIBUTED__COMM__TLS__CA_FILE": str(directory / "ca.pem"),
            "DASK_DISTRIBUTED__COMM__TLS__CLIENT__CERT": str(directory / "client.pem"),
            "DASK_DISTRIBUTED__COMM__TLS__CLIENT__KEY": str(directory / "client.key"),
        }
        try:
            port = self.address.rpartition(":")[2]
            self._start("scheduler", f"--port={port}", "--protocol=tls", "--no-show", "--no-dashboard")
            for _ in range(2):
                self._start("worker", self.address, "--nthreads=1", "--no-dashboard", "--memory-limit=0")
            with self.client() as client:
                client.wait_for_workers(2, timeout=PATIENCE)
        except BaseException:
            self.close()
            raise

    def _start(self, role: str, *arguments: str) -> None:
        files = {"ca-file": "ca.pem", "cert": f"{role}.pem", "key": f"{role}.key"}
        flags = [f"--tls-{option}={self.directory / file}" for option, file in files.items()]
        program = f"from distributed.cli.dask_{role} import main; main()"
        with (self.directory / f"{role}-{len(self._processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", program, *arguments, "--host=127.0.0.1", *flags],
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**os.environ, "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "true"},
            )
        self._processes.append(process)

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Return a client that has the client's certificate."""
        with Client(self.address, security=self.security, set_as_default=False, timeout=PATIENCE) as client:
            yield client

    def close(self) -> None:
        """End the workers, then the scheduler; a worker's nanny ends the worker."""
        for processes in (self._processes[1:], self._processes[:1]):
            for process in processes:
                process.terminate()
            for process in processes:
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
