"""The vLLM server that a labelling job owns: started, waited for, watched, and gone when the job is, however it ends."""

from __future__ import annotations

import contextlib
import http.client
import importlib.util
import logging
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from genselect.config import Judge
from genselect.errors import GenselectError

#: Seconds that vLLM gets to shut down by itself.
GRACE_S = 15.0
#: Lines of the server's log shown when it fails.
LOG_LINES = 20

_POLL_S = 0.5
_FAULT = re.compile(r"\b\w*(?:Error|Exception): ")
# No usage statistics leave the machine, and the engine finds itself on the loopback.
_ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1", "DO_NOT_TRACK": "1", "VLLM_HOST_IP": "127.0.0.1"}

logger = logging.getLogger(__name__)


class VllmServer:
    """A context manager around ``vllm serve`` on 127.0.0.1. Entering starts it; :meth:`wait_until_ready` waits.

    Args:
        judge: Model, revision, server arguments and time-out.
        log: File for what the server prints; begun anew.
    """

    def __init__(self, judge: Judge, log: Path | str) -> None:
        self.log = Path(log)
        self._judge = judge
        self._port = judge.server.port

    @property
    def url(self) -> str:
        """Base URL, ending in ``/v1``."""
        return f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> VllmServer:
        if importlib.util.find_spec("vllm") is None:
            raise GenselectError(
                "judge.kind is vllm, and vllm is not installed beside this Python",
                "Run the labelling in the judge's environment, or use judge.kind: endpoints or rule.",
            )
        self._port = self._port or _free_port()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **_ENVIRONMENT, **self._judge.server.env}
        with self.log.open("wb") as log:
            # The keeper reads its end of this pipe; ours closes when this process ends, in whatever way.
            self._keeper = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("keeper.py")), str(GRACE_S), *self._command()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is ours to handle, not the server's
            )
        self._started = time.monotonic()
        logger.info("starting the judge %s at %s, log %s", self._judge.model, self.url, self.log)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeper.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._keeper.stdin.close()
        try:
            self._keeper.wait(timeout=GRACE_S + 10)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()

    def wait_until_ready(self) -> float:
        """Wait for the health check; returns the seconds since the start.

        Raises:
            GenselectError: The server ended, or is not ready within ``judge.server.startup_timeout_s``.
        """
        limit = self._judge.server.startup_timeout_s
        while not _is_healthy(self._port):
            self.check()
            if time.monotonic() - self._started > limit:
                raise GenselectError(
                    f"the judge {self._judge.model} was not ready within {limit:g} s; the end of {self.log}:\n{self._tail()}",
                    "Raise judge.server.startup_timeout_s if it was still loading.",
                )
            time.sleep(_POLL_S)
        seconds = time.monotonic() - self._started
        logger.info("the judge is ready after %.0f s", seconds)
        return seconds

    def check(self) -> None:
        """Raises GenselectError, with the end of the server's log, when the server has ended."""
        status = self._keeper.poll()
        if status is not None:
            raise GenselectError(
                f"the judge server ended with status {status}; the end of {self.log}:\n{self._tail()}",
                "Mend what the log names (model path or revision, judge.server.args, memory of the card), then start the "
                "same command again: verdicts so far are in the journal.",
            )

    def _command(self) -> list[str]:
        model = str(self._judge.model)
        revision = ["--revision", self._judge.revision] if self._judge.revision else []
        return [
            *(sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", model),
            *("--host", "127.0.0.1", "--port", str(self._port), "--served-model-name", model),
            *revision,
            *self._judge.server.args,
        ]

    def _tail(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        # vLLM's last line says to look above for the root cause: bring the faults along.
        causes = [line for line in lines[:-LOG_LINES] if _FAULT.search(line)][:3]
        return "\n".join(f"  | {line[:300]}" for line in [*causes, *lines[-LOG_LINES:]]) or "  | (empty)"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _is_healthy(port: int) -> bool:
    # No proxy: the environment's may not know 127.0.0.1.
    opener: Callable[..., http.client.HTTPResponse] = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
    try:
        with opener(f"http://127.0.0.1:{port}/health", timeout=5) as response:
            return response.status == 200
    except (urllib.error.URLError, http.client.HTTPException, OSError):
        return False
