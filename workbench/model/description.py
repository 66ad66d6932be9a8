"""A [model] table beside pretrained files: both describe one model, and where they do not, the run is refused.

The table plans without the files; the files are what is trained. Invariant: whatever changes shapes, or was written in
the table and changes arithmetic, is the same in both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from workbench.errors import ConfigurationError
from workbench.model.build import build_on_meta

HARMLESS = re.compile(
    r"(.*_token_id|architectures|auto_map|transformers_version|_?name_or_path|dtype|torch_dtype|use_cache|"
    r"initializer_range|.*_initializer_range|init_std|output_.*|return_dict|use_return_dict|id2label|label2id|"
    r"num_labels|problem_type|task_specific_params|gradient_checkpointing|summary_.*|is_decoder|pretraining_tp)"
)
"""Settings that change neither shapes nor what a forward in training computes."""
NAMED = 3


def check_description(
    described: Any, written: Iterable[str], actual: Any, model: nn.Module, where: str
) -> None:
    """Refuse a table whose model is another than that of the files.

    Args:
        described: the transformers configuration that the table comes to.
        written: the keys that the table sets itself.
        actual: the configuration of the files; `model` is built of it, on the meta device.
        where: the files, for the message.

    Raises:
        ConfigurationError: naming a setting and both its values.
    """
    if described.model_type != actual.model_type:
        raise ConfigurationError(
            f'model.architecture = "{described.model_type}": {where} is of the architecture "{actual.model_type}"'
        )
    keys = {key for key in written if not HARMLESS.fullmatch(key)}
    if any(key.startswith("rope") for key in keys):
        keys.add("rope_parameters")
    differing = [key for key in sorted(keys) if _differ(described, actual, key)]
    if differing:
        raise ConfigurationError(_message(differing, described, actual, where))
    if _shapes(build_on_meta(described)) != _shapes(model):
        every = {*described.to_dict(), *actual.to_dict()}
        differing = [
            key for key in sorted(every) if not HARMLESS.fullmatch(key) and _differ(described, actual, key)
        ]
        raise ConfigurationError(_message(differing, described, actual, where))


def _differ(described: Any, actual: Any, key: str) -> bool:
    nothing = object()
    values = [getattr(config, key, nothing) for config in (described, actual)]
    return nothing not in values and _plain(values[0]) != _plain(values[1])


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        value = value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if not HARMLESS.fullmatch(str(key))}
    return [_plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _message(keys: list[str], described: Any, actual: Any, where: str) -> str:
    parts = [
        f"model.config.{key} is {getattr(described, key)!r} and there it is {getattr(actual, key)!r}"
        for key in keys[:NAMED]
    ]
    more = f", and {len(keys) - NAMED} more differ" if len(keys) > NAMED else ""
    what = "; ".join(parts) + more if parts else "their parameters have other shapes"
    return (
        f"[model] describes another model than {where}: {what}; write there what the files have, or leave "
        "architecture and [model.config] out"
    )
