"""GPT-2 shapes by size, and their models: on the meta device for the engine, or whole for the alternatives.

No dropout, so that every contender computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from workbench.model.build import UnitInitializer

POSITIONS = 1024
LARGE_VOCABULARY = 50_304
SMALL_VOCABULARY = 1024
SEED = 1234


@dataclass(frozen=True)
class Shape:
    """A GPT-2; the head is tied to the embedding."""

    name: str
    n_layer: int
    n_embd: int
    n_head: int
    vocab_size: int = LARGE_VOCABULARY
    n_positions: int = POSITIONS

    @property
    def outer_parameters(self) -> int:
        """Those outside the blocks."""
        return (self.vocab_size + self.n_positions + 2) * self.n_embd

    @property
    def block_parameters(self) -> int:
        return 12 * self.n_embd**2 + 13 * self.n_embd

    @property
    def parameters(self) -> int:
        return self.outer_parameters + self.n_layer * self.block_parameters

    def settings(self) -> dict[str, Any]:
        """For the architecture's configuration class."""
        return {
            "n_layer": self.n_layer,
            "n_embd": self.n_embd,
            "n_head": self.n_head,
            "vocab_size": self.vocab_size,
            "n_positions": self.n_positions,
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "use_cache": False,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }


def shape_of(parameters: int, layers: int | None = None) -> Shape:
    """A GPT-2 of about so many parameters, about 18 blocks deep unless `layers` says otherwise."""
    head = 64 if parameters >= 50_000_000 else 16
    wanted = (parameters / (12 * (layers or 18))) ** 0.5
    width = max(head, round(wanted / head) * head)
    vocabulary = LARGE_VOCABULARY if parameters >= 50_000_000 else SMALL_VOCABULARY
    one = Shape("", 1, width, width // head, vocabulary)
    fitting = round((parameters - one.outer_parameters) / one.block_parameters)
    return Shape(f"{parameters:,}", layers or max(1, fitting), width, width // head, vocabulary)


def quiet_transformers() -> None:
    """Its remarks on what it was given are not this program's output."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def meta_model(shape: Shape, seed: int = SEED) -> tuple[nn.Module, UnitInitializer]:
    """The model on the meta device, and what gives a unit of it real fp32 parameters (the engine's `materialize`)."""
    from workbench.model.build import UnitInitializer, build_on_meta, model_config

    quiet_transformers()
    model = build_on_meta(model_config("gpt2", shape.settings()))
    return model, UnitInitializer(model, seed)


def whole_model(shape: Shape, seed: int = SEED) -> nn.Module:
    """The same model with all its parameters in fp32, the same values as the engine's."""
    from workbench.engine.blocks.discovery import find_units

    model, initializer = meta_model(shape, seed)
    for unit in find_units(model):
        initializer(unit)
    return model
