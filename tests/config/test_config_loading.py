"""What comes out of a good text, that it survives being written and read again, and what is said of it."""

from __future__ import annotations

import random
import re
import sys
from pathlib import Path

import pytest
from wrong_configurations import HUB, MODEL

from workbench.cli import main
from workbench.config import RunConfig, fields, load_config, parse_config, to_toml
from workbench.config.references import REFERENCES, causal_models, not_checked, with_absolute_paths
from workbench.config.rules import NO_EFFECT, warnings
from workbench.config.schema import TABLES
from workbench.config.toml_text import key_lines
from workbench.errors import ConfigurationError
from workbench.presets import shipped_folder

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FIELDS = list(fields())
SHIPPED = sorted(shipped_folder().glob("*.toml"))

# Fields


def test_every_field_has_one_sentence_of_help_and_a_default_in_its_range() -> None:
    for field in FIELDS:
        assert re.fullmatch(r"[A-Z].*[^.]\.", field.help) and not re.search(r"\. [A-Z]", field.help), field
        if field.type in ("a number", "a whole number"):
            assert field.minimum is not None and field.range, field
        assert not field.choices or field.default in field.choices, field
        assert field.minimum is None or field.default >= field.minimum, field
        assert field.maximum is None or field.default <= field.maximum, field


def test_every_key_of_every_table_is_documented_with_the_default_that_applies() -> None:
    assert ["description", *TABLES] == list(RunConfig.model_fields)
    assert {(field.table, field.key) for field in FIELDS} == {("", "description")} | {
        (table, key) for table, model in TABLES.items() for key in model.model_fields
    }
    resolved = parse_config(MODEL, "x")
    written = to_toml(resolved)
    for field in FIELDS:
        if field.table not in ("", "adapter") and field.name != "model.architecture":
            assert getattr(getattr(resolved, field.table), field.key) == field.default
        if field.table != "adapter":
            assert f"{field.key} = " in written or f"[{field.name}]" in written


# Texts


def test_a_text_that_names_only_a_model_gets_every_other_value_by_default() -> None:
    config = parse_config(MODEL + "[train]\ngradient_clipping = 2\n", "minimal.toml")
    assert (config.model.architecture, config.train.steps, config.adapter) == ("gpt2", 1000, None)
    assert config.optimizer.betas == (0.9, 0.95)
    assert config.train.gradient_clipping == 2.0, "a whole number is taken for a number"
    with pytest.raises(ValueError, match="frozen"):
        config.train.steps = 5  # type: ignore[misc]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_preset_is_right_survives_being_written_and_is_not_warned_of(path: Path) -> None:
    config = load_config(path)
    assert config.description and not list(warnings(config))
    assert parse_config(to_toml(config), "resolved") == config
    text = path.read_text(encoding="utf-8")
    written = {(name,) for name in tomllib.loads(text)}
    for name, table in tomllib.loads(text).items():
        written |= {(name, key) for key in table} if isinstance(table, dict) else set()
    assert written == {place for place in key_lines(text) if len(place) < 3}


def test_awkward_texts_and_numbers_survive_being_written_and_read_again() -> None:
    text = """
        description = "quote \\" backslash \\\\ tab \\t newline \\n delete \\u007f zero \\u0000 snowman ☃ 😀"
        [model]
        architecture = "llama"
        config = {"a key" = [1, 2.5, [true]], "" = 1e-30, nested = {deep = {x = []}}, big = 12345678901234567}
        [data]
        source = ["one", 'C:\\two']
        [optimizer]
        learning_rate = 1
        eps = 1e-16
    """
    config = parse_config(text, "awkward.toml")
    assert config.data.sources == ("one", "C:\\two")
    assert parse_config(to_toml(config), "resolved") == config


CHOICES = [
    f"{field.name}={choice}" for field in FIELDS for choice in field.choices if field.table != "adapter"
]


@pytest.mark.parametrize(
    "overrides",
    [
        *([choice] for choice in CHOICES if not choice.endswith("=disk")),
        *(
            ["offload.state=disk", "offload.disk_path=/fast", f"offload.weights={weights}", more]
            for weights in ("device", "host", "disk", "auto")
            for more in (f"offload.state_format={name}" for name in ("exact", "half", "compact"))
        ),
        ["offload.weights=host", "offload.state=auto", "offload.device_fraction=0.25"],
        ["train.steps=10", "schedule.warmup_steps=11"],
        ["loss_scale.minimum=64", "loss_scale.initial_power=6", "loss_scale.fixed=8"],
    ],
    ids=" ".join,
)
def test_every_choice_is_accepted_and_so_is_what_only_looks_odd(overrides: list[str]) -> None:
    parse_config(MODEL, "my.toml", overrides)


OVERRIDDEN = MODEL + "[model.config]\nn_layer = 4\n[train]\nsteps = 10\n"


