"""Checkpoints that are not whole, and machines that keep nothing: each an error that says what to do."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from possym.errors import InputError, ResultsError, UnsupportedModelError
from possym.models import hub
from possym.results import cache_root

from ..capture import families
from ..profiling.test_profiling import tokenizer


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    families.build("llama").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def missing(weights):
    del weights["model.layers.1.self_attn.q_proj.weight"]


def unexpected(weights):
    weights["model.layers.9.self_attn.q_proj.weight"] = weights["model.layers.1.self_attn.q_proj.weight"].clone()


def mismatched(weights):
    weights["model.layers.1.self_attn.q_proj.weight"] = torch.zeros(3, 5)


@pytest.mark.parametrize("change", [missing, unexpected, mismatched])
def test_weights_that_are_not_the_models_are_refused_by_name(whole, tmp_path, change):
    folder = shutil.copytree(whole, tmp_path / "changed")
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=rf"1 {change.__name__} \(.*layers\.\d\.self_attn\.q_proj\.weight"):
        hub.load(str(folder), device="cpu")


def cut_off(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1000])


def pointer(folder):
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def nothing(folder):
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    "damage, message",
    [(cut_off, "damaged or cut off"), (pointer, "git-lfs pointer.*git lfs pull"), (nothing, "could not be loaded")],
)
def test_damaged_folders_are_refused(whole, tmp_path, damage, message):
    folder = shutil.copytree(whole, tmp_path / "damaged")
    damage(folder)
    with pytest.raises(InputError, match=message):
        hub.load(str(folder), device="cpu")


def adapter(folder):
    (folder / "config.json").rename(folder / "adapter_config.json")


def files_of_llama_cpp(folder):
    (folder / "config.json").unlink()
    (folder / "one.GGUF").touch()


def a_training(folder):
    (folder / "config.json").unlink()
    for step in (500, 1500):
        (folder / f"checkpoint-{step}").mkdir()
        (folder / f"checkpoint-{step}" / "config.json").touch()


def no_model(folder):
    (folder / "config.json").unlink()


def no_tokenizer(folder):
    for path in folder.glob("token*"):
        path.unlink()


OTHERS = {
    adapter: "an adapter alone: merge it",
    files_of_llama_cpp: "no model itself, but one.GGUF: give one of them",
    a_training: "but checkpoint-500, checkpoint-1500: give one of them",
    no_model: "no config.json: give a folder that save_pretrained wrote",
    no_tokenizer: "no tokenizer, .*: copy the files of the model that it was trained from",
}


@pytest.mark.parametrize("change", OTHERS)
def test_a_folder_that_holds_something_else_is_told_what_to_give(whole, tmp_path, change):
    folder = shutil.copytree(whole, tmp_path / "other")
    change(folder)
    with pytest.raises(InputError, match=OTHERS[change]):
        hub.load(str(folder), device="cpu")
    if change is no_tokenizer:
        assert hub.load(str(folder), device="cpu", with_tokenizer=False).tokenizer is None


def broken_tokenizer(folder):
    (folder / "tokenizer.json").write_text('{"a": 1}')


def cut_bin(count):
    def cut(folder):
        (folder / "model.safetensors").unlink()
        torch.save(families.build("llama").state_dict(), folder / "pytorch_model.bin")
        whole = (folder / "pytorch_model.bin").read_bytes()
        (folder / "pytorch_model.bin").write_bytes(whole[:count])

    return cut


def config(**changes):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


DAMAGE = {
    "tokenizer": broken_tokenizer,
    "bin of no bytes": cut_bin(0),
    "bin cut off": cut_bin(5000),
    "width as text": config(hidden_size="64"),
    "no heads": config(num_attention_heads=0),
    "a rotation without its factor": config(rope_parameters={"rope_type": "yarn", "rope_theta": 1e4}),
    "a config that is a list": lambda folder: (folder / "config.json").write_text("[]"),
    "gptq": config(quantization_config={"quant_method": "gptq", "bits": 4}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_whatever_transformers_raises_names_the_model_and_the_cause(whole, tmp_path, damage):
    folder = shutil.copytree(whole, tmp_path / "damaged")
    DAMAGE[damage](folder)
    with pytest.raises(InputError, match=r"damaged' could not be loaded.*: \w+"):
        hub.load(str(folder), device="cpu")


def test_the_home_folder_may_be_written_as_a_tilde(whole, monkeypatch):
    monkeypatch.setenv("HOME", str(whole.parent))
    assert type(hub.load(f"~/{whole.name}", device="cpu").model).__name__ == "LlamaForCausalLM"


def test_a_gguf_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "broken.gguf").write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(InputError, match="broken.gguf' could not be loaded"):
        hub.load(str(tmp_path / "broken.gguf"), device="cpu")


CASES = {
    "POSSYM_CACHE, of the home folder": (dict(POSSYM_CACHE="~/kept", HOME="/somewhere"), "/somewhere/kept"),
    "XDG_CACHE_HOME": (dict(XDG_CACHE_HOME="/somewhere/cache"), "/somewhere/cache/possym"),
    "a relative folder, which is none": (dict(XDG_CACHE_HOME="here", HOME="/somewhere"), "/somewhere/.cache/possym"),
    "empty variables": (dict(XDG_CACHE_HOME="", POSSYM_CACHE="", HOME="/somewhere"), "/somewhere/.cache/possym"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep caches elsewhere")
@pytest.mark.parametrize("name", CASES)
def test_the_cache_is_where_the_variables_say(name, monkeypatch):
    variables, expected = CASES[name]
    for variable in ("XDG_CACHE_HOME", "POSSYM_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert cache_root() == Path(expected)


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs to become a user that nobody knows")
def test_a_user_without_a_home_is_told_which_variable_to_set():
    code = (
        "import os; from possym.results.files import cache_root; os.setuid(54321)\n"
        "try: cache_root()\nexcept Exception as error: print(type(error).__name__, error)"
    )
    bare = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "POSSYM_CACHE")}
    done = subprocess.run([sys.executable, "-c", code], env=bare, capture_output=True, text=True)
    assert done.stdout.startswith("ResultsError no folder to keep") and "Set POSSYM_CACHE" in done.stdout, done


def test_a_cache_that_cannot_be_written_is_named(tmp_path, monkeypatch, smollm2_parts):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(ResultsError, match=r"file/below/SmolLM2.* cannot be written .*POSSYM_CACHE"):
        hub.default_folder()
    monkeypatch.setenv("POSSYM_CACHE", "/dev/full")
    with pytest.raises(ResultsError, match=r"/dev/full/SmolLM2.* cannot be written .*POSSYM_CACHE"):
        hub.default_folder()


@pytest.fixture
def smollm2_parts(monkeypatch):
    """The default's package with a small model in place of the default's weights, so that converting is quick."""
    transformers = pytest.importorskip("transformers")
    model = families.build("llama")
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: model)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: tokenizer())


def test_gguf_needs_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "gguf", None)
    monkeypatch.setattr(hub.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedModelError, match="reading GGUF needs gguf"):
        hub.need_gguf()
