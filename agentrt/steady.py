"""A clock that is not affected by setting the time of day, for programs that sleep or wait.

The time of day may be set at any moment: by NTP, by an administrator, or when a machine resumes. A
sleep of an hour must still last an hour, so its end is a time of a `SteadyClock`. Such a clock
shows the time of day when it is first started, and counts the passing seconds from then on:

- Within a boot of the machine, it uses the time since the boot, including suspended time
  (`CLOCK_BOOTTIME`). A later process of the same boot continues the clock from its last
  `ClockReading`.
- After another boot, or on another machine, only the time of day tells how much time has passed. If
  the time of day is behind the clock, the clock assumes that no time has passed, and never goes
  backwards. A machine without a clock battery starts with such a time of day, and sets it soon
  after the boot. Once the time of day is ahead of the clock again, the clock catches up with it.

A date and time that a person gives, as in a cron schedule, is a time of day and not a time of this
clock. `SteadyClock.time_of_day` converts a time of the clock for display.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

LOOK_S = 10.0
"""Seconds between two looks at the clock while waiting, because the timers of an event loop stop
while the machine is suspended.
"""
KEEP_S = 600.0
"""Maximum age of the last saved reading of a clock, in seconds. At the first look after this time,
the owner of the clock saves a new reading. The owner also saves the reading when it ends, and when
the time of day was set. If the machine crashes and then boots with a time of day that is behind the
clock, the clock loses the time since the last saved reading.
"""
EARLY_S = 0.001
"""Maximum time by which a timer of an event loop fires too early, in seconds."""
_MOST_DOUBLINGS = 64
SET_S = 0.05
"""Smallest change of the time of day, in seconds, that counts as setting it. Smaller changes are
noise.
"""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/time")
"""The time namespace: two containers may count the time since the same boot differently."""


def backoff_s(first_s: float, failures: int, longest_s: float) -> float:
    """Return the pause after ``failures`` failures in a row (at least 1), in seconds.

    The first pause lasts ``first_s``. Each further pause is twice as long, up to ``longest_s``.
    """
    # The exponent is limited, because a float overflows after 1,024 doublings. With a pause of a
    # minute, an outage reaches this number within a day.
    return min(longest_s, first_s * 2.0 ** min(failures - 1, _MOST_DOUBLINGS))


def seconds_since_boot() -> float:
    """Return the seconds since the machine's boot, including suspended time if possible."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


def name_of_boot() -> str:
    """Return an identifier of the machine's current boot; "" if the system has none."""
    try:
        boot = _BOOT.read_text("ascii").strip()
    except (OSError, ValueError):
        return ""
    try:
        return f"{boot} {_NAMESPACE.readlink()}"
    except OSError:
        return boot


def _seconds_of_loop() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class MachineClocks:
    """The clocks of a machine: ``time_of_day`` in seconds since 1970, which may be set, and the
    seconds ``since_boot``, which cannot be set.

    ``boot`` identifies the boot; "" if the system cannot tell. Waiting code looks at the clocks
    every ``look_s`` seconds.
    """

    time_of_day: Callable[[], float] = time.time
    since_boot: Callable[[], float] = seconds_since_boot
    boot: str = field(default_factory=name_of_boot)
    look_s: float = LOOK_S


class ClockReading(NamedTuple):
    """A reading of a `SteadyClock`. The clock showed ``now`` when ``since_boot`` seconds had passed
    since the machine's ``boot`` (an identifier). The time of day was ``shift`` seconds ahead of the
    clock.
    """

    boot: str
    since_boot: float
    now: float
    shift: float


