"""What a seed decides: the settings of the queue, who takes part, and which faults happen when."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from redis_message_queue.options.declared import GatewayOptions
from redis_message_queue.options.retry_policy import RetryPolicy
from simulator.network import Weather

QUEUE, RESULTS = "orders", "results"  # a queue, and one that gets what handlers hand off
GROUP = "lake"
_LEAVES_FINDERS = 3379  # with this word, no schedule of tests/simulator becomes one of a cluster
# Who look after the queue, and neither publish messages of their own nor consume.
OPERATORS = ("operator", "canceller", "pauser", "scheduler", "deployer", "importer", "grower")


@dataclass(frozen=True)
class Settings:
    """The options of the queues, and how their handlers behave."""

    gateway: dict[str, Any]
    queue: dict[str, Any]
    tenants: tuple[str | None, ...]
    keys: int  # how many deduplication keys there are, 0 for none
    handler_seconds: float
    failing: float  # of handlers
    hanging: float  # of handlers: they outlast their lease
    handing_off: float  # of handlers: they complete their message themselves
    delayed: float  # of messages
    socket_timeout: float
    longest_hanging: float = 1.6  # in leases
    partitions: int = 1  # that the queue has when it is made
    grows_to: int = 0  # how many an operator gives it later, 0 for none
    asks_once: bool = False  # whether only those who start before that ask for a journal
    forgets: bool = False  # whether the server begins without scripts, and forgets them now and then
    nodes: int = 1  # of a cluster, over which the partitions are spread

    @property
    def most_partitions(self) -> int:
        return max(self.partitions, self.grows_to)


@dataclass(frozen=True)
class Actor:
    """One process: what it does, and how much of it."""

    name: str
    kind: str  # producer, single, batch, run, until_empty, query, or one of OPERATORS
    amount: int = 0  # messages of a producer, steps of an operator
    size: int = 1  # of batches, how many messages a loop claims ahead, or how many schedules a program has
    concurrency: int = 1  # of handlers, or of the publishes of a producer
    starts_at: float = 0.0


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong."""

    number: int
    kind: str
    at: float
    seconds: float = 0.0
    who: str = ""
    node: int = 0  # of a cluster
    lost_seconds: float = 0.0  # what a restart or a failover loses
    after_requests: int = 0  # of that process, instead of a time
    weather: Weather | None = None

    def __str__(self) -> str:
        parts = [self.kind]
        if self.who:
            parts.append(self.who)
        if self.node:
            parts.append(f"of node {self.node}")
        parts.append(f"after its request {self.after_requests}" if self.after_requests else f"at {self.at:.3f} s")
        if self.seconds:
            parts.append(f"for {self.seconds:.3f} s")
        if self.lost_seconds:
            parts.append(f"losing the last {self.lost_seconds:.3f} s")
        return " ".join(parts)


@dataclass(frozen=True)
class Plan:
    """One schedule."""

    seed: int
    settings: Settings
    actors: tuple[Actor, ...]
    faults: tuple[Fault, ...]
    messages: int = 0  # the most that any producer sends; 0 for as many as it likes

    @property
    def is_calm(self) -> bool:
        """Whether nothing disturbs anybody: processes start again when the queue gets more partitions."""
        return not self.faults and not self.settings.grows_to

    def only(
        self, *, actors: set[str] | None = None, faults: set[int] | None = None, messages: int | None = None
    ) -> Plan:
        """The same schedule with fewer actors, faults or messages."""
        return replace(
            self,
            actors=tuple(one for one in self.actors if actors is None or one.name in actors),
            faults=tuple(
                one
                for one in self.faults
                if (faults is None or one.number in faults) and (not one.who or actors is None or one.who in actors)
            ),
            messages=self.messages if messages is None else messages,
        )


