"""Two orders. One of them fails, and the other one does not wait for it. It starts its own broker: python hello.py"""

from threading import Event

from lanemq import App, Message, Producer
from lanemq.testing import EmbeddedBroker

shipped = Event()

with EmbeddedBroker() as broker, Producer(broker.address, create=["orders"]) as producer:
    app = App(broker.address, group="billing")

    @app.ordered("orders")
    def bill(status: str, message: Message) -> None:
        if message.key == "order-43" and status == "paid":
            raise ValueError("order-43 has no price")
        print(f"{message.key} {status}\n", end="")  # one write: handlers of other keys print too
        if status == "shipped":
            shipped.set()

    for status in ("created", "paid", "shipped"):
        for key in ("order-42", "order-43"):
            producer.send("orders", status, key=key)
    with app:
        shipped.wait(30)
