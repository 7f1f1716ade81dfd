"""The page's server: only this computer, this page, this run's token; no path out of the output
folder."""

from __future__ import annotations

import http.client
import io
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import quote

import pytest

from subgraph.errors import UsageError
from subgraph.view.command_runs import Runs
from subgraph.view.page_session import ViewOptions, ViewSession
from subgraph.view.server import MAX_FILE, MAX_JSON, POLICY, STATIC, ViewRequest, ViewServer
from subgraph.view.values import open_model
from tests.helpers.chain_models import chain
from tests.helpers.recorded_runs import record_runs

NPY = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '<f4', 'fortran_order': False, 'shape': (), }".ljust(127)
    + b"\n\0\0\0\0"
)
NAMES = [f"stage{i // 6}/block{i // 2}/n{i}" for i in range(12)]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ViewServer]:
    monkeypatch.chdir(tmp_path)
    chain(Path("m.onnx"), NAMES)
    options = ViewOptions(
        {"wrong.py": ["--candidate=wrong.py"]}, (), (), (), ("dumps",), Path("out")
    )
    with ViewServer(lambda: ViewSession(open_model(Path("m.onnx")), "m.onnx", options)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.session.close()
        server.shutdown()
        thread.join()


Reply = tuple[int, dict[str, str], bytes]


def ask(
    server: ViewServer, method: str, path: str, body: bytes | None = None, **headers: str
) -> Reply:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(
        method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
    )
    reply = connection.getresponse()
    data = reply.read()
    connection.close()
    return reply.status, dict(reply.getheaders()), data


def post(server: ViewServer, path: str, asked: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    headers = {"X_Subcut_Token": server.token, **headers}
    known = {"model": server.session.opened.key} | asked
    status, _, data = ask(server, "POST", path, json.dumps(known).encode(), **headers)
    return status, json.loads(data)


ACTIONS = "/api/layout /api/node /api/tensor /api/region /api/run /api/stop /api/drop".split()
DATA = ("/api/model", "/api/events", "/output/x")


def test_only_this_computer_can_connect(server: ViewServer) -> None:
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/#{server.token}"


@pytest.mark.parametrize("path", ACTIONS)
@pytest.mark.parametrize("token", ["", "x", "é"])
def test_nothing_is_done_without_the_token(server: ViewServer, path: str, token: str) -> None:
    with mock.patch.object(ViewSession, "run") as run, mock.patch.object(Runs, "stop") as stop:
        status, _, data = ask(server, "POST", path, b"{}", X_Subcut_Token=token)
    assert status == 403 and b"token" in data
    assert not run.called and not stop.called
    # A form or an image of another page can send a query, never a header.
    assert ask(server, "POST", f"{path}?token={server.token}", b"{}")[0] == 403


@pytest.mark.parametrize("path", DATA)
def test_nothing_is_told_without_the_token(server: ViewServer, path: str) -> None:
    assert ask(server, "GET", path)[0] == 403
    assert ask(server, "GET", f"{path}?token=x")[0] == 403


@pytest.mark.parametrize("path", [*STATIC, *DATA, *ACTIONS])
def test_another_host_or_origin_is_refused(server: ViewServer, path: str) -> None:
    method = "POST" if path in ACTIONS else "GET"
    port = server.server_port
    token = server.token
    for header in (
        {"Host": "evil.example"},
        {"Host": f"evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"http://127.0.0.1:{port + 1}"},
        {"Origin": f"https://127.0.0.1:{port}"},
    ):
        assert (
            ask(server, method, f"{path}?token={token}", b"{}", X_Subcut_Token=token, **header)[0]
            == 403
        ), header


def test_second_host_is_refused(server: ViewServer) -> None:
    """What stands in front of the server may take another one of them than the server does."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.putrequest("GET", "/")
    connection.putheader("Host", "evil.example")
    connection.endheaders()
    assert connection.getresponse().status == 403
    connection.close()


def test_tokens_are_long_and_new(server: ViewServer) -> None:
    with ViewServer(lambda: server.session) as other:
        assert other.token != server.token and min(len(other.token), len(server.token)) >= 32


def test_refused_request_is_not_read_and_not_logged(
    server: ViewServer, capfd: pytest.CaptureFixture[str]
) -> None:
    """Else the body of a refused request would be the next request, and the token would stand on
    the terminal."""
    smuggled = (
        f"GET /api/model?token={server.token} HTTP/1.1\r\nHost:"
        f" 127.0.0.1:{server.server_port}\r\n\r\n".encode()
    )
    assert ask(server, "POST", "/api/run", smuggled)[1]["Connection"] == "close"
    assert ask(server, "GET", f"/api/model?token={server.token}")[0] == 200
    assert capfd.readouterr() == ("", "")
    assert 0 < ViewRequest.timeout <= 60  # a connection that sends nothing does not keep its thread


@pytest.mark.parametrize("path", ["/api/region", "/api/drop"])
def test_request_that_is_too_large_is_not_read(server: ViewServer, path: str) -> None:
    most = MAX_JSON if path == "/api/region" else MAX_FILE
    for size in (str(most + 1), "9" * 30, "-1", "1e3", "x", "²", ""):
        headers = {
            "X_Subcut_Token": server.token,
            "Content_Length": size.encode().decode("latin-1"),
        }
        assert ask(server, "POST", path, b"", **headers)[0] == 413, size


def test_another_site_cannot_embed_or_read(server: ViewServer) -> None:
    token = f"?token={server.token}"
    assert ask(server, "GET", f"/api/model{token}", Sec_Fetch_Site="cross-site")[0] == 403
    assert ask(server, "GET", "/view.js", Sec_Fetch_Site="same-site")[0] == 403
    # a link that leads here; it knows no token
    assert ask(server, "GET", "/", Sec_Fetch_Site="cross-site")[0] == 200
    for path in (*STATIC, f"/api/model{token}", f"/output/none{token}"):
        headers = ask(server, "GET", path)[1]
        assert headers["Content-Security-Policy"] == POLICY
        assert (headers["X-Content-Type-Options"], headers["Referrer-Policy"]) == (
            "nosniff",
            "no-referrer",
        )
        assert (
            headers["Cross-Origin-Resource-Policy"]
            == headers["Cross-Origin-Opener-Policy"]
            == "same-origin"
        )
        assert headers["Cache-Control"] == "no-store"
        assert not any(name.startswith("Access-Control") for name in headers)
    kinds = ("frame-ancestors", "base-uri", "form-action", "object-src")
    assert POLICY.split("; ") == ["default-src 'self'", *(f"{kind} 'none'" for kind in kinds)]


def test_the_page_names_no_other_host_and_no_inline_code(server: ViewServer) -> None:
    for path in STATIC:
        text = ask(server, "GET", path)[2].decode()
        assert not re.search(
            r"""["'`(](https?:|wss?:)?//[^ ]""", text.replace("http://www.w3.org/2000/svg", "")
        ), path
    page = ask(server, "GET", "/")[2].decode()
    assert "style=" not in page and "<script>" not in page and "onclick" not in page
    for path in (path for path in STATIC if path.endswith(".js")):
        text = ask(server, "GET", path)[2].decode()
        assert not any(
            word in text for word in ("innerHTML", "eval(", "insertAdjacentHTML", "document.write")
        )


@pytest.mark.parametrize(
    "name",
    [
        *(
            "../m.onnx %2e%2e/m.onnx ..%2fm.onnx /etc/passwd %2fetc%2fpasswd link dir/link/passwd"
        ).split(),
        "",
        ".",
        "a%00b",
    ],
)
def test_no_path_leads_out_of_the_output_folder(server: ViewServer, name: str) -> None:
    Path("out/dir").mkdir(parents=True)
    Path("out/link").symlink_to("/etc/passwd")
    Path("out/dir/link").symlink_to("/etc")
    status, _, data = ask(server, "GET", f"/output/{name}?token={server.token}")
    assert status in (400, 404) and b"root:" not in data
    assert "root:" not in str(
        post(
            server,
            "/api/run",
            {"kind": "cut", "start": NAMES[2], "inputs": [{"file": f"../../{name}"}]},
        )
    )


def test_report_is_shown_without_scripts(server: ViewServer) -> None:
    Path("out/dir").mkdir(parents=True)
    Path("out/dir/report.html").write_text("<script>1</script>", encoding="utf-8")
    status, headers, _ = ask(server, "GET", f"/output/dir/report.html?token={server.token}")
    assert status == 200 and headers["Content-Security-Policy"].startswith(
        "sandbox; default-src 'none'"
    )


def test_any_other_file_is_a_download_under_a_plain_name(server: ViewServer) -> None:
    Path("out").mkdir()
    for name, plain in (("a.svg", "a.svg"), ('x"; b\n.htm', "x___b_.htm"), ("ü\u202e.js", "__.js")):
        Path("out", name).write_text("<script>1</script>", encoding="utf-8")
        headers = ask(server, "GET", f"/output/{quote(name)}?token={server.token}")[1]
        assert headers["Content-Type"] == "application/octet-stream", name
        assert headers["Content-Disposition"] == f'attachment; filename="{plain}"'


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "bisect", "candidate": "cmd:touch pwned"},
        {"kind": "bisect", "candidate": "other.py"},
        {"kind": "bisect", "candidate": "wrong.py --trust"},
        {"kind": "compare", "recording": "/etc"},
        {"kind": "sweep", "candidate": "wrong.py"},
        {"kind": "cut"},
        {"kind": "cut", "start": ["--trust"]},
        {"kind": "cut", "start": "--trust"},
        {"kind": "cut", "start": NAMES[1], "inputs": [{"file": "x.npy", "input": "no"}]},
    ],
)
def test_only_what_the_command_line_named_runs(server: ViewServer, asked: dict[str, Any]) -> None:
    started = record_runs(server.session.runs)
    status, reply = post(server, "/api/run", asked)
    assert status == 400 and reply["error"]["what"] and not started


