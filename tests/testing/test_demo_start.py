"""`make run` finds the broker's address in what the broker prints."""

from lanemq.testing.demo.run import BROKER_READY


def test_the_address_is_the_brokers_and_not_that_of_its_monitor() -> None:
    line = "LaneMQ 0.1.0 on 127.0.0.1:40761, durable, data in var/demo/data, monitor on http://127.0.0.1:9880\n"
    found = BROKER_READY.search(line)
    assert found is not None
    assert found[1] == "127.0.0.1:40761"
