"""The JSON schemas of configurations of runs and of studies, with the options of every installed plug-in.

Keys that an arm, a level or a scale may add are not required in the tables that it changes: `_complete` has what a
table needs if nothing changes it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import PydanticUndefined
from pydantic_core.core_schema import CoreSchema

from fedsim import plugins
from fedsim.config.adversary import AdversarySection
from fedsim.config.errors import models_in
from fedsim.config.run import RunConfig, WrapSection
from fedsim.config.section import PluginSection, Section
from fedsim.config.study.axes import STUDY_KEYS
from fedsim.config.study.study import StudyConfig
from fedsim.config.timing import PacingSection, StopSection
from fedsim.config.world import WorldConfig
from fedsim.plugins.options import field_docstrings, options_class, options_model

Schema = dict[str, Any]
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_TABLES: list[type[BaseModel]] = [
    *(table for field in RunConfig.model_fields.values() for table in models_in(field.annotation)),
    WrapSection,
]
_SOURCES: list[tuple[type[Section], str]] = [(t, t.kind) for t in _TABLES if issubclass(t, PluginSection)]
"""The tables that name a plug-in, with its kind."""


def run_schema() -> Schema:
    """Return the JSON schema (draft 2020-12) of the configuration of a run, with or without arms."""
    defs = _definitions()
    tables = defs["RunConfig"]["properties"]
    arms = {
        "type": "object",
        "description": "Several runs in one file: the keys of each table [arms.NAME] replace those of the file.",
        "minProperties": 1,
        "additionalProperties": _table({key: tables[key] for key in tables if key != "name"}),
    }
    return {
        "$schema": _DRAFT,
        "title": "Configuration of a fedsim run",
        **_table(tables | {"arms": arms}),
        "if": {"not": {"required": ["arms"]}},
        "then": _complete(RunConfig, defs, given=("name",)),
        "$defs": _used(defs, tables),
    }


def study_schema() -> Schema:
    """Return the JSON schema (draft 2020-12) of a study."""
    defs = _definitions()
    run = defs["RunConfig"]["properties"]
    defs["Tables"] = _table({key: run[key] for key in run if key not in STUDY_KEYS})
    tables, level = defs["StudyConfig"]["properties"], {"$ref": "#/$defs/Tables"}
    tables["run"] |= level
    tables["axes"]["additionalProperties"]["additionalProperties"] = level
    defs["ScaleSection"]["properties"]["run"] |= level
    seeds = {
        "description": "A number of seeds, or a list of seeds.",
        "anyOf": [
            {"type": "integer", "minimum": 1, "maximum": 100_000},
            {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1, "uniqueItems": True},
        ],
    }
    for table in (tables, defs["ScaleSection"]["properties"], defs["TuneSection"]["properties"]):
        table["seeds"] = seeds
    return {
        "$schema": _DRAFT,
        "title": "Configuration of a fedsim study",
        **_table(tables),
        "required": ["name", "seeds", "run"],
        "$defs": _used(defs, tables),
    }


class _Generator(GenerateJsonSchema):
    """Options of other types than TOML has, such as functions, accept anything."""

    ignored_warning_kinds = {"skipped-choice", "non-serializable-default"}  # noqa: RUF012

    def handle_invalid_for_json_schema(self, schema: CoreSchema, error_info: str) -> Schema:
        return {}


def _definitions() -> dict[str, Schema]:
    """Return the schemas of all tables by the names of their models, in which no key of a section is required."""
    options = {kind: _options_models(kind) for _, kind in _SOURCES}
    options["scenario"] = _options_models("scenario")
    outer, sections = [model for models in options.values() for model in models.values()], _sections()
    groups = {
        m for model in outer for field in model.model_fields.values() for m in models_in(field.annotation)
    }
    every = [(model, "validation") for model in (*outer, *sections, *groups)]
    refs, generated = models_json_schema(every, schema_generator=_Generator)  # type: ignore[arg-type]
    schemas = {key: _without_null(schema) for key, schema in generated["$defs"].items()}
    defs = {model: schemas[ref["$ref"].rpartition("/")[2]] for (model, _), ref in refs.items()}
    for described in (*sections, *groups):
        _describe(defs[described], described)
    for section in sections:
        defs[section].pop("required", None)
    plugin = {
        kind: {name: _of_options(kind, name, defs[model]) for name, model in models.items()}
        for kind, models in options.items()
    }
    for table, kind in _SOURCES:
        _add_options(schemas[table.__name__], kind, plugin[kind])
    _add_scenarios(schemas["WorldConfig"], plugin["scenario"])
    _add_metrics(schemas["StopSection"]["properties"]["metric"])
    _add_metrics(schemas["CompareSection"]["properties"]["metrics"])
    _complete_lists(schemas)
    return schemas


def _complete_lists(defs: Mapping[str, Schema]) -> None:
    """Require in tables inside lists what they need, as a list replaces another one as a whole."""
    wrap = defs["AlgorithmSection"]["properties"]["wrap"]
    wrap["items"] |= _complete(WrapSection, defs)
    adversary = defs["RunConfig"]["properties"]["adversary"]
    single = {"$ref": "#/$defs/AdversarySection"}
    listed = {"type": "array", "items": single | _complete(AdversarySection, defs)}
    kept = {key: value for key, value in adversary.items() if key not in ("items", "type")}
    defs["RunConfig"]["properties"]["adversary"] = kept | {
        "if": {"type": "array"},
        "then": listed,
        "else": single,
    }


def _sections() -> list[type[Section]]:
    """Return the models of all tables of runs and studies."""
    found: dict[type[Section], None] = {}
    waiting: list[type[BaseModel]] = [RunConfig, StudyConfig]
    while waiting:
        model = waiting.pop()
        if issubclass(model, Section) and model not in found:
            found[model] = None
            waiting += (m for field in model.model_fields.values() for m in models_in(field.annotation))
    return list(found)


def _options_models(kind: str) -> dict[str, type[BaseModel]]:
    """Return the models of the options of all plug-ins of a kind by their names."""
    supplied = plugins.KINDS[kind].supplied
    return {name: options_model(plugins.factory(kind, name), supplied) for name in plugins.names(kind)}


def _of_options(kind: str, name: str, schema: Schema) -> Schema:
    """Return the schema of a plug-in's options, with the docstrings of the fields of its dataclass."""
    group = options_class(plugins.factory(kind, name))
    texts = {} if group is None else field_docstrings(group)
    options = schema.get("properties", {})
    described = {key: option | _description(texts.get(key)) for key, option in options.items()}
    return {"properties": described, "required": schema.get("required", [])}


