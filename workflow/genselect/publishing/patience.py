"""The Hub's client with patience: what is tried again and after how long, and what a refusal means to a user.

The client tries some requests again by itself (asking how to upload, uploading, listing further pages) and others not (creating a
repository, committing). Here every call is tried again in one way, and waits as long as the Hub asks (Retry-After, RateLimit, or
the words of its commit limit).
"""

from __future__ import annotations

import datetime
import email.utils
import logging
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import tenacity
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import (  # type: ignore[attr-defined]  # public, but not in __all__
    disable_progress_bars,
    get_session,
    parse_ratelimit_headers,
)

from genselect.errors import GenselectError

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: 409 and 412: somebody else, or a commit of ours whose answer was lost, came first. The caller looks again before it tries again.
_AGAIN = {408, 409, 412, 425, 429, 500, 502, 503, 504}
#: A commit that is too large to be taken in time.
_TOO_MUCH = {408, 413, 502, 504}
#: Seconds without a byte after which a connection counts as dead; the client itself waits for ever. A commit may take the Hub 60 s.
_SILENCE_S = 120.0
#: What the Hub says of its commit limit: "You can retry this action in 37 minutes".
_WORDS = re.compile(r"retry this action in (?:about )?(\d+) (second|minute|hour)")
_UNIT_S = {"second": 1, "minute": 60, "hour": 3600}


@dataclass(frozen=True)
class Patience:
    """How long the Hub is waited for."""

    tries: int = 8
    """Of one call, the first one included."""
    first_s: float = 1.0
    """Wait after the first failure; doubled after each further one."""
    longest_s: float = 60.0
    asked_s: float = 3900.0
    """The longest wait that the Hub may ask for (commits are limited by the hour). Beyond it the publish ends; a later start goes on."""


PATIENCE = Patience()


def patiently(call: Callable[[], T], patience: Patience, what: str, repository: str, *, right: str = "write to") -> T:
    """``call()``, tried again while the Hub is busy or the connection breaks.

    Args:
        call: Safe to make again.
        patience: How often and how long.
        what: What it does, for messages: "uploading".
        repository: Whose Hub repository.
        right: What the token must allow.

    Raises:
        GenselectError: It was refused, or failed once too often. Says what to do.
    """

    def wait(state: tenacity.RetryCallState) -> float:
        asked = _asked(_error(state))
        return backoff(state) if asked is None else asked + 1.0

    def announce(state: tenacity.RetryCallState) -> None:
        seconds = state.next_action.sleep if state.next_action else 0.0
        logger.info("%s: %s; trying again in %.0f s", what, _short(_error(state)), seconds)

    def worth_it(error: BaseException) -> bool:
        asked = _asked(error)
        return is_transient(error) and (asked is None or asked <= patience.asked_s)

    def attempt() -> T:
        get_session().timeout = _SILENCE_S
        return call()

    backoff = tenacity.wait_exponential(multiplier=patience.first_s, max=patience.longest_s)
    retrying = tenacity.Retrying(
        wait=wait,
        stop=tenacity.stop_after_attempt(patience.tries),
        retry=tenacity.retry_if_exception(worth_it),
        before_sleep=announce,
        reraise=True,
    )
    try:
        return retrying(attempt)
    except GenselectError:
        raise
    except Exception as error:
        if explained := explain(error, what, repository, right):
            raise explained from error
        raise


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed later."""
    answer = _answer(error)
    return answer.response.status_code in _AGAIN if answer else _is_transport(error)


def is_too_much(error: BaseException) -> bool:
    """Whether less at a time may succeed: the Hub took too long over it, or found it too large."""
    answer = _answer(error)
    return (
        answer.response.status_code in _TOO_MUCH
        if answer
        else any("Timeout" in type(e).__name__ for e in _chain(error))
    )


def status_of(error: BaseException) -> int | None:
    """The Hub's status, when it answered."""
    answer = _answer(error)
    return answer.response.status_code if answer else None


