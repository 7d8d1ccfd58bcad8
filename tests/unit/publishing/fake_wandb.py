"""A stand-in for W&B's server on loopback: as much of it as its real client asks to send, resume and finish runs."""

from __future__ import annotations

import gzip
import http.server
import json
import re
import threading
from dataclasses import dataclass, field
from typing import Any


@dataclass
class StoredRun:
    """What the server has of one run."""

    history: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    notes: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    finished: bool = False

    @property
    def steps(self) -> list[int]:
        return [row["_step"] for row in self.history]


class FakeWandb:
    """Serves on a free port; ``runs`` by id, ``asked`` the operations in order, ``keys`` the keys that came along."""

    def __init__(self) -> None:
        self.runs: dict[str, StoredRun] = {}
        self.asked: list[str] = []
        self.bodies: list[bytes] = []
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._reply({})

            def do_PUT(self) -> None:
                body = self._body()
                _, run, name = self.path.lstrip("/").split("/", 2)
                fake.runs[run].files[name] = body
                self._reply({})

            def do_POST(self) -> None:
                body = self._body()
                fake.bodies.append(body)
                if self.path != "/graphql" and not self.path.startswith("/files/"):
                    fake.asked.append(self.path)
                    self._reply({})
                    return
                values = json.loads(body)
                if match := re.fullmatch(r"/files/.*/([^/]+)/file_stream", self.path):
                    fake.asked.append("file_stream")
                    self._reply(fake.stream(match[1], values))
                else:
                    operation = re.search(r"(?:query|mutation)\s+(\w+)", values["query"])
                    fake.asked.append(operation[1] if operation else values["query"])
                    self._reply({"data": fake.answer(fake.asked[-1], values.get("variables") or {})})

            def _body(self) -> bytes:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

            def _reply(self, values: dict[str, Any]) -> None:
                body = json.dumps(values).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def stream(self, name: str, values: dict[str, Any]) -> dict[str, Any]:
        run = self.runs[name]
        for file, chunk in (values.get("files") or {}).items():
            if file == "wandb-history.jsonl":
                run.history[chunk["offset"] :] = [json.loads(line) for line in chunk["content"]]
            elif file == "wandb-summary.json":
                run.summary = json.loads(chunk["content"][-1])
        run.finished = run.finished or bool(values.get("complete"))
        return {}

    def answer(self, operation: str, asked: dict[str, Any]) -> dict[str, Any]:
        entity = {"id": "e", "name": asked.get("entity")}
        project = {"id": "p", "name": asked.get("project"), "entity": entity}
        if operation == "RunResumeStatus":
            run = self.runs.get(asked["name"])
            return {"model": {**project, "bucket": run and self._bucket(asked["name"], run)}}
        if operation == "UpsertBucket":
            inserted = asked["name"] not in self.runs
            run = self.runs.setdefault(asked["name"], StoredRun())
            run.config |= json.loads(asked["config"]) if asked["config"] else {}
            run.tags = asked["tags"] or run.tags
            run.notes = asked["notes"] or run.notes
            return {
                "upsertBucket": {
                    "bucket": {**self._bucket(asked["name"], run), "project": project},
                    "inserted": inserted,
                }
            }
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"{self.url}/upload/{asked['run']}/{name}"} for name in asked["files"]]
            return {"createRunFiles": {"runID": "r", "uploadHeaders": [], "files": files}}
        if operation == "Viewer":
            return {
                "viewer": {
                    "id": "v",
                    "entity": "me",
                    "username": "me",
                    "email": None,
                    "flags": "{}",
                    "teams": {"edges": []},
                }
            }
        return {}

    @staticmethod
    def _bucket(name: str, run: StoredRun) -> dict[str, Any]:
        return {
            "id": f"bucket-{name}",
            "name": name,
            "displayName": name,
            "description": None,
            "summaryMetrics": json.dumps(run.summary),
            "config": json.dumps(run.config),
            "tags": run.tags,
            "notes": run.notes,
            "sweepName": None,
            "logLineCount": 0,
            "historyLineCount": len(run.history),
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(run.history[-1])] if run.history else []),
            "eventsTail": "[]",
            "wandbConfig": json.dumps({"t": 0}),
        }
