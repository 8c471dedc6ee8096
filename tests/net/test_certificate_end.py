"""The end of a certificate is known before it shuts out every client."""

import time
from pathlib import Path

import pytest
from tests.certificates import Authority

from lanemq.clock import SystemClock
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis
from lanemq.net.serving.certificate_end import EXPIRED, SOON_MS, certificate_end, end_problem
from lanemq.net.serving.server_tls import ServerTls, TlsDetector

DAY = 86_400_000


def test_the_end_of_a_certificate_is_read_also_with_its_chain_and_key_in_one_file(
    authority: Authority, tmp_path: Path
) -> None:
    made, now = authority.issue("ends", days=2), time.time() * 1000
    end = certificate_end(made.cert, made.key)
    assert end is not None
    assert now + 2 * DAY - 600_000 < end < now + 2 * DAY + 600_000
    together = tmp_path / "all.pem"
    together.write_bytes(made.cert.read_bytes() + authority.ca.read_bytes() + made.key.read_bytes())
    assert certificate_end(together) == end


def test_a_renewed_certificate_has_another_end_and_an_expired_one_has_ended(authority: Authority) -> None:
    made = authority.issue("renewed", days=-1)
    detector = TlsDetector(ServerTls(made.cert, made.key), SystemClock())
    assert detector.certificate_end == EXPIRED
    authority.issue("renewed")
    detector.reload()
    assert detector.certificate_end is not None
    assert detector.certificate_end > time.time() * 1000 + 29 * DAY


def test_files_without_a_certificate_are_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    with pytest.raises(InvalidOption, match=r"empty\.pem"):
        certificate_end(empty)


@pytest.mark.parametrize(
    ("end", "problem"),
    [
        (None, None),
        (Millis(DAY + SOON_MS + 1), None),
        (Millis(DAY + SOON_MS), "expires 1970-01-"),
        (Millis(DAY), "has expired"),
        (EXPIRED, "has expired"),
    ],
)
def test_an_operator_hears_of_a_certificate_two_weeks_before_its_end(end: Millis | None, problem: str | None) -> None:
    said = end_problem(end, now=DAY)
    assert said is None if problem is None else problem in (said or "")


def test_a_certificate_that_ends_soon_is_logged_whenever_it_is_read(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    made = authority.issue("logged")
    detector = TlsDetector(ServerTls(made.cert, made.key), SystemClock())
    assert caplog.messages == []
    authority.issue("logged", days=2)
    detector.reload()
    assert "logged.pem: the certificate expires" in caplog.messages[0]
