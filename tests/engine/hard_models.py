"""Modules that are hard to offload: each breaks one assumption that a stream of equal blocks would tempt one to make.

A model takes one batch (a tensor, or a tuple with what its forward does beside it) and returns a scalar loss; `HARD`
lists them with the batches they are trained on. All values come from seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from families import LoRA
from small_models import SEQUENCE, VOCABULARY
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

WIDTH = 32
INNER = 1100  # two matrices of WIDTH * INNER elements are more than one chunk of the smallest size
ROWS = 6


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
    """An embedding, more blocks than there are slots, and a head, on [ROWS, WIDTH] inputs; a mean square."""

    def __init__(self, blocks: int = 5, dropout: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout=dropout) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, 3)

    def order(self, extra: Any) -> list[nn.Module]:
        """The blocks in the order in which a batch's forward calls them."""
        return list(self.blocks)

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        hidden = self.embed(x)
        for block in self.order(extra):
            hidden = block(hidden)
        loss: Tensor = (self.head(hidden) - x[..., :3]).square().mean()
        return loss


class TiedAcrossBlocks(Stack):
    """One matrix in two blocks, one in a block and outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[2].up.weight = self.blocks[0].up.weight
        self.embed = nn.Linear(WIDTH, INNER)
        self.embed.weight = self.blocks[1].up.weight
        self.back = nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        hidden = self.back(torch.tanh(self.embed(x)))
        for block in self.blocks:
            hidden = block(hidden)
        loss: Tensor = (self.head(hidden) - x[..., :3]).square().mean()
        return loss


class FrozenParts(Stack):
    """A frozen block, and frozen parameters beside trained ones in another."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[1].requires_grad_(False)
        self.blocks[2].up.requires_grad_(False)
        self.blocks[2].norm.bias.requires_grad_(False)


class FrozenEmbedding(Stack):
    """Nothing that enters the first block requires a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embed.requires_grad_(False)


class Adapters(Stack):
    """Only adapters are trained, inside blocks and on the head."""

    def __init__(self) -> None:
        super().__init__(dropout=0.1)
        self.requires_grad_(False)
        for block in self.blocks:
            block.up = LoRA(block.up)
        self.head = LoRA(self.head, rank=2)


class LayerDrop(Stack):
    """A batch names the blocks that it uses; the others get no gradient in that micro-batch."""

    def order(self, extra: Any) -> list[nn.Module]:
        return [self.blocks[i] for i in extra]


class DropoutInBlocks(Stack):
    """Recomputing must draw the same random numbers, and leave the generator where one forward leaves it."""

    def __init__(self) -> None:
        super().__init__(dropout=0.3)


class TwoHeads(Stack):
    """A batch uses one of two heads; the loss of some batches does not reach the blocks at all."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Sequential(nn.Linear(WIDTH, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = block(hidden)
        if extra == "other":
            return (self.other(hidden.detach()) - x[..., :3]).square().mean()
        loss: Tensor = (self.head(hidden) - x[..., :3]).square().mean()
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


class Experts(Stack):
    """Blocks with fused experts."""

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = Block(inner=40)
            self.experts = FusedExperts()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.experts(self.mix(x))
            return out

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Experts.Mixture() for _ in range(3))


class Repeated(Stack):
    """Two blocks that are called again and again in one forward."""

    def __init__(self) -> None:
        super().__init__(blocks=2, dropout=0.1)

    def order(self, extra: Any) -> list[nn.Module]:
        return [self.blocks[i] for i in (0, 0, 1, 0, 1, 1)]


class Backwards(Stack):
    """Blocks run in the opposite order of the one they are registered in."""

    def order(self, extra: Any) -> list[nn.Module]:
        return list(reversed(self.blocks))


class AnyOrder(Stack):
    """Every batch has an order of its own: nothing that is fetched ahead is right."""

    def order(self, extra: Any) -> list[nn.Module]:
        return [self.blocks[i] for i in extra]


class TwoLists(Stack):
    """Two lists of blocks, of two classes, called in turn; the second list's take their input by keyword, in a dict."""

    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Block(inner=50)
            self.gain = nn.Parameter(torch.ones(WIDTH))

        def forward(self, *, given: dict[str, Any], nothing: None = None) -> tuple[dict[str, Tensor], None]:
            return {"hidden": self.inner(given["hidden"]) * self.gain}, None

    def __init__(self) -> None:
        super().__init__(blocks=3)
        self.others = nn.ModuleList(TwoLists.Keyword() for _ in range(3))

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        hidden = self.embed(x)
        for block, other in zip(self.blocks, self.others, strict=True):
            given, _ = other(given={"hidden": block(hidden), "unused": None})
            hidden = given["hidden"]
        loss: Tensor = (self.head(hidden) - x[..., :3]).square().mean()
        return loss


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

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        hidden = self.embed(x)
        self.blocks[1](hidden)
        with torch.no_grad():
            hidden = hidden + 0.1 * self.blocks[2](hidden)
        hidden = self.blocks[3](self.blocks[0](hidden).detach())
        loss: Tensor = (self.head(hidden) - x[..., :3]).square().mean()
        return loss


