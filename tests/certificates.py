"""Certificates for tests, made by the `openssl` command: an authority, and certificates that it signs."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = ("IP:127.0.0.1", "DNS:localhost")


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates. `ca` is what others have to trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key, self.ca = folder / f"{name}.key", folder / f"{name}.pem"
        _openssl("req", "-x509", *_NEW_KEY, "-keyout", self._key, "-out", self.ca, "-subj", f"/CN={name}", "-days", 30)

    def issue(self, name: str, hosts: tuple[str, ...] = HERE, *, days: int = 30) -> Identity:
        """Valid from now on for so many days; -1 is a certificate that has expired."""
        made = Identity(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / f"{name}.ext"
        extensions.write_text(f"subjectAltName={','.join(hosts)}\n")
        _openssl("req", "-new", *_NEW_KEY, "-keyout", made.key, "-out", request, "-subj", f"/CN={name}")
        signed = ("-CA", self.ca, "-CAkey", self._key, "-CAcreateserial", "-extfile", extensions, "-days", days)
        _openssl("x509", "-req", "-in", request, *signed, "-out", made.cert)
        return made


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def new_authority(folder: Path, name: str = "authority") -> Authority:
    """For fixtures: skips where certificates cannot be made."""
    if shutil.which("openssl") is None:
        pytest.skip("certificates are made by the openssl command, which is not there: install openssl")
    return Authority(folder, name)


def _openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
