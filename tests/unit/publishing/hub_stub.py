"""A Hub on the loopback for the real client: repositories with commits, large files over LFS, limits, faults, and a power switch.

Not Xet: its storage protocol is closed to a stub, so the tests set ``HF_HUB_DISABLE_XET`` and the client takes the LFS way.
"""

import base64
import hashlib
import json
import os
import re
import signal
import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

OWNER = "someone"
TOKEN = "hf_" + "w" * 34
READER = "hf_" + "r" * 34
LARGE = (".parquet", ".tar", ".safetensors", ".png")
PAGE = 7


def git_sha1(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class Limits:
    commit_files: int = 100
    folder_entries: int = 10_000
    commit_bytes: int = 10**9
    """Of a commit request; beyond it takes too long, and the Hub's gateway gives up."""
    storage_bytes: int = 10**12


@dataclass
class Fault:
    """What happens instead of the next ``times`` requests whose method and path fit."""

    method: str
    path: str
    times: int = 1
    status: int | None = None
    headers: dict = field(default_factory=dict)
    error: str = ""
    reset_after: int | None = None
    """Bytes of the body after which the connection is reset."""
    lose_answer: bool = False
    """Do it, and say nothing."""


@dataclass
class Repo:
    private: bool
    commits: list = field(default_factory=list)
    """Pairs of sha and tree (content by path), oldest first."""

    @property
    def head(self):
        return self.commits[-1][0]

    @property
    def tree(self):
        return self.commits[-1][1]

    def at(self, revision):
        if revision == "main":
            return self.commits[-1]
        return next((commit for commit in self.commits if commit[0] == revision), None)


class Hub:
    """What the stub holds, how it misbehaves, and what it was sent."""

    def __init__(self):
        self.repos = {}
        self.limits = Limits()
        self.faults = []
        self.storage = {}
        """Large files by sha256."""
        self.received = Counter()
        """How often each large content came in whole."""
        self.committed = Counter()
        """How often each small content was taken, by path and sum."""
        self.requests = []
        self.tokens = set()
        self.kill_at = None
        """At this moment (see ``moment``) the process in ``victim`` is killed."""
        self.victim = None
        self.moments = []
        self.lock = threading.RLock()
        self.serve()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.server.server_port}"

    def repo(self, name=f"{OWNER}/experiment"):
        return self.repos[name]

    def add_repo(self, name=f"{OWNER}/experiment", private=True, files=None):
        repo = Repo(private)
        self.repos[name] = repo
        self.add_commit(repo, {".gitattributes": b"*.parquet filter=lfs\n", **(files or {})})
        return repo

    def add_commit(self, repo, tree):
        with self.lock:
            sha = hashlib.sha1(f"{len(repo.commits)}{sorted(tree)}{id(repo)}".encode()).hexdigest()
            repo.commits.append((sha, tree))
            return sha

    def moment(self, what):
        """A point at which the publisher may die."""
        with self.lock:
            self.moments.append(what)
            if self.kill_at == len(self.moments):
                os.kill(self.victim, signal.SIGKILL)
                raise ConnectionAbortedError

    def uploads(self):
        """Requests that brought content, or made a commit."""
        return [line for line in self.requests if line.startswith("PUT") or "/commit/" in line]

    def serve(self):
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


