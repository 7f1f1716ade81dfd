"""The schemas of all documents that subcut writes, and the dataclasses that describe them."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from operator import or_
from typing import Any

from subgraph import documents
from subgraph.results.answer import CommandAnswer
from subgraph.types import JsonObject, StringMap

# By schema: module and dataclass of each form that a document has.
SCHEMAS: StringMap = {
    "subcut.backends/1": "results.commands:BackendsResult",
    "subcut.bisect/1": "results.bisect:BisectDocument",
    "subcut.blame/1": "results.blame:BlameDocument",
    "subcut.brief/1": "results.brief:BriefDocument",
    "subcut.bundle/1": "cases.find_case:BundleList results.commands:PackedResult",
    "subcut.case/1": "cases.case:CaseManifest",
    "subcut.compare/1": "results.compare:ComparisonDocument",
    "subcut.convert/1": "results.commands:ConvertResult results.commands:EditResult",
    "subcut.cut/1": "results.cut:CutResult results.cut:CutPlan",
    "subcut.demo/1": "results.commands:DemoResult",
    "subcut.doctor/1": "results.commands:DoctorResult",
    "subcut.draw/1": "results.commands:DrawnModel",
    "subcut.dump/1": "cases.evidence:DumpManifest",
    "subcut.environment/1": "cases.redact:Environment",
    "subcut.error/1": "results.answer:ErrorResult",
    "subcut.evidence/1": "cases.evidence:EvidenceManifest",
    "subcut.export/1": "recordings.export:ExportManifest",
    "subcut.inspect/1": "inspection.describe:InspectDocument",
    "subcut.interval/1": "results.compare:IntervalDocument",
    "subcut.known/1": "results.commands:KnownResult",
    "subcut.lint-rules/1": "results.commands:RulesResult",
    "subcut.lint/1": "inspection.lint:LintDocument",
    "subcut.loop/1": "results.loop:LoopDocument",
    "subcut.manual-state/1": "questions.bisection.manual.manual_session:SavedSession",
    "subcut.manual/1": (
        "results.commands:ManualProgress results.commands:ManualLog results.commands:ManualReset"
    ),
    "subcut.merge/1": "results.commands:EditResult",
    "subcut.plan/1": "results.plan:PlanDocument",
    "subcut.recorded/1": "results.compare:RecordedDocument",
    "subcut.remove/1": "results.commands:RemoveResult",
    "subcut.replace/1": "results.commands:EditResult",
    "subcut.replay/1": "results.commands:ReplayResult",
    "subcut.report/1": "results.commands:ReportResult",
    "subcut.run/1": "runtime.backends.cmd:RunManifest",
    "subcut.side-by-side/1": "results.compare:SideBySideResult",
    "subcut.sweep/1": "results.sweep:SweepDocument",
    "subcut.tasks/1": "results.answer:TasksResult",
    "subcut.torch/1": "origins.torch.record:TorchRecording",
    "subcut.values/1": "storage.value_pairs:SavedValues",
    "subcut.view/1": "results.commands:ViewResult",
}


def list_types(schema: str) -> list[type]:
    """Return the dataclasses that describe the documents of a schema of `SCHEMAS`, one per form.

    Args:
        schema: The name of the schema.
    """
    places = [place.split(":") for place in SCHEMAS[schema].split()]
    return [getattr(import_module(f"subgraph.{module}"), name) for module, name in places]


def make_json_schema(schema: str) -> JsonObject:
    """Return the JSON Schema of the documents of a schema of `SCHEMAS`, with the headline and the
    next commands that `--json` adds.

    Args:
        schema: The name of the schema.
    """
    kinds: Any = reduce(or_, list_types(schema))
    rule = documents.make_schema(kinds)
    answer = documents.make_schema(CommandAnswer)["$defs"]
    properties = answer[CommandAnswer.__name__]["properties"]
    return {**rule, "$defs": {**answer, **rule.get("$defs", {})}, "properties": properties}
