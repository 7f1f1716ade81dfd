"""`subcut backends`: the list of candidates."""

from __future__ import annotations

from subgraph import plugins, project
from subgraph.commands import Result
from subgraph.runtime import devices
from subgraph.runtime.devices import KIND
from subgraph.text import clean


def backends() -> Result:
    """List backends, devices and candidates of the project file."""
    settings = project.load()
    kinds = [("backends", name) for name in plugins.names("backends")] + [(KIND, name) for name in devices.names()]
    rows = [{"name": name, "help": plugins.help_of(kind, name), "from": ""} for kind, name in kinds]
    for name, table in settings.values.get("candidates", {}).items():
        words = [str(table[k]) for k in ("convert", "run", "spec") if k in table] if isinstance(table, dict) else []
        rows.append({"name": name, "help": " ; ".join(words), "from": str(settings.file)})
    width = max(len(clean(r["name"])) for r in rows)
    lines = []
    for row in rows:
        origin = f"   ({clean(row['from'])})" if row["from"] else ""
        lines.append(f"{clean(row['name']):<{width}}  {clean(row['help'])}{origin}")
    lines.append("a Python file with load(model, options) is one as well; `subcut doctor` says what each lacks")
    return Result({"schema": "subcut.backends/1", "exit_code": 0, "backends": rows}, "\n".join(lines))
