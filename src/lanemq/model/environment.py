"""The environment variables that clients read, and how to install what is missing.

In a module of their own, so that `lanemq --help` can show them without importing the network layer.
"""

from typing import Final

TLS: Final = "LANEMQ_TLS"
"""`on`: encrypt, with the system's authorities unless others are named; `off`: do not, whatever else is set."""
TLS_CA: Final = "LANEMQ_TLS_CA"
TLS_CERT: Final = "LANEMQ_TLS_CERT"
TLS_KEY: Final = "LANEMQ_TLS_KEY"
"""PEM files, as in `TlsOptions`."""
TLS_VERIFY: Final = "LANEMQ_TLS_VERIFY"
VERIFY: Final = ("full", "ca", "none")
"""What is checked of a broker: authority and host name, the authority only, nothing."""
ACCESS_KEY: Final = "LANEMQ_ACCESS_KEY"
SECRET_KEY: Final = "LANEMQ_SECRET_KEY"
SECRET_KEY_FILE: Final = "LANEMQ_SECRET_KEY_FILE"
"""A file that holds the secret and nothing else."""
SECURITY_TOKEN: Final = "LANEMQ_SECURITY_TOKEN"
COORDINATOR: Final = "LANEMQ_COORDINATOR"
"""Address of the coordinator of an Apache cluster, in place of the one that the name servers have."""
VARIABLES: Final = (
    TLS, TLS_CA, TLS_CERT, TLS_KEY, TLS_VERIFY, ACCESS_KEY, SECRET_KEY, SECRET_KEY_FILE, SECURITY_TOKEN,
)  # fmt: skip

WORKER: Final = "LANEMQ_WORKER"
"""Set by `lanemq run --workers`: the number of a worker, with which its log lines begin."""
WORKER_MONITOR: Final = "LANEMQ_WORKER_MONITOR"
"""Set by `lanemq run --workers`: the file in which a worker says where its monitor listens."""


EXTRAS: Final = {
    "fast": ("uvloop>=0.19",),
    "spark": ("pyspark>=4.0,<5", "pyarrow>=20", "numpy>=2", "pandas>=2.2,<3", "deltalake>=1.6"),
    "iceberg": ("pyiceberg[sql-sqlite,pyiceberg-core]>=0.12,<0.13",),
    "hdfs": ("hdfs-native>=0.14",),
    "objects": ("obstore>=0.8",),
    "postgres": ("psycopg[binary]>=3.2",),
    "sqlalchemy": ("sqlalchemy[asyncio]>=2.0",),
    "plots": ("matplotlib>=3.9",),
    "otel": ("opentelemetry-api>=1.25",),
    "grpc": ("grpcio>=1.67",),
    "reload": ("watchfiles>=1.1,<2",),
    "console": ("starlette>=0.40", "jinja2>=3.1", "uvicorn>=0.30", "python-multipart>=0.0.18"),
}
"""The packages of each extra, as in `pyproject.toml`: an installed LaneMQ is where its sources may not be."""


def install_extra(extra: str) -> str:
    """How to install the packages of an extra, wherever LaneMQ itself came from."""
    words = " ".join(f"'{package}'" for package in EXTRAS[extra])
    return f"install what the extra `{extra}` has: pip install {words}"
