"""Result folders of every kind: their places, their replacement, and their manifests."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import Any, Generic, TypeAlias, TypeVar

from subgraph.documents import (
    CommandLine,
    File,
    Name,
    Version,
    Word,
    absent,
    from_json,
    json_key,
    to_json,
)
from subgraph.errors import ResultExists
from subgraph.graph.graph import Graph
from subgraph.graph.walks import find_producer_label
from subgraph.log import log
from subgraph.results.common import ComparedOutputs
from subgraph.runtime.candidate import RuntimeBuild
from subgraph.runtime.capture import Captured
from subgraph.runtime.inputs import OriginKind
from subgraph.runtime.reference import Reference
from subgraph.storage.convert import StoredFile, TensorFormat, write_bin
from subgraph.storage.tensors import Record
from subgraph.text import clean
from subgraph.types import Fields, JsonObject, StringMap, frozen, frozen_keywords
from subgraph.version import list_versions

MAX_NUMBER = 99  # results of one name, side by side
MANIFEST = "manifest.json"
CASE_SCHEMA = "subcut.case/1"
# In the manifest of each kind of result.
KEYS = frozenset(("schema", "source", "request", "command", "files"))


@frozen
class ResultPlace:
    """The place of a result; `force`: it may replace any other result of subcut there."""

    parent: Path
    name: str
    force: bool = False

    @property
    def path(self) -> Path:
        return self.parent / self.name


@frozen
class ModelSource:
    """The identity of the model or the folder that a result was made from, as a manifest has it."""

    file: File = ""
    folder: str | None = absent()
    bytes: int | None = absent()
    structure_sha256: str | None = absent()
    weights_sha256: str | None = absent()
    path: str | None = absent()


@frozen
class FedInput:
    """An input of the model as it was fed; `origin`: the file, or how its values were drawn, for
    people."""

    name: Name
    dtype: Word
    shapes: Sequence[Sequence[int]]
    origin: str = json_key("from")
    kind: OriginKind = OriginKind.FILE


@frozen
class SampleEntry:
    """One sample of a result; its label is empty if there is only one."""

    label: str
    fed: Sequence[FedInput] = ()


@frozen
class StoredTensor:
    """A tensor's files of one sample; `shapes`: one per element of a sequence."""

    form: Word
    dtype: Word
    shapes: Sequence[Sequence[int]]
    files: Sequence[StoredFile]


@frozen
class TensorEntry:
    """A tensor over all samples. `producer`: label of its node; `shape`: its shapes, None if
    samples differ."""

    name: Name
    producer: Name | None
    dtype: Word
    form: Word
    shape: Sequence[Sequence[object]] | None
    samples: Sequence[StoredTensor] = ()


@frozen
class ReferenceEntry:
    """The computation of the reference values."""

    runtime: Word
    options: Fields | None = absent()
    provider: Word | None = absent()
    optimization: Word | None = absent()
    threads: object = absent()
    custom_ops: File | None = absent()


@frozen
class RecordingEntry:
    """The recording that a case was cut from; `fed`: the recorded inputs were fed; `files`: input →
    recorded file."""

    name: Name
    folder: str
    format: Word
    fed: bool
    files: Mapping[str, File] = field(default_factory=dict)


@frozen
class NodeEntry:
    """A node of a case's region."""

    name: Name
    op: Name
    index: int


@frozen
class RegionEntry:
    """The region of a case: `Region`, with the changes of its cut."""

    start: Sequence[Name]
    end: Sequence[Name]
    nodes: Sequence[NodeEntry]
    pulled: Sequence[NodeEntry] = ()
    random: Sequence[NodeEntry] = ()
    frozen: Sequence[Name] = ()
    renamed: Mapping[str, Name] = field(default_factory=dict)
    parameters: int = 0


@frozen
class OutputDifference:
    """The difference between an output of the cut and the captured one.

    Attributes:
        name: The tensor.
        comparable: Whether the values are floating with NaN and infinities in the same places.
        max_abs: The largest difference; None for infinity.
        scale: The largest captured magnitude; None for infinity.
        relative: The difference as a share of the scale; None for infinity or no comparison.
        why: The difference in words if the values are not comparable.
    """

    name: str
    comparable: bool = False
    max_abs: float | None = 0.0
    scale: float | None = 0.0
    relative: float | None = None
    why: str = ""


