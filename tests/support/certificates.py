"""Certificates for tests of TLS, as the files that the flags name."""

from pathlib import Path
from typing import Any

import trustme


class Authority:
    """Signs certificates for loopback; its files are in one folder."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._authority = trustme.CA()
        self.path = folder / "authority.pem"
        self._authority.cert_pem.write_to_path(str(self.path))

    def issue(self, name: str, host: str = "127.0.0.1") -> dict[str, Any]:
        """The flags tls_cert and tls_key of somebody with this common name, who listens on `host`."""
        issued = self._authority.issue_cert(host, common_name=name)
        flags = {"tls_cert": self._folder / f"{name}.pem", "tls_key": self._folder / f"{name}.key"}
        issued.cert_chain_pems[0].write_to_path(str(flags["tls_cert"]))
        issued.private_key_pem.write_to_path(str(flags["tls_key"]))
        return flags