def plan_of(seed: int) -> Plan:
    """The schedule of a seed. Some are calm, most have a few faults, and every tenth is large."""
    random = Random(f"{seed}/plan")
    size = 3 if random.random() < 0.07 else 1
    settings = _limited(Random(f"{seed}/limits"), _settings(random))
    actors = _actors(random, settings, size)
    faults = () if random.random() < 0.15 else _faults(random, settings, actors, size)
    more, more_faults = _more(Random(f"{seed}/more"), len(faults))
    more += _pausers(Random(f"{seed}/pausers"), settings)
    more += _loops(Random(f"{seed}/loops"), settings)
    helpers, weather = _helpers(Random(f"{seed}/helpers"), len(faults) + len(more_faults))
    plan = Plan(seed, settings, (*actors, *more, *helpers), (*faults, *more_faults, *weather))
    plan = _usual(Random(f"{seed}/usual"), _stalled(Random(f"{seed}/stalled"), plan))
    plan = _partitioned(Random(f"{seed}/partitions"), plan)
    plan = _ordered(Random(f"{seed}/ordered-tenants"), plan)
    plan = _deployed(Random(f"{seed}/deployed"), plan)
    plan = _drained(Random(f"{seed}/drained"), plan)
    plan = _grown(Random(f"{seed}/grown"), plan)
    plan = _calmed(Random(f"{seed}/calmed"), plan)
    plan = _crowded(Random(f"{seed}/crowded"), plan)
    plan = _emptied(Random(f"{seed}/until-empty"), plan)
    return _clustered(Random(f"{seed}/cluster {_LEAVES_FINDERS}"), plan)


def _clustered(random: Random, plan: Plan) -> Plan:
    """Some queues are on a cluster, whose nodes die, stop, come back and fail over one by one while others live."""
    if random.random() > 0.1:
        return plan
    chance, nodes, empties = random.random, random.choice((2, 3)), random.random() < 0.25
    tenants: tuple[str | None, ...] = random.choice(((None,), ("a", "b", "c"), ("a", "b", None)))
    gateway: dict[str, Any] = {
        "message_visibility_timeout_seconds": 60.0 if empties else random.choice((4.0, 8.0)),
        "message_wait_interval_seconds": random.choice((0.7, 2.5)),
        "retry_budget_seconds": random.choice((2.0, 6.0, 20.0)),
        "journal": chance() < 0.3,
    }
    if any(tenants) and (empties or chance() < 0.4):
        gateway |= random.choice(({"ordered_tenants": True}, {"max_in_flight_per_tenant": 1}))
    if any(tenants) and chance() < 0.2:
        gateway["tenant_weights"] = {name: random.randint(1, 3) for name in tenants if name}
    queue: dict[str, Any] = {"enable_completed_queue": chance() < 0.5, "enable_failed_queue": chance() < 0.5}
    if chance() < 0.3:
        queue["retry_policy"] = RetryPolicy(max_attempts=3, initial_delay_seconds=0.2, jitter=0.2)
    partitions = nodes + random.randint(0, 2)
    settings = replace(
        plan.settings,
        gateway=gateway,
        queue=queue,
        tenants=tenants,
        keys=0,
        handler_seconds=random.choice((0.02, 0.3)),
        failing=0.0 if empties else random.choice((0.0, 0.2)),
        hanging=0.0 if empties else random.choice((0.0, 0.2)),
        handing_off=0.0,
        delayed=0.0,
        socket_timeout=random.choice((0.5, 1.0, 2.5)),
        partitions=partitions,
        grows_to=partitions + random.randint(1, 2) if not empties and chance() < 0.2 else 0,
        forgets=chance() < 0.5,
        nodes=nodes,
    )
    actors = _on_a_cluster(random, settings, empties=empties)
    return replace(plan, settings=settings, actors=actors, faults=_outages(random, actors, nodes))