@pytest.mark.parametrize(
    ("overrides", "table", "expected"),
    [
        (["train.steps=20", "train.steps=30"], "train", {"steps": 30}),
        (
            ["train.deterministic=true", 'train.device="cpu"'],
            "train",
            {"deterministic": True, "device": "cpu"},
        ),
        (["optimizer.betas=[0.8, 0.9]"], "optimizer", {"betas": (0.8, 0.9)}),
        (["model.config.n_embd=64"], "model", {"config": {"n_layer": 4, "n_embd": 64}}),
        (["model.config={n_embd = 64}"], "model", {"config": {"n_embd": 64}}),
        (["log.every=5"], "log", {"every": 5}),
        *(
            ([f"sample.prompt={text}"], "sample", {"prompt": text})
            for text in ("stdlib", "a=b", "two words", "", "1\nx = 2", "[half", '"half')
        ),
    ],
)
def test_an_override_is_read_as_toml_or_as_the_text_that_it_is(
    overrides: list[str], table: str, expected: dict[str, object]
) -> None:
    config = parse_config(OVERRIDDEN, "my.toml", [*overrides, "description=mine"])
    assert config.description == "mine"
    values = getattr(config, table).model_dump()
    assert {key: values[key] for key in expected} == expected


# Lines

LINES = """# a comment with [brackets] and = signs
title = "a # b = [c]"   # trailing
[one]
plain = 1
"quoted key" = 'it "is"'
dotted . key = 2
text = '''
[not.a.table]
x = 1
'''
list = [
  1,   # one
  {deep = 4},
]
[ one . two ]  # comment
inline = {a = 1, b = {c = 2}}
"""


def test_tables_and_keys_have_the_line_where_they_begin() -> None:
    tomllib.loads(LINES)
    assert key_lines(LINES) == {
        ("title",): 2,
        ("one",): 3,
        ("one", "plain"): 4,
        ("one", "quoted key"): 5,
        ("one", "dotted"): 6,
        ("one", "dotted", "key"): 6,
        ("one", "text"): 7,
        ("one", "list"): 11,
        ("one", "two"): 15,
        ("one", "two", "inline"): 16,
    }


def test_lines_of_a_text_that_is_not_toml_raise_nothing() -> None:
    chance = random.Random(20)
    for _ in range(500):
        key_lines("".join(chance.choices("a.=[]{}\"'\\\n #,1", k=chance.randrange(40))))
    key_lines("x = " + "[" * 100_000)


# Files


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MODEL.replace("\n", "\r\n").encode())
    assert load_config(path).model.architecture == "gpt2"


def test_a_file_that_is_no_preset_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "latin.toml").write_bytes(b'# one\ndescription = "caf\xe9"\n')
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(1 << 40)
    for path, words in (
        (tmp_path / "quickstrat.toml", r"quickstrat\.toml: there is no such file"),
        (tmp_path, "is a folder"),
        (Path("/dev/zero"), "no plain file"),
        (tmp_path / "latin.toml", r"latin\.toml:2: is not UTF-8"),
        (tmp_path / "weights", "too large"),
        (tmp_path / "a\0b.toml", "cannot be read"),
        (tmp_path / ("x" * 5000), "cannot be read"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            load_config(path)

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigurationError, match=r"latin\.toml: cannot be read: Permission denied"):
        load_config(tmp_path / "latin.toml")


# What is looked up, and what is warned of


def test_what_may_be_on_the_hub_is_no_missing_folder_and_named_as_not_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bpe-2000").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("gpt2", "t5-small", "byt5-small", "google/byt5-small", "me/bpe-2000", "bpe-2000"):
        overrides = [f"data.tokenizer={name}", "data.source=hub:owner/name"]
        config = parse_config(HUB, "my.toml", overrides, look_for=REFERENCES)
        unchecked = "; ".join(not_checked(config))
        assert '"Qwen/Qwen3-0.6B"' in unchecked and '"hub:owner/name"' in unchecked
        assert (f'"{name}"' in unchecked) == (name != "bpe-2000"), "a folder that is here"


def test_a_setting_that_the_architecture_does_not_have_is_named_with_its_line() -> None:
    text = '[model]\narchitecture = "gpt2"\n[model.config]\nn_layer = 2\nn_emdb = 8\nhidden_size = 8\n'
    with pytest.raises(ConfigurationError) as caught:
        parse_config(text, "my.toml", look_for=REFERENCES)
    (line,) = str(caught.value).splitlines()
    assert line.startswith("my.toml:5: model.config.n_emdb = 8: the gpt2 architecture has no such setting")
    assert 'did you mean "n_embd"?' in line


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "qwen3", "mistral", "gpt_neox", "opt", "mixtral"])
def test_every_setting_of_an_architecture_is_known(architecture: str) -> None:
    from transformers import CONFIG_MAPPING

    defaults = CONFIG_MAPPING[architecture]()
    for name in {*defaults.to_dict(), *defaults.attribute_map}:
        text = f'[model]\narchitecture = "{architecture}"\n[model.config]\n{name} = 1\n'
        config = parse_config(text, "my.toml", look_for={"model.config"})
        assert "the values in [model.config]" in not_checked(config)