class _Refusal(Exception):
    def __init__(self, status, error, **headers):
        super().__init__(error)
        self.status, self.error, self.headers = status, error, {k.replace("_", "-"): v for k, v in headers.items()}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Else each answer waits 40 ms for the client's acknowledgement of its headers.
    disable_nagle_algorithm = True
    hub: Hub

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self.handle_one()

    do_HEAD = do_POST = do_PUT = do_GET

    def handle_one(self):
        hub = self.hub
        url = urlsplit(self.path)
        path = unquote(url.path)
        with hub.lock:
            hub.requests.append(f"{self.command} {path}")
            if not path.startswith("/lfs/"):  # its addresses are signed, and no token goes there
                hub.tokens.add(self.headers.get("Authorization"))
            fault = next(
                (f for f in hub.faults if f.times > 0 and f.method == self.command and re.search(f.path, path)), None
            )
            if fault:
                fault.times -= 1
        try:
            if fault and fault.reset_after is not None:
                self.rfile.read(min(fault.reset_after, int(self.headers.get("Content-Length") or 0)))
                return self.reset()
            body = self.body(path)
            if fault and fault.status:
                raise _Refusal(fault.status, fault.error or "as planned", **fault.headers)
            status, headers, content = self.answer(path, parse_qs(url.query), body)
            if fault and fault.lose_answer:
                return self.reset()
            self.reply(status, headers, content)
        except _Refusal as refusal:
            content = json.dumps({"error": refusal.error}).encode()
            self.reply(refusal.status, {"X-Error-Message": refusal.error, **refusal.headers}, content)

    def body(self, path):
        length = int(self.headers.get("Content-Length") or 0)
        if self.command == "PUT" and path.startswith("/lfs/"):
            half = self.rfile.read(length // 2)
            self.hub.moment("in the middle of a large file")
            return half + self.rfile.read(length - len(half))
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(length)

    def reset(self):
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def reply(self, status, headers, content):
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    # Who asks

    def user(self):
        sent = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if not sent:
            return None
        if sent not in (TOKEN, READER):
            raise _Refusal(401, "Invalid credentials in Authorization header")
        return sent

    def must_write(self):
        if self.user() != TOKEN:
            raise _Refusal(403, "Forbidden: you must use a write token")

    def find(self, name):
        repo = self.hub.repos.get(name)
        if (
            repo is None
            or (repo.private and self.user() is None)
            or (repo.private and not name.startswith(f"{OWNER}/"))
        ):
            raise _Refusal(404 if self.user() else 401, "Repository not found", X_Error_Code="RepoNotFound")
        return repo

    def commit_of(self, repo, revision):
        commit = repo.at(revision)
        if commit is None:
            raise _Refusal(404, f"Invalid rev id: {revision}", X_Error_Code="RevisionNotFound")
        return commit

    # What is asked

    def answer(self, path, query, body):
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            return json_answer({"errors": [], "warnings": []})
        if path.startswith("/lfs/"):
            return self.store(path.removeprefix("/lfs/"), body)
        if match := re.fullmatch(r"/datasets/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            return self.lfs_batch(match[1], json.loads(body))
        if match := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.resolve(*match.groups())
        match = re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/(\w[\w-]*)(?:/(.*))?)?", path)
        name, verb, rest = match.groups()
        repo = self.find(name)
        if verb in (None, "revision"):
            sha, tree = self.commit_of(repo, rest or "main")
            siblings = [{"rfilename": path} for path in sorted(tree)]
            return json_answer({"id": name, "sha": sha, "private": repo.private, "siblings": siblings})
        if verb == "tree":
            return self.tree(repo, rest, query)
        if verb == "settings":
            self.must_write()
            repo.private = json.loads(body)["visibility"] == "private"
            return json_answer({"private": repo.private})
        if verb == "preupload":
            self.must_write()
            return self.preupload(repo, json.loads(body))
        assert verb == "commit", path
        self.must_write()
        return self.commit(name, repo, body)

    def create(self, asked):
        self.must_write()
        name = f"{asked.get('organization') or OWNER}/{asked['name']}"
        if not name.startswith(f"{OWNER}/"):
            if name in self.hub.repos:
                raise _Refusal(409, "You already created this dataset repo")
            raise _Refusal(
                403, f"You don't have the rights to create a dataset under the namespace {asked['organization']!r}"
            )
        if name in self.hub.repos:
            raise _Refusal(409, "You already created this dataset repo")
        assert asked["type"] == "dataset", asked
        self.hub.add_repo(name, asked.get("visibility") == "private")
        return json_answer({"url": f"{self.hub.endpoint}/datasets/{name}"})

    def tree(self, repo, revision, query):
        _, tree = self.commit_of(repo, revision)
        start = int(query.get("cursor", ["0"])[0])
        page = sorted(tree)[start : start + PAGE]
        entries = []
        for path in page:
            content = tree[path]
            entry = {"type": "file", "path": path, "size": len(content), "oid": git_sha1(content)}
            if is_large(path, content):
                pointer = f"oid sha256:{hashlib.sha256(content).hexdigest()}".encode()
                entry |= {
                    "oid": git_sha1(pointer),
                    "lfs": {
                        "oid": hashlib.sha256(content).hexdigest(),
                        "size": len(content),
                        "pointerSize": len(pointer),
                    },
                }
            entries.append(entry)
        status, headers, content = json_answer(entries)
        if start + PAGE < len(tree):
            address = f"{self.hub.endpoint}{urlsplit(self.path).path}?recursive=True&cursor={start + PAGE}"
            headers["Link"] = f'<{address}>; rel="next"'
        return status, headers, content

    def preupload(self, repo, asked):
        files = []
        for file in asked["files"]:
            there = repo.tree.get(file["path"])
            large = is_large(file["path"], base64.b64decode(file["sample"]))
            oid = None
            if there is not None:
                oid = hashlib.sha256(there).hexdigest() if large else git_sha1(there)
            files.append(
                {"path": file["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": oid}
            )
        return json_answer({"files": files})

    def lfs_batch(self, name, asked):
        self.must_write()
        self.find(name)
        objects = []
        used = sum(map(len, self.hub.storage.values()))
        for wanted in asked["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.hub.storage:
                if used + wanted["size"] > self.hub.limits.storage_bytes:
                    raise _Refusal(403, "Private repository storage limit reached, please upgrade your plan")
                used += wanted["size"]
                entry["actions"] = {"upload": {"href": f"{self.hub.endpoint}/lfs/{wanted['oid']}"}}
            objects.append(entry)
        return json_answer({"transfer": "basic", "objects": objects})

    def store(self, oid, body):
        if hashlib.sha256(body).hexdigest() != oid:
            raise _Refusal(400, "content does not match its oid")
        with self.hub.lock:
            self.hub.storage[oid] = body
            self.hub.received[oid] += 1
            self.hub.moment("a large file is stored, the answer not sent")
        return 200, {}, b""

    def commit(self, name, repo, body):
        hub = self.hub
        hub.moment("a commit is received, not made")
        lines = [json.loads(line) for line in body.splitlines()]
        header, operations = lines[0]["value"], lines[1:]
        with hub.lock:
            if len(body) > hub.limits.commit_bytes:
                raise _Refusal(504, "Gateway Time-out")
            if len(operations) > hub.limits.commit_files:
                raise _Refusal(413, f"too many files in one commit: {len(operations)}")
            if header.get("parentCommit") not in (None, repo.head):
                raise _Refusal(412, "A commit has happened since. Please refresh and try again.")
            tree = dict(repo.tree)
            for operation in operations:
                value = operation["value"]
                if operation["key"] == "deletedFile":
                    if value["path"] not in tree:
                        raise _Refusal(404, "A file with this name doesn't exist", X_Error_Code="EntryNotFound")
                    del tree[value["path"]]
                elif operation["key"] == "lfsFile":
                    tree[value["path"]] = hub.storage[value["oid"]]
                else:
                    content = base64.b64decode(value["content"])
                    tree[value["path"]] = content
                    hub.committed[value["path"], git_sha1(content)] += 1
            folders = Counter(path.rpartition("/")[0] for path in tree)
            if max(folders.values()) > hub.limits.folder_entries:
                raise _Refusal(400, f"too many entries in one folder (limit {hub.limits.folder_entries})")
            sha = hub.add_commit(repo, tree)
        hub.moment("a commit is made, the answer not sent")
        return json_answer({"commitUrl": f"{hub.endpoint}/datasets/{name}/commit/{sha}", "commitOid": sha})

    def resolve(self, name, revision, path):
        sha, tree = self.commit_of(self.find(name), revision)
        if path not in tree:
            raise _Refusal(404, "Entry not found", X_Error_Code="EntryNotFound")
        content = tree[path]
        etag = hashlib.sha256(content).hexdigest() if is_large(path, content) else git_sha1(content)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        if span := self.headers.get("Range"):
            start = int(span.removeprefix("bytes=").split("-")[0])
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            return 206, headers, content[start:]
        return 200, headers, content


def is_large(path, content):
    """As .gitattributes and the Hub's look at the first bytes decide."""
    return path.endswith(LARGE) or b"\0" in content[:512]


def json_answer(value):
    return 200, {}, json.dumps(value).encode()
