"""Regions -> results, several run at once; they are judged by the thread that asks, while the next
ones run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from statistics import fmean

from subgraph.graph.region import Region
from subgraph.runtime.run_result import RunResult
from subgraph.trials.trial import Trials
from subgraph.verdict import Verdict


class ParallelRuns:
    """Runs of one candidate, `jobs` at once, first come first served. Use it as a context manager.

    There are twice as many threads: the candidate waits for no cut that is being written.
    What has not begun when the block ends is not run. Where it ends by an error, the runs that go
    on are ended.
    """

    def __init__(self, trials: Trials, jobs: int) -> None:
        self.trials = trials.limited_to(jobs)
        self.jobs = jobs
        self._executor = ThreadPoolExecutor(max_workers=jobs if jobs == 1 else 2 * jobs)
        self._running: dict[Region, Future[RunResult]] = {}
        self._seconds: dict[Region | None, float] = {}

    def begin(self, *regions: Region) -> None:
        """Run these regions, each once, when it is their turn."""
        for region in regions:
            if region not in self._running:
                self._running[region] = self._executor.submit(self._run, region)

    def result(self, region: Region) -> RunResult:
        """A region's result; waits for it.

        Raises:
            BackendError: the candidate cannot be used. ModelError: the reference cannot give the
                values.
        """
        self.begin(region)
        return self._running[region].result()

    def verdict(self, region: Region) -> Verdict:
        """The verdict on a region; waits for its run.

        Raises: as `result`.
        """
        return self.trials.judge.verdict(region, self.result(region))

    def verdicts(self, regions: Sequence[Region | None]) -> Iterator[Verdict | None]:
        """The verdict on each region in this order, all of which begin at once; None for None.

        Raises: as `result`.
        """
        self.begin(*filter(None, regions))
        for region in regions:
            yield self.verdict(region) if region else None

    def seconds(self, regions: Sequence[Region | None]) -> float:
        """How long a build and run of these took in the mean; 0 for what was stored or gave
        nothing."""
        taken = [self._seconds[region] for region in regions if region in self._seconds]
        return fmean(taken) if taken else 0.0

    def _run(self, region: Region) -> RunResult:
        result = self.trials.run(region)
        self._seconds[region] = 0.0 if result.stored else result.build + result.run
        return result

    def __enter__(self) -> ParallelRuns:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:
            self.trials.runtime.workers.close()
        self._executor.shutdown(cancel_futures=True)
