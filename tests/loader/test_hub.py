"""Models of a hub, over real HTTP with a server on this machine. No test reaches any other."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import constants, hf_hub_download
from huggingface_hub.utils import _detect_agent, _http
from transformers import LlamaForCausalLM

from pelton import __version__
from pelton.loader import Checkpoint, GGUFCheckpoint, SafetensorsCheckpoint, open_checkpoint, open_for_texts
from pelton.loader.hf.hub import HubId, parse_hub_id
from tests.support.fake_hub import FakeHub, Repository, Request
from tests.support.tiny_llama import tiny_llama

NAME = "org/tiny"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub without repositories, and an empty cache. What the library reads from the environment at import is set."""
    home = tmp_path / "home"
    with FakeHub() as hub:
        for name, value in {
            "ENDPOINT": hub.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": hub.url + "/{repo_id}/resolve/{revision}/{filename}",
            "HF_HOME": str(home),
            "HF_HUB_CACHE": str(home / "hub"),
            "HF_TOKEN_PATH": str(home / "token"),
            "AGENT_HARNESSES_PATH": str(home / "harnesses"),
            "HF_HUB_OFFLINE": False,
        }.items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(_detect_agent, "_registry", None)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub
        _http.close_session()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture
def go_offline(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeHub], None]:
    def go(hub: FakeHub) -> None:
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        hub.requests.clear()

    return go


def assert_is(checkpoint: Checkpoint, model: LlamaForCausalLM) -> None:
    state = model.state_dict()
    assert checkpoint.tensor_names() == state.keys()
    for name, tensor in state.items():
        np.testing.assert_array_equal(checkpoint.tensor(name).read(), tensor.numpy())


def in_folder(checkpoint: Checkpoint) -> set[str]:
    return {path.relative_to(checkpoint.path).as_posix() for path in checkpoint.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("org/name", HubId("org/name", None)),
        ("org/name:Q4_K_M", HubId("org/name", "Q4_K_M")),
        ("org/name-1.5_B.x:q8", HubId("org/name-1.5_B.x", "q8")),
        ("gpt2", None),
        ("gpt2:Q4", None),
        ("org/name/more", None),
        ("org/name:a/b", None),
        ("org/name:", None),
        ("org/", None),
        ("/name", None),
        ("./name", None),
        ("../name", None),
        ("~/name", None),
        ("org/name.gguf", None),
        ("org/model.safetensors", None),
        ("org/pytorch_model.bin", None),
    ],
)
def test_what_is_a_hub_id(model: str, expected: HubId | None) -> None:
    assert parse_hub_id(model) == expected
    if expected is None:
        with pytest.raises(ValueError, match=r"there is no model .* hub id, which has the form organisation/name"):
            open_checkpoint(model)


def test_only_what_is_needed_is_fetched(hub: FakeHub, tiny_model: LlamaForCausalLM, tiny_folder: Path) -> None:
    wanted = {
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "chat_template.jinja",
        "chat_template.json",
        "additional_chat_templates/tool_use.jinja",
    }
    others = {
        "README.md",
        ".gitattributes",
        "pytorch_model.bin",
        "consolidated.safetensors",
        "original/model.safetensors",
        "original/config.json",
        "onnx/model.onnx",
        "tokenizer.model",
        "modeling_tiny.py",
    }
    for name in wanted | others:
        (tiny_folder / name).parent.mkdir(exist_ok=True)
        (tiny_folder / name).write_text(json.dumps({"_": name}))  # of one content, one would be downloaded
    hub.add(NAME, tiny_folder)
    checkpoint = open_checkpoint(NAME)
    assert isinstance(checkpoint, SafetensorsCheckpoint)
    assert_is(checkpoint, tiny_model)
    assert in_folder(checkpoint) == wanted | {"config.json", "model.safetensors"}
    assert sorted(hub.downloads()) == sorted(in_folder(checkpoint))
    assert hub.downloads()[-1] == "model.safetensors"
    assert checkpoint.path.is_relative_to(constants.HF_HUB_CACHE)
    assert checkpoint.name == NAME
    assert checkpoint.num_bytes == (tiny_folder / "model.safetensors").stat().st_size