def _on_a_cluster(random: Random, settings: Settings, *, empties: bool) -> tuple[Actor, ...]:
    """Either one loop that takes everything and ends, or loops and others that go on during the outages."""
    producers = [
        Actor(f"producer-{nth}", "producer", amount=random.randint(2, 5 if empties else 20), starts_at=random.random())
        for nth in range(1, random.randint(2, 4) + 1)
    ]
    if empties:
        return *producers, Actor("loop-1", "until_empty", size=random.choice((1, 3)), concurrency=random.choice((1, 2)))
    loops = [
        Actor(f"loop-{nth}", "run", size=random.randint(1, 6), concurrency=random.choice((1, 1, 3)))
        for nth in range(1, random.randint(1, 3) + 1)
    ]
    others = [
        Actor(f"{kind}-1", kind, amount=random.randint(2, 6), size=3, starts_at=random.uniform(0, 3))
        for kind in (
            "single",
            "batch",
            "operator",
            "canceller",
            "scheduler",
            *(("pauser",) if any(settings.tenants) else ()),
        )
        if random.random() < 0.25
    ]
    if settings.grows_to:
        others.append(Actor("grower-1", "grower", starts_at=random.uniform(0.5, 8)))
    return (*producers, *loops, *others)


def _outages(random: Random, actors: tuple[Actor, ...], nodes: int) -> tuple[Fault, ...]:
    """One node after the other goes away, sometimes the next one before the last is back. Processes may die, too."""
    faults, at = list[Fault](), random.uniform(0.3, 2)
    for number in range(1, random.randint(1, 4) + 1):
        kind, seconds = random.choice(("restart", "failover", "stop")), random.choice((0.5, 3.0, 9.0, 15.0))
        lost = random.choice((0.0, 0.0, 0.1, 1.0)) if kind != "stop" else 0.0
        faults.append(Fault(number, kind, at, seconds, node=random.randrange(nodes), lost_seconds=min(lost, at)))
        at += seconds * random.choice((0.4, 1.0, 1.0)) + random.random()
    who = random.choice(actors)
    kind = random.choice(("kill", "freeze", "cancel", "drain", "forget")) if who.kind != "until_empty" else "forget"
    if random.random() < 0.4:
        requests = random.randint(1, 40)
        faults.append(Fault(len(faults) + 1, kind, 0.0, random.uniform(0.1, 2), who.name, after_requests=requests))
    if random.random() < 0.2:
        weather = _weather(random)
        faults.append(Fault(len(faults) + 1, "weather", random.random() * at, random.uniform(0.5, 6), weather=weather))
    return tuple(faults)


def _crowded(random: Random, plan: Plan) -> Plan:
    """Sometimes the publishes and the blocks of a process meet, and most of them share requests."""
    gateway = dict(plan.settings.gateway)
    if random.random() > 0.3 or gateway.get("pending_overload_policy") == "drop_oldest":
        return plan
    if random.random() < 0.8:
        for name in ("confirm_replicas", "confirm_fsync"):
            gateway.pop(name, None)
        if "pending_overload_policy" in gateway:
            gateway["pending_overload_policy"] = "raise"
    actors = [
        replace(one, concurrency=random.randint(2, 8)) if one.kind in ("producer", "single") else one
        for one in plan.actors
    ]
    return replace(plan, settings=replace(plan.settings, gateway=gateway), actors=tuple(actors))


def _emptied(random: Random, plan: Plan) -> Plan:
    """Sometimes one loop takes everything and ends, while the server forgets its scripts again and again.

    Each tenant has one message in flight, so that the next one can be had only when its acknowledgement was executed.
    """
    if random.random() > 0.05:
        return plan
    gateway: dict[str, Any] = {
        "message_visibility_timeout_seconds": 60.0,
        "message_wait_interval_seconds": 0.7,
        "journal": random.random() < 0.3,
        **random.choice(({"ordered_tenants": True}, {"max_in_flight_per_tenant": 1})),
    }
    settings = replace(
        plan.settings,
        gateway=gateway,
        queue={"enable_completed_queue": random.random() < 0.5},
        tenants=("a", "b"),
        keys=0,
        failing=0.0,
        hanging=0.0,
        handing_off=0.0,
        delayed=0.0,
        partitions=random.choice((1, 1, 2)),
        grows_to=0,
        forgets=True,
    )
    size, concurrency = random.choice((1, 1, 3)), random.choice((1, 1, 2))
    producer = Actor("producer-1", "producer", amount=random.randint(2, 5))
    loop = Actor("loop-1", "until_empty", size=size, concurrency=concurrency)
    forgets = [
        Fault(nth, random.choice(("forget", "forget", "restart")), 0.0, 0.01, loop.name, after_requests=request)
        for nth, request in enumerate(random.sample(range(1, 26), 5), 1)
    ]
    return replace(plan, settings=settings, actors=(producer, loop), faults=tuple(forgets))