class Parallel(Stack):
    """Blocks side by side: the backward of several hangs on one sum."""

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        hidden = self.embed(x)
        one, two = self.blocks[0](hidden), self.blocks[1](hidden)
        hidden = self.blocks[2](one * two) + self.blocks[3](one - two) + one
        loss: Tensor = (self.head(hidden) - x[..., :3]).square().mean()
        return loss


class ReadFromOutside(Stack):
    """The model reads a block's parameters without calling the block."""

    def forward(self, x: Tensor, extra: Any = None) -> Tensor:
        hidden = self.embed(x)
        for block in self.blocks:
            hidden = block(hidden)
        hidden = hidden * self.blocks[1].norm.weight + self.blocks[0].down.bias
        loss: Tensor = (self.head(hidden) - x[..., :3]).square().mean()
        return loss


class InnerCheckpoints(Stack):
    """Blocks that checkpoint a part of themselves already."""

    class Part(Block):
        def forward(self, x: Tensor) -> Tensor:
            kept: Tensor = checkpoint(super().forward, x, use_reentrant=False)
            return kept

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(InnerCheckpoints.Part(dropout=0.2) for _ in range(3))


class WeightNorm(Stack):
    """Matrices that are computed from their parametrisation at every call."""

    def __init__(self) -> None:
        super().__init__(blocks=3)
        for block in self.blocks:
            nn.utils.parametrizations.weight_norm(block.up)


class NestedLists(Stack):
    """Blocks that hold lists of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(Block(inner=300), Block(inner=300)) for _ in range(2))


class OddGradients(Stack):
    """Parameters that are not contiguous, and gradients that are expanded, transposed or of one element's memory."""

    class Part(nn.Module):
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

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(OddGradients.Part() for _ in range(3))


class OneBlock(Stack):
    """A list of one."""

    def __init__(self) -> None:
        super().__init__(blocks=1)


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

    def order(self, extra: Any) -> list[nn.Module]:
        return [self.blocks]


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

    return TokenModel(
        T5ForConditionalGeneration(
            T5Config(
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
        )
    )


def albert() -> nn.Module:
    """One block that is called for every layer."""
    from transformers import AlbertConfig, AlbertForMaskedLM

    return TokenModel(
        AlbertForMaskedLM(
            AlbertConfig(
                vocab_size=VOCABULARY,
                embedding_size=16,
                hidden_size=WIDTH,
                intermediate_size=INNER,
                num_hidden_layers=3,
                num_attention_heads=4,
                max_position_embeddings=SEQUENCE,
                hidden_dropout_prob=0.1,
            )
        )
    )


def plain_batch(seed: int) -> tuple[Tensor, Any]:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)), None


def token_batch(seed: int) -> tuple[Tensor, Any]:
    return torch.randint(VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(seed)), None


def choosing(*choices: Any) -> Callable[[int], tuple[Tensor, Any]]:
    """Batches that take one of `choices` with them, in turn."""
    return lambda seed: (plain_batch(seed)[0], choices[seed % len(choices)])


HARD: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, Any]]]] = {
    "tied_across_blocks": (TiedAcrossBlocks, plain_batch),
    "frozen_parts": (FrozenParts, plain_batch),
    "frozen_embedding": (FrozenEmbedding, plain_batch),
    "adapters": (Adapters, plain_batch),
    "layer_drop": (LayerDrop, choosing((0, 1, 2, 3), (0, 3), (), (1, 2, 3), (2,))),
    "dropout": (DropoutInBlocks, plain_batch),
    "two_heads": (TwoHeads, choosing("one", "other", "other")),
    "experts": (Experts, plain_batch),
    "repeated": (Repeated, plain_batch),
    "backwards": (Backwards, plain_batch),
    "any_order": (AnyOrder, choosing((2, 0, 3, 1), (3, 1, 0, 2), (0, 1, 2, 3), (1, 3, 1, 0))),
    "two_lists": (TwoLists, plain_batch),
    "encoder_decoder": (EncoderDecoder, plain_batch),
    "dead_block": (DeadBlock, plain_batch),
    "parallel": (Parallel, plain_batch),
    "inner_checkpoints": (InnerCheckpoints, plain_batch),
    "weight_norm": (WeightNorm, plain_batch),
    "nested_lists": (NestedLists, plain_batch),
    "odd_gradients": (OddGradients, plain_batch),
    "one_block": (OneBlock, plain_batch),
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