@frozen
class CheckResult:
    """Whether the isolated cut returns the captured outputs.

    Attributes:
        status: "identical", "rounding", "unrepeatable", "different", "not run", "refused" (it does
            not load), or "expected" for outputs of a test.
        what: the same in words.
        tolerance: the largest difference, as a share of the scale, that the status excuses.
    """

    status: str
    what: str
    tolerance: float | None = absent()
    outputs: Sequence[OutputDifference] | None = absent()


@frozen_keywords
class WrittenManifest:
    """The fields of the manifest of each kind of result.

    Attributes:
        files: All files of the result; `write_manifest` lists them.
    """

    schema: Word
    source: ModelSource
    command: CommandLine
    request: object
    files: Sequence[File] = ()


@frozen
class NewerNode:
    """A node that means what opset `since` defines."""

    name: Name
    op: Name
    since: int


@frozen
class TargetOpset:
    """The cut at another version of ONNX's own operators.

    Attributes:
        version: The version that was requested.
        of: The version of the cut itself.
        newer: The nodes that need a later version.
        file: The cut at that version; None if onnx could not convert it.
        why: The reason why onnx could not convert it.
        check: The check of that cut on the captured values.
    """

    version: int
    of: int
    newer: Sequence[NewerNode]
    file: File | None = None
    why: str = ""
    check: CheckResult | None = None


@frozen_keywords
class CaseManifest(WrittenManifest):
    """The manifest of a case; the absent fields are those of a cut without values, a recording, a
    test.

    Attributes:
        above: The number of nodes of the model upstream of the region.
        losses: The losses of conversions, in words.
        target_opset: The cut at another opset (`cases.check`).
        expected: The operator test that the case was made from.
        numbers: The inputs and outputs in a line if they are a few numbers; `repro.py` prints it.
        found: The candidate's outcome.
    """

    schema: Word = CASE_SCHEMA
    region: RegionEntry
    versions: Mapping[str, Version] = field(default_factory=list_versions)
    inputs: Sequence[TensorEntry]
    outputs: Sequence[TensorEntry]
    dump_data: Sequence[TensorEntry] | None = absent()
    samples: Sequence[SampleEntry]
    seed: int | None = absent()
    reference: ReferenceEntry | None = absent()
    above: int | None = absent()
    losses: Sequence[str] | None = absent()
    check: CheckResult
    recording: RecordingEntry | None = absent()
    expected: object = absent()
    numbers: Name | None = absent()
    found: object = absent()
    target_opset: TargetOpset | None = absent()


# ------------------------------------------------------------ as it is read


@frozen
class CaseOutcome:
    """The result of a candidate on a case.

    Attributes:
        status: The status of its verdict.
        signature: The signature of its verdict; bundles of earlier versions lack it.
        why: The reason in words.
        candidate: The candidate's name; None in the list of a bundle.
        place: The nodes at fault and the cure, if only the full model shows the fault.
    """

    status: Word
    signature: Word | None = None
    why: str = ""
    candidate: str | None = absent()
    place: Name | None = absent()


@frozen
class ExpectedTest:
    """The name and tolerance of the operator test that expects the outputs of a case."""

    test: Name
    rtol: float
    atol: float


@frozen
class Identity(RuntimeBuild):
    """`Candidate.identity`, as far as it is read."""

    backend: str
    options: Mapping[str, str | int | float | bool | None]
    timeout: float
    memory: float | None
    files: StringMap = field(default_factory=dict)


@frozen
class EvidenceRequest(ComparedOutputs):
    """A request that names a candidate; what its `precision` means is not checked."""

    candidate: str
    identity: Identity
    precision: Word | None = None