class SteadyClock:
    """A clock that starts at the time of day, in seconds since 1970, and then counts the passing
    seconds.

    If there is a ``last`` reading of an earlier process, the clock continues from that reading.
    ``shift`` is the number of seconds by which the time of day was ahead of the clock at the last
    `look`.
    """

    def __init__(
        self, machine: MachineClocks | None = None, last: ClockReading | None = None
    ) -> None:
        self._machine = MachineClocks() if machine is None else machine
        self._last = last
        self._zero: float | None = None
        self._is_behind = False
        self.shift = 0.0

    @classmethod
    def of_loop(cls) -> SteadyClock:
        """Make a clock from the event loop's time, for programs that end with their process."""
        return cls(MachineClocks(since_boot=_seconds_of_loop, boot="", look_s=math.inf))

    def now(self) -> float:
        """Return the time that the clock shows, in seconds."""
        if self._zero is None:
            self._zero = self._start()
        return self._zero + self._machine.since_boot()

    def _start(self) -> float:
        machine, last = self._machine, self._last
        since_boot, time_of_day = machine.since_boot(), machine.time_of_day()
        if last is None:
            return time_of_day - since_boot
        self.shift = last.shift
        if machine.boot and machine.boot == last.boot and since_boot >= last.since_boot:
            return last.now - last.since_boot
        self._is_behind = time_of_day - last.shift < last.now
        return max(last.now, time_of_day - last.shift) - since_boot

    def look(self) -> bool:
        """Update ``shift``, and return whether the time of day was set since the last look."""
        now, time_of_day = self.now(), self._machine.time_of_day()
        if self._is_behind:
            assert self._last is not None
            missing = time_of_day - self._last.shift - now
            if missing > SET_S:
                self._is_behind = False
                self._zero, now = now + missing - self._machine.since_boot(), now + missing
        shift = time_of_day - now
        if abs(shift - self.shift) < SET_S:
            return False
        self.shift = shift
        return True

    def reading(self) -> ClockReading:
        """Return a reading from which a later process can continue the clock."""
        self.look()
        return ClockReading(self._machine.boot, self._machine.since_boot(), self.now(), self.shift)

    def time_of_day(self, at: float) -> float:
        """Convert a time of this clock into a time of day for display, by the machine's clock as
        it is set now.
        """
        self.look()
        return at + self.shift

    def at(self, time_of_day: float) -> float:
        """Convert a time of day of the machine's clock, as that clock is set now, into a time of
        this clock.
        """
        self.look()
        return time_of_day - self.shift

    # -- waiting -----------------------------------------------------------------------

    @property
    def look_s(self) -> float:
        """The seconds between two looks at the clock while waiting."""
        return self._machine.look_s

    async def sleep(self, seconds: float) -> None:
        """Sleep for some seconds of this clock."""
        until = self.now() + seconds
        await asyncio.sleep(min(seconds, self.look_s))
        while (left := until - self.now()) > EARLY_S:  # noqa: ASYNC110  # no event to wait for
            await asyncio.sleep(min(left, self.look_s))

    async def wait(self, future: asyncio.Future[Any], timeout: float | None) -> bool:
        """Wait until a future is done or ``timeout`` seconds have passed. Return whether it is
        done.
        """
        if timeout is None:
            await asyncio.wait([future])
            return True
        until, left = self.now() + timeout, timeout
        while not (await asyncio.wait([future], timeout=min(left, self.look_s)))[0]:
            if (left := until - self.now()) <= EARLY_S:
                return False
        return True

    def call_later(self, seconds: float, do: Callable[[], object]) -> Alarm:
        """Call ``do`` on the running loop after some seconds of this clock."""
        return Alarm(self, self.now() + seconds, do)


class Alarm:
    """A call of ``do`` at a time of a ``clock``. It can be cancelled."""

    def __init__(self, clock: SteadyClock, at: float, do: Callable[[], object]) -> None:
        self._clock, self._at, self._do = clock, at, do
        self._set()

    def _set(self) -> None:
        seconds = min(max(0.0, self._at - self._clock.now()), self._clock.look_s)
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        if self._at - self._clock.now() > EARLY_S:
            self._set()
        else:
            self._do()

    def cancel(self) -> None:
        """Cancel the call. Idempotent."""
        self._timer.cancel()
