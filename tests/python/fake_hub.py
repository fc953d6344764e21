"""A Hugging Face hub on the loopback interface: serves folders as repositories, and fails on request.

Answers what `huggingface_hub` asks for a model: its commit with the sizes and digests of its files, and the
files, in ranges, with their weights in large file storage behind a redirection. It counts what it sends.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

PIECE = 1 << 14


@dataclasses.dataclass
class Fault:
    """What goes wrong with the files whose name matches.

    kind: "status" (an answer `status`), "cut" (the connection ends after `after` bytes), "corrupt" (a byte is
    wrong), "longer" and "shorter" (another length than listed), "slow" (`after` bytes, then `seconds` of
    silence), "no-range" (the whole file, whatever was asked), "list" (`status` for the list of files).
    """

    kind: str
    match: str = ".*"
    times: int = 1 << 30
    status: int = 500
    after: int = 0
    seconds: float = 0.0
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


class Repo:
    """One repository: its files by name, and its commit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read()

    def read(self) -> None:
        """Takes the files as they are now; another content is another commit."""
        self.files = {
            path.relative_to(self.folder).as_posix(): path
            for path in sorted(self.folder.rglob("*"))
            if path.is_file()
        }
        self.digests: dict[str, tuple[str, str | None]] = {}
        for name, path in self.files.items():
            content = path.read_bytes()
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            large = name.endswith((".safetensors", ".bin", ".gguf", "tokenizer.json"))
            self.digests[name] = (blob, hashlib.sha256(content).hexdigest() if large else None)
        self.commit = hashlib.sha1(json.dumps(self.digests, sort_keys=True).encode()).hexdigest()

    def listing(self, repo_id: str) -> dict[str, object]:
        siblings = []
        for name, path in self.files.items():
            blob, sha256 = self.digests[name]
            size = path.stat().st_size
            entry: dict[str, object] = {"rfilename": name, "size": size, "blobId": blob}
            if sha256 is not None:
                entry["lfs"] = {"size": size, "sha256": sha256, "pointerSize": 134}
            siblings.append(entry)
        return {
            "_id": "0", "id": repo_id, "modelId": repo_id, "sha": self.commit, "private": False,
            "gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0, "siblings": siblings,
        }  # fmt: skip


class FakeHub:
    """The server; `url` is its address for `HF_ENDPOINT`."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.faults: list[Fault] = []
        # Bytes of content sent by name of file, and the paths that were asked for.
        self.sent: dict[str, int] = {}
        self.asked: list[str] = []
        self.tokens: set[str] = set()
        self.agents: set[str] = set()
        self.on_file: Callable[[str], None] = lambda _name: None
        self.lock = threading.Lock()
        hub = self

        class Handler(_Handler):
            server_hub = hub

        class Server(ThreadingHTTPServer):
            def handle_error(self, *arguments: object) -> None:
                """Clients that go away are what some tests are about."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def add(self, repo_id: str, folder: Path) -> Repo:
        self.repos[repo_id] = Repo(folder)
        return self.repos[repo_id]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def fault(self, name: str, *kinds: str) -> Fault | None:
        """The next fault of these kinds for a file."""
        with self.lock:
            for fault in self.faults:
                if fault.kind in kinds and fault.times > 0 and re.fullmatch(fault.match, name):
                    fault.times -= 1
                    return fault
        return None

    def total(self, ending: str = "") -> int:
        """Bytes of content sent of files with this ending."""
        return sum(count for name, count in self.sent.items() if name.endswith(ending))

    def asked_names(self) -> set[str]:
        """Names of the files that were asked for."""
        return {path.rsplit("/", 1)[-1] for path in self.asked}

    def forget(self) -> None:
        self.sent.clear()
        self.asked.clear()


