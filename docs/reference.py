"""What pages take from elsewhere: tables from the code itself, and how to contribute.

`python docs/reference.py NAME` prints one. Knows nothing of MkDocs.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args

import typer

__all__ = ["REFERENCES"]

ROOT = Path(__file__).resolve().parents[1]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def commands() -> str:
    """Every command's options, from the command line itself."""
    from blockyard.cluster.cli import app

    return "\n".join(_command_sections(typer.main.get_command(app), "blockyard"))


def _command_sections(command: Any, name: str) -> Iterator[str]:
    if hasattr(command, "commands"):
        for part, inner in command.commands.items():
            if not inner.hidden:
                yield from _command_sections(inner, f"{name} {part}")
        return
    yield f"## `{name}`\n"
    yield (command.help or "").strip() + "\n"
    rows = [_option(parameter) for parameter in command.params if parameter.name != "help"]
    if rows:
        yield _row("option", "kind", "default", "meaning")
        yield _row("---", "---", "---", "---")
        yield from rows
    yield ""


def _option(parameter: Any) -> str:
    shown = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        shown = f"`{parameter.name.upper()}`"
    default = parameter.show_default
    if parameter.required:
        default = "required"
    elif not isinstance(default, str):
        value = parameter.default
        told = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        default = str(getattr(value, "value", value)) if told else ""
    kind = _kind(parameter.type_descriptor.annotation)
    return _row(shown, kind, default, parameter.help or "")


def _kind(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return ", ".join(str(member.value) for member in annotation)
    if kinds := [_kind(kind) for kind in get_args(annotation) if kind is not type(None)]:
        return " or ".join(kinds)
    name: str = annotation.__name__
    return {"bool": "flag", "str": "text", "Path": "path"}.get(name, name)


def api() -> str:
    """Services and messages, from the .proto files and their comments."""
    texts = [(ROOT / "protos" / name).read_text() for name in ("generation.proto", "cluster.proto")]
    return "\n".join(line for text in texts for line in _proto_sections(text))


def _proto_sections(text: str) -> Iterator[str]:
    comment: list[str] = []
    inside = ""
    for line in text.partition("package")[2].splitlines()[1:]:
        line = line.strip()
        if line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
        elif match := re.match(r"(service|message|enum) (\w+) \{$", line):
            inside = match[1]
            yield f"\n## {inside} `{match[2]}`\n"
            yield " ".join(comment) + "\n"
            titles = ["method", "takes", "answers"] if inside == "service" else ["field", "type"]
            titles.append("meaning")
            yield _row(*titles)
            yield _row(*("---" for _ in titles))
            comment = []
        elif match := re.match(r"rpc (\w+)\((.+?)\) returns \((.+?)\);", line):
            yield _row(*(f"`{part}`" for part in match.groups()), " ".join(comment))
            comment = []
        elif match := re.match(r"(?:((?:optional |repeated )?[\w.<>, ]+) )?(\w+) = \d+;", line):
            kind = f"`{match[1]}`" if match[1] else ""
            yield _row(f"`{match[2]}`", kind, " ".join(comment))
            comment = []
        elif line.startswith("oneof") or not line:
            comment = []


def chart_values() -> str:
    """Values of the Helm chart, from its schema and its defaults."""
    import yaml

    chart = ROOT / "helm" / "blockyard"
    schema = json.loads((chart / "values.schema.json").read_text())
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    lines = [_row("value", "type", "default", "meaning"), _row("---", "---", "---", "---")]
    lines += _value_rows(schema, schema["$defs"], "", defaults)
    return "\n".join(lines)


def _value_rows(
    schema: dict[str, Any], shapes: dict[str, Any], prefix: str, defaults: Any
) -> Iterator[str]:
    for name, told in schema.get("properties", {}).items():
        place = f"{prefix}{name}"
        shape = shapes[told["$ref"].rpartition("/")[2]] if "$ref" in told else {}
        default = defaults.get(name) if isinstance(defaults, dict) else None
        inner = shape if shape.get("properties") else told
        if inner.get("properties"):
            yield _row(f"`{place}`", "", "", told.get("description", ""))
            yield from _value_rows(inner, shapes, f"{place}.", default)
            continue
        kind = told.get("type") or shape.get("type") or ""
        if told.get("enum"):
            kind = ", ".join(told["enum"])
        shown = "" if default in (None, "", [], {}) else f"`{json.dumps(default)}`"
        if name == "models" and not prefix:
            yield _row(f"`{place}`", "array", "one model", told["description"])
            yield from _value_rows(shapes["model"], shapes, "models[].", {})
            continue
        kind = " or ".join(kind) if isinstance(kind, list) else kind
        yield _row(f"`{place}`", kind, shown, told.get("description", ""))


def _metrics(*specs: Any) -> str:
    rows = [_row("metric", "unit", "labels", "meaning"), _row("---", "---", "---", "---")]
    rows += (_row(f"`{spec.name}`", spec.unit, ", ".join(spec.labels), spec.help) for spec in specs)
    return "\n".join(rows)


def group_metrics() -> str:
    """Metrics of a group's books, and the histograms of its steps."""
    from blockyard.cluster.books.metric_specs import GROUP_METRICS, HISTOGRAMS

    return _metrics(*GROUP_METRICS, *HISTOGRAMS)


def rank_metrics() -> str:
    """Metrics of one rank."""
    from blockyard.cluster.books.rank_metrics import RANK_METRICS

    return _metrics(*RANK_METRICS)


def request_metrics() -> str:
    """Metrics of requests."""
    from blockyard.cluster.books.request_meter import REQUEST_METRICS

    return _metrics(*REQUEST_METRICS)


def shadow_metrics() -> str:
    """Metrics of contiguous servers."""
    from blockyard.cluster.books.shadow_metrics import SHADOW_METRICS

    return _metrics(*SHADOW_METRICS)


def central_metrics() -> str:
    """Metrics of the whole cluster."""
    from blockyard.cluster.books.central_metrics import CENTRAL_METRICS

    return _metrics(*CENTRAL_METRICS)


def contributing() -> str:
    """The repository's own file; what it links to are no pages, so that it is named instead."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]+\)", r"\1", text.partition("\n")[2].strip())


REFERENCES: dict[str, Callable[[], str]] = {
    "commands": commands,
    "api": api,
    "chart-values": chart_values,
    "group-metrics": group_metrics,
    "rank-metrics": rank_metrics,
    "request-metrics": request_metrics,
    "shadow-metrics": shadow_metrics,
    "central-metrics": central_metrics,
    "contributing": contributing,
}


if __name__ == "__main__":
    print(REFERENCES[sys.argv[1]]())
