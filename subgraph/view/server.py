"""A `ViewSession` over HTTP, for one user on this computer.

Other pages in the same browser, and other users of this computer, are strangers: the server listens
on 127.0.0.1, takes only requests for its own host name and from its own origin, and answers with
data only to who knows the run's token. The page may load nothing from elsewhere and is shown in no
frame. Written with the standard library: what a framework would add, routing and event streams, is
a table and a loop here.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from subgraph.drawing import svg
from subgraph.errors import SubcutError, UsageError
from subgraph.types import JsonObject
from subgraph.view.page_session import (
    LayoutRequest,
    NodeRequest,
    RegionRequest,
    StartRequest,
    TensorRequest,
    ViewSession,
    make_error_document,
    read_request,
)

ADDRESS = "127.0.0.1"
STATIC = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/view.css": ("view.css", "text/css; charset=utf-8"),
    "/view.js": ("view.js", "text/javascript; charset=utf-8"),
    "/drawing.js": ("drawing.js", "text/javascript; charset=utf-8"),
    "/panels.js": ("panels.js", "text/javascript; charset=utf-8"),
    "/values.js": ("values.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
POLICY = (
    "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'; object-src"
    " 'none'"
)
# A report holds names from the model: it runs no scripts here and belongs to no origin.
REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)
# bytes of a request
MAX_JSON = 16 << 20
MAX_FILE = 4 << 30
IDLE_SECONDS = 30.0  # a connection that sends nothing is closed
WATCH_SECONDS = 1.0  # between signs of life of an event stream, and looks at the model's file


# by path, the requests that it takes, and the answer
ANSWERS: Mapping[str, tuple[type, Callable[[ViewSession, Any], object]]] = {
    "/api/layout": (LayoutRequest, ViewSession.lay_out),
    "/api/node": (NodeRequest, lambda session, asked: session.describe_node(asked.index)),
    "/api/region": (
        RegionRequest,
        lambda session, asked: session.describe_region(asked.start, asked.end),
    ),
    "/api/run": (StartRequest, ViewSession.run),
    "/api/tensor": (TensorRequest, ViewSession.tensor),
    "/api/stop": (RegionRequest, lambda session, _: {"stopped": session.runs.stop()}),
}


class ViewServer(ThreadingHTTPServer):
    """Serves a session, and a new one if the model has changed when a page opens."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, open_session: Callable[[], ViewSession], port: int = 0) -> None:
        """Open the server's socket; no page is served yet.

        Raises:
            UsageError: the port is taken.
            SubcutError: as `open_session`.
        """
        self._open_session = open_session
        self._opening = threading.Lock()
        self.session = open_session()
        self.token = secrets.token_urlsafe(24)
        try:
            super().__init__((ADDRESS, port), ViewRequest)
        except OSError as e:
            raise UsageError(
                f"port {port}: {e.strerror}",
                "leave --port out, and any free one is taken",
                code="view.port",
            ) from e
        self.hosts = frozenset(f"{name}:{self.server_port}" for name in (ADDRESS, "localhost"))

    @property
    def url(self) -> str:
        """The page's address. Browsers do not send the token after #, so no log has it."""
        return f"http://{ADDRESS}:{self.server_port}/#{self.token}"

    def find_session(self) -> ViewSession:
        """Return the session of the model on disk; close the one of an older reading with its run.

        Raises:
            SubcutError: as `open_session`; the older session stays, in which nothing can be done.
        """
        with self._opening:
            if not self.session.opened.is_current:
                old = self.session
                self.session = self._open_session()
                old.close()
            return self.session

    def server_bind(self) -> None:
        """Bind the socket without a look-up of the host name, which may use the network."""
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name = ADDRESS
        self.server_port = self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a closed connection is not an error."""


class ViewRequest(BaseHTTPRequestHandler):
    """One connection of the browser."""

    server: ViewServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server_version = "subcut"
    sys_version = ""

    def do_GET(self) -> None:
        """Send the page's own files to anybody on this host, and data for the token."""
        url = urlsplit(self.path)
        if not self._admit():
            return
        if url.path in STATIC:
            name, kind = STATIC[url.path]
            self._send(files("subgraph.view").joinpath("static", name).read_bytes(), kind)
        elif url.path == "/drawing.css":
            self._send(svg.STYLE.encode(), "text/css; charset=utf-8")
        elif self._knows_token(parse_qs(url.query).get("token", [""])[0]):
            self._answer(lambda: self._get(url.path), {})

    def do_POST(self) -> None:
        """Answer a request that does something; no other page can send its token in a header."""
        if not (self._admit() and self._knows_token(self.headers.get("X-Subcut-Token", ""))):
            return
        size = self.headers.get("Content-Length", "")
        limit = MAX_FILE if self.path == "/api/drop" else MAX_JSON
        if not size.isdecimal() or len(size) > 12 or int(size) > limit:
            self._refuse(413, "the request is too large, or does not state its size")
            return
        if self.path == "/api/drop":
            name = unquote(self.headers.get("X-Name", ""))

            def drop() -> None:
                files = self.server.session.files
                self._send_json(files.drop(name, self.rfile, int(size)))

            self._answer(drop, {}, ends=True)
            return
        try:
            asked = json.loads(self.rfile.read(int(size)))
        except (ValueError, RecursionError):
            asked = None
        if not isinstance(asked, dict):
            self._refuse(400, "the request is not JSON object")
            return
        self._answer(lambda: self._handle_post(asked), asked)

    # ------------------------------------------------------------ the door

    def _admit(self) -> bool:
        """Return whether a request is for this server and from no other page; else refuse it."""
        hosts = self.server.hosts
        host = [name.lower() for name in self.headers.get_all("Host", [])]
        origin = self.headers.get("Origin")
        is_own_origin = origin is None or origin.lower().removeprefix("http://") in hosts
        site = self.headers.get("Sec-Fetch-Site", "none")
        is_own_site = self.path == "/" or site in ("none", "same-origin")
        if len(host) != 1 or host[0] not in hosts:
            self._refuse(403, "the request is for another host")
            return False
        if not (is_own_origin and is_own_site):
            self._refuse(403, "the request comes from another page")
            return False
        return True

    def _knows_token(self, token: str) -> bool:
        if hmac.compare_digest(token.encode(), self.server.token.encode()):
            return True
        self._refuse(
            403,
            "the token is missing or of another run: open the address that `subcut view` printed",
        )
        return False

    def _refuse(self, status: int, what: str) -> None:
        self.close_connection = True  # the request's body was not read
        self._send_json({"error": UsageError(what, code="view.refused").to_json()}, status)

    # ------------------------------------------------------------ answers

    def _answer(self, give: Callable[[], None], asked: JsonObject, *, ends: bool = False) -> None:
        """Send an answer; if it raises an error of subcut, send that."""
        try:
            give()
        except SubcutError as e:
            self.close_connection = self.close_connection or ends
            self._send_json(make_error_document(self.server.session, e, asked), 400)

    def _get(self, path: str) -> None:
        if path == "/api/model":
            self._send_json(self.server.find_session().describe_model())
        elif path == "/api/events":
            self._send_stream()
        elif path.startswith("/output/"):
            self._send_file(unquote(path.removeprefix("/output/")))
        else:
            self._refuse(404, "there is nothing of this name")

    def _handle_post(self, asked: JsonObject) -> None:
        session = self.server.session
        if self.path != "/api/stop":  # numbers of nodes are valid for one reading of the model
            session.opened.require(asked.get("model"))
        if self.path in ANSWERS:
            kind, answer = ANSWERS[self.path]
            self._send_json(answer(session, read_request(kind, asked)))
        else:
            self._refuse(404, "there is nothing of this name")

    def _send_stream(self) -> None:
        """Send the earlier events, then each new one.

        After a broken connection, the browser continues at its last event.
        """
        last = self.headers.get("Last-Event-ID", "0")
        number = int(last) if last.isdecimal() and len(last) < 12 else 0
        self.close_connection = True
        self._send_head(200, "text/event-stream", None)
        session = self.server.session
        key = parse_qs(urlsplit(self.path).query).get("model", [""])[0]
        while (events := session.runs.wait_for_events(number, WATCH_SECONDS)) is not None:
            if key != session.opened.key or not session.opened.is_current:
                self.wfile.write(f"data: {json.dumps({'type': 'changed'})}\n\n".encode())
                return
            text = "".join(f"id: {e['id']}\ndata: {json.dumps(e)}\n\n" for e in events)
            self.wfile.write((text or ": alive\n\n").encode())
            self.wfile.flush()
            number = events[-1]["id"] if events else number

    def _send_file(self, name: str) -> None:
        path = self.server.session.files.find(name)
        if not path.is_file():
            raise UsageError("only a file can be shown", code="view.unknown-file")
        kind = "text/html; charset=utf-8"
        disposition = ""
        if path.suffix != ".html":
            kind = "application/octet-stream"
            plain = re.sub(r"[^A-Za-z0-9._-]", "_", path.name)
            disposition = f'attachment; filename="{plain}"'
        with path.open("rb") as file:
            self._send_head(200, kind, path.stat().st_size, REPORT_POLICY, disposition)
            shutil.copyfileobj(file, self.wfile)

    def _send_json(self, document: Any, status: int = 200) -> None:
        self._send(json.dumps(document).encode(), "application/json", status)

    def _send(self, data: bytes, kind: str, status: int = 200) -> None:
        self._send_head(status, kind, len(data))
        self.wfile.write(data)

    def _send_head(
        self, status: int, kind: str, size: int | None, policy: str = POLICY, disposition: str = ""
    ) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": "" if size is None else str(size),
            "Content-Disposition": disposition,
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
            "Connection": "close" if self.close_connection else "",
        }
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: an address would show the token."""
