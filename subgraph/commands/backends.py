"""`subcut backends`: the list of candidates."""

from __future__ import annotations

from subgraph import plugins, project
from subgraph.commands import Result
from subgraph.documents import to_json
from subgraph.results.commands import BackendEntry, BackendsResult
from subgraph.runtime.backends import Options, capabilities
from subgraph.runtime.devices import DEVICES
from subgraph.text import clean


def backends() -> Result:
    """List backends, devices and candidates of the project file."""
    settings = project.load()
    names = plugins.names("backends")
    rows = [
        *(
            _row(name, plugins.help_of("backends", name), capabilities(name).options)
            for name in names
        ),
        *(_row(name, device.help, device.options) for name, device in DEVICES.items()),
    ]
    for name, table in settings.values.get("candidates", {}).items():
        words = (
            [str(table[k]) for k in ("convert", "run", "spec") if k in table]
            if isinstance(table, dict)
            else []
        )
        rows.append(BackendEntry(name, " ; ".join(words), str(settings.file)))
    width = max(len(clean(r.name)) for r in rows)
    lines = []
    for row in rows:
        origin = f"   ({clean(row.origin)})" if row.origin else ""
        lines.append(f"{clean(row.name):<{width}}  {clean(row.help)}{origin}")
        if options := _describe(row.options):
            lines.append(f"{'':<{width}}  options: {options}")
    lines.append(
        "a Python file with load(model, options) is one as well; `subcut doctor` says what each"
        " lacks"
    )
    return Result(to_json(BackendsResult(backends=rows)), "\n".join(lines))


def _row(name: str, about: str, options: Options) -> BackendEntry:
    return BackendEntry(name, about, "", options)


def _describe(options: Options) -> str:
    """Return options in a line: `precision=normal|high|low, threads`."""
    own = {name: values for name, values in options.items() if values is not None}
    return ", ".join(
        f"{name}={'|'.join(values)}" if values else name for name, values in own.items()
    )