def test_texts_come_without_weights(hub: FakeHub, tiny_folder: Path, make_gguf: Callable[..., Path]) -> None:
    (tiny_folder / "tokenizer.json").write_text("{}")
    hub.add(NAME, tiny_folder)
    folder = open_for_texts(NAME)
    assert isinstance(folder, Path)
    assert (folder / "tokenizer.json").read_text() == "{}"
    assert "tokenizer.json" in hub.downloads()
    assert "model.safetensors" not in hub.downloads()
    assert open_for_texts(str(tiny_folder)) == tiny_folder
    file = make_gguf()
    hub.add("org/gguf", {"model-Q8_0.gguf": file.read_bytes()})
    for name in ("org/gguf", "org/gguf:Q8_0", str(file)):
        assert isinstance(open_for_texts(name), GGUFCheckpoint)
    with pytest.raises(ValueError, match=r"there is no model .* hub id, which has the form organisation/name"):
        open_for_texts("nothing")


def test_a_second_time_nothing_is_downloaded(hub: FakeHub, tiny_folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "pelton")
    hub.add(NAME, tiny_folder)
    first = open_checkpoint(NAME)
    assert f"Downloading model.safetensors of {NAME} from {hub.url} (0.1 MB)" in caplog.text
    caplog.clear()
    hub.requests.clear()
    assert open_checkpoint(NAME).path == first.path
    assert hub.downloads() == []
    assert "Downloading" not in caplog.text


def test_shards(hub: FakeHub, tiny_model: LlamaForCausalLM, tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    tiny_model.save_pretrained(folder, max_shard_size="20KB")
    shards = {path.name for path in folder.glob("*.safetensors")}
    assert len(shards) > 2
    (folder / "consolidated.safetensors").write_bytes(b"no")
    hub.add(NAME, folder)
    checkpoint = open_checkpoint(NAME)
    assert_is(checkpoint, tiny_model)
    assert set(hub.downloads()[-len(shards) :]) == shards
    assert "consolidated.safetensors" not in hub.downloads()


def test_a_single_file_counts_before_an_index(hub: FakeHub, tiny_model: LlamaForCausalLM, tiny_folder: Path) -> None:
    (tiny_folder / "model.safetensors.index.json").write_text("nonsense")
    hub.add(NAME, tiny_folder)
    assert_is(open_checkpoint(NAME), tiny_model)
    assert "model.safetensors.index.json" not in hub.downloads()


@pytest.mark.parametrize("shard_size", ["5GB", "20KB"])
def test_what_can_be_refused_is_refused_before_the_weights_come(
    shard_size: str, hub: FakeHub, tiny_model: LlamaForCausalLM, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    tiny_model.save_pretrained(folder, max_shard_size=shard_size)
    config = json.loads((folder / "config.json").read_text())
    for changes, problem in (
        ({"architectures": ["MixtralForCausalLM"]}, "architectures is.*MixtralForCausalLM"),
        ({"auto_map": {"AutoModel": "x.X"}}, "auto_map asks to run code"),
        ({"num_experts": 5}, "num_experts"),
    ):
        (folder / "config.json").write_text(json.dumps(config | changes))
        hub.add(NAME, folder)
        with pytest.raises(ValueError, match=problem):
            open_checkpoint(NAME)
    assert not [name for name in hub.downloads() if name.endswith(".safetensors")]


def test_missing_shards_are_named_before_the_others_come(
    hub: FakeHub, tiny_model: LlamaForCausalLM, tmp_path: Path
) -> None:
    tiny_model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    gone = sorted((tmp_path / "sharded").glob("*.safetensors"))[1]
    gone.unlink()
    hub.add(NAME, tmp_path / "sharded")
    with pytest.raises(ValueError, match=f"{NAME} lacks {gone.name}, which its index names"):
        open_checkpoint(NAME)
    assert not [name for name in hub.downloads() if name.endswith(".safetensors")]


@pytest.mark.parametrize(
    "entry", [{"rfilename": 5, "size": 1}, {"rfilename": None}, {"rfilename": "config.json", "size": "big"}]
)
def test_junk_in_the_listing(entry: dict[str, object], hub: FakeHub, tiny_folder: Path) -> None:
    hub.add(NAME, tiny_folder)
    hub.listing = [entry]
    with pytest.raises(ValueError, match="files whose names are not text, or whose sizes are not numbers"):
        open_checkpoint(NAME)


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["config.json", "pytorch_model.bin"], "org/tiny has no safetensors, only pytorch_model.bin: a pickle"),
        (["adapter_config.json", "adapter_model.safetensors"], r"holds an adapter \(adapter_config.json\)"),
        (["model.safetensors", "README.md"], "org/tiny has no config.json"),
        (["config.json", "tf_model.h5"], "has no model.safetensors and no model.safetensors.index.json"),
        (["config.json", "original/model.safetensors"], "has no model.safetensors"),
        ([], "has no model.safetensors"),
        (["config.json", "../../evil-Q4_0.gguf"], r"lists a file '../../evil-Q4_0.gguf', which is no path within"),
        (["/evil/model.safetensors"], "lists a file '/evil/model.safetensors'"),
        ([r"..\model.safetensors"], "which is no path within a repository"),
    ],
)
def test_repositories_that_hold_no_model(files: list[str], problem: str, hub: FakeHub) -> None:
    hub.add(NAME, dict.fromkeys(files, b"{}"))
    with pytest.raises(ValueError, match=problem):
        open_checkpoint(NAME)
    assert hub.downloads() == []