def _calmed(random: Random, plan: Plan) -> Plan:
    """Without faults, nobody may be late: so a wake-up that is missing shows, where there are several kinds of them."""
    has_wakeups = plan.settings.most_partitions > 1 or "max_in_flight_per_tenant" in plan.settings.gateway
    has_wakeups = has_wakeups or "ordered_tenants" in plan.settings.gateway
    has_wakeups = has_wakeups or any(one.kind in ("scheduler", "deployer") for one in plan.actors)
    return plan.only(faults=set()) if has_wakeups and random.random() < 0.3 else plan


def _usual(random: Random, plan: Plan) -> Plan:
    """Sometimes all is as the short scripts know it, but for messages that are cancelled while they wait."""
    gateway = dict(plan.settings.gateway)
    if not gateway["message_visibility_timeout_seconds"] or random.random() > 0.08:
        return plan
    for name in (
        "message_ttl_seconds",
        "journal",
        "tenant_weights",
        "max_in_flight_per_tenant",
        "max_pending_per_tenant",
    ):
        gateway.pop(name, None)
    settings = replace(plan.settings, gateway=gateway, tenants=(None,), delayed=0.0, hanging=0.0, handler_seconds=0.3)
    actors = (
        *(Actor(f"producer-{nth}", "producer", amount=8) for nth in (1, 2, 3)),
        *(Actor(f"consumer-{nth}", "single", starts_at=0.2) for nth in (1, 2)),
        Actor("canceller-1", "canceller", amount=15, starts_at=0.1),
    )
    return replace(plan, settings=settings, actors=actors, faults=tuple(one for one in plan.faults if not one.who))


def _stalled(random: Random, plan: Plan) -> Plan:
    """Some consumers are cut off until their lease is over, and renew it when they are back: their handlers hang."""
    consumers = [one for one in plan.actors if one.kind in ("single", "batch", "run")]
    if "heartbeat_interval_seconds" not in plan.settings.queue or plan.is_calm or random.random() > 0.25:
        return plan
    lease, last = plan.settings.gateway["message_visibility_timeout_seconds"], max(one.number for one in plan.faults)
    cuts = [
        Fault(last + 1 + nth, "cut", random.uniform(0.8, 3), lease * random.uniform(1.1, 1.6), one.name)
        for nth, one in enumerate(random.sample(consumers, min(2, len(consumers))))
    ]
    settings = replace(plan.settings, hanging=0.5, longest_hanging=4.0)
    return replace(plan, settings=settings, faults=(*plan.faults, *cuts))


def _partitioned(random: Random, plan: Plan) -> Plan:
    """Some queues have partitions, and some of them get more. Imports and streaming queries read one at a time."""
    if random.random() > 0.15:
        return plan
    count = random.choice((1, 2, 3))
    grows = count == 1 or random.random() < 0.5
    settings = replace(plan.settings, partitions=count, grows_to=count + random.randint(1, 2) if grows else 0)
    plan = plan.only(actors={one.name for one in plan.actors if one.kind not in ("query", "importer")})
    growers = (Actor("grower-1", "grower", starts_at=random.uniform(0.5, 4)),) if grows else ()
    return replace(plan, settings=settings, actors=(*plan.actors, *growers))


def _grown(random: Random, plan: Plan) -> Plan:
    """Some queues grow beside pauses and journals, or because of two operators at once, of whom one is slow."""
    settings, actors, faults = plan.settings, plan.actors, plan.faults
    if not settings.grows_to:
        return plan
    settings = replace(settings, asks_once=random.random() < 0.5)
    if any(settings.tenants) and not any(one.kind == "pauser" for one in actors) and random.random() < 0.8:
        # What is paused before stays so: others publish when the queue has grown.
        grows_at = next(one.starts_at for one in actors if one.kind == "grower")
        actors += (Actor("pauser-1", "pauser", amount=random.randint(2, 4)),)
        actors += (Actor("producer-late", "producer", amount=8, starts_at=grows_at + random.random()),)
    if random.random() < 0.4:
        settings = replace(settings, grows_to=settings.partitions + 2)
        starts_at = next(one.starts_at for one in actors if one.kind == "grower") - random.random() * 0.1
        actors += (Actor("grower-2", "grower", size=2, starts_at=starts_at),)
        stall = Fault(len(faults) + 100, "freeze", 0.0, random.uniform(0.5, 3), "grower-2", after_requests=1)
        faults += (replace(stall, after_requests=random.randint(1, 6)),)
    return replace(plan, settings=settings, actors=actors, faults=faults)


