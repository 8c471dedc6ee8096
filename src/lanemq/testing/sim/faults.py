"""The faults: one function per kind. Each causes it, waits, and repairs it.

Faults that would conflict exclude each other: no broker is killed while it is being restarted.
"""

import asyncio
import errno
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from lanemq.testing.sim.consumers import LANES, ConsumerProgram
from lanemq.testing.sim.operator import Operator
from lanemq.testing.sim.producers import AUDIT, ORDERS, ProducerProgram
from lanemq.testing.sim.world import World

Fault = Callable[["Faults"], Coroutine[Any, Any, None]]


class Faults:
    """Causes random faults for the time of the plan."""

    def __init__(
        self,
        world: World,
        producers: list[ProducerProgram],
        consumers: list[ConsumerProgram],
        operator: Operator,
    ) -> None:
        self.world = world
        self.operator = operator
        self.producers = producers
        self.consumers = consumers
        self.random: Random = world.random("faults")
        self._busy: dict[str, None] = {}
        self._under_way: dict[asyncio.Task[None], None] = {}

    async def run(self) -> None:
        """Causes faults for as long as the plan says; returns when all of them are over."""
        plan, loop = self.world.plan, self.world.loop
        end = loop.time() + plan.chaos_seconds
        while loop.time() < end:
            await asyncio.sleep(self.random.expovariate(1000 / plan.calm_ms))
            if plan.faults:
                self._begin(self.random.choice(plan.faults))
        if self._under_way:
            await asyncio.wait(list(self._under_way))

    def _begin(self, kind: str) -> None:
        task = self.world.loop.create_task(FAULTS[kind](self))
        self._under_way[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        del self._under_way[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.problem(f"a fault failed: {error!r}")

    def note(self, kind: str, target: str) -> None:
        self.world.trace.note("fault", f"{kind}: {target}")
        self.world.trace.count(kind)

    def take(self, target: str) -> bool:
        """Reserves a target until `free`; False if it is already reserved."""
        if target in self._busy:
            return False
        self._busy[target] = None
        return True

    def free(self, target: str) -> None:
        del self._busy[target]

    async def pause(self, min_seconds: float, max_seconds: float) -> None:
        await asyncio.sleep(self.random.uniform(min_seconds, max_seconds))

    def processes(self) -> list[str]:
        return [name for name, host in self.world.hosts.items() if not host.dead and name != "operator"]


async def _broker_down(faults: Faults, kind: str, end: Callable[[], None]) -> None:
    broker = faults.world.broker
    if not faults.take("broker"):
        return
    if broker.up:
        faults.note(kind, "broker")
        end()
    await faults.pause(0.05, 4.0)
    await broker.start()
    faults.free("broker")


async def broker_killed(faults: Faults) -> None:
    await _broker_down(faults, "broker killed", faults.world.broker.kill)


async def broker_loses_power(faults: Faults) -> None:
    await _broker_down(faults, "broker loses power", faults.world.broker.lose_power)


async def power_cut_inside_a_write(faults: Faults) -> None:
    """At one of the next changes of the disk: in a flush, a checkpoint, or the recovery after another fault."""
    if not faults.take("power"):
        return
    broker = faults.world.broker
    faults.note("power cut inside a write", "disk")
    broker.disk.cut_bytes = faults.random.choice((0, 1, 1, 600, 1500))
    broker.disk.cut_after = faults.random.randint(1, 3 if broker.disk.cut_bytes else 15)
    await faults.pause(0.3, 3.0)
    broker.disk.cut_after = 0
    if faults.take("broker"):
        await broker.start()
        faults.free("broker")
    faults.free("power")


async def broker_restarted(faults: Faults) -> None:
    """A clean stop and a start."""
    broker = faults.world.broker
    if not faults.take("broker"):
        return
    if broker.up:
        faults.note("broker restarted", "broker")
        await broker.stop()
    await faults.pause(0.0, 1.0)
    await broker.start()
    faults.free("broker")


async def disk_fails(faults: Faults) -> None:
    """One write or sync fails, and the broker is read-only until it is restarted."""
    if not faults.take("disk"):
        return
    what = faults.random.choice(("write", "sync", "commit"))
    faults.note("disk fails", what)
    disk = faults.world.broker.disk
    disk.failing[what] = faults.random.choice((errno.EIO, errno.ENOSPC)) if what != "sync" else errno.EIO
    await faults.pause(0.2, 3.0)
    disk.failing.clear()
    faults.free("disk")
    await faults.pause(0.0, 2.0)
    broker = faults.world.broker
    if broker.broker is not None and broker.up and broker.broker.read_only:
        faults.world.trace.count("broker read-only")
        await faults.random.choice((broker_restarted, broker_killed))(faults)


async def disk_slow(faults: Faults) -> None:
    if not faults.take("disk speed"):
        return
    faults.note("disk slow", "disk")
    faults.world.broker.slow = faults.random.choice((20.0, 200.0, 1000.0))
    await faults.pause(0.5, 4.0)
    faults.world.broker.slow = 1.0
    faults.free("disk speed")


async def _program_killed(faults: Faults, kind: str, program: ProducerProgram | ConsumerProgram) -> None:
    if not program.alive or not faults.take(program.name):
        return
    faults.note(kind, program.name)
    program.kill()
    await faults.pause(0.1, 5.0)
    program.start()
    faults.free(program.name)


async def producer_killed(faults: Faults) -> None:
    working = [each for each in faults.producers if not each.done]
    if working:
        await _program_killed(faults, "producer killed", faults.random.choice(working))


async def consumer_killed(faults: Faults) -> None:
    await _program_killed(faults, "consumer killed", faults.random.choice(faults.consumers))


async def process_frozen(faults: Faults) -> None:
    """The process gets no time, often for longer than its lease, and then continues."""
    names = faults.processes()
    consumers = [each.name for each in faults.consumers if each.name in names]
    if consumers and faults.random.random() < 0.6:
        names = consumers
    if not names or not faults.take(f"frozen {(name := faults.random.choice(names))}"):
        return
    host = faults.world.hosts[name]
    faults.note("process frozen", name)
    faults.world.trace.count("broker frozen", name == "broker")
    host.frozen = True
    await faults.pause(*faults.random.choice(((0.2, 3.0), (5.0, 12.0))))
    if host.frozen:
        faults.world.loop.thaw(host)
    faults.free(f"frozen {name}")


async def path_blocked(faults: Faults) -> None:
    """Between the broker and another process, in one or both directions."""
    names = [name for name in faults.processes() if name != "broker"]
    name = faults.random.choice(names) if names else "broker"
    if not names or not faults.take(f"path {name}"):
        return
    faults.note("path blocked", name)
    ways = faults.random.choice(([(name, "broker")], [("broker", name)], [(name, "broker"), ("broker", name)]))
    for one, other in ways:
        faults.world.network.block(one, other)
    await faults.pause(0.2, 8.0)
    for one, other in ways:
        faults.world.network.heal(one, other)
    faults.free(f"path {name}")


async def connection_cut(faults: Faults) -> None:
    ends = faults.world.network.of("broker")
    if ends:
        end = faults.random.choice(ends)
        faults.note("connection cut", end.name)
        near, far = faults.random.choice(((True, True), (True, False), (False, True)))
        faults.world.network.cut(end, "by chance", notify=near, notify_other=far)


async def connection_swallowed(faults: Faults) -> None:
    """The broker notices that a connection is lost; the client does not, whatever it writes."""
    ends = faults.world.network.of("broker")
    if ends:
        end = faults.random.choice(ends)
        faults.note("connection swallowed", end.name)
        faults.world.network.swallow(end, "by a middlebox")
        await faults.pause(1.0, 6.0)
        faults.world.network.answer_again(end)


async def answer_lost(faults: Faults) -> None:
    """One of the broker's next answers on a connection is lost, and the connection with it."""
    ends = faults.world.network.of("broker")
    if ends:
        end = faults.random.choice(ends)
        faults.note("answer lost", end.name)
        end.fuse = faults.random.randint(1, 5)


async def wall_clock_jumps(faults: Faults) -> None:
    names = faults.processes()
    if not names:
        return
    name = faults.random.choice(names)
    hours = faults.random.choice((-24, -1, -0.001, 0.001, 1, 24))
    faults.note("wall clock jumps", f"{name} by {hours} h")
    faults.world.clock_of(name).jumped_ms += int(hours * 3_600_000)


async def member_leaves(faults: Faults) -> None:
    """A clean stop; the member comes back later."""
    member = faults.random.choice(faults.consumers)
    if not member.alive or not faults.take(member.name):
        return
    faults.note("member leaves", member.name)
    await member.leave()
    await faults.pause(0.1, 4.0)
    member.start()
    faults.free(member.name)


async def member_joins(faults: Faults) -> None:
    """A member that was not there at the start."""
    away = [each for each in faults.consumers if each.is_new]
    if away:
        member = faults.random.choice(away)
        faults.note("member joins", member.name)
        member.start()


async def network_slow(faults: Faults) -> None:
    if not faults.take("network"):
        return
    faults.note("network slow", "network")
    network = faults.world.network
    before = network.latency, network.bytes_per_second
    network.latency, network.bytes_per_second = before[0] * 40, 100_000.0
    await faults.pause(0.5, 4.0)
    network.latency, network.bytes_per_second = before
    faults.free("network")


async def lanes_redriven(faults: Faults) -> None:
    """Redrives all parked lanes; they may fail again."""
    for lane in await faults.operator.parked():
        if await faults.operator.redrive(lane):
            faults.note("lanes redriven", f"{lane.key} of {lane.topic}/{lane.queue_id}")


async def lanes_discarded(faults: Faults) -> None:
    """Discards the first message of some parked lanes."""
    for lane in await faults.operator.parked():
        if faults.random.random() < 0.5 and await faults.operator.discard(lane):
            faults.note("lanes discarded", f"{lane.first} of {lane.topic}/{lane.queue_id}")


async def group_reset(faults: Faults) -> None:
    """Resets a group to any offset of a queue, back or forward, whether it has members or not."""
    plan = faults.world.plan
    topic, queues = faults.random.choice(((ORDERS, plan.orders_queues), (AUDIT, plan.audit_queues)))
    queue, offset = faults.random.randrange(queues), faults.random.randrange(plan.messages)
    if await faults.operator.reset(LANES, topic, queue, offset):
        faults.note("group reset", f"{topic}/{queue} to {offset}")


async def topic_recreated(faults: Faults) -> None:
    """Deletes a topic and creates it again under the same name while it is in use."""
    plan = faults.world.plan
    topic, queues = faults.random.choice(((ORDERS, plan.orders_queues), (AUDIT, plan.audit_queues)))
    if not faults.take(f"topic {topic}"):
        return
    if await faults.operator.delete(topic):
        faults.note("topic recreated", topic)
    await faults.pause(0.0, 2.0)
    while not await faults.operator.create(topic, queues):
        await faults.pause(0.5, 1.0)
    faults.free(f"topic {topic}")


FAULTS: dict[str, Fault] = {
    each.__name__.replace("_", " "): each
    for each in (
        broker_killed, broker_loses_power, power_cut_inside_a_write, broker_restarted, disk_fails, disk_slow,
        producer_killed, consumer_killed, process_frozen, path_blocked, connection_cut, connection_swallowed,
        answer_lost, wall_clock_jumps, member_leaves, member_joins, network_slow,
        lanes_redriven, lanes_discarded, group_reset, topic_recreated,
    )
}  # fmt: skip
