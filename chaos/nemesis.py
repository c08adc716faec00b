"""Executes the actions of a plan on the servers and the processes of a campaign."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from chaos.plan import Action
from chaos.processes import Processes
from chaos.world import World
from tests.faults.proxy import CUT_AFTER, CUT_BEFORE, Fault

# The scripts whose requests a cut may hit: everything that changes a message.
CUT_SCRIPTS = ("publish", "enqueue", "claim", "settle", "hand_off", "retry_later", "requeue", "renew", "tick")


@dataclass
class Injected:
    """What was done, with the times when it began and when it was healed."""

    nemesis: str
    began: float
    ended: float
    target: str = ""
    hits: int = 1


class Nemesis:
    """Does one action at a time. `log` has what was really injected."""

    def __init__(self, world: World, processes: Processes) -> None:
        self._world, self._processes = world, processes
        self.log: list[Injected] = []
        self._actions: dict[str, Callable[[Action], tuple[str, int]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "cut-before": lambda action: self._cut(action, CUT_BEFORE),
            "cut-after": lambda action: self._cut(action, CUT_AFTER),
            "restart": self._restart,
            "failover": lambda _: self._fail_over(0),
            "stale-failover": lambda action: self._fail_over(action.seconds),
            "full-memory": self._fill_memory,
            "busy": self._block,
            "freeze": self._freeze,
            "move-slot": self._move_slot,
            "flush-scripts": self._flush_scripts,
            "clock": self._step_clock,
            "kill-spark": self._kill_spark,
        }

    def do(self, action: Action) -> Injected:
        began = time.monotonic()
        target, hits = self._actions[action.nemesis](action)
        done = Injected(action.nemesis, began, time.monotonic(), target, hits)
        self.log.append(done)
        return done

    def _kill(self, action: Action) -> tuple[str, int]:
        return self._processes.kill(action.number), 1

    def _stop(self, action: Action) -> tuple[str, int]:
        """The others go on, so their messages are taken over."""
        with self._processes.stopped(action.number) as name:
            time.sleep(action.seconds)
        return name, 1

    def _cut(self, action: Action, fault: Fault) -> tuple[str, int]:
        hits = 0
        for proxy in self._world.proxies():
            planned = dict.fromkeys(CUT_SCRIPTS, action.number)
            for name, count in planned.items():
                proxy.meet(name, *[fault] * count)
        time.sleep(action.seconds)
        for proxy in self._world.proxies():
            hits += len(CUT_SCRIPTS) * action.number - proxy.planned()
            proxy.relent()
        return "proxies", hits

    def _restart(self, action: Action) -> tuple[str, int]:
        self._world.durable.kill()
        time.sleep(action.seconds)
        self._world.durable.restart()
        return "durable", 1

    def _fail_over(self, lag_seconds: float) -> tuple[str, int]:
        self._world.fail_over(lag_seconds)
        return "replicated", 1

    def _fill_memory(self, action: Action) -> tuple[str, int]:
        with self._world.durable.client() as client:
            client.config_set("maxmemory", 1)
            time.sleep(action.seconds)
            client.config_set("maxmemory", 0)
        return "durable", 1

    def _block(self, action: Action) -> tuple[str, int]:
        self._world.block(action.seconds)
        return "durable", 1

    def _freeze(self, action: Action) -> tuple[str, int]:
        self._world.durable.pause()
        time.sleep(action.seconds)
        self._world.durable.resume()
        return "durable", 1

    def _move_slot(self, _: Action) -> tuple[str, int]:
        return self._world.move_slot(), 1

    def _flush_scripts(self, _: Action) -> tuple[str, int]:
        servers = self._world.servers()
        for server in servers:
            with server.client() as client:
                client.script_flush()
        return "all servers", len(servers)

    def _step_clock(self, action: Action) -> tuple[str, int]:
        assert self._world.clock is not None
        self._world.clock.step(action.number)
        return f"durable {action.number:+d} s", 1

    def _kill_spark(self, _: Action) -> tuple[str, int]:
        return "spark", self._processes.kill_spark()


def possible(nemeses: list[str], world: World) -> list[str]:
    """The nemeses that can be used in this world; `world.left_out` says why others cannot."""
    needs: dict[str, str] = {
        **dict.fromkeys(("restart", "full-memory", "busy", "freeze", "clock", "kill-spark"), "durable"),
        **dict.fromkeys(("failover", "stale-failover"), "replicated"),
        "move-slot": "cluster",
    }
    return [name for name in nemeses if name not in world.left_out and needs.get(name, "durable") in world.places]
