"""Interruptions at an exact point: the n-th moment at which Python checks for signals, or the n-th await."""

import asyncio
import dis
import sys
import types
from collections.abc import Coroutine, Generator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple, Self

import redis
import redis.connection

import redis_message_queue

# The packages to interrupt; the test itself is not interrupted.
LIBRARY = (str(Path(redis_message_queue.__file__).parent),)
LIBRARY_AND_REDIS_PY = (*LIBRARY, str(Path(redis.__file__).parent))
CONNECTIONS_OF_REDIS_PY = (redis.connection.__file__,)


class CtrlC:
    """Raises KeyboardInterrupt at the n-th moment at which a real Ctrl-C could arrive in these packages.

    Python checks for signals when a function starts, after a call and when a loop repeats. It would skip a
    few of the moments counted here, so the test is stricter than reality.
    """

    def __init__(self, moment: int, packages: tuple[str, ...] = LIBRARY_AND_REDIS_PY) -> None:
        self._left = moment
        self._packages = packages
        self.came = False

    def __enter__(self) -> Self:
        sys.settrace(self._enter_frame)
        return self

    def stop(self) -> None:
        """Stop interrupting: the handler has the message now."""
        sys.settrace(None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.stop()
        return self.came and kind is KeyboardInterrupt

    def _enter_frame(self, frame: FrameType, event: str, argument: Any) -> Any:
        looked_at = _known.get(frame.f_code) or _look(frame.f_code)
        if not looked_at.file.startswith(self._packages) or _is_finalizing(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if frame.f_lasti <= looked_at.first:
            self._pass_a_moment()
        return self._tracer(looked_at.moments)

    def _tracer(self, moments: frozenset[int]) -> Any:
        """The trace function of a frame. Each instruction calls it, so it does as little as it can."""
        last = -1

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal last
            if event == "opcode":
                if last in moments:
                    last = frame.f_lasti
                    self._pass_a_moment()
                last = frame.f_lasti
            elif event in ("exception", "return"):  # Python does not check for signals after a call that raised
                last = -1
            return trace

        return trace

    def _pass_a_moment(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.came = True
            raise KeyboardInterrupt


def _is_finalizing(frame: FrameType | None) -> bool:
    """Python swallows exceptions in a finalizer, so a Ctrl-C there has no effect."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


class _Code(NamedTuple):
    """What is traced of a function: its first instruction, and those after which Python checks for signals."""

    file: str
    first: int
    moments: frozenset[int]


_known: dict[CodeType, _Code] = {}


def _look(code: CodeType) -> _Code:
    instructions = list(dis.get_instructions(code))
    resume = next((one.offset for one in instructions if one.opname == "RESUME"), 0)
    moments = (
        one.offset for one in instructions if one.opname.startswith("CALL") or one.opname in ("JUMP_BACKWARD", "RESUME")
    )
    return _known.setdefault(code, _Code(code.co_filename, resume, frozenset(moments)))


class Cancellation:
    """Cancels the running task while its work is in the n-th await; several numbers cancel several times."""

    def __init__(self, *awaits: int) -> None:
        self._awaits = awaits
        self.came = False

    async def of(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Do the work in the current task. Returns its result, if it gets that far."""
        return await self._steps(work)

    @types.coroutine
    def _steps(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        passed = 0
        value: Any = None
        error: BaseException | None = None
        while True:
            try:
                waited_for = work.send(value) if error is None else work.throw(error)
            except StopIteration as done:
                return done.value
            passed += 1
            if passed in self._awaits:
                self.came = True
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
            try:
                value, error = (yield waited_for), None
            except BaseException as thrown:
                value, error = None, thrown
