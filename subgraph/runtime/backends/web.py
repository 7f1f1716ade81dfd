"""onnxruntime-web in a headless browser: WebAssembly, WebGPU or WebGL.

One page stays open between pieces. A server of this process exchanges the model and the values
with it, as raw bytes. Playwright (an extra) drives a browser that is installed. npm fetches the
release once, into the cache, and runs none of its code.
"""

from __future__ import annotations

import http.server
import itertools
import math
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from subgraph.errors import BackendError, ModelError, Refused, UsageError, WorkerDied
from subgraph.iterables import index_by_name
from subgraph.lazy import np
from subgraph.runtime.backends import WEBGPU_LACKS, Run, Switches, _foreign
from subgraph.storage import folders
from subgraph.storage.folders import find_cache_folder
from subgraph.storage.tensors import Tensors, Values, find_dtype
from subgraph.system import Lock, hardware, shorten_folder
from subgraph.text import clean
from subgraph.types import Fields, JsonObject

MULTI = NPM = True
DEVICE_LACKS = WEBGPU_LACKS
RELEASES = "onnxruntime-web", "1.30.0"  # the package; the release that runs if none is named
PACKAGE, NEWEST = RELEASES
OLDEST = 1, 19  # has the files that are imported here
GPU = ("webgpu", "webgl")
LEVELS = {"disable": "disabled", "basic": "basic", "extended": "extended", "all": "all"}
OPTIONS = {
    "ep": ("wasm", "webgpu", "webgl"),
    "version": (),
    "browser": (),
    "threads": (),
    "opt": ("disable", "basic", "extended", "all"),
    "layout": ("NCHW", "NHWC"),
}
CHROMIUM = (
    *"chromium chromium-browser google-chrome google-chrome-stable".split(),
    *"microsoft-edge msedge chrome".split(),
    *(
        f"/Applications/{name}.app/Contents/MacOS/{name}"
        for name in ("Google Chrome", "Microsoft Edge", "Chromium")
    ),
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
    "C:/Program Files (x86)/Microsoft/Edge/Application/msedge.exe",
)
FIREFOX = (
    *("firefox", "firefox-esr", "/Applications/Firefox.app/Contents/MacOS/firefox"),
    "C:/Program Files/Mozilla Firefox/firefox.exe",
)
# Where each word of a user is looked for.
NAMES = {
    "": (*CHROMIUM, *FIREFOX),
    "chromium": CHROMIUM,
    "firefox": FIREFOX,
}
WEBKIT = "webkit"  # no browser that is installed can be driven: `playwright install webkit`
# If there is no GPU: chromium's renderer in software.
IN_SOFTWARE = (
    "--enable-features=Vulkan --use-vulkan=swiftshader --use-webgpu-adapter=swiftshader".split()
)
WEBGPU = ("--enable-unsafe-webgpu", "--ignore-gpu-blocklist")
OF_FIREFOX = {"dom.webgpu.enabled": True, "gfx.webgpu.ignore-blocklist": True}
PAGE = "<!doctype html><title>subcut</title>"
SCRIPT = Path(__file__).with_name("web.js")
KINDS = {
    ".mjs": "text/javascript",
    ".js": "text/javascript",
    ".wasm": "application/wasm",
    "": "text/html",
}
RELEASE = re.compile(r"\d+\.\d+\.\d+(-[\w.-]+)?")
MAX_NPM_MINUTES = 10  # that npm may take
MAX_PAGE_MILLISECONDS = 60_000  # to load the page
STATUS = "ERROR_CODE"  # in the errors that onnxruntime returns
# Before the message: where it was built.
PLACE = re.compile(r"^.*?ERROR_MESSAGE: |/\S+\.(?:cc|h):\d+ .*?\) (?=[A-Z])")


def version(options: Fields) -> str:
    """Return the release, and the browser's.

    Raises:
        BackendError: there is no browser, or nothing that brings the release.
    """
    _foreign.package("playwright.sync_api", "web")
    browser = str(options.get("browser", ""))
    release = str(options.get("version", NEWEST))
    if why := _lacks(browser, release):
        raise BackendError(f"web {why}", "subcut doctor", code="web.unusable")
    shown = WEBKIT if browser == WEBKIT else _find_browser_version(browser)
    return f"{release} in {shown}"


