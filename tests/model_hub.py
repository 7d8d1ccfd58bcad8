"""A Hub of our own on this machine, with one model, for the real client."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import threading

COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b'{"model_type": "tiny"}',
    "sub/notes.md": b"# notes\n",
    "model.safetensors": bytes(range(256)) * 40,
}
LARGE = {"model.safetensors"}
REFUSALS = {
    "no/such": (404, "RepoNotFound"),
    "no/token": (401, None),
    "no/licence": (403, "GatedRepo"),
    "no/commit": (404, "RevisionNotFound"),
    "no/luck": (500, None),
}


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def described(name):
    content = FILES[name]
    entry = {"size": len(content), "blob": git_sha1(content)}
    if name in LARGE:
        entry["lfs"] = hashlib.sha256(content).hexdigest()
    return entry


class Hub(http.server.BaseHTTPRequestHandler):
    """The parts of the Hub's API that the client asks for a snapshot."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        state = self.server.state
        path = self.path.partition("?")[0]
        state["asked"].append((self.command, path))
        for repo, (status, code) in REFUSALS.items():
            if repo in path:
                return self.answer(b"{}", status, {"X-Error-Code": code} if code else {})
        if "/resolve/" in path:
            name = path.partition(f"/resolve/{COMMIT}/")[2]
            if self.command == "GET" and state["fail_on"] == name:
                return self.answer(b"", 503)
            content = state["served"].get(name, FILES[name])
            etag = described(name).get("lfs") or git_sha1(FILES[name])
            return self.answer(content, 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
        if "/tree/" in path:
            tree = []
            for name in FILES:
                entry = described(name)
                tree.append({"type": "file", "oid": entry["blob"], "size": entry["size"], "path": name})
                if "lfs" in entry:
                    tree[-1]["lfs"] = {"oid": entry["lfs"], "size": entry["size"], "pointerSize": 100}
            return self.answer(json.dumps(tree).encode(), 200)
        siblings = []
        for name in FILES:
            entry = described(name)
            siblings.append({"rfilename": name, "size": entry["size"], "blobId": entry["blob"]})
            if "lfs" in entry:
                siblings[-1]["lfs"] = {"sha256": entry["lfs"], "size": entry["size"], "pointerSize": 100}
        return self.answer(json.dumps({"id": "some/model", "sha": COMMIT, "siblings": siblings}).encode(), 200)

    def answer(self, content, status, headers=None):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@contextlib.contextmanager
def model_hub():
    """A server whose ``state`` says what it was asked, what it serves instead of ``FILES``, and which file it fails on."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.state = {"asked": [], "served": {}, "fail_on": None}
    server.endpoint = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
