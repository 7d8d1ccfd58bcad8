"""Where a request goes, and how many may be under way: a pool of endpoints, and the breaker over all of them.

Each endpoint has a window, the number of requests it may have in flight. The window grows by one with each success until the
server first pushes back, and by one each window after that; a push-back (429, 503, a time-out) halves it. That is TCP's
additive increase, multiplicative decrease (Chiu and Jain 1989), which settles on what a server takes without being told.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque

from genselect.errors import GenselectError

#: Requests in flight that a new endpoint starts with.
FIRST_WINDOW = 128
#: Failed tries in a row, with no success between, after which an endpoint is set aside while others go on.
SET_ASIDE_AFTER = 3

logger = logging.getLogger(__name__)


class Endpoint:
    """One base URL with its window."""

    def __init__(self, url: str, most: int) -> None:
        self.url = url.rstrip("/")
        self.in_flight = 0
        self._most = most
        self._window = float(min(FIRST_WINDOW, most))
        self._slow_start = True
        self._shrunk_at = 0.0
        self.rests_until = 0.0
        self.failures = 0

    def room(self, now: float) -> int:
        """Requests that may start now."""
        return int(self._window) - self.in_flight if now >= self.rests_until else 0

    def grow(self) -> None:
        """A request succeeded."""
        self.failures = 0
        self._window = min(self._most, self._window + (1.0 if self._slow_start else 1.0 / self._window))

    def shrink(self, started: float, now: float) -> None:
        """A request that began at ``started`` was pushed back."""
        # Requests that were already under way at the last shrink bring no news.
        if started >= self._shrunk_at:
            self._window, self._slow_start, self._shrunk_at = max(1.0, self._window / 2), False, now

    def probe_only(self) -> None:
        """Come back with one request at a time."""
        self._window, self._slow_start = 1.0, True


class EndpointPool:
    """Spreads requests over endpoints: to the one with the most room, around those that are gone.

    Args:
        urls: Base URLs that end in ``/v1``.
        most: Requests in flight at most, over all endpoints.
        rest_s: Seconds an endpoint that is gone is left alone before it is tried again.
        breaker_failures: Failed tries in a row after which :meth:`failed` raises.
    """

    def __init__(self, urls: list[str], *, most: int, rest_s: float, breaker_failures: int) -> None:
        self.endpoints = [Endpoint(url, most) for url in dict.fromkeys(urls)]
        self.successes = 0
        """Requests answered so far."""
        self._rest_s = rest_s
        self._breaker_failures = breaker_failures
        self._failures = 0
        self._counted_at = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def remove(self, endpoint: Endpoint) -> None:
        """Never use ``endpoint``."""
        self.endpoints.remove(endpoint)

    async def take(self) -> Endpoint:
        """An endpoint with room for one more request, as soon as there is one; give it back with :meth:`give_back`."""
        while True:
            now = time.monotonic()
            room, best = max((endpoint.room(now), -index) for index, endpoint in enumerate(self.endpoints))
            if room > 0:
                endpoint = self.endpoints[-best]
                endpoint.in_flight += 1
                return endpoint
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn

    def give_back(self, endpoint: Endpoint) -> None:
        """The request is over, one way or the other."""
        endpoint.in_flight -= 1
        self._let_in()

    def succeeded(self, endpoint: Endpoint) -> None:
        """The server answered."""
        self._failures = 0
        self.successes += 1
        endpoint.grow()

    def failed(self, endpoint: Endpoint, started: float, what: str, *, push_back: bool, in_bursts: bool) -> None:
        """A try that began at ``started`` (monotonic seconds) failed.

        Args:
            what: The failure in words, for the error.
            push_back: The server has too much to do.
            in_bursts: One cause fails all requests in flight at once (a connection that is lost), so those count as one.

        Raises:
            GenselectError: It was one too many in a row.
        """
        now = time.monotonic()
        if push_back:
            endpoint.shrink(started, now)
        if in_bursts and started < self._counted_at:
            return
        self._counted_at = now
        self._failures += 1
        endpoint.failures += 1
        if self._failures >= self._breaker_failures:
            places = ", ".join(each.url for each in self.endpoints)
            raise GenselectError(
                f"the judge at {places} failed {self._failures} times in a row, the last time with: {what}",
                "Look at the judge server (or the SSH tunnel to it), then start the same command again: verdicts so far are kept.",
            )
        others = any(other is not endpoint and other.room(now) + other.in_flight > 0 for other in self.endpoints)
        if endpoint.failures >= SET_ASIDE_AFTER and others and not push_back:
            logger.warning("%s is set aside for %.0f s: %s", endpoint.url, self._rest_s, what)
            endpoint.probe_only()
            self.rest(endpoint, self._rest_s)

    def rest(self, endpoint: Endpoint, seconds: float) -> None:
        """Send nothing to ``endpoint`` for a while."""
        endpoint.rests_until = max(endpoint.rests_until, time.monotonic() + seconds)
        # A hair later than the rest, so that whoever wakes finds it over.
        asyncio.get_running_loop().call_later(seconds + 0.001, self._let_in)

    def _let_in(self) -> None:
        if not self._waiting:
            return
        now = time.monotonic()
        room = sum(max(0, endpoint.room(now)) for endpoint in self.endpoints)
        while self._waiting and room > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= 1
