"""Workers of a Dask scheduler: dask://HOST:8786. Needs the extra `dask`, here and on the workers."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from subgraph.errors import BackendError, NotInstalled
from subgraph.text import clean
from subgraph.version import install

log = logging.getLogger("subcut")

ANSWER_SECONDS = 10  # for a scheduler's first answer


def connect(address: str, resources: Mapping[str, float]) -> Executor:
    """An executor whose tasks each take these resources of a worker."""
    try:
        from distributed import Client
        from distributed.cfexecutor import ClientExecutor
    except ImportError as e:
        raise NotInstalled("Dask is not installed", install("dask")) from e

    class DaskExecutor(ClientExecutor):  # type: ignore[misc]
        """A client that ends with its executor; tasks that run are not waited for."""

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=wait and not cancel_futures)
            self._client.close(timeout=2)

    logging.getLogger("distributed").setLevel(logging.ERROR)  # what is lost is said by subcut
    warnings.filterwarnings("ignore", "Sending large graph")  # files go by content where no file system is shared
    try:
        client = Client(f"tcp://{address}", timeout=ANSWER_SECONDS, set_as_default=False)
    except (OSError, ValueError) as e:
        raise BackendError(f"nobody answers at dask://{clean(address)}", "is `dask scheduler` running?") from e
    workers = client.scheduler_info(n_workers=-1)["workers"].values()
    if not workers:
        log.info("dask://%s has no worker yet: waiting for the first", clean(address))
    elif resources and not any(_has(worker, resources) for worker in workers):
        wanted = ", ".join(f"{name}={value:g}" for name, value in resources.items())
        client.close()
        what = f"no worker of dask://{clean(address)} has {clean(wanted)}"
        raise BackendError(what, f"dask worker HOST:PORT --resources {clean(wanted)}")
    kwargs: dict[str, Any] = {"resources": dict(resources)} if resources else {}
    executor: Executor = DaskExecutor(client, pure=False, **kwargs)
    return executor


def _has(worker: Mapping[str, Any], resources: Mapping[str, float]) -> bool:
    return all(worker["resources"].get(name, 0) >= value for name, value in resources.items())


def slots(executor: Any) -> int:
    """The tasks that its workers run at once."""
    wanted: Mapping[str, float] = executor._kwargs.get("resources", {})
    workers = executor._client.scheduler_info(n_workers=-1)["workers"].values()
    return sum(
        min([worker["nthreads"], *(int(worker["resources"].get(name, 0) // value) for name, value in wanted.items())])
        for worker in workers
    )


def alive(executor: Any) -> bool:
    """Is the scheduler there, or is it only being looked for?"""
    return str(executor._client.status) not in ("closing", "closed")


def end(executor: Any, call: Callable[[str], None], token: str) -> None:
    """Cancelling a task of Dask does not stop it where it runs: every worker is told."""
    with contextlib.suppress(Exception):  # what cannot be told ends by itself
        executor._client.run(call, token, wait=False)
