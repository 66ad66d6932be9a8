"""Modules that are hard to offload: each breaks one assumption that a stream of equal blocks would tempt one to make.

A model takes one batch (a tensor, or a tuple with what its forward does beside it) and returns a scalar loss; `HARD`
lists them with the batches they are trained on, `WAYS` how they are trained. All values come from seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from families import LoRA
from small_models import SEQUENCE, VOCABULARY, SeparateMemory
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workbench.engine.devices.device import CpuDevice

WIDTH = 32
INNER = 1100  # two matrices of WIDTH * INNER elements are more than one chunk of the smallest size
ROWS = 6

# How to train: every tier, every overlap, both memories, and the rest.
WAYS: dict[str, dict[str, Any]] = {
    "resident": {"weights": "device", "state": "device", "shared": True},
    "state-host": {"weights": "device", "state": "host", "gradient_accumulation": 2},
    "state-host-shared": {"weights": "device", "state": "host", "shared": True},
    "half": {"weights": "device", "state": "host", "device_fraction": 0.5, "gradient_clipping": 0.1},
    "weights-host": {"weights": "host", "state": "host"},
    "weights-host-clipped": {"weights": "host", "state": "host", "gradient_clipping": 0.1},
    "delayed": {
        "weights": "host",
        "state": "host",
        "overlap": "delayed",
        "delay_warmup": 1,
        "gradient_accumulation": 2,
    },
    "state-disk": {"weights": "host", "state": "disk", "overlap": "serial", "gradient_clipping": 0.1},
    "weights-disk": {"weights": "disk", "state": "disk", "gradient_accumulation": 2},
    "weights-disk-shared": {"weights": "disk", "state": "disk", "shared": True},
}


def options_of(way: str, folder: Path) -> dict[str, Any]:
    """The engine's arguments for a way to train, but for the device."""
    options = {"gradient_clipping": 0.0, "gradient_accumulation": 1, "overlap": "exact", **WAYS[way]}
    options.pop("shared", None)
    return {**options, "disk_path": folder} if options["state"] == "disk" else options


def memory_of(way: str) -> CpuDevice:
    return CpuDevice() if WAYS[way].get("shared") else SeparateMemory(1, longest_s=0.001)


class Block(nn.Module):
    """x + down(dropout(tanh(up(norm(x)))))."""

    def __init__(self, inner: int = INNER, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, inner)
        self.dropout = nn.Dropout(dropout)
        self.down = nn.Linear(inner, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.dropout(torch.tanh(self.up(self.norm(x)))))
        return out


class Stack(nn.Module):
    """An embedding, blocks, and a head, on [ROWS, WIDTH] inputs; a mean square.

    `order`: the blocks that a forward calls, by number, unless a batch brings its own; by default each once.
    """

    def __init__(
        self,
        blocks: int | Iterable[nn.Module] = 5,  # five are more than there are slots
        dropout: float = 0.0,
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        if isinstance(blocks, int):
            blocks = (Block(dropout=dropout) for _ in range(blocks))
        self.embed: nn.Module = nn.Linear(WIDTH, WIDTH)
        self.blocks: Any = nn.ModuleList(blocks)
        self.head: nn.Module = nn.Linear(WIDTH, 3)
        self.order = order

    def through_blocks(self, hidden: Tensor, extra: Any) -> Tensor:
        usual = range(len(self.blocks)) if self.order is None else self.order
        for index in extra if isinstance(extra, tuple) else usual:
            hidden = self.blocks[index](hidden)
        return hidden

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        loss: Tensor = (self.head(self.through_blocks(self.embed(x), extra)) - x[..., :3]).square().mean()
        return loss


def tied_across_blocks() -> Stack:
    """One matrix in two blocks, one in a block and outside of it."""
    model = Stack()
    model.blocks[2].up.weight = model.blocks[0].up.weight
    model.embed = nn.Sequential(nn.Linear(WIDTH, INNER), nn.Tanh(), nn.Linear(INNER, WIDTH))
    model.embed[0].weight = model.blocks[1].up.weight
    return model


def frozen_parts() -> Stack:
    """A frozen block, and frozen parameters beside trained ones in another."""
    model = Stack()
    model.blocks[1].requires_grad_(False)
    model.blocks[2].up.requires_grad_(False)
    model.blocks[2].norm.bias.requires_grad_(False)
    return model


def frozen_embedding() -> Stack:
    """Nothing that enters the first block requires a gradient."""
    model = Stack()
    model.embed.requires_grad_(False)
    return model


def adapters() -> Stack:
    """Only adapters are trained, inside blocks and on the head."""
    model = Stack(dropout=0.1).requires_grad_(False)
    for block in model.blocks:
        block.up = LoRA(block.up)
    model.head = LoRA(model.head, rank=2)
    return model


class TwoHeads(Stack):
    """A batch uses one of two heads; the loss of some batches does not reach the blocks at all."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3))
        self.gain = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        hidden = self.through_blocks(self.embed(x), None)
        made = self.other(hidden.detach()) * self.gain if extra == "other" else self.head(hidden)
        loss: Tensor = (made - x[..., :3]).square().mean()
        return loss


class FusedExperts(nn.Module):
    """Experts in one tensor, of which the last is never chosen: its gradient is zero, not None, and it decays."""

    def __init__(self, experts: int = 4) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, experts)
        with torch.no_grad():
            self.router.bias[-1] = -1e4
        self.up = nn.Parameter(torch.randn(experts, WIDTH, 300) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, 300, WIDTH) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        weight, chosen = self.router(x).softmax(-1).max(-1)
        hidden = torch.tanh(torch.einsum("rw,rwi->ri", x, self.up[chosen]))
        return x + weight[:, None] * torch.einsum("ri,riw->rw", hidden, self.down[chosen])


class KeywordBlock(nn.Module):
    """A block that takes its input by keyword, in a dict, and returns more than a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block(inner=50)
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, *, given: dict[str, Any], nothing: None = None) -> tuple[dict[str, Tensor], None]:
        return {"hidden": self.inner(given["hidden"]) * self.gain}, None