GGUFS = [
    "tiny-BF16.gguf",
    "tiny-F16.gguf",
    "tiny-Q4_K_M.gguf",
    "tiny-Q4_K_S.gguf",
    "tiny-Q8_0.gguf",
    "mmproj-tiny-f16.gguf",
    "tiny.imatrix.gguf",
    "Q6_K/tiny-Q6_K-00001-of-00002.gguf",
    "Q6_K/tiny-Q6_K-00002-of-00002.gguf",
    "UD/tiny-UD-IQ1_S.gguf",
]


@pytest.mark.parametrize(
    ("quant", "file"),
    [
        ("Q4_K_M", "tiny-Q4_K_M.gguf"),
        ("q4_k_m", "tiny-Q4_K_M.gguf"),
        ("F16", "tiny-F16.gguf"),
        ("BF16", "tiny-BF16.gguf"),
        ("Q8", "tiny-Q8_0.gguf"),
        ("IQ1_S", "UD/tiny-UD-IQ1_S.gguf"),
        ("UD", "UD/tiny-UD-IQ1_S.gguf"),
    ],
)
def test_a_gguf_file_by_a_part_of_its_name(quant: str, file: str, hub: FakeHub, make_gguf: Callable[..., Path]) -> None:
    hub.add(NAME, dict.fromkeys(GGUFS, b"no") | {file: make_gguf().read_bytes()})
    checkpoint = open_checkpoint(f"{NAME}:{quant}")
    assert isinstance(checkpoint, GGUFCheckpoint)
    assert checkpoint.path.as_posix().endswith(f"/{file}")
    assert checkpoint.name == f"{NAME}:{quant}"
    assert hub.downloads() == [file]