def _ordered(random: Random, plan: Plan) -> Plan:
    """Some queues handle the messages of each tenant strictly in order, also those that fail and are retried."""
    settings, gateway = plan.settings, dict(plan.settings.gateway)
    if not any(settings.tenants) or not gateway["message_visibility_timeout_seconds"] or random.random() > 0.25:
        return plan
    gateway.pop("max_in_flight_per_tenant", None)
    gateway["ordered_tenants"] = True
    delay = 0.2 if "message_ttl_seconds" in gateway else random.choice((0.2, 1.5))
    policy = RetryPolicy(max_attempts=random.randint(2, 4), initial_delay_seconds=delay, jitter=0.2)
    queue = {"retry_policy": policy, **settings.queue}
    failing = max(settings.failing, random.choice((0.2, 0.4)))
    return replace(plan, settings=replace(settings, gateway=gateway, queue=queue, failing=failing))


def _deployed(random: Random, plan: Plan) -> Plan:
    """Sometimes two versions of a program replace each other, and both define the same schedules when they start."""
    if random.random() > 0.1:
        return plan
    size = random.randint(3, 5)
    deployers = [Actor(f"deployer-{nth}", "deployer", amount=random.randint(2, 5), size=size) for nth in (1, 2)]
    return replace(plan, actors=(*plan.actors, *deployers))


def _drained(random: Random, plan: Plan) -> Plan:
    """Sometimes a consumer is cut off and drained before it hears the reply to a request, which may be a claim."""
    consumers = [one.name for one in plan.actors if one.kind in ("single", "batch", "run")]
    if not plan.faults or random.random() > 0.2:
        return plan
    last, who, requests = max(one.number for one in plan.faults), random.choice(consumers), random.randint(3, 12)
    seconds = plan.settings.socket_timeout * random.uniform(1, 4)
    cut = Fault(last + 1, "cut", 0.0, seconds, who, after_requests=requests)
    drain = Fault(last + 2, "drain", 0.0, who=who, after_requests=requests)
    return replace(plan, faults=(*plan.faults, cut, drain))


def _limited(random: Random, settings: Settings) -> Settings:
    """Options that joined later, as the actors of `_more` did."""
    gateway = dict(settings.gateway)
    if any(settings.tenants) and gateway["message_visibility_timeout_seconds"] and random.random() < 0.35:
        gateway["max_in_flight_per_tenant"] = random.choice((1, 1, 2, 4))
    return replace(settings, gateway=gateway)


def _pausers(random: Random, settings: Settings) -> list[Actor]:
    if not any(settings.tenants) or random.random() > 0.4:
        return []
    return [Actor("pauser-1", "pauser", amount=random.randint(2, 6), starts_at=random.random() * 2)]


def _helpers(random: Random, faults: int) -> tuple[list[Actor], list[Fault]]:
    """Who else publishes; and a network that is slower than the second which a consumer has to publish a tick."""
    actors: list[Actor] = []
    weather: list[Fault] = []
    if random.random() < 0.2:
        actors.append(Actor("scheduler-1", "scheduler", amount=random.randint(2, 8), starts_at=random.random()))
        slow = Weather(late=0.15, slow=0.5, slow_latency=1.5, latest=3.0)
        if faults and random.random() < 0.8:
            weather.append(Fault(faults + 1, "weather", random.uniform(1, 3), random.uniform(2, 6), weather=slow))
    if random.random() < 0.12:
        actors.append(Actor("importer-1", "importer", amount=random.randint(2, 6), starts_at=random.random() * 2))
    return actors, weather


