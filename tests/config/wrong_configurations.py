"""Wrong configurations: a text, overrides, and where each problem is reported ("FILE:LINE: KEY" or "--set: KEY")."""

from __future__ import annotations

from typing import NamedTuple


class Wrong(NamedTuple):
    text: str
    overrides: tuple[str, ...]
    at: tuple[str, ...]


MODEL = '[model]\narchitecture = "gpt2"\n'
HUB = '[model]\npretrained = "Qwen/Qwen3-0.6B"\n'
DISK = ("offload.weights=disk", "offload.state=disk", "offload.disk_path=/tmp")


def in_table(table: str, *lines: str) -> Wrong:
    """One wrong key in the fourth line."""
    key = lines[0].split(" = ")[0]
    text = f"{MODEL}[{table}]\n" + "\n".join(lines) + "\n"
    return Wrong(text, (), (f"my.toml:4: {table}.{key} = ",))


def by_set(*overrides: str, at: str, text: str = MODEL) -> Wrong:
    return Wrong(text, overrides, (at,))


WRONG: dict[str, Wrong] = {
    # unknown keys and tables
    "several": Wrong(
        MODEL + "[train]\nsteps = 0\nstepz = 1\nseed = 1.5\n[schedule]\nmin_ratio = 2\n",
        ("log.every=0", "nonsense"),
        (
            *("my.toml:4: train.steps = 0", "my.toml:5: train.stepz = 1", "my.toml:6: train.seed = 1.5"),
            *("my.toml:8: schedule.min_ratio = 2", "--set: log.every = 0", "--set nonsense"),
        ),
    ),
    "unknown key": in_table("train", "micro_batch = 4"),
    "key of another table": in_table("train", "learning_rate = 1e-3"),
    "key like no other": in_table("log", "xyzzy = 1"),
    "key above all tables": Wrong("steps = 3\n" + MODEL, (), ("my.toml:1: steps = 3",)),
    "misspelt key of the model": Wrong('[model]\npretrainde = "gpt2"\n', (), ("my.toml:2: model.pretrainde",)),
    "misspelt table of the model": Wrong('[modle]\narchitecture = "gpt2"\n', (), ("my.toml:1: [modle]",)),
    "model above all tables": Wrong('architecture = "gpt2"\n[train]\nsteps = 1\n', (), ("my.toml:1: arch",)),
    "unknown table": Wrong(MODEL + "[trian]\nsteps = 3\n", (), ("my.toml:3: [trian]",)),
    "unknown table with an override": Wrong(MODEL + "[trian]\nx = 1\n", ("trian.y=2",), ("my.toml:3: [trian]",)),
    "number in place of a table": Wrong("train = 5\n" + MODEL, (), ("my.toml:1: train = 5",)),
    "array of tables": Wrong(MODEL + "[[train]]\nsteps = 3\n", (), ("my.toml:3: train = [{steps = 3}]",)),
    "inline and dotted": Wrong(
        'model.architecture = "gpt2"\ntrain = {steps = 0}\noptimizer.eps = 0\n',
        (),
        ("my.toml:2: train.steps", "my.toml:3: optimizer.eps"),
    ),
    # values
    **{
        f"{table}.{line}": in_table(table, line)
        for table, lines in {
            "train": (
                *('steps = "3"', "steps = 3.0", "steps = true", "steps = [3]", "steps = 1979-05-27"),
                *("steps = 0", "deterministic = 1", "gradient_clipping = true", "gradient_clipping = inf"),
                *('precision = "BF16"', 'device = "gpu"'),
            ),
            "optimizer": (
                *("betas = 0.9", "betas = [0.9]", "betas = [0.9, 0.95, 1]", "betas = [0.9, 1.0]"),
                *('betas = [0.9, "x"]', "betas = [true, 0.9]", "betas = []"),
            ),
            "offload": ("threads = 0", 'threads = "many"', "threads = true", "threads = 2.0"),
            "data": (
                *("source = []", "source = 3", 'source = ["a", 3]', 'source = [""]'),
                *("validation_fraction = 0", "validation_fraction = 0.51"),
            ),
        }.items()
        for line in lines
    },
    "date among the model's sizes": Wrong(
        MODEL + "[model.config]\nn_layer = 2\nborn = 1979-05-27\n", (), ("my.toml:5: model.config.born",)
    ),
    "long value": in_table("train", f'steps = "{"x" * 10_000}"'),
    "not TOML: syntax": Wrong("[model\n", (), ("my.toml:1:7: ",)),
    "not TOML: syntax at the end": Wrong("[data]\nsource = [\n\n", (), ("my.toml:2: ",)),
    "not TOML: nested too deeply": Wrong("x = " + "[" * 100_000, (), ("my.toml: ",)),
    "not TOML: number of too many digits": Wrong("[model]\nn = " + "9" * 10_000, (), ("my.toml: ",)),
    # --set
    "set: wrong value": by_set("train.steps=many", at='--set: train.steps = "many"'),
    "set: unknown key": by_set("train.step=3", at="--set: train.step = 3"),
    "set: unknown table": by_set("optimiser.eps=1e-8", at="--set: [optimiser]"),
    "set: no =": by_set("train.steps", at="--set train.steps: "),
    "set: no name": by_set("=3", at="--set =3: "),
    "set: no key": by_set("train.=3", at="--set train.=3: "),
    "set: a table": by_set("train={steps = 3}", at="--set train={steps = 3}: "),
    "set: no text": by_set("sample.prompt=\udcff", at="--set "),
    "set: below a value": by_set("train.steps.x=1", at="--set train.steps.x=1: ", text=MODEL + "[train]\nsteps = 1\n"),
    "set: inside a replaced table": by_set("model.config={n_layer = 1979-05-27}", at="--set: model.config.n_layer"),
    # contradictions
    "no model": by_set("model.architecture=", at="--set: model.architecture"),
    "sizes of nothing": Wrong(HUB + "[model.config]\nn_layer = 2\n", (), ("my.toml:3: model.config",)),
    "revision of nothing": by_set("model.revision=main", at='--set: model.revision = "main"'),
    "size of a BPE": by_set("data.tokenizer=bpe:6", at='--set: data.tokenizer = "bpe:6"'),
    "no size of a BPE": by_set("data.tokenizer=bpe:", at='--set: data.tokenizer = "bpe:"'),
    "host without checkpointing": by_set(
        "offload.weights=host", "train.activation_checkpointing=false", at="--set: train.activation_checkpointing"
    ),
    "no folder for the disk": by_set("offload.state=disk", at="my.toml: offload.disk_path"),
    "state on the device": by_set("offload.weights=host", "offload.state=device", at="--set: offload.state"),
    "weights on disk": Wrong(
        MODEL + '[offload]\nweights = "disk"\nstate = "host"\ndisk_path = "/tmp"\n', (), ("my.toml:5: offload.state",)
    ),
    "half on the device": by_set("offload.state_format=half", "offload.state=device", at="--set: offload.state_format"),
    "share of the device": by_set(
        "offload.device_fraction=0.5", "offload.state=device", at="--set: offload.device_fraction"
    ),
    "delayed on disk": by_set("offload.overlap=delayed", *DISK, at="--set: offload.overlap"),
    "activations without checkpointing": by_set(
        "offload.activations=host", "train.activation_checkpointing=false", at="--set: offload.activations"
    ),
    "several GPUs and one that is named": by_set(
        "parallel.gpus=2", "train.device=cuda:1", at="--set: parallel.gpus"
    ),
    "no number of GPUs": by_set("parallel.gpus=0", at="--set: parallel.gpus"),
    "no data": by_set("data.source=", at="--set: data.source"),
    "a warm-up given twice": by_set(
        "schedule.warmup_fraction=0.1", "schedule.warmup_steps=6", at="--set: schedule.warmup_fraction"
    ),
    "loss scale below its minimum": by_set(
        "loss_scale.minimum=128", "loss_scale.initial_power=6", at="--set: loss_scale.minimum"
    ),
    "no contradiction about an ill-formed field": by_set(
        "offload.weights=host", "offload.state=many", at='--set: offload.state = "many"'
    ),
    # what is named and not there
    "architecture": by_set("model.architecture=gtp2", at='--set: model.architecture = "gtp2"'),
    "text": by_set('data.source=["stdlib", "/nowhere/text"]', at='--set: data.source[1] = "/nowhere/text"'),
    "hub dataset": by_set("data.source=owner/name", at='--set: data.source = "owner/name"'),
    "tokenizer": by_set("data.tokenizer=./nowhere", at='--set: data.tokenizer = "./nowhere"'),
    "disk folder": by_set("offload.state=disk", "offload.disk_path=/nowhere/d", at="--set: offload.disk_path"),
    "disk that is a file": by_set("offload.state=disk", "offload.disk_path=/dev/null", at="--set: offload.disk_path"),
    "vocabulary": by_set("model.config.vocab_size=256", at="--set: model.config.vocab_size = 256"),
    "positions": by_set(
        "model.config.n_positions=128", "data.sequence_length=129", at="--set: data.sequence_length = 129"
    ),
    **{
        f"pretrained {name}": by_set(f"model.pretrained={name}", at="--set: model.pretrained", text=HUB)
        for name in ("./tok", "/nowhere/model", "~/no-such-model", "a/b/c", "no such model", "~nobody-here/x")
    },
    **{
        f"nearly {written}": by_set(f"data.tokenizer={written}", at="--set: data.tokenizer")
        for written in ("bpe-2000", "BPE:2_000", "bpe 32k", "bbpe-2,000", "bpe", "bpe-3", "Bytes", "byts")
    },
}  # fmt: skip