@pytest.mark.parametrize(
    ("quant", "problem"),
    [
        ("Q5_K_M", r"no GGUF file with Q5_K_M in its name; it has .*tiny-Q4_K_M\.gguf, tiny-Q4_K_S\.gguf"),
        ("Q4_K", r"several GGUF files with Q4_K in their names: tiny-Q4_K_M\.gguf, tiny-Q4_K_S\.gguf; .*tiny:QUANT"),
        ("Q6_K", r"Q6_K/tiny-Q6_K-00001-of-00002\.gguf of org/tiny is a part of a split model.*or take .*tiny-BF16"),
        ("mmproj", "no GGUF file with mmproj in its name"),
        (None, r"org/tiny has several GGUF files: .*tiny-BF16\.gguf.*; give one as org/tiny:QUANT"),
    ],
)
def test_what_names_no_single_gguf_file(quant: str | None, problem: str, hub: FakeHub) -> None:
    hub.add(NAME, dict.fromkeys(GGUFS, b"no"))
    with pytest.raises(ValueError, match=problem) as caught:
        open_checkpoint(NAME if quant is None else f"{NAME}:{quant}")
    assert "mmproj-" not in str(caught.value)
    assert hub.downloads() == []


def test_the_only_gguf_file_needs_no_name(hub: FakeHub, make_gguf: Callable[..., Path]) -> None:
    hub.add(NAME, {"README.md": b"", "config.json": b"{}", "mmproj.gguf": b"", "a.gguf": make_gguf().read_bytes()})
    assert open_checkpoint(NAME).path.name == "a.gguf"
    hub.add(NAME, {"a-00001-of-00002.gguf": b"", "a-00002-of-00002.gguf": b""})
    with pytest.raises(ValueError, match=r"split model, which Pelton cannot read; .*--merge\) and give the file$"):
        open_checkpoint(NAME)


def test_safetensors_win_over_gguf(hub: FakeHub, tiny_folder: Path, make_gguf: Callable[..., Path]) -> None:
    shutil.copy(make_gguf(), tiny_folder / "tiny-Q8_0.gguf")
    hub.add(NAME, tiny_folder)
    assert isinstance(open_checkpoint(NAME), SafetensorsCheckpoint)
    assert "tiny-Q8_0.gguf" not in hub.downloads()
    assert isinstance(open_checkpoint(f"{NAME}:Q8_0"), GGUFCheckpoint)
    hub.add("org/plain", {"model.safetensors": b"", "config.json": b"{}"})
    with pytest.raises(ValueError, match="org/plain has no GGUF files; leave out :Q8_0"):
        open_checkpoint("org/plain:Q8_0")


