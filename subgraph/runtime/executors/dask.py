"""Workers of a Dask scheduler: dask://HOST:8786. Needs the extra `dask`, here and on the
workers."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from subgraph.errors import BackendError, NotInstalled
from subgraph.log import log
from subgraph.runtime.executors import Resources
from subgraph.text import clean
from subgraph.types import JsonObject
from subgraph.version import make_install_command

ANSWER_SECONDS = 10  # for a scheduler's first answer
WORKER_SECONDS = 60  # for its first worker


def connect(address: str, resources: Resources) -> Executor:
    """Return an executor whose tasks each take these resources of a worker."""
    try:
        import dask
        from distributed import Client
        from distributed.cfexecutor import ClientExecutor
    except ImportError as e:
        raise NotInstalled(
            "Dask is not installed", make_install_command("dask"), code="package.not-installed"
        ) from e

    class DaskExecutor(ClientExecutor):  # type: ignore[misc]
        """A client that ends with its executor; tasks that run are not waited for."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=wait and not cancel_futures)
            self._client.close(timeout=2)

    # subcut itself reports lost tasks, without tracebacks.
    for name in ("distributed", "distributed.client", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Files are sent by content if no file system is shared.
    warnings.filterwarnings("ignore", "Sending large graph")
    try:
        # It is `tls` if Dask's own settings have it.
        scheme = dask.config.get("distributed.comm.default-scheme", "tcp")
        client = Client(f"{scheme}://{address}", timeout=ANSWER_SECONDS, set_as_default=False)
    except (OSError, ValueError) as e:
        raise BackendError(
            f"nobody answers at dask://{address}",
            "start `dask scheduler` there",
            code="executor.no-answer",
        ) from e
    try:
        require_workers(client, address, resources)
    except BaseException:
        client.close(timeout=2)
        raise
    kwargs: JsonObject = {"resources": dict(resources)} if resources else {}
    executor: Executor = DaskExecutor(client, pure=False, **kwargs)
    return executor


def require_workers(client: Any, address: str, resources: Resources) -> None:
    """Wait for the first worker.

    Raises:
        BackendError: none comes, one cannot import subcut, or none has the resources.
    """
    place = f"dask://{clean(address)}"
    if not client.scheduler_info(n_workers=-1)["workers"]:
        log.info("%s has no worker yet: waiting for the first, up to %d s", place, WORKER_SECONDS)
        try:
            client.wait_for_workers(1, timeout=WORKER_SECONDS)
        except TimeoutError as e:
            raise BackendError(
                f"{place} has had no worker for {WORKER_SECONDS:g} s",
                f"start some next to the devices: dask worker {address}",
                code="executor.no-workers",
            ) from e
    # A task of subcut ends a worker that cannot import it, without a reason; `exec` ends none.
    for worker, error in client.run(exec, "import subgraph", on_error="return").items():
        if isinstance(error, Exception):
            raise BackendError(
                f"the worker {worker} of {place} cannot load subcut: {type(error).__name__}:"
                f" {error}",
                "install the same version there, in the Python that runs `dask worker`",
                code="executor.other-version",
            )
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    has_all = (
        all(worker["resources"].get(name, 0) >= value for name, value in resources.items())
        for worker in workers
    )
    if resources and not any(has_all):
        wanted = ", ".join(f"{name}={value:g}" for name, value in resources.items())
        raise BackendError(
            f"no worker of {place} has {wanted}",
            f"dask worker HOST:PORT --resources {wanted}",
            code="executor.no-resource",
        )


def slots(executor: Any) -> int:
    """Return the number of tasks that its workers run at once."""
    resources: Resources = executor._kwargs.get("resources", {})
    workers = executor._client.scheduler_info(n_workers=-1)["workers"].values()
    total = 0
    for worker in workers:
        limits = [worker["nthreads"]]
        limits += (int(worker["resources"].get(n, 0) // value) for n, value in resources.items())
        total += min(limits)
    return total


def alive(executor: Any) -> bool:
    """Return whether the scheduler is connected; False while it is only being looked for."""
    return str(executor._client.status) not in ("closing", "closed")


def end(executor: Any, call: Callable[[str], None], token: str) -> None:
    """Call a function on every worker: cancelling a task of Dask does not stop it there."""
    with contextlib.suppress(Exception):  # a run on an unreachable worker ends by itself
        executor._client.run(call, token, wait=False)
