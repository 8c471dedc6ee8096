"""Servers that belong to different clusters are named, because only the first is asked."""

from click.testing import CliRunner

from lanemq.cli.main import main
from lanemq.client.admin.clusters import other_clusters
from lanemq.testing.embedded import EmbeddedBroker


def test_two_brokers_that_do_not_know_each_other_are_separate_clusters() -> None:
    with EmbeddedBroker() as one:
        with EmbeddedBroker() as two:
            first, second = one.address, two.address
            said = other_clusters(f"{first};{second}")
            assert said.startswith(f"{second} and {first} are separate clusters, and only {first} is shown")
            assert other_clusters(f"{first};{first}") == ""
            assert other_clusters(first) == ""
            listed = CliRunner().invoke(main, ["group", "list", "--server", f"{first};{second}"])
            assert listed.stderr == f"Warning: {said}.\n"
        assert other_clusters(f"{first};{second}") == "", "a server that does not answer is left out"