def test_an_alias_or_a_path_wins_and_has_no_revisions(
    hub: FakeHub, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny_folder.rename(tmp_path / "org")
    (tmp_path / "models").mkdir()
    (tmp_path / "org").rename(tmp_path / "models" / "org")
    assert open_checkpoint("models/org").path == Path("models/org")
    for model, what in (("models/org", "a path on this machine"), ("smollm2", "an alias")):
        with pytest.raises(ValueError, match=f"revision is 'main', but the model '{model}' is {what}"):
            open_checkpoint(model, "main")
    assert hub.requests == []


def test_revisions(hub: FakeHub, tiny_folder: Path) -> None:
    repository = hub.add(NAME, tiny_folder)
    main = repository.revisions["main"]
    repository.revisions |= {"v1": "1" * 40, "refs/pr/2": "2" * 40}
    for revision, commit in ((None, main), ("main", main), ("v1", "1" * 40), ("refs/pr/2", "2" * 40), (main, main)):
        assert open_checkpoint(NAME, revision).path.name == commit
    with pytest.raises(ValueError, match="org/tiny has no revision 'v2'; give a branch, a tag or a commit of"):
        open_checkpoint(NAME, "v2")


def test_a_branch_that_moves(hub: FakeHub, tiny_folder: Path) -> None:
    first = open_checkpoint_of(hub, tiny_folder)
    (tiny_folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    second = open_checkpoint_of(hub, tiny_folder)
    assert first.path != second.path
    assert second.config.eos_token_ids == (2, 7)


def test_a_branch_that_moves_meanwhile(hub: FakeHub, tiny_folder: Path, tiny_model: LlamaForCausalLM) -> None:
    """All files are of one commit."""
    repository = hub.add(NAME, tiny_folder)
    first = repository.revisions["main"]
    repository.revisions["before"] = first

    def move(request: Request) -> None:
        if request.method == "GET" and request.path.endswith("/config.json"):
            repository.revisions["main"] = "1" * 40

    hub.after_request = move
    checkpoint = open_checkpoint(NAME)
    assert_is(checkpoint, tiny_model)
    assert checkpoint.path.name == first
    assert open_checkpoint(NAME).path.name == "1" * 40


def open_checkpoint_of(hub: FakeHub, folder: Path) -> Checkpoint:
    hub.add(NAME, folder)
    return open_checkpoint(NAME)


@pytest.mark.parametrize(
    ("repository", "token", "problem"),
    [
        (None, None, "no path 'org/tiny' on this machine and no repository of that name .*private; .*HF_TOKEN"),
        (Repository({}, token="secret"), None, "or it is private; .*HF_TOKEN"),
        (Repository({}, token="secret"), "wrong", "or it is private; .*HF_TOKEN"),
        (
            Repository({"config.json": b"{}", "model.safetensors": b""}, token="secret", gated=True),
            None,
            "org/tiny is gated; accept its licence at .*/org/tiny, then set HF_TOKEN",
        ),
    ],
)
def test_repositories_that_one_may_not_see(
    repository: Repository | None, token: str | None, problem: str, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    if repository:
        hub.repositories[NAME] = repository
    with pytest.raises(ValueError, match=problem):
        open_checkpoint(NAME)


@pytest.mark.parametrize("gated", [False, True])
def test_a_token_opens_them(gated: bool, hub: FakeHub, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.add(NAME, tiny_folder, token="secret", gated=gated)
    assert isinstance(open_checkpoint(NAME), SafetensorsCheckpoint)


@pytest.mark.parametrize(
    ("status", "problem"),
    [(403, "status 403 for org/tiny; check HF_TOKEN"), (429, "wait a while"), (500, "status 500 .*try again later")],
)
def test_a_hub_that_refuses(status: int, problem: str, hub: FakeHub) -> None:
    hub.status = status
    with pytest.raises(ValueError, match=problem):
        open_checkpoint(NAME)


@pytest.mark.parametrize("name", ["org/a--b", "org/a..b", "org/a.git", "org/-a", "or g/a", "org/café"])
def test_invalid_ids(name: str, hub: FakeHub) -> None:
    with pytest.raises(ValueError, match="neither a path on this machine nor a hub id, which has the form"):
        open_checkpoint(name)
    assert hub.requests == []


def test_a_hub_that_cannot_be_reached(
    hub: FakeHub, tiny_folder: Path, caplog: pytest.LogCaptureFixture, make_gguf: Callable[..., Path]
) -> None:
    repository = hub.add(NAME, tiny_folder)
    hub.add("org/gguf", {"a-Q8_0.gguf": make_gguf().read_bytes()})
    repository.revisions["v1"] = "1" * 40
    cached = [open_checkpoint(NAME), open_checkpoint(NAME, "v1"), open_checkpoint("org/gguf:Q8_0")]
    hub.stop()
    assert [open_checkpoint(NAME).path, open_checkpoint(NAME, "v1").path, open_checkpoint("org/gguf:Q8_0").path] == [
        checkpoint.path for checkpoint in cached
    ]
    assert open_checkpoint(NAME, "1" * 40).path == cached[1].path
    assert f"{hub.url} cannot be reached (ConnectError: " in caplog.text
    assert f"using what the cache has of {NAME}, commit {cached[0].path.name}" in caplog.text
    for model, revision in (("org/other", None), (NAME, "v2")):
        with pytest.raises(
            ValueError, match=rf"{hub.url} cannot be reached \(ConnectError.*neither a path.* nor whole in"
        ):
            open_checkpoint(model, revision)


def test_offline(
    hub: FakeHub, tiny_folder: Path, go_offline: Callable[[FakeHub], None], capfd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    cached = open_checkpoint_of(hub, tiny_folder)
    go_offline(hub)
    assert open_checkpoint(NAME).path == cached.path
    assert open_checkpoint(NAME, cached.path.name).path == cached.path
    with pytest.raises(
        ValueError, match=r"HF_HUB_OFFLINE is set, and org/other is neither .* nor in the cache .*; unset it"
    ):
        open_checkpoint("org/other")
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set, and org/tiny at revision 'v1' is neither a path"):
        open_checkpoint(NAME, "v1")
    assert hub.requests == []
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


def test_a_cache_that_is_not_whole(
    hub: FakeHub, tiny_folder: Path, tiny_model: LlamaForCausalLM, tmp_path: Path, go_offline: Callable[[FakeHub], None]
) -> None:
    hub.add(NAME, tiny_folder)
    hf_hub_download(NAME, "config.json")
    sharded = tmp_path / "sharded"
    tiny_model.save_pretrained(sharded, max_shard_size="20KB")
    hub.add("org/sharded", sharded)
    gone = sorted(open_checkpoint("org/sharded").path.glob("*.safetensors"))[1]
    gone.unlink()
    go_offline(hub)
    with pytest.raises(ValueError, match=r"has no model\.safetensors.*; only the cache was looked at, since HF_"):
        open_checkpoint(NAME)
    with pytest.raises(ValueError, match=rf"org/sharded lacks {gone.name}.*; only the cache was looked at"):
        open_checkpoint("org/sharded")
    with pytest.raises(ValueError, match="no GGUF files; leave out :Q4_0; only the cache was looked at"):
        open_checkpoint(f"{NAME}:Q4_0")


def test_a_repository_that_has_gone_is_taken_from_the_cache(
    hub: FakeHub, tiny_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cached = open_checkpoint_of(hub, tiny_folder)
    del hub.repositories[NAME]
    assert open_checkpoint(NAME).path == cached.path
    assert "no repository of that name" in caplog.text


def test_an_interrupted_download_goes_on(
    hub: FakeHub,
    tiny_folder: Path,
    tiny_model: LlamaForCausalLM,
    quick_retries: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)  # what is kept when a connection breaks: 10 MB
    hub.add(NAME, tiny_folder)
    hub.cuts["model.safetensors"] = [20_000, 0, 10_000]
    assert_is(open_checkpoint(NAME), tiny_model)
    ranges = [request.headers.get("Range") for request in hub.requests if request.path.endswith("/model.safetensors")]
    assert ranges == [None, None, "bytes=20000-", "bytes=20000-", "bytes=30000-"]  # HEAD, then four GET


def test_a_download_that_fails_leaves_nothing_and_can_be_repeated(
    hub: FakeHub, tiny_folder: Path, tiny_model: LlamaForCausalLM, quick_retries: None
) -> None:
    hub.add(NAME, tiny_folder)
    hub.cuts["model.safetensors"] = [20_000] + [0] * 20
    with pytest.raises(ValueError, match=rf"{hub.url} cannot be reached \(RemoteProtocolError"):
        open_checkpoint(NAME)
    assert not list(Path(constants.HF_HUB_CACHE).rglob("*.incomplete"))
    hub.cuts.clear()
    assert_is(open_checkpoint(NAME), tiny_model)


def test_a_cache_that_cannot_be_written(
    hub: FakeHub, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(NAME, tiny_folder)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "file" / "hub"))
    with pytest.raises(ValueError, match=r"the cache .*/file/hub cannot be used .Not a directory.*set HF_HOME"):
        open_checkpoint(NAME)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk(hub: FakeHub, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.open

    def full(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return real(Path("/dev/full") if path.suffix == ".incomplete" else path, mode, *args, **kwargs)

    hub.add(NAME, tiny_folder)
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(ValueError, match=r"cannot be used .No space left on device.*see to its space"):
        open_checkpoint(NAME)


def test_links_out_of_the_cache_are_refused(hub: FakeHub, tiny_folder: Path) -> None:
    path = open_checkpoint_of(hub, tiny_folder).path / "model.safetensors"
    assert path.is_symlink(), "into the cache's folder of contents"
    path.unlink()
    path.symlink_to(tiny_folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"model\.safetensors is a link that leads out of the cache"):
        open_checkpoint(NAME)


def test_a_cache_folder_may_be_elsewhere(hub: FakeHub, tiny_folder: Path, tmp_path: Path) -> None:
    """Some move large repositories to another disk and leave a link."""
    folder = open_checkpoint_of(hub, tiny_folder).path.parent.parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    open_checkpoint(NAME)


def test_requests_say_who_asks(hub: FakeHub, tiny_folder: Path) -> None:
    open_checkpoint_of(hub, tiny_folder)
    ours = [request for request in hub.requests if request.path != "/api/agent-harnesses"]
    assert len(ours) == 1 + 2 * len(list(tiny_folder.iterdir())), "the list, then HEAD and GET of each file"
    assert all(request.headers["User-Agent"].startswith(f"pelton/{__version__}; hf_hub/") for request in ours)


@pytest.mark.parametrize("progress", [False, True])
def test_no_bars_without_a_terminal(progress: bool, hub: FakeHub, tiny_folder: Path, capfd: Any) -> None:
    hub.add(NAME, tiny_folder)
    open_checkpoint(NAME, progress=progress)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("progress", [False, True])
def test_bars_on_a_terminal_only_when_wanted(
    progress: bool, hub: FakeHub, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    hub.add(NAME, tiny_folder)
    open_checkpoint(NAME, progress=progress)
    assert ("model.safetensors: 100%" in capsys.readouterr().err) == progress


def run_pelton(hub: FakeHub, home: Path, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """The command, in a process whose hub is ours."""
    command = [sys.executable, "-W", "error", "-m", "pelton.cli.main", "generate", "--temperature", "0"]
    variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"} | environment
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "HUGGING"))}
    return subprocess.run(
        [*command, "--max-tokens", "4", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=kept | variables,
        check=False,
    )


def test_the_command_from_hub_and_cache(hub: FakeHub, tmp_path: Path) -> None:
    """Environment variables arrive; the model answers as it does from its folder; without a terminal, no bars."""
    repository = hub.add(NAME, Path(tiny_llama()), token="secret")
    repository.revisions["v1"] = "1" * 40
    home = tmp_path / "other"
    local = run_pelton(hub, home, "--model", tiny_llama(), "Hello")
    assert (local.returncode, hub.requests) == (0, [])
    asked = ("--model", NAME, "--revision", "v1", "Hello")
    first = run_pelton(hub, home, *asked, HF_TOKEN="secret")
    assert (first.returncode, first.stdout) == (0, local.stdout), first.stderr
    assert "%" not in first.stderr.replace("100% of", "")
    assert "model.safetensors" in hub.downloads()
    assert (home / "hub" / "models--org--tiny" / "snapshots" / ("1" * 40) / "tokenizer.json").exists()
    hub.requests.clear()
    offline = run_pelton(hub, home, *asked, HF_HUB_OFFLINE="1")
    assert (offline.returncode, offline.stdout, hub.requests) == (0, local.stdout, [])
    refused = run_pelton(hub, home, "--model", "org/other", "Hello")
    assert refused.returncode == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith("pelton: there is no path 'org/other' on this machine and no repository of that name")


def test_a_local_model_does_without_the_hub_library() -> None:
    script = (
        "import sys\n"
        "from pelton.loader import open_checkpoint\n"
        f"open_checkpoint({tiny_llama()!r})\n"
        "assert 'huggingface_hub' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