class TwoLists(Stack):
    """Two lists of blocks, of two classes, called in turn."""

    def __init__(self) -> None:
        super().__init__(blocks=3)
        self.others = nn.ModuleList(KeywordBlock() for _ in range(3))

    def through_blocks(self, hidden: Tensor, extra: Any) -> Tensor:
        for block, other in zip(self.blocks, self.others, strict=True):
            hidden = other(given={"hidden": block(hidden), "unused": None})[0]["hidden"]
        return hidden


class EncoderDecoder(nn.Module):
    """torch's own Transformer: every block of the decoder reads the last of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.core = nn.Transformer(
            WIDTH, 2, 2, 3, dim_feedforward=INNER, dropout=0.1, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        source, target = x.view(1, ROWS, WIDTH), x.flip(0).view(1, ROWS, WIDTH)
        loss: Tensor = (self.head(self.core(source, target)) - target).square().mean()
        return loss


class DeadBlock(Stack):
    """A block whose output nobody uses, one that runs without gradients, one whose input is cut off."""

    def through_blocks(self, hidden: Tensor, extra: Any) -> Tensor:
        self.blocks[1](hidden)
        with torch.no_grad():
            hidden = hidden + 0.1 * self.blocks[2](hidden)
        out: Tensor = self.blocks[3](self.blocks[0](hidden).detach())
        return out


class Parallel(Stack):
    """Blocks side by side: the backward of several hangs on one sum."""

    def through_blocks(self, hidden: Tensor, extra: Any) -> Tensor:
        one, two = self.blocks[0](hidden), self.blocks[1](hidden)
        out: Tensor = self.blocks[2](one * two) + self.blocks[3](one - two) + one
        return out


class ReadFromOutside(Stack):
    """The model reads a block's parameters without calling the block."""

    def through_blocks(self, hidden: Tensor, extra: Any) -> Tensor:
        hidden = super().through_blocks(hidden, extra)
        return hidden * self.blocks[1].norm.weight + self.blocks[0].down.bias


class ReadsAhead(Stack):
    """The last layer's weight is read first of all, and its module is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(WIDTH, WIDTH)

    def through_blocks(self, hidden: Tensor, extra: Any) -> Tensor:
        return super().through_blocks(nn.functional.linear(hidden, self.last.weight), extra)


class PartlyCheckpointed(Block):
    """A block that checkpoints itself already."""

    def forward(self, x: Tensor) -> Tensor:
        kept: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return kept


def weight_norm() -> Stack:
    """Matrices that are computed from their parametrisation at every call."""
    model = Stack(blocks=3)
    for block in model.blocks:
        nn.utils.parametrizations.weight_norm(block.up)
    return model


class OddGradients(nn.Module):
    """Parameters that are not contiguous, and gradients that are expanded, transposed or of one element's memory."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.turned = nn.Parameter((torch.randn(WIDTH, WIDTH) * 0.1).t())
        self.kernel = nn.Conv2d(2, 3, 3, padding=1).to(memory_format=torch.channels_last)
        self.summed = nn.Parameter(torch.randn(WIDTH, 7))

    def forward(self, x: Tensor) -> Tensor:
        picture = self.kernel(x.view(-1, 2, 4, 4))
        hidden = self.inner(x) + x @ self.turned.t() + picture.mean((1, 2, 3))[:, None]
        return torch.tanh(hidden) + 0.01 * self.summed.sum()