def explain(error: BaseException, what: str, repository: str, right: str) -> GenselectError | None:
    """What a user can do about ``error``; None when it is not the Hub's."""
    answer = _answer(error)
    where = f"{repository}: {what}"
    if answer is None:
        if _is_offline(error):
            return GenselectError(
                f"{where}: the Hub's client is set to work offline (HF_HUB_OFFLINE)", "Unset HF_HUB_OFFLINE."
            )
        if _is_transport(error):
            return GenselectError(
                f"{where}: the Hub cannot be reached, or the connection broke: {_short(error)}",
                "Check the network and proxy (HF_ENDPOINT, HTTPS_PROXY), then start the same command again: it goes on where it stopped.",
            )
        # The client's words for what the storage refused, one line a file; and Xet's.
        if (isinstance(error, ValueError) and "LFS batch API" in str(error)) or _refused_by_xet(error):
            return GenselectError(f"{where}: the Hub's storage refuses: {_short(error)}", _QUOTA)
        return None
    status, said = answer.response.status_code, _said(answer)
    if status in (402, 507) or (status == 403 and re.search(r"storage|quota|payment|upgrade", said, re.IGNORECASE)):
        return GenselectError(f"{where}: no room for it ({status}): {said}", _QUOTA)
    if status == 401 and "RepoNotFound" not in answer.response.headers.get("X-Error-Code", ""):
        return GenselectError(
            f"{where}: the Hub does not know the token (401): {said}",
            "Put a valid one in HF_TOKEN (https://huggingface.co/settings/tokens); a token that ended or was revoked is refused, too.",
        )
    if status == 403:
        return GenselectError(
            f"{where}: the token in HF_TOKEN may not do that (403): {said}",
            f"It needs to be a token with the right to {right} {repository} (https://huggingface.co/settings/tokens).",
        )
    if status in (401, 404):
        return GenselectError(
            f"{where}: there is no such thing, or it is hidden from this account ({status}): {said}",
            "Check the repository and revision; for a private one put a token that may read it in HF_TOKEN.",
        )
    if status == 429:
        return GenselectError(
            f"{where}: the Hub's limit is reached (429), and it asks for {_asked(error) or 'some'} s of rest: {said}",
            "Start the same command again after that: it goes on where it stopped.",
        )
    if status in _AGAIN:
        return GenselectError(
            f"{where}: the Hub answers {status}, again and again: {said}",
            "Start the same command again later: it goes on where it stopped.",
        )
    return GenselectError(
        f"{where}: the Hub refuses it ({status}): {said}",
        "If it names a limit (files in a folder or repository, size of a file), lower publish.max_files or leave something out "
        "(publish.leave_out), stage again and publish again.",
    )


_QUOTA = (
    "Free space in that account, or take another one (publish.repository); then start the same command again: it goes on where it "
    "stopped. publish.leave_out keeps files here."
)


def _asked(error: BaseException) -> float | None:
    """Seconds that the Hub asks to wait; None when it does not say."""
    answer = _answer(error)
    if answer is None:
        return None
    headers = answer.response.headers
    if (after := headers.get("Retry-After")) is not None:
        if after.strip().isdigit():
            return float(after)
        try:
            until = email.utils.parsedate_to_datetime(after)
            return max(0.0, (until - datetime.datetime.now(datetime.UTC)).total_seconds())
        except (TypeError, ValueError):
            pass
    limit = parse_ratelimit_headers(headers)
    if answer.response.status_code == 429 and limit is not None and limit.remaining == 0:
        return float(limit.reset_in_seconds)
    if (match := _WORDS.search(_said(answer))) is not None:
        return float(match[1]) * _UNIT_S[match[2]]
    return None


def _error(state: tenacity.RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome else None
    return error or RuntimeError("no outcome")


def _chain(error: BaseException) -> Iterator[BaseException]:
    """``error`` and what caused it: the client wraps what happens while it uploads."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__


def _answer(error: BaseException) -> Any:
    """The Hub's answer behind ``error``, as the client's exception; None when there was none."""
    return next((one for one in _chain(error) if isinstance(one, HfHubHTTPError)), None)


def _is_transport(error: BaseException) -> bool:
    if _refused_by_xet(error) or _is_offline(error):
        return False
    # By name: the client's transport is httpx before huggingface_hub 2 and httpx2 from then on. Xet raises Python's own.
    names = {base.__name__ for one in _chain(error) for base in type(one).__mro__}
    return bool(names & {"TransportError", "ConnectionError", "TimeoutError"})


def _is_offline(error: BaseException) -> bool:
    return any(isinstance(one, OfflineModeIsEnabled) for one in _chain(error))


def _refused_by_xet(error: BaseException) -> bool:
    return any(
        isinstance(one, OSError) and "HTTP status client error" in str(one) for one in _chain(error)
    ) and not _answer(error)


def _said(answer: Any) -> str:
    """The Hub's own words, in one line."""
    words = answer.server_message or str(answer)
    return " ".join(re.sub(r"\(Request ID[^)]*\)", "", words).split())[:400]


def _short(error: BaseException) -> str:
    answer = _answer(error)
    if answer is not None:
        return f"the Hub answers {answer.response.status_code} ({_said(answer)})"
    inner = list(_chain(error))[-1]
    lines = [line.strip() for line in str(inner).splitlines() if line.strip()]
    return " ".join(lines)[:200] if lines else type(inner).__name__


def quiet_client() -> None:
    """Without a terminal, no progress bars: in a log they are noise."""
    if not sys.stderr.isatty():
        disable_progress_bars()