@cache
def _find_browser_version(browser: str) -> str:
    place = Path(find_browser(browser) or browser)
    if place.suffix == ".exe":  # Chrome would open a window
        return place.stem
    try:
        done = subprocess.run(
            [place, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return place.name
    words = itertools.takewhile(lambda word: word != "built", done.stdout.split()[:3])
    return clean(" ".join(words)) or place.name


def caveat(options: Fields) -> str:
    """Name the processor that computes instead of a GPU, and the packages that npm fetches."""
    release = str(options.get("version", NEWEST))
    facts = []
    if options.get("ep") in GPU and not hardware.has_gpu():
        facts.append(
            f"{options['ep']} computes by a renderer in software on this processor: a GPU may"
            " differ"
        )
    if RELEASE.fullmatch(release) and not _place(release).is_dir():
        facts.append(f"npm fetches {PACKAGE}@{release} (33 MB, once)")
    return "; ".join(facts)


def exact(options: Fields) -> JsonObject | None:
    """Return the options without optimizations; None if these are."""
    if options.get("opt") == "disable":
        return None
    return {**options, "opt": "disable"}


def switches(options: Fields) -> Switches:
    """Return the options with one thread, with NCHW on WebGPU, and without a GPU."""
    ep = str(options.get("ep", "wasm"))
    found = {}
    if str(options.get("threads", 1)) != "1":
        found["threads"] = {**options, "threads": "1"}
    if ep == "webgpu" and options.get("layout") != "NCHW":
        found["NHWC layout"] = {**options, "layout": "NCHW"}
    if ep != "wasm":
        found[ep] = {
            **{name: value for name, value in options.items() if name != "layout"},
            "ep": "wasm",
        }
    return found


def missing() -> str:
    """Name the parts that this machine lacks."""
    return _lacks("", NEWEST)


def _lacks(browser: str, release: str) -> str:
    if not browser and not find_browser(""):
        return "needs Chromium, Chrome, Edge or Firefox: `apt install chromium`, or browser=PATH"
    if (
        RELEASE.fullmatch(release)
        and not (_place(release) / "dist").is_dir()
        and not shutil.which("npm")
    ):
        return f"needs npm, which brings {PACKAGE} once"
    return ""


def warm() -> None:
    """Import the browser's driver ahead of the first model."""
    _foreign.package("playwright.sync_api", "web")


def load(model: Path, options: Fields) -> Run:
    """Build a session in the page.

    `options`: `ep` (wasm, webgpu, webgl), `version` (of onnxruntime-web, 1.19 or newer), `browser`
    (chromium, firefox, webkit or a path), `threads` (of WebAssembly; 1), `opt` (disable, basic,
    extended, all), `layout` (of WebGPU).

    Raises:
        BackendError: no browser, no release, or an option means nothing to it. Refused: it does not
            accept the model.
        WorkerDied: the page crashed.
    """
    _foreign.check_options("web", options, OPTIONS)
    inputs, outputs = _foreign.ports("web", model, _foreign.TYPES)
    page = _Page.open(options)
    settings = {
        "provider": options.get("ep", "wasm"),
        "threads": _foreign.threads("web", options),
        "level": LEVELS[str(options.get("opt", "all"))],
        "layout": options.get("layout", ""),
    }
    built = page.ask("build", {"model": page.server.give([model.read_bytes()])[0], **settings})
    if "error" in built:
        raise Refused(
            f"onnxruntime-web refuses the model: {built['error']}", code="backend.refused-model"
        )
    session = int(built["session"])
    page.living.add(session)

    def run(feeds: Tensors) -> Values:
        arrays = _foreign.input_arrays(feeds, inputs)
        places = page.server.give([array.tobytes() for array in arrays])
        fed = [
            {"name": port.name, "type": port.dtype, "shape": list(array.shape), "at": at}
            for port, array, at in zip(inputs, arrays, places, strict=True)
        ]
        reply = page.ask(
            "run", {"session": session, "feeds": fed, "outputs": [port.name for port in outputs]}
        )
        if "error" in reply:
            raise ModelError(f"onnxruntime-web: {reply['error']}", code="backend.run-failed")
        ports = index_by_name(outputs)
        return {
            output["name"]: page.server.array(output, ports[output["name"]])
            for output in reply["outputs"]
        }

    # The page releases it with the next request.
    weakref.finalize(run, page.living.discard, session)
    return run


# ------------------------------------------------------------ browser


class _Page:
    """A page of a browser. It is left for a new one after an error in it.

    Attributes:
        living: the sessions that somebody may still run.
    """

    _last: _Page | None = None

    def __init__(self, release: str, browser: str, provider: str) -> None:
        """Hold the release, the browser, and the `provider` with the number of its threads, which a
        page cannot change."""
        self.asked = (release, browser, provider)
        self.spoilt = False
        self.living = set[int]()
        self.server = ReleaseServer(fetch(release))
        self._browser: Any = self._launch(browser, provider)
        self._page: Any = self._browser.new_page()
        self._page.set_default_timeout(0)  # a limit of time ends this process
        self._page.goto(f"{self.server.address}/", timeout=MAX_PAGE_MILLISECONDS)
        self._page.evaluate("at => import(at)", f"{self.server.address}/{SCRIPT.name}")

    @classmethod
    def open(cls, options: Fields) -> _Page:
        """Return the last page, if it has these options and no error; else a new one."""
        provider = f"{options.get('ep', 'wasm')} {_foreign.threads('web', options)}"
        asked = str(options.get("version", NEWEST)), str(options.get("browser", "")), provider
        if cls._last is None or cls._last.spoilt or cls._last.asked != asked:
            if cls._last and not cls._last.living:
                cls._last.close()
            cls._last = None
            cls._last = cls(*asked)
        return cls._last

    def ask(self, function: str, request: Fields) -> JsonObject:
        """Return the reply of a function of the page's script; with `error`, its text, if it
        throws.

        After any other error than onnxruntime's own, the next model gets a new page, because
        WebAssembly may have ended, or a GPU may be lost.

        Raises:
            WorkerDied: the page crashed.
        """
        try:
            said: JsonObject = self._page.evaluate(
                f"request => self.subcut.{function}(request)", {**request, "living": [*self.living]}
            )
        except Exception as e:
            self.spoilt = True
            raise WorkerDied(
                f"the browser's page crashed: {_foreign.message(e)}", code="web.page-crashed"
            ) from e
        if error := said.get("error"):
            self.spoilt |= STATUS not in error
            said["error"] = clean(PLACE.sub("", str(error)))[:400]
        return said

    def close(self) -> None:
        """End the browser."""
        self._browser.close()
        self.server.close()

    def _launch(self, browser: str, provider: str) -> Any:
        """Return the browser, started without a window."""
        place = None if browser == WEBKIT else find_browser(browser) or browser
        try:
            if place is None:
                return _start_driver().webkit.launch()
            if "firefox" in Path(place).name.lower():
                prefs = OF_FIREFOX if provider.startswith("webgpu") else {}
                options = {
                    "channel": "moz-firefox",
                    "firefox_user_prefs": prefs,
                }  # by WebDriver BiDi
                return _start_driver().firefox.launch(executable_path=place, **options)
            flags = list(WEBGPU) if provider.startswith(GPU) else []
            if flags and not hardware.has_gpu():
                flags += IN_SOFTWARE
            is_root = getattr(os, "geteuid", lambda: 1)() == 0  # for whom Chromium has no sandbox
            return _start_driver().chromium.launch(
                executable_path=place, args=flags, chromium_sandbox=not is_root
            )
        except Exception as e:
            errors = re.findall(r"\[err\] (.*(?:FATAL|ERROR|rror while).*)", str(e))[:1] or [
                _foreign.message(e, "╔" if "╔" in str(e) else "Browser logs")
            ]
            what = f"{browser or 'chromium'} cannot be started: {errors[0]}"
            instead = {
                WEBKIT: f"playwright install {WEBKIT}",
                "firefox": "apt install firefox-esr, or browser=PATH",
            }
            hint = instead.get(
                browser,
                "apt install chromium, or browser=PATH of Chromium, Chrome, Edge or Firefox",
            )
            raise BackendError(what, hint, code="web.no-browser") from e


@cache
def _start_driver() -> Any:
    """Start Playwright, once: a process cannot start a second one."""
    package = _foreign.package("playwright.sync_api", "web")
    # The browser's own folders go with this process's.
    os.environ["TMPDIR"] = shorten_folder(tempfile.gettempdir())
    return package.sync_playwright().start()


@cache
def find_browser(browser: str) -> str | None:
    """Return the path of the browser that a user names, or of the first one here."""
    return next(filter(None, map(shutil.which, NAMES.get(browser, (browser,)))), None)


# ------------------------------------------------------------ release


def _place(release: str) -> Path:
    return find_cache_folder("web") / f"{PACKAGE}-{release}"


def fetch(release: str) -> Path:
    """Return the folder of a release's files, fetched by npm if it is not there.

    Raises:
        UsageError: It is not a release.
        BackendError: It cannot be fetched.
    """
    if not RELEASE.fullmatch(release) or tuple(map(int, release.split(".")[:2])) < OLDEST:
        raise UsageError(
            f"'{release}' is no version of {PACKAGE} from 1.19 on",
            f"version={NEWEST}",
            code="release.malformed",
        )
    place = _place(release)
    lock = place.with_name(f".{place.name}.lock")
    lock.touch()
    with Lock(lock):
        if not place.is_dir():
            with folders.write_aside(place) as work:
                _fetch(f"{PACKAGE}@{release}", work)
    return place / "dist"


def _fetch(package: str, into: Path) -> None:
    """Unpack the files of a package that a browser needs; none of its scripts runs."""
    import tarfile

    if not (npm := shutil.which("npm")):
        raise BackendError(
            f"{package} is not in the cache, and there is no npm to fetch it",
            "install Node.js",
            code="web.no-npm",
        )
    command = [npm, "pack", package, "--silent", "--ignore-scripts"]
    try:
        done = subprocess.run(
            command,
            cwd=into,
            capture_output=True,
            text=True,
            timeout=60 * MAX_NPM_MINUTES,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        raise BackendError(
            f"npm took more than {MAX_NPM_MINUTES} minutes for {package}",
            "look at the network",
            code="web.npm-failed",
        ) from e
    archives = list(into.glob("*.tgz"))
    if done.returncode or not archives:
        raise BackendError(
            f"npm cannot fetch {package}: {_foreign.message(Exception(done.stderr))}",
            "npm ping",
            code="web.npm-failed",
        )
    with tarfile.open(archives[0]) as archive:
        for member in archive:
            folder, _, name = member.name.rpartition("/")
            if (
                folder == "package/dist"
                and member.isfile()
                and Path(name).suffix in KINDS
                and "\\" not in name
            ):
                data = archive.extractfile(member)
                assert data
                (into / "dist").mkdir(exist_ok=True)
                (into / "dist" / Path(name).name).write_bytes(data.read())
    archives[0].unlink()
    if not (into / "dist").is_dir():
        raise BackendError(
            f"{package} has no files for a browser", f"version={NEWEST}", code="web.no-files"
        )


# ------------------------------------------------------------ server


class ReleaseServer:
    """A server of the release's files, models and values, as raw bytes. It replies only if the
    address has the secret."""

    def __init__(self, dist: Path) -> None:
        self._dist = dist
        self._secret = secrets.token_urlsafe(16)
        self._given: dict[str, bytes] = {}
        self._taken: dict[str, bytes] = {}
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer.answer(self)

            def do_POST(self) -> None:
                outer.take(self)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self._http.server_port}/{self._secret}"

    def give(self, values: Sequence[bytes]) -> list[str]:
        """Return the addresses at which the page finds these bytes; earlier ones are forgotten."""
        self._given = {f"v{k}": value for k, value in enumerate(values)}
        self._taken = {}
        return list(self._given)

    def array(self, output: Fields, port: _foreign.Port) -> Any:
        """Return an output that the page has sent."""
        data = self._taken.pop(output["at"], b"")
        dtype = find_dtype(output["type"])
        shape = [int(n) for n in output["dims"]]
        if len(data) != dtype.itemsize * math.prod(shape):
            size = f"{len(data)} bytes, which is not {shape} of {output['type']}"
            raise ModelError(
                f"'{output['name']}' has {size}",
                code="tensor.wrong-size",
            )
        return _foreign.as_declared(np.frombuffer(data, dtype).reshape(shape), port)

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """Reply to GET."""
        _, secret, *rest = request.path.partition("?")[0].split("/")
        name = "/".join(rest)
        content = self._read_content(name) if secrets.compare_digest(secret, self._secret) else None
        request.send_response(200 if content is not None else 404)
        request.send_header(
            "Content-Type", KINDS.get(Path(name).suffix, "application/octet-stream")
        )
        request.send_header("Content-Length", str(len(content or b"")))
        # WebAssembly's threads need it.
        for policy, value in (
            ("Opener", "same-origin"),
            ("Embedder", "require-corp"),
        ):
            request.send_header(f"Cross-Origin-{policy}-Policy", value)
        request.send_header("Cache-Control", "no-store" if name in self._given else "max-age=3600")
        request.end_headers()
        request.wfile.write(content or b"")

    def _read_content(self, name: str) -> bytes | None:
        if not name:
            return PAGE.encode()
        if name in self._given:
            return self._given[name]
        if name == SCRIPT.name:
            return SCRIPT.read_bytes()
        file = self._dist / name
        if file.parent == self._dist and file.is_file():
            return file.read_bytes()
        return None

    def take(self, request: http.server.BaseHTTPRequestHandler) -> None:
        """Keep what the page sends."""
        _, secret, name = (*request.path.split("/"), "", "")[:3]
        data = request.rfile.read(int(request.headers.get("Content-Length") or 0))
        if secrets.compare_digest(secret, self._secret):
            self._taken[name] = data
        request.send_response(204)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def close(self) -> None:
        """Answer no more."""
        self._http.shutdown()
        self._http.server_close()


error_text = _foreign.message