class _Handler(BaseHTTPRequestHandler):
    server_hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.server_hub, unquote(urlsplit(self.path).path)
        with hub.lock:
            hub.asked.append(path)
            hub.tokens.add(self.headers.get("Authorization", ""))
            hub.agents.add(self.headers.get("User-Agent", ""))
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._list(match[1], match[2] or "main")
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._resolve(match[1], match[2], match[3])
        elif match := re.fullmatch(r"/cdn/([^/]+/[^/]+)/(.+)", path):
            self._send(hub.repos[match[1]], match[2])
        else:
            self._refuse(404)

    def _refuse(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _repo(self, repo_id: str, revision: str) -> Repo | None:
        repo = self.server_hub.repos.get(repo_id)
        if repo is None:
            self._refuse(404, X_Error_Code="RepoNotFound", X_Error_Message="Repository not found")
        elif revision not in ("main", repo.commit):
            self._refuse(404, X_Error_Code="RevisionNotFound", X_Error_Message="Invalid rev id: " + revision)
            return None
        return repo

    def _list(self, repo_id: str, revision: str) -> None:
        fault = self.server_hub.fault(repo_id, "list")
        if fault is not None:
            self._refuse(fault.status, **fault.headers)
            return
        repo = self._repo(repo_id, revision)
        if repo is None:
            return
        body = json.dumps(repo.listing(repo_id)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _resolve(self, repo_id: str, revision: str, name: str) -> None:
        repo = self._repo(repo_id, revision)
        if repo is None:
            return
        if name not in repo.files:
            self._refuse(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
            return
        fault = self.server_hub.fault(name, "status")
        if fault is not None:
            self._refuse(fault.status, **fault.headers)
        elif repo.digests[name][1] is not None:
            self._refuse(302, Location=f"/cdn/{repo_id}/{name}", X_Repo_Commit=repo.commit)
        else:
            self._send(repo, name)

    def _send(self, repo: Repo, name: str) -> None:
        hub = self.server_hub
        hub.on_file(name)
        content = repo.files[name].read_bytes()
        wrong = hub.fault(name, "corrupt", "longer", "shorter")
        if wrong is not None and wrong.kind == "corrupt":
            content = content[:-1] + bytes([content[-1] ^ 1])
        elif wrong is not None:
            content = content + b"x" if wrong.kind == "longer" else content[:-1]
        start, end = self._range(name, len(content))
        if start >= len(content) > 0:
            self._refuse(416, Content_Range=f"bytes */{len(content)}")
            return
        part = (start, end) != (0, len(content))
        self.send_response(206 if part else 200)
        if part:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(content)}")
        blob, sha256 = repo.digests[name]
        self.send_header("ETag", f'"{sha256 or blob}"')
        self.send_header("X-Repo-Commit", repo.commit)
        self.send_header("Content-Length", str(end - start))
        self.end_headers()
        if self.command != "HEAD":
            self._body(name, content[start:end])

    def _range(self, name: str, size: int) -> tuple[int, int]:
        """Where the part that was asked for begins, and where it ends."""
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if match is None or self.server_hub.fault(name, "no-range"):
            return 0, size
        return int(match[1]), min(int(match[2]) + 1, size) if match[2] else size

    def _body(self, name: str, content: bytes) -> None:
        hub = self.server_hub
        cut, slow = hub.fault(name, "cut"), hub.fault(name, "slow")
        sent = 0
        try:
            while sent < len(content):
                size = PIECE
                for fault in (cut, slow):
                    if fault is not None and sent < fault.after:
                        size = min(size, fault.after - sent)
                if cut is not None and sent >= cut.after:
                    self.close_connection = True
                    return
                if slow is not None and sent >= slow.after:
                    time.sleep(slow.seconds)
                self.wfile.write(content[sent : sent + size])
                self.wfile.flush()
                sent += len(content[sent : sent + size])
        except OSError:
            self.close_connection = True
        finally:
            with hub.lock:
                hub.sent[name] = hub.sent.get(name, 0) + sent