@pytest.mark.parametrize("word", ["x" * 20_001, "a\0b", "\ud800", ["x"], 3])
@pytest.mark.parametrize("key", ["start", "seed", "mean"])
def test_word_that_no_command_line_can_hold_is_refused(
    server: ViewServer, key: str, word: object
) -> None:
    started = record_runs(server.session.runs)
    status, reply = post(server, "/api/run", {"kind": "cut", "end": NAMES[2]} | {key: word})
    assert (status, reply["error"]["code"], started) == (400, "view.bad-request", [])
    assert key in reply["error"]["what"]


def test_dropped_file_goes_only_into_an_input_of_the_model(server: ViewServer) -> None:
    stored = server.session.files.drop("x.npy", io.BytesIO(NPY), len(NPY))["file"]
    started = record_runs(server.session.runs)
    asked = {"kind": "cut", "start": NAMES[1], "inputs": [{"file": stored, "input": "no"}]}
    status, reply = post(server, "/api/run", asked)
    assert (status, reply["error"]["code"], started) == (400, "input.unknown", [])


def test_words_of_the_page_cannot_become_options(server: ViewServer) -> None:
    started = record_runs(server.session.runs)
    post(
        server,
        "/api/run",
        {"kind": "cut", "start": NAMES[1], "end": NAMES[4], "seed": "--trust", "dump": True},
    )
    assert started[0] == [
        "cut",
        "m.onnx",
        f"--start={NAMES[1]}",
        f"--end={NAMES[4]}",
        *"--dump all --seed=--trust --output=out".split(),
    ]


