"""Why a command cannot listen on an address."""

import errno

BIND_ERRORS = {
    errno.EADDRINUSE: "another program uses this port: stop it, or choose another port with --listen",
    errno.EADDRNOTAVAIL: "this machine does not have this address: use one of its own, or 127.0.0.1",
    errno.EACCES: "ports below 1024 need privileges: choose another one",
}
