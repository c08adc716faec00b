"""The result of one check: how serious it is, what was found, and what to change."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ParamSpec

from redis.exceptions import NoPermissionError, ResponseError

from redis_message_queue.redis_py.wire import not_permitted
from redis_message_queue.values.errors import NotPermittedError

P = ParamSpec("P")


class CheckLevel(StrEnum):
    """How much the result of a check matters."""

    OK = "ok"
    ADVICE = "advice"  # it works, and could be safer or faster
    PROBLEM = "problem"  # messages can be lost or doubled, or the queue does not work


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """One sentence about what was found, and one about what to change."""

    level: CheckLevel
    check: str
    found: str
    change: str | None = None


def ok(check: str, found: str) -> CheckResult:
    return CheckResult(level=CheckLevel.OK, check=check, found=found)


def advice(check: str, found: str, change: str) -> CheckResult:
    return CheckResult(level=CheckLevel.ADVICE, check=check, found=found, change=change)


def problem(check: str, found: str, change: str) -> CheckResult:
    return CheckResult(level=CheckLevel.PROBLEM, check=check, found=found, change=change)


def grant_for(error: Exception) -> str:
    """Return the ACL rule for what a refusal is about: a command, or the keys of a queue."""
    refusal = error if isinstance(error, NotPermittedError) else not_permitted(error, "a check")
    return f"ACL SETUSER <user> {(refusal and refusal.grant) or '+info +config|get'}"


def report_refusals(
    name: str,
) -> Callable[[Callable[P, Iterator[CheckResult]]], Callable[P, Iterator[CheckResult]]]:
    """Let a check that the server refuses end with a finding, so that the other checks go on."""

    def decorate(check: Callable[P, Iterator[CheckResult]]) -> Callable[P, Iterator[CheckResult]]:
        @functools.wraps(check)
        def checked(*args: P.args, **kwargs: P.kwargs) -> Iterator[CheckResult]:
            try:
                yield from check(*args, **kwargs)
            except NoPermissionError as error:
                yield advice(name, f"not permitted to check this: {error}", grant_for(error))
            except ResponseError as error:
                yield problem(name, f"the server refused the check: {error}", "fix what the server reports")

        return checked

    return decorate