@frozen_keywords
class Manifest:
    """A manifest of any kind, as far as it is read; it may come from anywhere."""

    schema: Word
    source: ModelSource
    command: CommandLine | None
    request: object
    files: Sequence[File]
    inputs: Sequence[TensorEntry] | None = None
    outputs: Sequence[TensorEntry] = ()
    dump_data: Sequence[TensorEntry] = ()
    samples: Sequence[SampleEntry] = ()
    region: RegionEntry | None = None
    versions: Mapping[str, Version] = field(default_factory=dict)
    reference: Fields = field(default_factory=dict)
    found: CaseOutcome | None = None
    expected: ExpectedTest | None = None

    @property
    def is_case(self) -> bool:
        """Whether this is the manifest of a case."""
        return self.inputs is not None and self.region is not None

    @property
    def names_candidate(self) -> bool:
        """Whether the request names a candidate."""
        return isinstance(self.request, dict) and "identity" in self.request

    @property
    def evidence(self) -> EvidenceRequest | None:
        """The request that names a candidate; None if no candidate is named."""
        if self.names_candidate:
            return from_json(EvidenceRequest, self.request)
        return None


M = TypeVar("M", bound=WrittenManifest)


@frozen
class ResultFolder(Generic[M]):
    """One result folder that was written, and its manifest."""

    path: Path
    manifest: M

    def document(self) -> JsonObject:
        """Return the path and the fields of the manifest, as a command's JSON has them."""
        return {"path": str(self.path), **to_json(self.manifest)}


Case: TypeAlias = ResultFolder[CaseManifest]


def find_free_place(
    place: ResultPlace, source: ModelSource, reads: Sequence[Path] = ()
) -> ResultPlace:
    """Return the place of a result: `place`, with a number if another result is there.

    Replaced are only results of subcut from the same model or folder, in which nothing was added,
    and with `place.force` every result of subcut. Never: a folder that subcut did not write, the
    current folder, or a folder with a file that is read (`reads`), so that a typing mistake never
    costs a folder.

    Raises:
        ResultExists: The path is not a result, or is in use; or it has too many results.
    """
    for number in range(1, MAX_NUMBER + 1):
        numbered = place if number == 1 else replace(place, name=f"{place.name}-{number}")
        if _is_replaceable(numbered, source, reads):
            if number > 1:
                log.info(
                    "%s stays: it holds another result; this one goes to %s",
                    place.path,
                    numbered.path,
                )
            return numbered
    raise ResultExists(
        f"{place.path} and {MAX_NUMBER - 1} folders next to it hold results",
        "remove some, or -o DIR",
        code="output.too-many-results",
    )


def _is_replaceable(place: ResultPlace, source: ModelSource, reads: Sequence[Path]) -> bool:
    """Return whether a result may go exactly here.

    Raises:
        ResultExists: as `find_free_place`.
    """
    path = place.path
    if not os.path.lexists(path):
        return True
    elsewhere = "choose another folder with -o"
    if path.is_symlink() or not path.is_dir():
        raise ResultExists(
            f"{path} is in the way: it is not a folder",
            f"move it, or {elsewhere}",
            code="output.not-folder",
        )
    if _holds(path, Path.cwd()):
        raise ResultExists(
            f"{path} cannot be replaced: it is the folder that you are in",
            elsewhere,
            code="output.is-current-folder",
        )
    manifest = read_manifest(path)
    if manifest is None:
        if any(path.iterdir()):
            raise ResultExists(
                f"{path} holds something that subcut did not write",
                f"move it, or {elsewhere}",
                code="output.not-ours",
            )
        return True
    if any(_holds(path, p) for p in reads):
        if not place.force:
            return False
        raise ResultExists(
            f"{path} cannot be replaced: it holds what is read", elsewhere, code="output.is-input"
        )
    return place.force or _is_ours(path, manifest, source)


def is_earlier(place: ResultPlace, request: object, source: ModelSource) -> bool:
    """Return whether an unchanged result of the same request is there."""
    manifest = read_manifest(place.path)
    return (
        manifest is not None
        and manifest.request == request
        and _is_ours(place.path, manifest, source)
    )


def _holds(folder: Path, path: Path) -> bool:
    return folder.resolve() in (path.resolve(), *path.resolve().parents)


def _is_ours(path: Path, manifest: Manifest, source: ModelSource) -> bool:
    """Return whether a folder holds a result from this source, and no file that subcut did not
    write."""
    identity = attrgetter("file", "folder", "structure_sha256")
    if identity(manifest.source) != identity(source):
        return False
    listed = set(manifest.files)
    return all(p.relative_to(path).as_posix() in listed for p in path.rglob("*") if p.is_file())


