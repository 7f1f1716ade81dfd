"""`subcut replay`: a case, run again on a candidate -> does it still go wrong?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from subgraph import case, project
from subgraph.commands import Result, log
from subgraph.commands import options as o
from subgraph.errors import InputError, UsageError
from subgraph.graph import load
from subgraph.inputs import Feeding
from subgraph.text import clean

if TYPE_CHECKING:
    from subgraph.candidate import Candidate
    from subgraph.verdict import Verdict

PIECES = ("culprit", "flaky", "in-doubt")  # in the folder of a bisection, the most telling one first


def replay(
    folder: Annotated[str, typer.Argument(metavar="CASE", help="A case: what cut or bisect left behind.")],
    candidate: o.CandidateSpec = None,
    criterion: o.Criterion = None,
    rtol: o.Rtol = None,
    atol: o.Atol = None,
    metric: o.Metric = None,
    precision: o.Precision = None,
    custom_ops: o.CustomOps = None,
    timeout: o.Timeout = None,
    memory_limit: o.MemoryLimit = None,
    trust: o.Trust = False,
) -> Result:
    """Run a case again on a candidate, and judge what comes.

    Without --candidate: on the one that the case was found with; its commands run only with --trust. Exit code 0: it
    agrees; 1: it goes wrong; 5: nothing could be told.
    """
    from subgraph import exhibit
    from subgraph.verdict import Status

    settings = project.load()
    place, found_with = _case(Path(folder))
    _check(place, found_with)
    manifest = case.read_manifest(place)
    if manifest is None or "inputs" not in manifest:
        raise UsageError(f"{clean(str(place))} is no case", "name a folder that `subcut cut` or `subcut bisect` made")
    rule = o.criterion(settings, criterion, rtol, atol, metric)
    doubted = _candidate(settings, candidate, found_with, timeout, memory_limit, precision, custom_ops, trust)
    samples = manifest["samples"] or [{"label": ""}]
    rows = []
    for k, sample in enumerate(samples):
        if exhibit.is_one(manifest):
            verdict = exhibit.again(place, manifest, doubted, rule)
        else:
            verdict = _verdict(place, manifest, k, doubted, rule, o.reference(settings, None, custom_ops, trust))
        rows.append({"sample": sample["label"], **verdict.to_json()})
    statuses = {row["status"] for row in rows}
    code = 1 if Status.FAIL in statuses else 0 if statuses == {Status.AGREE} else 5
    document = {"schema": "subcut.replay/1", "exit_code": code, "case": str(place), "candidate": doubted.name}
    lines = [f"{clean(str(place))}/ on {clean(doubted.name)}"]
    for row in rows:
        word = "FAIL" if row["status"] == "fail" else row["status"]
        label = f"{clean(row['sample'])}  " if row["sample"] else ""
        lines.append(f"  {label}{word}  {clean(row['why'])}")
        lines += [f"      | {clean(line)}" for line in row["process"].get("stderr") or ()]
    return Result(document | {"samples": rows}, "\n".join(lines), code)


def _case(folder: Path) -> tuple[Path, dict[str, Any] | None]:
    """The folder of one region, and the manifest of the bisection that it belongs to, if any."""
    if not folder.is_dir():
        raise UsageError(f"no folder {clean(str(folder))}", "name a case: what cut or bisect left behind")
    around = case.read_manifest(folder)
    if around and str(around["schema"]).startswith("subcut.evidence/"):
        inner = next((folder / name for name in PIECES if (folder / name).is_dir()), None)
        if inner is None:
            raise UsageError(f"{clean(str(folder))} holds no region", "the bisection named none")
        return inner, around
    above = case.read_manifest(folder.resolve().parent)
    return folder, above if above and str(above["schema"]).startswith("subcut.evidence/") else None


def _check(place: Path, around: dict[str, Any] | None) -> None:
    """
    Raises:
        UsageError: a manifest of the case lacks what is needed; a folder without one is told by others.
    """
    own = case.read_manifest(place)
    try:
        if around is not None:
            identity = around["request"]["identity"]
            _ = around["request"]["candidate"], identity["backend"], dict(identity["options"]), identity["memory"]
            float(identity["timeout"])
        if own is not None and "inputs" in own:
            labels = [sample["label"] for sample in own["samples"]]
            for tensor in own["inputs"]:
                files = [[f["file"], f["format"]] for sample in tensor["samples"] for f in sample["files"]]
                _ = tensor["name"], files, [tensor["samples"][k] for k in range(len(labels))]
    except (KeyError, IndexError, TypeError, ValueError) as e:
        raise UsageError(
            f"the manifest of the case {clean(str(place))} is damaged: {type(e).__name__} {e}",
            "make the case anew, or run the repro.py in it",
        ) from e


def _candidate(
    settings: project.Project, spec: str | None, found_with: dict[str, Any] | None, timeout: str | None,
    memory_limit: str | None, precision: str | None, custom_ops: str | None, trust: bool,
) -> Candidate:  # fmt: skip
    if spec or found_with is None:
        return o.candidate(settings, spec, timeout, memory_limit, precision, custom_ops, trust)
    from subgraph import candidate as candidates

    request = found_with["request"]
    identity = request["identity"]
    if identity["backend"] == candidates.BY_HAND:
        raise UsageError(f"{clean(str(request['candidate']))} was run by hand", "-c SPEC says what is to run this case")
    claim = precision or candidates.precision("this case", request.get("precision"))
    wanted = candidates.Candidate(
        str(request["candidate"]), str(identity["backend"]), dict(identity["options"]), claim, None,
        float(identity["timeout"]), identity["memory"], origin="this case",
    )  # fmt: skip
    shown = candidates.require_trust(wanted, trust)
    log.info("candidate %s, as the case was found%s", clean(wanted.name), f": {shown}" if shown else "")
    return wanted


def _verdict(place: Path, manifest: dict[str, Any], k: int, doubted: Candidate, rule: str, running: Any) -> Verdict:
    """One sample of a case."""
    import tempfile

    from subgraph import counterpart
    from subgraph.session import Setup, trials
    from subgraph.workers import Workers

    words = []
    for tensor in manifest["inputs"]:
        files = [f["file"] for f in tensor["samples"][k]["files"] if f["format"] == "npy"] if tensor["samples"] else []
        if len(files) != 1:
            raise InputError(f"input '{clean(tensor['name'])}' of the case is no single tensor", "run its repro.py")
        words.append(f"{tensor['name']}={place / files[0]}")
    graph = load(place / "model.onnx")
    with tempfile.TemporaryDirectory(prefix="subcut-") as temporary, running as reference, Workers(doubted) as workers:
        setup = Setup(doubted, Feeding(tuple(words)), Path(temporary), rule)
        with trials(graph, setup, reference, workers) as asked:
            if not k:
                o.told(asked)
            asked.other = counterpart.of_case(graph, place / "candidate")
            return asked.verdict(asked.whole(), fresh=True)