def _loops(random: Random, settings: Settings) -> list[Actor]:
    """Loops that acknowledge and claim in one script, where the queue keeps no copies: few others do so."""
    if settings.queue["enable_completed_queue"] or random.random() > 0.6:
        return []
    return [
        Actor(f"loop-{nth}", "run", size=1, concurrency=random.choice((1, 1, 2)), starts_at=random.random() * 1.5)
        for nth in range(1, random.randint(1, 3) + 1)
    ]


def _more(random: Random, faults: int) -> tuple[list[Actor], list[Fault]]:
    """Actors that joined later. What the seeds decided before stays as it was: schedules that found a bug are kept."""
    actors: list[Actor] = []
    if random.random() < 0.25:
        actors.append(Actor("canceller-1", "canceller", amount=random.randint(3, 12), starts_at=random.random() * 2))
    victims = [one for one in actors if faults and random.random() < 0.2]
    return actors, [
        Fault(faults + nth, "kill", 0.0, random.uniform(0.1, 2), one.name, after_requests=random.randint(1, 8))
        for nth, one in enumerate(victims, 1)
    ]


def _settings(random: Random) -> Settings:
    chance = random.random
    is_leased = chance() < 0.92
    lease = random.choice((1.0, 2.0, 4.0)) if is_leased else None
    tenants: tuple[str | None, ...] = (None,)
    if chance() < 0.55:
        tenants = (*("abcdef"[: random.randint(2, 5)]), *((None,) if chance() < 0.5 else ()))
    drops = chance() < 0.08
    gateway: dict[str, Any] = {
        "message_visibility_timeout_seconds": lease,
        "message_wait_interval_seconds": random.choice((0.0, 0.7, 2.5)),
        "retry_budget_seconds": random.choice((2.0, 6.0, 20.0)),
        "retry_max_delay_seconds": 1.0,
    }
    queue: dict[str, Any] = {"enable_completed_queue": chance() < 0.6, "enable_failed_queue": chance() < 0.5}
    if is_leased and not drops and chance() < 0.6:
        gateway["max_delivery_count"] = random.choice((2, 3, 10))
    if chance() < 0.2:
        gateway["message_ttl_seconds"] = random.choice((4.0, 8.0))
    if any(tenants) and chance() < 0.4:
        gateway["tenant_weights"] = {name: random.randint(1, 3) for name in tenants if name}
    keys = 0
    if not drops and chance() < 0.4:
        keys = random.randint(2, 8)
        queue |= {"deduplication": True, "get_deduplication_key": deduplication_key}
        gateway["message_deduplication_log_ttl_seconds"] = random.choice((0.5, 3.0, 30.0))
    if drops or chance() < 0.15:
        policy = "drop_oldest" if drops else random.choice(("raise", "block"))
        gateway |= {"max_pending_length": random.randint(3, 12), "pending_overload_policy": policy}
        if any(tenants) and chance() < 0.5:
            gateway["max_pending_per_tenant"] = random.randint(2, 5)
    if chance() < 0.25:
        gateway["journal"] = random.choice((True, "payload"))
    if chance() < 0.2:
        gateway["confirm_replicas"] = 1
    if chance() < 0.15:
        gateway["confirm_fsync"] = True
    if lease and chance() < 0.5:
        queue["heartbeat_interval_seconds"] = lease / random.choice((3, 5))
    ttl = gateway.get("message_ttl_seconds")
    if chance() < 0.4:
        delay = random.choice((0.2, 1.5))
        queue["retry_policy"] = RetryPolicy(
            max_attempts=random.randint(2, 4), initial_delay_seconds=delay if not ttl else 0.2, jitter=0.2
        )
    if chance() < 0.2 and lease:
        gateway["max_dead_letter_length"] = random.randint(2, 20)
    return Settings(
        gateway=gateway,
        queue=queue,
        tenants=tenants,
        keys=keys,
        handler_seconds=random.choice((0.0, 0.02, 0.3)),
        failing=random.choice((0.0, 0.1, 0.4)),
        hanging=random.choice((0.0, 0.1, 0.4)),
        handing_off=random.choice((0.0, 0.0, 0.3)),
        delayed=random.choice((0.0, 0.0, 0.3)),
        socket_timeout=random.choice((0.5, 1.0)) if chance() < 0.8 else 2.5,
    )