def read_manifest(path: Path) -> Manifest | None:
    """Return the manifest in a folder; None if subcut wrote no manifest there.

    Raises:
        InputError: The manifest is damaged; the error names the key.
    """
    document = read_plain_manifest(path)
    if document is None:
        return None
    return from_json(Manifest, document)


def read_plain_manifest(path: Path) -> JsonObject | None:
    """Return the manifest in a folder as checked JSON; None if subcut wrote no manifest there.

    Raises:
        InputError: The manifest is damaged; the error names the key.
    """
    file = path / MANIFEST
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if (
        not isinstance(data, dict)
        or not data.keys() >= KEYS
        or not str(data["schema"]).startswith("subcut.")
    ):
        return None
    hint = f"make {clean(str(path))} again; move the damaged one away first"
    manifest = from_json(Manifest, data, str(file), hint)
    if manifest.names_candidate:
        from_json(EvidenceRequest, manifest.request, f"{file}: the request", hint)
    return data


def write_manifest(manifest: M, work: Path) -> M:
    """Write the manifest as the last file of a result; return it with the files of the result."""
    files = {p.relative_to(work).as_posix() for p in work.rglob("*") if p.is_file()}
    listed = replace(manifest, files=[*sorted(files - {MANIFEST}), MANIFEST])
    (work / MANIFEST).write_bytes(as_json(to_json(listed)))
    return listed


def as_json(document: object) -> bytes:
    """Return plain JSON as the bytes of a file."""
    return (json.dumps(document, indent=1) + "\n").encode("ascii")


def to_plain(request: object) -> Any:
    """Return a request as JSON reads it (tuples as lists), to compare it with a manifest's."""
    return json.loads(json.dumps(request))


def describe_source(graph: Graph) -> ModelSource:
    """Return the identity of the model that a graph was read from."""
    return ModelSource(
        graph.path.name, bytes=graph.skeleton.size, structure_sha256=graph.skeleton.structure
    )


def describe_reference(reference: Reference) -> ReferenceEntry:
    """Describe the computation of the reference values."""
    options = reference.options
    if not reference.fixed:
        return ReferenceEntry(Path(reference.backend).name, dict(options))
    return ReferenceEntry(
        "onnxruntime",
        provider=options.get("providers", "CPUExecutionProvider"),
        optimization=options["opt"],
        threads=options["threads"],
        custom_ops=Path(options["custom_ops"]).name if "custom_ops" in options else None,
    )


def describe_sample(sample: Captured) -> SampleEntry:
    """Return the entry of one sample: its label and the tensors that were fed."""
    fed = []
    for record in sample.fed.values():
        origin = sample.origins[record.name]
        fed.append(FedInput(record.name, record.dtype, record.shapes, str(origin), origin.kind))
    return SampleEntry(sample.label, fed)


def describe_tensor(graph: Graph, name: str, stored: Sequence[StoredTensor]) -> TensorEntry:
    """Return the entry of one tensor over all samples, of which there is at least one."""
    first = stored[0]
    shape = first.shapes if all(s.shapes == first.shapes for s in stored) else None
    return TensorEntry(
        name, find_producer_label(graph, name), first.dtype, first.form, shape, stored
    )


def store(
    record: Record,
    target: str,
    work: Path,
    formats: Iterable[str],
    tensor_format: TensorFormat,
    *,
    keep: bool,
) -> tuple[StoredTensor, list[str]]:
    """Put a value's files into `work/target`, in each of the formats; return them, and what was
    lost in words.

    The values themselves are always there as .npy; `tensor_format` concerns the .bin. `record` has
    paths that lead to its files from here; `keep`: they are copied, not moved.
    """
    (work / target).mkdir(parents=True, exist_ok=True)
    names = [PurePosixPath(target, Path(file).name).as_posix() for file in record.files]
    for file, name in zip(record.files, names, strict=True):
        (shutil.copyfile if keep else shutil.move)(file, work / name)
    files = [
        StoredFile(f, "npy", record.dtype, s) for f, s in zip(names, record.shapes, strict=True)
    ]
    losses: list[str] = []
    if "bin" in formats:
        raw, losses = write_bin(replace(record, files=tuple(names)), work, tensor_format)
        files += raw
    return StoredTensor(record.form, record.dtype, record.shapes, files), losses