def test_region_is_found_and_an_upstream_end_refused(server: ViewServer) -> None:
    status, region = post(server, "/api/region", {"start": NAMES[2], "end": NAMES[4]})
    assert status == 200 and region["nodes"] == [2, 3, 4] and region["inputs"] == ["t1"]
    assert region["command"] == f"subcut cut m.onnx --start={NAMES[2]} --end={NAMES[4]}"
    status, refused = post(server, "/api/region", {"start": NAMES[4], "end": NAMES[2]})
    assert (status, refused["swap"]) == (400, True)
    assert refused["error"]["code"] == "region.end-is-upstream"
    assert post(server, "/api/region", {"start": "nobody", "end": NAMES[2]})[1]["swap"] is False


def test_nonsense_gets_an_error_and_the_server_goes_on(server: ViewServer) -> None:
    token = server.token
    for body in (b"", b"[]", b"nonsense", b"[" * 100_000):
        assert ask(server, "POST", "/api/region", body, X_Subcut_Token=token)[0] == 400
    found = ask(server, "POST", "/api/region", b"", X_Subcut_Token=token, Content_Length="9" * 30)
    assert found[0] == 413
    for path, asked in (
        ("/api/layout", {"open": ["nobody"]}),
        ("/api/layout", {"open": 3}),
        ("/api/layout", {"width": "x", "open": ["nobody"]}),
        ("/api/node", {"index": 99}),
        ("/api/node", {"index": "x"}),
        ("/api/region", {"start": 3}),
        ("/api/region", {"start": "\ud800", "end": ""}),
    ):
        status, reply = post(server, path, asked)
        assert status == 400 and reply["error"]["what"], (path, asked)
    assert post(server, "/api/nothing", {})[0] == 404
    assert post(server, "/api/layout", {"open": None, "width": float("1e300")})[0] == 200


