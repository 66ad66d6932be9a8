"""What comes out of a good text, and that it survives being written and read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from workbench.config import RunConfig, load_config, parse_config, to_toml
from workbench.errors import ConfigurationError
from workbench.presets import shipped_folder

MINIMAL = '[model]\narchitecture = "gpt2"\n'

SHIPPED = sorted(shipped_folder().glob("*.toml"))


def test_a_text_that_names_only_a_model_gets_every_other_value_by_default() -> None:
    config = parse_config(MINIMAL, "minimal.toml")
    assert config.model.architecture == "gpt2"
    assert config.train.steps == 1000
    assert config.optimizer.betas == (0.9, 0.95)
    assert config.adapter is None


def test_the_ten_billion_preset_has_the_values_of_the_design() -> None:
    config = load_config(shipped_folder() / "gpt2-10b.toml")
    assert config.model.config == {
        "n_layer": 50,
        "n_embd": 4096,
        "n_head": 32,
        "n_positions": 1024,
        "vocab_size": 50304,
    }
    assert (config.train.micro_batch_size, config.optimizer.learning_rate) == (10, 1.5e-4)
    assert (config.offload.weights, config.offload.state, config.offload.state_format) == (
        "device",
        "host",
        "exact",
    )


def test_the_shipped_presets_are_there() -> None:
    assert {path.stem for path in SHIPPED} >= {"quickstart", "gpt2-10b"}


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_preset_is_right_and_says_what_it_is_for(path: Path) -> None:
    assert load_config(path).description


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_resolved_text_of_a_preset_reads_back_to_the_same_configuration(path: Path) -> None:
    config = load_config(path)
    assert parse_config(to_toml(config), "resolved") == config


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
    assert parse_config(to_toml(config), "resolved") == config


def test_the_resolved_text_names_every_field() -> None:
    written = to_toml(parse_config(MINIMAL, "minimal.toml"))
    for table, model in RunConfig().model_dump().items():
        if isinstance(model, dict):
            assert all(f"\n{key} = " in written or f"[{table}.{key}]" in written for key in model)


def test_a_whole_number_is_accepted_where_a_number_is_wanted() -> None:
    config = parse_config(MINIMAL + "[train]\ngradient_clipping = 2\n", "minimal.toml")
    assert config.train.gradient_clipping == 2.0


def test_sources_are_a_tuple_whether_one_or_several_are_written() -> None:
    assert parse_config(MINIMAL + '[data]\nsource = "a"', "x").data.sources == ("a",)
    assert parse_config(MINIMAL + '[data]\nsource = ["a", "b"]', "x").data.sources == ("a", "b")


def test_a_configuration_cannot_be_changed() -> None:
    config = parse_config(MINIMAL, "minimal.toml")
    with pytest.raises(ValueError, match="frozen"):
        config.train.steps = 5  # type: ignore[misc]


def test_a_byte_order_mark_and_windows_line_ends_are_read(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", "\r\n").encode())
    assert load_config(path).model.architecture == "gpt2"


def test_a_misspelt_preset_file_is_answered_with_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r'quickstrat\.toml: there is no such file; .*"quickstart"'):
        load_config(tmp_path / "quickstrat.toml")


def test_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a folder"):
        load_config(tmp_path)


def test_a_device_is_refused_without_reading_it() -> None:
    with pytest.raises(ConfigurationError, match="not a plain file"):
        load_config(Path("/dev/zero"))


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.toml"
    path.write_bytes(b'# one\ndescription = "caf\xe9"\n')
    with pytest.raises(ConfigurationError, match=r"latin\.toml:2: is not UTF-8"):
        load_config(path)


def test_a_file_far_too_large_for_a_preset_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ConfigurationError, match="too large"):
        load_config(path)


def test_a_file_that_may_not_be_read_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret.toml"
    path.write_text(MINIMAL)

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(ConfigurationError, match=r"secret\.toml: cannot be read: Permission denied"):
        load_config(path)


@pytest.mark.parametrize("name", ["a\0b.toml", "x" * 5000 + ".toml"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError):
        load_config(Path(name))
