#!/usr/bin/env python3
"""What the labelling client costs, and what the cascade saves.

Two measurements, printed as Markdown and, with ``--output``, written to a file:

1. The client against a loopback server in its own process that takes 50 ms a request in 256 slots and queues what exceeds them:
   the share of the ideal 5,120 requests a second that is kept, with the verdict parsed and journaled for each, and the CPU time a
   request costs. The same with httpx as transport, for comparison.
2. Judge calls a candidate on a merge, with identical answers and one call per distinct pair alone, and with all stages.

``python docs/benchmarks/labelling_client.py --merged merged.jsonl --output docs/benchmarks/labelling_client.md``
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import datetime
import multiprocessing
import os
import platform
import statistics
import tempfile
import time
from collections import deque
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import orjson

from genselect.answers import Cascade
from genselect.config import JudgeClient, Sampling
from genselect.config.models import JudgePrompt as PromptSection
from genselect.judge import JudgePrompt, parse_verdict
from genselect.judge.client import ChatClient, Reply
from genselect.judge.interrupt import run_async
from genselect.judge.journal import Journal, content_key
from genselect.judge.pairs import Shard, open_questions, read_answers

LATENCY_S = 0.05
SLOTS = 256
IDEAL = SLOTS / LATENCY_S
HTTPX_REQUESTS = 1000

_REPLY = {"role": "assistant", "content": "Reasoning: 3/2 is the same number as 1.5.\nJudgement: Yes"}
_BODY = orjson.dumps({"choices": [{"index": 0, "message": _REPLY, "finish_reason": "stop"}]})
_MODELS = orjson.dumps({"data": [{"id": "judge"}]})


class SlotServer(asyncio.Protocol):
    """As little HTTP as keep-alive clients need, so that the server is not what is measured."""

    free = SLOTS
    waiting: deque[SlotServer] = deque()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client connected."""
        self.transport, self.buffer = transport, b""

    def data_received(self, data: bytes) -> None:
        """Part of a request came in."""
        self.buffer += data
        head, mark, rest = self.buffer.partition(b"\r\n\r\n")
        _, _, length = head.lower().partition(b"content-length:")
        if not mark or len(rest) < int(length.split(b"\r\n", 1)[0] or 0):
            return
        self.buffer = b""
        if head.startswith(b"GET"):
            self.send(_MODELS)
        elif SlotServer.free:
            SlotServer.free -= 1
            self.begin()
        else:
            SlotServer.waiting.append(self)

    def begin(self) -> None:
        """A slot is free: take it for the latency."""
        asyncio.get_running_loop().call_later(LATENCY_S, self.finish)

    def finish(self) -> None:
        """Answer, and pass the slot on."""
        if SlotServer.waiting:
            SlotServer.waiting.popleft().begin()
        else:
            SlotServer.free += 1
        self.send(_BODY)

    def send(self, body: bytes) -> None:
        """Write a response."""
        if not self.transport.is_closing():
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            self.transport.write(head + body)


def serve(parent: Connection) -> None:
    async def run() -> None:
        server = await asyncio.get_running_loop().create_server(SlotServer, "127.0.0.1", 0, backlog=1024)
        parent.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    # Half the server's cost, so that two cores are enough for both; uvloop comes with vLLM.
    with contextlib.suppress(ImportError):
        import uvloop

        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.run(run())


def measure_client(port: int, concurrency: int, requests: int) -> tuple[float, float]:
    """Seconds, and CPU seconds, of the client as a labelling job uses it."""
    prompt = JudgePrompt.load(PromptSection())
    settings = JudgeClient(concurrency=concurrency)
    keys = [content_key("problem", str(number), "answer", "fingerprint") for number in range(requests)]

    async def run(journal: Journal) -> None:
        async with ChatClient("judge", [f"http://127.0.0.1:{port}/v1"], Sampling(), settings) as client:
            await client.check()
            await client.ask_all(
                range(requests),
                lambda number: prompt.messages(f"What is {number} halves?", f"{number}/2", str(number / 2)),
                lambda number, reply: record(journal, number, reply),
            )

    def record(journal: Journal, number: int, reply: Reply) -> None:
        assert reply.text is not None
        journal.append("judge", keys[number], verdict=parse_verdict(reply.text), reasoning="", calls=reply.calls)

    with tempfile.TemporaryDirectory() as folder, Journal(folder) as journal:
        began, cpu = time.perf_counter(), time.process_time()
        run_async(lambda: run(journal))
        return time.perf_counter() - began, time.process_time() - cpu


