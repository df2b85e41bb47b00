"""The OpenAPI document of the control server."""

from __future__ import annotations

from typing import Any, Final

from dasktune.trial.status import PublicStatus

PREFIX: Final = "/api/v1"

#: Maximum number of trials in one response.
LARGEST_PAGE: Final = 1_000

#: An infinite number of seconds, which JSON lacks.
NEVER: Final = "never"

_TEXT: Final = {"type": "string"}
_COUNT: Final = {"type": "integer", "minimum": 0}
_TIME: Final = {"type": "number", "nullable": True}

_SCHEMAS: Final[dict[str, Any]] = {
    "Trial": {
        "type": "object",
        "required": ["trial_id", "status", "config", "last_result"],
        "properties": {
            "trial_id": _TEXT,
            "status": {"type": "string", "enum": [status.value for status in PublicStatus]},
            "paused_by_user": {"type": "boolean"},
            "config": {"type": "object"},
            "tag": _TEXT,
            "added": {"type": "boolean"},
            "training_iteration": _COUNT,
            "last_result": {"type": "object"},
            "worker": _TEXT,
            "started_at": _TIME,
            "ended_at": _TIME,
            "failures": _COUNT,
            "losses": _COUNT,
            "error": {"type": "string", "nullable": True},
            "reason": _TEXT,
        },
    },
    "Trials": {
        "type": "object",
        "required": ["total", "offset", "trials"],
        "properties": {
            "total": _COUNT,
            "offset": _COUNT,
            "trials": {"type": "array", "items": {"$ref": "#/components/schemas/Trial"}},
        },
    },
    "Experiment": {
        "type": "object",
        "required": ["state", "counts"],
        "properties": {
            "state": {"type": "string", "enum": ["running", "held", "stopping"]},
            "reason": _TEXT,
            "time": {"type": "number"},
            "counts": {"type": "object", "additionalProperties": _COUNT},
            "paused_by_user": _COUNT,
            "total": {"type": "integer", "nullable": True},
            "metric": {"type": "string", "nullable": True},
            "mode": {"type": "string", "nullable": True},
            "best": {"nullable": True, "allOf": [{"$ref": "#/components/schemas/Trial"}]},
        },
    },
    "Outcome": {
        "type": "object",
        "required": ["message", "trial_id", "status"],
        "properties": {"message": _TEXT, "trial_id": _TEXT, "status": _TEXT},
    },
    "Error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "kind"],
                "properties": {"message": _TEXT, "kind": _TEXT},
            }
        },
    },
    "NewTrial": {
        "type": "object",
        "required": ["config"],
        "additionalProperties": False,
        "properties": {"config": {"type": "object"}},
    },
    "Share": {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": False,
        "properties": {
            "weight": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
            "priority": {"type": "number"},
            "yields_after": {"oneOf": [{"type": "number", "minimum": 0}, {"enum": [NEVER]}]},
        },
    },
    "Nothing": {"type": "object", "additionalProperties": False, "properties": {}},
    "Description": {
        "type": "object",
        "required": ["openapi", "info", "paths"],
        "properties": {
            "openapi": _TEXT,
            "info": {"type": "object"},
            "paths": {"type": "object"},
        },
    },
}

_ID: Final = {"name": "trial_id", "in": "path", "required": True, "schema": _TEXT}

_REFUSALS: Final = ("400", "401", "403", "404", "405", "409", "411", "413", "415", "422", "503")


def _json(schema: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _answers(schema: str, *good: str) -> dict[str, Any]:
    answers = {code: {"description": "done", "content": _json(schema)} for code in good}
    refused = {"description": "refused", "content": _json("Error")}
    return {**answers, **dict.fromkeys(_REFUSALS, refused)}


def _get(name: str, summary: str, schema: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "get": {
            "operationId": name,
            "summary": summary,
            "parameters": list(parameters),
            "responses": _answers(schema, "200"),
        }
    }


#: Who issues a command, for the journal.
_USER: Final = {"name": "Dasktune-User", "in": "header", "required": False, "schema": _TEXT}


def _post(name: str, summary: str, body: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "post": {
            "operationId": name,
            "summary": summary,
            "parameters": [*parameters, _USER],
            "requestBody": {"required": body != "Nothing", "content": _json(body)},
            "responses": _answers("Outcome", "200", "202"),
        }
    }


def _query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def openapi_document() -> dict[str, Any]:
    """Return the document that ``/openapi.json`` serves."""
    status = _query("status", {"type": "string", "enum": [one.value for one in PublicStatus]})
    limit = _query("limit", {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE})
    offset = _query("offset", {"type": "integer", "minimum": 0, "maximum": 10**9})
    trials = _get("get_trials", "List trials", "Trials", status, limit, offset)
    # Operations have the names of the methods of TuneClient.
    paths = {
        "/experiment": _get("get_experiment", "Get the state of the experiment", "Experiment"),
        "/experiment/hold": _post("hold", "Start no trial until release", "Nothing"),
        "/experiment/release": _post("release", "Let trials start again", "Nothing"),
        "/experiment/stop": _post("stop_experiment", "Stop all trials and end the experiment", "Nothing"),
        "/experiment/cancel": _post("cancel_experiment", "End the run with trials unfinished", "Nothing"),
        "/experiment/share": _post("set_share", "Change the share of the cluster", "Share"),
        "/trials": {**trials, **_post("add_trial", "Add a trial", "NewTrial")},
        "/trials/{trial_id}": _get("get_trial", "Get a trial", "Trial", _ID),
        "/trials/{trial_id}/stop": _post("stop_trial", "Stop a trial", "Nothing", _ID),
        "/trials/{trial_id}/pause": _post("pause_trial", "Pause a trial", "Nothing", _ID),
        "/trials/{trial_id}/unpause": _post("unpause_trial", "Unpause a trial", "Nothing", _ID),
        "/trials/{trial_id}/checkpoint": _post("checkpoint_trial", "Save a checkpoint", "Nothing", _ID),
        "/openapi.json": _get("get_description", "Get this document", "Description"),
    }
    return {
        "openapi": "3.0.3",
        "info": {"title": "dasktune control", "version": "1"},
        "servers": [{"url": PREFIX}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