def deduplication_key(message: str) -> str:
    """The third part of a payload; a message without one has a key of its own."""
    return message.split("/")[2] or message


def _actors(random: Random, settings: Settings, size: int) -> tuple[Actor, ...]:
    actors = [
        Actor(f"producer-{nth}", "producer", amount=random.randint(2, 8), starts_at=random.random())
        for nth in range(1, random.randint(1, 3 * size * size) + 1)
    ]
    for nth in range(1, random.randint(1, 4 * size) + 1):
        kind = random.choice(("single", "batch", "run", "run"))
        name = f"consumer-{nth}"
        actors.append(
            Actor(
                name, kind, size=random.randint(1, 6), concurrency=random.choice((1, 1, 2, 3)),
                starts_at=random.random() * 1.5,
            )
        )  # fmt: skip
    if random.random() < 0.4:
        actors += [
            Actor(f"operator-{nth}", "operator", amount=random.randint(2, 6), starts_at=random.random() * 2)
            for nth in range(1, size + 1)
        ]
    if random.random() < 0.25 and settings.gateway["message_visibility_timeout_seconds"]:
        actors += [
            Actor(f"query-{nth}", "query", size=random.randint(1, 5), starts_at=random.random() * 2)
            for nth in range(1, random.randint(1, 2) + 1)
        ]
    return tuple(actors)


def _faults(random: Random, settings: Settings, actors: tuple[Actor, ...], size: int) -> tuple[Fault, ...]:
    lease = settings.gateway["message_visibility_timeout_seconds"] or 5.0
    faults: list[Fault] = []
    for number in range(1, random.randint(1, 5 * size) + 1):
        at, who = random.random() * 5, random.choice(actors).name
        kind = random.choice(
            (
                *("weather", "weather", "weather", "kill", "kill", "freeze", "freeze", "cancel", "cut"),
                *("restart", "failover", "full", "busy", "drain"),
            )
        )
        one = Fault(number, kind, at)
        if kind == "weather":
            one = replace(one, seconds=random.uniform(0.5, 6), at=at / 2, weather=_weather(random))
        elif kind in ("kill", "cancel", "drain"):
            requests = random.randint(1, 12) if random.random() < 0.7 else 0
            one = replace(one, who=who, after_requests=requests, seconds=random.uniform(0.1, 2))
        elif kind == "freeze":
            requests = random.randint(1, 12) if random.random() < 0.5 else 0
            one = replace(one, who=who, after_requests=requests, seconds=random.choice((0.5, lease * 0.9, lease * 1.5)))
        elif kind == "cut":
            one = replace(one, who=who, seconds=random.choice((1.0, lease, lease * 2)))
        elif kind in ("restart", "failover"):
            lost = random.choice((0.0, 0.05, 0.9)) if kind == "restart" else random.choice((0.0, 0.1, 1.5))
            one = replace(one, seconds=random.choice((0.01, 0.5, 2.0)), lost_seconds=lost)
        elif kind == "full":
            one = replace(one, seconds=random.uniform(0.5, 4))
        elif kind == "busy":
            one = replace(one, seconds=random.uniform(0.1, 3))
        faults.append(one)
    return tuple(faults)


def _weather(random: Random) -> Weather:
    def some(most: float) -> float:
        return random.choice((0.0, most / 4, most)) * random.random()

    return Weather(
        request_lost=some(0.4),
        reply_lost=some(0.5),
        repeated=some(0.4),
        late=some(0.2),
        slow=some(0.5),
        latency=random.choice((0.0005, 0.02)),
        slow_latency=random.choice((0.1, 1.0, 3.0)),
        latest=random.choice((0.5, 3.0, 8.0)),
    )


def gateway_options(settings: Settings) -> GatewayOptions:
    """The options of the storage, as a user would give them."""
    return GatewayOptions(**settings.gateway)