def test_events_come_in_order_and_go_on_from_the_last(server: ViewServer) -> None:
    key = server.session.opened.key
    server.session.runs.show("bisect", "subcut bisect m.onnx", {"agree": True})
    for last, first in ((None, 1), ("1", 2)):
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
        headers = {"Last-Event-ID": last} if last else {}
        connection.request("GET", f"/api/events?token={server.token}&model={key}", headers=headers)
        reply = connection.getresponse()
        assert reply.getheader("Content-Type") == "text/event-stream"
        assert reply.readline() == f"id: {first}\n".encode()
        connection.close()


def test_model_that_was_exported_again_is_not_mixed_with_the_one_that_is_shown(
    server: ViewServer,
) -> None:
    """Node 7 of the old file is another one in the new file, whose cut would be called right."""
    old = server.session
    first = server.session.describe_model()["key"]
    chain(Path("m.onnx"), [f"new{i}" for i in range(20)])
    with mock.patch.object(Runs, "start") as start:
        for path in ("/api/layout", "/api/node", "/api/tensor", "/api/region", "/api/run"):
            asked = {"index": 7, "node": 7, "kind": "cut", "start": NAMES[2], "end": NAMES[4]}
            status, reply = post(server, path, asked)
            assert (status, reply["error"]["kind"]) == (400, "ModelChanged"), path
    assert not start.called
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", f"/api/events?token={server.token}&model={first}")
    assert connection.getresponse().readline() == b'data: {"type": "changed"}\n'
    connection.close()
    about = json.loads(ask(server, "GET", f"/api/model?token={server.token}")[2])
    assert about["labels"][7] == "new7" and about["key"] != first and server.session is not old
    # A page that is still open asks in vain, the new one does not.
    found = post(server, "/api/node", {"index": 7, "model": first})
    assert found[1]["error"]["kind"] == "ModelChanged"
    assert post(server, "/api/node", {"index": 7})[1]["label"] == "new7"
    Path("m.onnx").write_bytes(b"half an ex")
    status, _, data = ask(server, "GET", f"/api/model?token={server.token}")
    assert status == 400 and b"m.onnx" in data
    assert post(server, "/api/node", {"index": 7})[1]["error"]["kind"] == "ModelChanged"


def test_taken_port_is_refused(server: ViewServer) -> None:
    with pytest.raises(UsageError) as e:
        ViewServer(lambda: server.session, server.server_port)
    assert "--port" in e.value.hint
