"""When unsent replies take too much memory, connections of those who do not read are closed."""

from lanemq.net.serving.unsent_replies import MEASURED_EVERY, UnsentReplies


class Clients:
    """Connections `host/number`, with what each has unsent."""

    def __init__(self, limit: int) -> None:
        self.unsent: dict[str, int] = {}
        self.now = 0.0
        self.replies: UnsentReplies[str] = UnsentReplies(
            limit, self.unsent.__getitem__, lambda name: name.split("/")[0], lambda: self.now
        )

    def write(self, name: str, size: int) -> str | None:
        self.unsent[name] = size
        self.replies.note(name, size)
        return self.replies.first_to_close()


def test_within_the_limit_nobody_is_closed() -> None:
    clients = Clients(10)
    assert [clients.write("a/1", 4), clients.write("b/1", 6)] == [None, None]
    assert clients.write("a/1", 2) is None
    assert clients.replies.total == 8


def test_of_the_address_with_the_most_bytes_the_one_that_fell_behind_first_is_closed() -> None:
    clients = Clients(10)
    for name in ("b/1", "a/1", "a/2"):
        assert clients.write(name, 3) is None
    assert clients.write("b/2", 2) == "a/1"
    clients.replies.forget("a/1")
    assert clients.replies.first_to_close() is None
    assert clients.replies.total == 8


def test_what_was_read_in_the_meantime_does_not_count() -> None:
    clients = Clients(10)
    assert clients.write("a/1", 9) is None
    clients.unsent["a/1"] = 0  # it reads, and nothing more is written to it
    assert clients.write("b/1", 9) is None
    assert clients.replies.total == 9


def test_control_without_the_second_look_a_client_that_reads_is_closed() -> None:
    clients = Clients(10)
    clients.replies._look_again = lambda: None  # type: ignore[method-assign]
    clients.write("a/1", 9)
    clients.unsent["a/1"] = 0
    assert clients.write("b/1", 9) == "a/1"


def test_from_half_of_the_limit_on_replies_are_crowded() -> None:
    clients = Clients(10)
    crowded = []
    for name in ("a/1", "b/1", "c/1"):
        clients.write(name, 2)
        crowded.append(clients.replies.crowded)
    assert crowded == [False, False, True]


def test_replies_are_crowded_no_longer_when_clients_have_read_them() -> None:
    clients = Clients(10)
    clients.write("a/1", 9)
    assert clients.replies.crowded
    clients.unsent["a/1"] = 0
    clients.now += MEASURED_EVERY
    assert not clients.replies.crowded