def measure_httpx(port: int) -> tuple[float, float]:
    """The same of the transport alone, as httpx has it."""
    body = orjson.dumps({"model": "judge", "messages": [{"role": "user", "content": "x" * 2000}]})

    async def run() -> None:
        limits = httpx.Limits(max_connections=SLOTS, max_keepalive_connections=SLOTS)
        async with httpx.AsyncClient(limits=limits, timeout=None) as client:

            async def worker(numbers: range) -> None:
                for _ in numbers:
                    response = await client.post(f"http://127.0.0.1:{port}/v1/chat/completions", content=body)
                    orjson.loads(response.content)

            await asyncio.gather(*(worker(range(index, HTTPX_REQUESTS, SLOTS)) for index in range(SLOTS)))

    began, cpu = time.perf_counter(), time.process_time()
    asyncio.run(run())
    return time.perf_counter() - began, time.process_time() - cpu


def row(what: str, concurrency: int, requests: int, runs: list[tuple[float, float]]) -> str:
    """Best and worst throughput, and the median CPU time, of the runs."""
    best, worst = (requests / pick(seconds for seconds, _ in runs) for pick in (min, max))
    cpu = statistics.median(cpu for _, cpu in runs) / requests * 1e6
    cells = [
        what,
        f"{concurrency}",
        f"{requests:,}",
        f"{best:,.0f}",
        f"{best / IDEAL:.1%}",
        f"{worst / IDEAL:.1%}",
        f"{cpu:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def measure_calls(merged: Path) -> list[str]:
    """Judge calls a candidate, by the stages that are on."""
    problems = read_answers(merged, Shard())
    pairs = list(dict.fromkeys(pair for problem in problems for pair in problem.pairs()))
    candidates = sum(len(problem.boxed) for problem in problems)
    rows = []

    def add(what: str, calls: int) -> None:
        rows.append(f"| {what} | {calls:,} | {calls / candidates:.3f} |")

    add("one call a candidate with a box", sum(boxed is not None for problem in problems for boxed in problem.boxed))
    with Cascade(symbolic=False) as cascade:
        first = cascade.decide_many(pairs)
    add(
        "identical, one call a distinct pair",
        sum(first[pair] is None for problem in problems for pair in problem.pairs()),
    )
    add("… and one call a normal form", len(open_questions(problems, first, "")))
    with Cascade() as cascade:
        both = cascade.decide_many(pairs)
    add("all stages: … and symbolic", len(open_questions(problems, both, "")))
    head = [f"`{merged.name}`: {len(problems):,} problems, {candidates:,} candidates.", ""]
    return [*head, "| stages | judge calls | calls a candidate |", "|---|---:|---:|", *rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--merged", type=Path, help="merged.jsonl for the second table; left out, that table is")
    parser.add_argument(
        "--requests", type=int, default=30_000, help="requests of each run of the client (default: 30,000)"
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of the client for each setting (default: 5)")
    parser.add_argument("--output", type=Path, help="Markdown file to write the tables to")
    arguments = parser.parse_args()

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    port = ours.recv()

    def client_row(concurrency: int) -> str:
        runs = [measure_client(port, concurrency, arguments.requests) for _ in range(arguments.runs)]
        return row("the client (aiohttp)", concurrency, arguments.requests, runs)

    lines = [
        "# Labelling client",
        "",
        f"Measured {datetime.date.today()} by `docs/benchmarks/labelling_client.py` on {os.cpu_count()} cores, Python "
        f"{platform.python_version()}. Server: its own process, 50 ms a request, {SLOTS} slots, a queue before them: at best "
        f"{IDEAL:,.0f} requests a second. The client renders the prompt, parses the verdict and journals it. Connecting is in the time. "
        f"{arguments.runs} runs each; load average of the machine before: {os.getloadavg()[0]:.1f} (other work only ever takes away, so "
        "the best run says what the client can do, and the worst how much was taken). A client with as many requests in flight as the "
        "server has slots leaves a slot empty while it handles that slot's reply; twice as many keep a queue at the server.",
        "",
        "| | in flight at most | requests | a second, best | of the ideal, best | worst | client CPU, µs a request |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *(client_row(concurrency) for concurrency in (SLOTS, 2 * SLOTS)),
        row("httpx, transport alone", SLOTS, HTTPX_REQUESTS, [measure_httpx(port)]),
    ]
    server.terminate()
    if arguments.merged:
        lines += ["", "## Judge calls", "", *measure_calls(arguments.merged)]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