def test_config_check_prints_ok_and_what_it_did_not_look_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.toml"
    path.write_text(MODEL)
    assert main(["config", "check", str(path)]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{path}: ok\n" and "not checked: " in printed.err


def test_the_architectures_are_those_of_transformers_own_table() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    assert causal_models() == set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def warned(*overrides: str, text: str = MODEL + "[model.config]\nvocab_size = 320\n") -> list[str]:
    return list(warnings(parse_config(text, "my.toml", overrides)))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["train.epochs=2", "train.steps=1000"], "train.steps = 1000 has no effect"),
        (
            ["loss_scale.window=5", "loss_scale.hysteresis=3"],
            "loss_scale.window = 5, loss_scale.hysteresis = 3 have no effect",
        ),
        (
            ["train.precision=fp16", "loss_scale.fixed=8", "loss_scale.window=5"],
            "loss_scale.window = 5 has no",
        ),
        (["schedule.decay_fraction=0.5"], "schedule.decay_fraction = 0.5 has no effect"),
        (["schedule.type=constant", "schedule.min_ratio=0"], "schedule.min_ratio = 0.0 has no effect"),
        (["schedule.warmup_type=log"], 'schedule.warmup_type = "log" has no effect'),
        (["data.subset=x"], 'data.subset = "x" has no effect'),
        (["sample.tokens=0", "sample.prompt=x"], 'sample.prompt = "x" has no effect'),
        (["schedule.warmup_steps=2000"], "schedule.warmup_steps = 2,000: the run ends at step 1,000"),
        (["offload.overlap=delayed", "train.steps=9"], "offload.delay_warmup = 40: the run ends at step 9"),
        (["data.tokenizer=bpe:8192"], "vocab_size = 8192"),
    ],
)
def test_what_was_hardly_meant_is_warned_of(overrides: list[str], words: str) -> None:
    (line,) = warned(*overrides)
    assert words in line
    assert {field for row in NO_EFFECT for field in row.fields} <= {field.name for field in FIELDS}


@pytest.mark.parametrize(
    "overrides",
    [
        ["train.epochs=2"],
        ["train.precision=fp16", "loss_scale.window=5"],
        ["schedule.type=wsd", "schedule.decay_fraction=0.5"],
        ["schedule.warmup_steps=2000", "train.epochs=2"],
        ["model.config.vocab_size=50257"],
        ["data.tokenizer=some/folder"],
    ],
)
def test_nothing_is_said_of_what_may_well_be_meant(overrides: list[str]) -> None:
    assert warned(*overrides) == []
    assert warned(text=to_toml(parse_config(MODEL, "my.toml", overrides))) == []


def test_paths_are_made_absolute_and_names_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    text = """
    [model]
    pretrained = "model"
    [data]
    source = ["stdlib", "hub:a/b", "texts", "../more"]
    tokenizer = "Qwen/Qwen3-0.6B"
    [offload]
    disk_path = "fast"
    """
    config = with_absolute_paths(parse_config(text, "p"))
    assert config.model.pretrained == str(tmp_path / "model")
    assert config.data.source == ["stdlib", "hub:a/b", str(tmp_path / "texts"), f"{tmp_path}/../more"]
    assert config.data.tokenizer == "Qwen/Qwen3-0.6B" and config.offload.disk_path == str(tmp_path / "fast")
    monkeypatch.chdir("/")
    assert with_absolute_paths(config) == config
    one = with_absolute_paths(parse_config('[model]\narchitecture = "gpt2"\n[data]\nsource = "~/t"', "p"))
    assert one.data.source == str(Path.home() / "t") and one.data.tokenizer == "bytes"
    assert (one.model.pretrained, one.offload.disk_path) == ("", "")


@pytest.mark.parametrize(
    "sizes",
    [
        '{"n_positions": 256, "vocab_size": 200}',
        '{"text_config": {"max_position_embeddings": 256, "vocab_size": 200}}',
    ],
)
def test_the_limits_of_a_model_that_is_here_are_checked(tmp_path: Path, sizes: str) -> None:
    (tmp_path / "config.json").write_text(sizes)
    text = f'model.pretrained = "{tmp_path}"'
    changes = ["data.sequence_length=257", "data.tokenizer=bytes"]
    with pytest.raises(ConfigurationError) as refused:
        parse_config(text, "p", changes, look_for=REFERENCES)
    positions, tokens = sorted(str(refused.value).splitlines())
    assert positions == "--set: data.sequence_length = 257: the model has 256 positions; lower it to 256"
    assert "has 257 tokens, and the model 200 outputs" in tokens
    parse_config(text, "p", ["data.sequence_length=256", "data.tokenizer=hub/name"], look_for=REFERENCES)
    for damaged in ("", "[]", "{", '{"n_positions": "x"}', '{"n_positions": -1}'):
        (tmp_path / "config.json").write_text(damaged)
        parse_config(text, "p", changes, look_for=REFERENCES)