def _add_options(table: Schema, kind: str, plugin: Mapping[str, Schema]) -> None:
    """Add the options of each plug-in to a table that names one; those of `path:function` are free."""
    fixed = table["properties"]
    fixed["name"] |= _one_of(kind)
    keys = dict.fromkeys(fixed, True)
    closed = {name: _closed(keys | options["properties"]) for name, options in plugin.items()}
    owners: dict[str, list[str]] = {}
    for name, options in plugin.items():
        for key in options["properties"]:
            owners.setdefault(key, []).append(name)
    every = {key: {"description": f"Option of {', '.join(names)}."} for key, names in owners.items()}
    table["properties"] = every | fixed
    table["additionalProperties"] = True
    unnamed = {"if": {"not": {"required": ["name"]}}, "then": _closed(keys | dict.fromkeys(every, True))}
    table["allOf"] = [unnamed, *(_if("name", name) | {"then": then} for name, then in closed.items())]


def _add_scenarios(world: Schema, scenarios: Mapping[str, Schema]) -> None:
    world["properties"]["scenario"] |= _one_of("scenario")
    world["allOf"] = [
        _if("scenario", name) | {"then": {"properties": {"options": _closed(options["properties"])}}}
        for name, options in scenarios.items()
    ]


def _add_metrics(schema: Schema) -> None:
    names = _one_of("metric")
    if "items" in schema:
        schema["items"] = {"enum": names["anyOf"][0]["enum"]}
    else:
        schema.update(names)


