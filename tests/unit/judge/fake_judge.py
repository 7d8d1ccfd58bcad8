"""A judge on the loopback for tests: right and wrong at once, honest about what it was asked, broken on demand.

As a program it serves until killed::

    python fake_judge.py --folder DIR [--latency S] [--model NAME] [--rules JSON]

It writes its port to ``DIR/port`` and every request it receives to ``DIR/requests.log`` (the predicted answer, the token cap and
how it was answered). It reads a prompt of the form ``PROMPT`` below and says Yes when the predicted answer ends in an even digit.

A rule is ``{"match": TEXT, "fault": NAME, "times": N}``: the first N requests whose answer contains TEXT meet the fault.
``{"die_after": N}`` ends the process at the N-th request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from aiohttp import web

PROMPT = "problem<{problem}> expected<{expected_answer}> predicted<{predicted_answer}>"


class FakeJudge:
    """Handle on the server process."""

    def __init__(
        self,
        folder: Path,
        *,
        latency: float = 0.0,
        model: str = "judge",
        rules: list[dict] | None = None,
        port: int = 0,
    ):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "port").unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [
                *(sys.executable, __file__, "--folder", str(folder), "--latency", str(latency), "--model", model),
                *("--rules", json.dumps(rules or []), "--port", str(port)),
            ]
        )
        deadline = time.monotonic() + 30
        while not (folder / "port").exists():
            assert self.process.poll() is None, "the fake judge did not start"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.port = int((folder / "port").read_text())
        self.url = f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> FakeJudge:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def requests(self) -> list[dict[str, Any]]:
        """What it was asked so far, in order."""
        log = self.folder / "requests.log"
        whole = log.read_text().rpartition("\n")[0] if log.exists() else ""  # the last line may be under way
        return [json.loads(line) for line in whole.splitlines()]

    def asked(self) -> list[str]:
        """The predicted answer of each request, in order."""
        return [request["predicted"] for request in self.requests()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--model", default="judge")
    parser.add_argument("--rules", type=json.loads, default=[])
    parser.add_argument("--port", type=int, default=0)
    asyncio.run(serve(parser.parse_args()))


async def serve(arguments: argparse.Namespace) -> None:
    service = _Service(arguments)
    application = web.Application()
    application.router.add_get("/v1/models", service.models)
    application.router.add_post("/v1/chat/completions", service.complete)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", arguments.port, backlog=1024)
    await site.start()
    port = arguments.folder / "port"
    port.with_suffix(".tmp").write_text(str(runner.addresses[0][1]))
    port.with_suffix(".tmp").rename(port)
    await asyncio.Event().wait()


class _Service:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.latency, self.model, self.rules = arguments.latency, arguments.model, arguments.rules
        self.seen = self.in_flight = 0
        self.log = (arguments.folder / "requests.log").open("a")

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self.model, "object": "model"}]})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        content = body["messages"][-1]["content"]
        found = re.search(r"predicted<(.*)>", content, re.DOTALL)
        predicted = found[1] if found else content
        self.seen += 1
        self.in_flight += 1
        fault = self.fault(predicted, body)
        line = {
            "predicted": predicted,
            "max_tokens": body["max_tokens"],
            "fault": fault,
            "body": body,
            "in_flight": self.in_flight,
        }
        self.log.write(json.dumps(line) + "\n")
        self.log.flush()
        try:
            if self.latency:
                await asyncio.sleep(self.latency)
            return await self.answer(request, predicted, fault)
        finally:
            self.in_flight -= 1

    def fault(self, predicted: str, body: dict) -> str | None:
        for rule in self.rules:
            if self.seen >= rule.get("die_after", float("inf")):
                os._exit(1)
            if rule.get("slots") and self.in_flight > rule["slots"]:
                return rule["fault"]
            if "match" in rule and rule["match"] in predicted and rule.get("times", 1) > 0:
                if rule["fault"] == "cut" and body["max_tokens"] > rule.get("below", 10**9):
                    continue
                rule["times"] = rule.get("times", 1) - 1
                return rule["fault"]
        return None

    async def answer(self, request: web.Request, predicted: str, fault: str | None) -> web.StreamResponse:
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "reset":
            request.transport.abort()
        if fault == "garbage":
            return web.Response(text="<html>502 Bad Gateway</html>", content_type="text/html")
        if fault == "empty":
            return web.Response(body=b"")
        if fault and fault.startswith("429"):
            _, _, after = fault.partition(":")
            return web.json_response(
                {"error": {"message": "slow down"}}, status=429, headers={"Retry-After": after} if after else {}
            )
        if fault and fault.isdecimal():
            return web.json_response({"error": {"message": f"scripted fault {fault}"}}, status=int(fault))
        if fault == "cut":
            return web.json_response(completion("Reasoning: on and on and", "length"))
        if fault == "unparsable":
            return web.json_response(completion("I would rather not say.", "stop"))
        word = "Yes" if predicted[-1:] in "02468" else "No"
        return web.json_response(completion(f"Reasoning: {predicted} was looked at.\nJudgement: {word}", "stop"))


def completion(text: str, finish: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}


if __name__ == "__main__":
    main()
