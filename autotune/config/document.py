"""A tuned config as a JSON document, and the fields of one read back from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune.config.evidence import Evidence
from autotune.config.file import SCHEMA_VERSION, check_document
from autotune.config.saved_task import SavedTask
from autotune.config.sections import learning_rate_section, portable_sections
from autotune.errors import AutotuneError, ConfigError
from autotune.learning_rate import LearningRatePlan, Schedule
from autotune.settings import Settings
from autotune.task import Facts

if TYPE_CHECKING:
    from autotune.config.tuned_config import TunedConfig

__all__ = ["config_document", "config_fields"]

_REQUIRES = {"torch": ">=2.9"}

# What of the document depends on the chosen settings; all else is shared with the same-batch answer.
_OF_SETTINGS = (
    "dataloader",
    "gradient_accumulation_steps",
    "effective_batch_size",
    "autocast",
    "grad_scaler",
    "memory_format",
    "compile",
    "torch",
    "optimizer",
    "scheduler",
    "evidence",
    "settings",
    "learning_rate",
)

# What settings ask for that no argument of torch's expresses; written beside the task's own, and not read back.
_OF_KNOBS = {
    "activation_checkpointing": "activation_checkpointing: torch.utils.checkpoint around each repeated block",
    "length_grouped": "length_grouped: autotune.build.length_grouping.LengthGroupedBatchSampler",
}


def config_document(config: TunedConfig) -> dict[str, Any]:
    """The config as JSON values, in the order of the schema.

    Args:
        config: A tuned config, loaded or fresh.
    """
    saved, same = config.saved, config.keep_batch()
    sections = portable_sections(config.settings, config.baseline, config.learning_rate, config.facts, saved)
    same_document = {} if same is config else config_document(same)
    return {
        "schema_version": SCHEMA_VERSION,
        "task": {
            "name": saved.name,
            "fingerprint": config.facts.fingerprint,
            "loss": saved.loss,
            "reduction": saved.reduction,
        },
        "hardware": _hardware(config),
        "requires": dict(_REQUIRES),
        "dataloader": sections["dataloader"],
        "gradient_accumulation_steps": sections["gradient_accumulation_steps"],
        "effective_batch_size": sections["effective_batch_size"],
        "max_grad_norm": config.max_grad_norm,
        **{name: sections[name] for name in ("autocast", "grad_scaler", "memory_format", "compile", "torch")},
        "optimizer": sections["optimizer"],
        "scheduler": None if config.schedule is None else config.schedule.to_json(),
        "not_portable": [*saved.not_portable, *_settings_not_portable(config.settings, same.settings)],
        "evidence": config.evidence.to_json(),
        "settings": config.settings.to_json(),
        "baseline": config.baseline.to_json(),
        "learning_rate": learning_rate_section(config.learning_rate),
        "facts": config.facts.to_json(),
        "same_batch": _of_settings(same_document) if same_document else None,
    }


def config_fields(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of the config a document describes; ``same_batch`` holds the fields of that one, or None.

    Args:
        document: JSON values.
        where: Names the source in messages.

    Raises:
        ConfigError: The document does not hold to the schema, a knob cannot be, or sections contradict each other.
    """
    document = check_document(dict(document), where)
    fields = _fields(document, where)
    same = document["same_batch"]
    return {**fields, "same_batch": None if same is None else _fields({**document, **same}, f"{where} (same_batch)")}


def _of_settings(document: Mapping[str, Any]) -> dict[str, Any]:
    """What is its own; a schedule only where there is one, as files from before there were any have it."""
    return {name: document[name] for name in _OF_SETTINGS if name != "scheduler" or document[name] is not None}


def _hardware(config: TunedConfig) -> dict[str, Any]:
    if isinstance(config.hardware, Mapping):
        return dict(config.hardware)
    return {"fingerprint": config.hardware.fingerprint, **config.hardware.to_json()}


def _settings_not_portable(*settings: Settings) -> list[str]:
    return [said for knob, said in _OF_KNOBS.items() if any(getattr(one, knob) for one in settings)]


def _fields(document: Mapping[str, Any], where: str) -> dict[str, Any]:
    try:
        fields = {
            "settings": Settings.from_json(document["settings"]),
            "baseline": Settings.from_json(document["baseline"]),
            "learning_rate": _plan(document["learning_rate"]),
            "facts": Facts.from_json({"reduction": document["task"]["reduction"], **document["facts"]}),
            "hardware": document["hardware"],
            "evidence": Evidence.from_json(document["evidence"]),
            "max_grad_norm": document["max_grad_norm"],
            "stored": _saved_task(document),
            "schedule": None if document["scheduler"] is None else Schedule.from_json(document["scheduler"]),
        }
        _check_agreement(document, fields)
    except (AutotuneError, TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        said = error.cause if isinstance(error, AutotuneError) else f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"The config {where!r} holds values that cannot be: {' '.join(said.split())}",
            "Write a new one with TunedConfig.save(); to change a knob, tune with autotune.Space.",
        ) from error
    return fields


def _plan(data: Mapping[str, Any]) -> LearningRatePlan:
    return LearningRatePlan(**{**data, "notes": tuple(data["notes"])})


def _saved_task(document: Mapping[str, Any]) -> SavedTask:
    task = document["task"]
    return SavedTask(
        name=task["name"],
        loss=task["loss"],
        reduction=task["reduction"],
        device_type=document["autocast"]["device_type"],
        dataloader=document["dataloader"],
        not_portable=tuple(entry for entry in document["not_portable"] if entry not in _OF_KNOBS.values()),
    )


def _check_agreement(document: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """A section edited by hand while ``settings`` was not must not be half obeyed."""
    settings: Settings = fields["settings"]
    if fields["facts"].reduction != fields["stored"].reduction:
        raise ConfigError("task.reduction and facts.reduction contradict each other.", "")
    rebuilt = portable_sections(
        settings, fields["baseline"], fields["learning_rate"], fields["facts"], fields["stored"]
    )
    for name, value in rebuilt.items():
        if document[name] != value:
            raise ConfigError(f"{name} and settings contradict each other.", "")
    knobs = settings.to_json()
    for name, value in document["dataloader"].items():
        if name in knobs and value != knobs[name]:
            raise ConfigError(f"dataloader.{name}={value!r} and settings.{name}={knobs[name]!r} differ.", "")