class NoBlocks(nn.Module):
    """Nothing repeats; one module is recurrent and holds its parameters in a list of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(WIDTH, 20)
        self.last = nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        loss: Tensor = (self.last(self.rnn(x)[0]) - x[..., :3]).square().mean()
        return loss


class Chain(nn.Sequential):
    """A Sequential whose members are blocks and layers."""

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        loss: Tensor = (super().forward(x)[..., :3] - x[..., :3]).square().mean()
        return loss


class ChainInside(Stack):
    """Blocks in a Sequential that the model calls as one."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block(dropout=0.1) for _ in range(3)))

    def through_blocks(self, hidden: Tensor, extra: Any) -> Tensor:
        out: Tensor = self.blocks(hidden)
        return out


class TokenModel(nn.Module):
    """A transformers model that is trained on ids as input and labels."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, extra: Any = None) -> Tensor:
        loss: Tensor = self.model(input_ids=ids, labels=ids).loss
        return loss


def t5() -> nn.Module:
    """An encoder-decoder whose first blocks make the position biases of all others."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=8,
        d_ff=INNER,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
        use_cache=False,
    )
    return TokenModel(T5ForConditionalGeneration(config))


def albert() -> nn.Module:
    """One block that is called for every layer."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    config = AlbertConfig(
        vocab_size=VOCABULARY,
        embedding_size=16,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=SEQUENCE,
        hidden_dropout_prob=0.1,
    )
    return TokenModel(AlbertForMaskedLM(config))


def plain_batch(seed: int) -> tuple[Tensor, Any]:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)), None


def token_batch(seed: int) -> tuple[Tensor, Any]:
    return torch.randint(VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(seed)), None


def choosing(*choices: Any) -> Callable[[int], tuple[Tensor, Any]]:
    """Batches that take one of `choices` with them, in turn."""
    return lambda seed: (plain_batch(seed)[0], choices[seed % len(choices)])


LAYER_DROP = choosing((0, 1, 2, 3), (0, 3), (), (1, 2, 3), (2,))  # a block that is left out gets no gradient
ANY_ORDER = choosing(
    (2, 0, 3, 1), (3, 1, 0, 2), (0, 1, 2, 3), (1, 3, 1, 0)
)  # what is fetched ahead is never right

HARD: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Any]]]] = {
    "tied_across_blocks": (tied_across_blocks, plain_batch),
    "frozen_parts": (frozen_parts, plain_batch),
    "frozen_embedding": (frozen_embedding, plain_batch),
    "adapters": (adapters, plain_batch),
    "layer_drop": (Stack, LAYER_DROP),
    "dropout": (lambda: Stack(dropout=0.3), plain_batch),
    "two_heads": (TwoHeads, choosing("one", "other", "other")),
    "experts": (
        lambda: Stack(nn.Sequential(Block(inner=40), FusedExperts()) for _ in range(3)),
        plain_batch,
    ),
    "repeated": (lambda: Stack(blocks=2, dropout=0.1, order=(0, 0, 1, 0, 1, 1)), plain_batch),
    "backwards": (lambda: Stack(order=(4, 3, 2, 1, 0)), plain_batch),
    "any_order": (Stack, ANY_ORDER),
    "two_lists": (TwoLists, plain_batch),
    "encoder_decoder": (EncoderDecoder, plain_batch),
    "dead_block": (DeadBlock, plain_batch),
    "parallel": (Parallel, plain_batch),
    "reads_ahead": (ReadsAhead, plain_batch),
    "inner_checkpoints": (lambda: Stack(PartlyCheckpointed(dropout=0.2) for _ in range(3)), plain_batch),
    "weight_norm": (weight_norm, plain_batch),
    "nested_lists": (
        lambda: Stack(nn.Sequential(Block(inner=300), Block(inner=300)) for _ in range(2)),
        plain_batch,
    ),
    "odd_gradients": (lambda: Stack(OddGradients() for _ in range(3)), plain_batch),
    "one_block": (lambda: Stack(blocks=1), plain_batch),
    "no_blocks": (NoBlocks, plain_batch),
    "chain": (lambda: Chain(nn.Linear(WIDTH, WIDTH), Block(), Block(), nn.Tanh()), plain_batch),
    "chain_of_blocks": (lambda: Chain(*(Block(dropout=0.1) for _ in range(4))), plain_batch),
    "chain_inside": (ChainInside, plain_batch),
    "t5": (t5, token_batch),
    "albert": (albert, token_batch),
}


def make_hard(name: str) -> nn.Module:
    """A hard model in training mode, the same values at every call."""
    torch.manual_seed(sorted(HARD).index(name))
    return HARD[name][0]().train()


def loss_of_hard(model: Any, batch: tuple[Tensor, Any]) -> Tensor:
    loss: Tensor = model(*batch)
    return loss