def _complete(model: type[Section], defs: Mapping[str, Schema], given: tuple[str, ...] = ()) -> Schema:
    """Return what a table must have, and the tables inside it, if nothing but defaults completes it."""
    fields = {key: field for key, field in model.model_fields.items() if key not in given}
    inside = {
        key: inner
        for key, field in fields.items()
        for table in models_in(field.annotation)[:1]
        if issubclass(table, Section)
        and table not in (AdversarySection, WrapSection)
        and (inner := _complete(table, defs))
    }
    required = [key for key, field in fields.items() if field.is_required()]
    parts = {"required": required, "properties": inside, "allOf": list(_conditions(model, defs))}
    return {key: part for key, part in parts.items() if part}


def _conditions(model: type[Section], defs: Mapping[str, Schema]) -> Iterator[Schema]:
    """Yield the conditions of a complete table beside its required keys."""
    if model is PacingSection:
        for preset, keys in PacingSection.KEYS.items():
            others = [key for key in keys if key != "extra"]
            chosen: Schema = {"properties": {"preset": {"const": preset}}}
            if preset != PacingSection.model_fields["preset"].default:
                chosen["required"] = ["preset"]
            yield {"if": chosen, "then": {"required": others}}
    elif model is StopSection:
        yield {"anyOf": [{"required": [key]} for key in ("steps", "time", "bytes", "wall")]}
    elif model is WorldConfig:
        yield {"oneOf": [{"required": [key]} for key in ("scenario", "trace", "join")]}
    elif issubclass(model, PluginSection):
        default = model.model_fields["name"].default
        if default is not PydanticUndefined:
            named = {part["if"]["properties"]["name"]["const"]: part["then"] for part in _named(model, defs)}
            yield {"if": {"not": {"required": ["name"]}}, "then": named[default]}


def _named(model: type[Section], defs: Mapping[str, Schema]) -> list[Schema]:
    return [part for part in defs[model.__name__]["allOf"] if "properties" in part["if"]]


def _one_of(kind: str) -> Schema:
    """Return the schema of the name of a plug-in; some editors show what each name stands for."""
    names = plugins.names(kind)
    texts = [plugins.summary(kind, name) for name in names]
    return {
        "anyOf": [{"enum": names}, {"type": "string", "pattern": ":"}],
        "x-taplo": {"docs": {"enumValues": texts}},
    }


def _if(key: str, value: str) -> Schema:
    return {"if": {"required": [key], "properties": {key: {"const": value}}}}


def _table(properties: Mapping[str, Any]) -> Schema:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _closed(properties: Mapping[str, Any]) -> Schema:
    return {"properties": dict(properties), "additionalProperties": False}


def _describe(schema: Schema, model: type[BaseModel]) -> None:
    """Put docstrings into the schema of a table."""
    schema |= _description(schema.get("description"))
    texts = field_docstrings(model)
    for key, field in schema["properties"].items():
        below = [inspect.getdoc(inner) for inner in models_in(model.model_fields[key].annotation)]
        field |= _description(texts.get(key) or next(iter(below), None))


def _description(text: str | None) -> Schema:
    return {"description": " ".join(text.replace("`", "").split())} if text else {}


def _without_null(schema: Any) -> Any:
    """Return a schema without null, which TOML does not have, without defaults of tables, and generated titles."""
    if isinstance(schema, list):
        return [_without_null(part) for part in schema if part != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    reduced = {
        key: {name: _without_null(part) for name, part in value.items()}
        if key == "properties"
        else _without_null(value)
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
        and not (key == "default" and (value is None or isinstance(value, dict)))
    }
    if len(parts := reduced.get("anyOf", ())) == 1:
        del reduced["anyOf"]
        return reduced | parts[0]
    return reduced


def _used(defs: Mapping[str, Schema], tables: Mapping[str, Any]) -> dict[str, Schema]:
    """Return the definitions that the tables refer to, directly or not."""
    found: dict[str, Schema] = {}
    waiting: list[Any] = [tables]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            if isinstance(ref := part.get("$ref"), str) and (name := ref.rpartition("/")[2]) not in found:
                found[name] = defs[name]
                waiting.append(defs[name])
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return dict(sorted(found.items()))
