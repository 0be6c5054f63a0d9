"""The command line, as a user runs it: other processes, files in and out, exit statuses."""

import json
import os
import shutil
import subprocess
import sys

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

import possym
from possym.command import main
from possym.models import hub, random_llama
from tests.profiling.test_profiling import WORDS, tokenizer

PROMPTS = ["Alice likes red . Who likes rëd ? Bob", "the user likes blue . Which a likes green ? the user likes"]


ASCII = dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", PYTHONIOENCODING="ascii")


def run(*words, given=""):
    """Run possym on a system that knows no UTF-8, which prompts are in nevertheless."""
    command = [sys.executable, "-m", "possym", *map(str, words)]
    options = dict(encoding="utf-8", capture_output=True, timeout=120)
    return subprocess.run(command, input=given, env=os.environ | ASCII, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two checkpoints: one whole, one that claims a window which its layers do not have."""
    path = tmp_path_factory.mktemp("command")
    for name, extra in {"whole": {}, "wrong": dict(sliding_window=8)}.items():
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=len(WORDS), hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, **extra,
        )  # fmt: skip
        LlamaForCausalLM(config).save_pretrained(path / name)
        tokenizer().save_pretrained(path / name)
    return path


@pytest.fixture(scope="module")
def profiled(folder):
    words = ("profile", folder / "whole", "--prompts", "-", "--out", folder / "a", "--hold", "first", "--json")
    words += ("--query", "last", "--report", folder / "report.html")
    return words, run(*words, given="\n\n".join(PROMPTS) + "\n")


def test_a_profile_from_standard_input_is_that_of_the_library(folder, profiled):
    done = profiled[1]
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    loaded = AutoModelForCausalLM.from_pretrained(folder / "whole", dtype=torch.float32).eval()
    wanted = possym.profile(loaded, PROMPTS, tokenizer=tokenizer(), hold="first", progress=False).summary()
    pd.testing.assert_frame_equal(pd.DataFrame(said["heads"]), wanted, check_dtype=False, atol=1e-6)
    pd.testing.assert_frame_equal(possym.Profile.load(said["profile"]).summary(), wanted, atol=1e-6)
    assert "Alice" in (folder / "report.html").read_text(encoding="utf-8")
    assert "prompt/s" in done.stderr


def test_the_same_command_goes_on_where_it_stopped(folder, profiled):
    words, first = profiled
    before = {path: path.stat().st_mtime_ns for path in (folder / "a/checkpoint").rglob("*")}
    again = run(*words, given="\n".join(PROMPTS))
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "a/checkpoint").rglob("*")}
    assert "| 0/2 [" in first.stderr and "| 2/2 [" in again.stderr and "| 0/2 [" not in again.stderr


def test_compare_finds_what_differs(folder, profiled, capsys):
    loaded = AutoModelForCausalLM.from_pretrained(folder / "whole", dtype=torch.float32).eval()
    with torch.no_grad():
        loaded.model.layers[1].self_attn.q_proj.weight[:8] *= 3  # head 0 of layer 1
    possym.profile(loaded, PROMPTS, tokenizer=tokenizer(), hold="first", progress=False).save(folder / "b")
    done = run("compare", folder / "a", folder / "b", "--json")
    assert done.returncode == 0, done.stderr
    heads = pd.DataFrame(json.loads(done.stdout)["heads"])
    assert heads[heads.largest > 0][["layer", "head"]].values.tolist() == [[1, 0]]
    assert main(["compare", str(folder / "a"), str(folder / "a"), "--fail"]) == 0
    assert "0 heads changed" in capsys.readouterr().out
    one = possym.Profile.load(folder / "b")
    many = [possym.Profile.load(folder / "a/profile"), one]
    for name, each in zip(("few", "more"), many, strict=True):
        possym.Profile.concat([each] * 4).save(folder / name)
    assert main(["compare", str(folder / "few"), str(folder / "more"), "--fail"]) == 1
    (steps := folder / "steps").mkdir()
    for step, name in (30, "few"), (200, "more"):
        shutil.copytree(folder / name, steps / f"step-{step}")
    capsys.readouterr()
    assert main(["compare", str(steps), "--json", "--report", str(folder / "film.html")]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in said["steps"]] == ["step-30", "step-200"] and said["steps"][1]["changed"] > 0
    assert "step-200" in (folder / "film.html").read_text(encoding="utf-8")
    assert main(["compare", str(folder / "a"), str(folder / "none")]) == 2
    assert "none holds no profile" in capsys.readouterr().err


def test_audit_exits_with_1_where_the_configuration_claims_something_else(folder, capsys):
    assert main(["audit", str(folder / "whole"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["differs"] is False
    done = run("audit", folder / "wrong")
    assert done.returncode == 1, done.stderr
    assert "2 of 2 layers differ" in done.stdout and "window" in done.stdout and r"0\u20131" in done.stdout


def test_bad_input_is_one_line_and_2(folder, tmp_path, capsys):
    done = run("profile", folder / "whole", "--prompts", tmp_path / "none.txt", "--out", tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1) and "cannot be read" in done.stderr
    lines = {
        "empty.txt": " \n", "few.txt": "\nAlice likes red .\n\nBob\n", "prompts.csv": "a", "broken.jsonl": "{",
        "bad.jsonl": '"one"\n{"txt": 3}\n', "flags.jsonl": "[true, 3]", "nothing.jsonl": '{"messages": []}',
        "half.jsonl": '"Alice likes \\ud800 red"',
    }  # fmt: skip
    for name, text in lines.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "windows.txt").write_text("Alice", encoding="utf-16")
    (tmp_path / "good.jsonl").write_text('"Alice likes red ."\n\n{"text": "Bob likes a ."}\n')
    profile, good = ["profile", str(folder / "whole"), "--out", str(tmp_path / "out"), "--prompts"], "good.jsonl"
    refused = [
        (("empty.txt",), "holds no prompts"),
        (("few.txt",), f"prompt 1 ({tmp_path / 'few.txt'}, line 4) has 2 tokens"),
        (("windows.txt",), "is not in UTF-8"),
        (("bad.jsonl",), "line 2 (it has 'txt'): give a string"),
        (("flags.jsonl",), "line 1: give a string"),
        (("nothing.jsonl",), "line 1 (it has 'messages'): give a string"),
        (("half.jsonl",), "prompt 0"),
        (("broken.jsonl",), "line 1 is no JSON"),
        (("prompts.csv",), "give a .txt or .jsonl file"),
        ((good, "--layers", "x"), "whole numbers"),
        ((good, "--layers", "9"), "layers with attention"),
        ((good, "--query", "x"), "whole numbers"),
        ((good, "--device", "gpu"), "device = 'gpu'"),
        ((good, "--dtype", "int8"), "known dtypes"),
        ((good, "--out", str(tmp_path / good)), "it is a file"),
        ((good, "--report", str(tmp_path)), "it is a folder"),
    ]
    for (name, *options), said in refused:
        capsys.readouterr()
        assert main([*profile, str(tmp_path / name), *options]) == 2, said
        assert said in capsys.readouterr().err.splitlines()[-1]
    assert main([*profile, str(tmp_path / good), "--report", str(tmp_path / good / "report.html")]) == 1
    assert not (tmp_path / "out").exists()
    options = ("--layers", "1", "--query=-1,2", "--frequencies", "--device", "cpu", "--dtype", "bfloat16")
    assert main([*profile, str(tmp_path / good), *options]) == 0
    found = possym.Profile.load(tmp_path / "out/profile")
    assert found.settings["dtype"] == "bfloat16" and len(found.frequencies) == 4 * len(found.heads)
    heads = found.heads
    assert heads.layer.unique().tolist() == [1] and heads.groupby("prompt").query.nunique().tolist() == [2, 2]
    chat = [{"role": "user", "content": "Alice likes a ."}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": chat}))
    assert main([*profile, str(tmp_path / "chat.jsonl"), "--out", str(tmp_path / "chat"), "--quiet"]) == 0
    asked = possym.profile(hub.load(str(folder / "whole")).model, [chat], tokenizer=tokenizer(), progress=False)
    assert possym.Profile.load(tmp_path / "chat/profile").inputs.token_ids[0] == asked.inputs.token_ids[0]
    capsys.readouterr()
    assert main([*profile, str(tmp_path / good), *options, "--layers", "0"]) == 1  # begun with other layers
    assert "begun with other layers" in capsys.readouterr().err


def test_an_interrupted_run_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    class Stopped:
        @property
        def buffer(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", Stopped())
    assert main(["profile", "any", "--prompts", "-", "--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == f"Stopped. The same command goes on from {tmp_path / 'checkpoint'}.\n"


def test_studies_are_those_of_the_experiments(capsys):
    assert main(["studies", "no such study"]) == 2
    assert "known studies are" in capsys.readouterr().err
    for words, said in ((["profile", "--help"], "example:"), (["studies", "--help"], "usage: possym studies [-h]")):
        with pytest.raises(SystemExit) as left:
            main(words)
        assert left.value.code == 0 and said in capsys.readouterr().out


def test_prompts_are_read_whatever_wrote_them(folder, tmp_path):
    """Byte order marks and ends of lines as in Windows are no part of a prompt."""
    ids = tokenizer()(PROMPTS[0])["input_ids"]
    (tmp_path / "windows.txt").write_text("\r\n".join(PROMPTS), encoding="utf-8-sig", newline="")
    (tmp_path / "old.txt").write_text("\r".join(PROMPTS), encoding="utf-8", newline="")
    lines = [json.dumps(PROMPTS[0]), json.dumps({"input_ids": ids}), json.dumps(ids)]
    (tmp_path / "WINDOWS.JSONL").write_text("\r\n".join(lines), encoding="utf-8-sig", newline="")
    for name, wanted in (("windows.txt", PROMPTS), ("old.txt", PROMPTS), ("WINDOWS.JSONL", [PROMPTS[0]] * 3)):
        words = [
            "profile",
            folder / "whole",
            "--prompts",
            tmp_path / name,
            "--out",
            tmp_path / f"{name}.out",
            "--quiet",
        ]
        assert main(list(map(str, words))) == 0
        read = possym.Profile.load(tmp_path / f"{name}.out/profile").inputs.token_ids.tolist()
        assert read == [tokenizer()(text)["input_ids"] for text in wanted]


def test_an_output_that_nobody_reads_or_that_is_full_is_no_traceback():
    words, env = [sys.executable, "-m", "possym", "--help"], os.environ | {"PYTHONUNBUFFERED": ""}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        reader.stdout.close()
        assert (reader.stderr.read(), reader.wait(timeout=120)) == (b"", 141)
    with open("/dev/full", "w") as full:
        done = subprocess.run(words, env=env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr.startswith("ResultsError: standard output cannot be written")
    assert done.stderr.count("\n") == 1


def test_compare_takes_models_if_prompts_are_given(folder, tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    run_folder = tmp_path / "run"
    for step, scale in ((200, 3.0), (30, 1.0)):
        shutil.copytree(folder / "whole", place := run_folder / f"checkpoint-{step}")
        loaded = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
        with torch.no_grad():
            loaded.model.layers[1].self_attn.q_proj.weight[:8] *= scale  # head 0 of layer 1
        loaded.save_pretrained(place)
    few, many = (str(run_folder / f"checkpoint-{step}") for step in (30, 200))
    options = ["--prompts", str(tmp_path / "prompts.txt"), "--hold", "first", "--quiet"]
    report = ["--report", str(tmp_path / "new" / "film.html"), "--out", str(tmp_path / "out")]
    assert main(["compare", few, many, *options, *report, "--json"]) == 0
    heads = pd.DataFrame(json.loads(capsys.readouterr().out)["heads"])
    assert heads[heads.largest > 0][["layer", "head"]].values.tolist() == [[1, 0]]
    assert "Alice" in (tmp_path / "new" / "film.html").read_text(encoding="utf-8")  # of the last, what it attends to
    saved = sorted((tmp_path / "out").iterdir())
    assert main(["compare", *map(str, saved), "--json"]) == 0  # what --out kept is the same
    assert pd.DataFrame(json.loads(capsys.readouterr().out)["heads"]).symbolic_p.tolist() == heads.symbolic_p.tolist()
    assert main(["compare", str(run_folder), *options, "--json"]) == 0  # a folder of two, by number
    steps = json.loads(capsys.readouterr().out)["steps"]
    assert [row["step"] for row in steps] == [few, many]
    assert steps[1]["symbolic_change"] == pytest.approx(heads.symbolic_change.mean(), abs=1e-9)
    assert main(["compare", few, few, *options, "--fail"]) == 0
    assert f"{few} → {few} (2): 2 prompts, 8 heads\n  0 heads changed" in capsys.readouterr().out
    refused = [
        ([few, many], "holds no profile: give the --out folder of possym profile, or --prompts and models"),
        ([few, many, "--hold", "first"], "--hold says how models are profiled: give --prompts too"),
        ([few, *options], "give two models or more, or a folder that holds them"),
        ([few, str(tmp_path), *options], "holds no config.json"),
    ]
    for words, said in refused:
        assert main(["compare", *words]) == 2, said
        assert said in capsys.readouterr().err.splitlines()[-1]


def test_atlas_and_audit(folder, tmp_path, capsys):
    place = shutil.copytree(folder / "whole", tmp_path / "bare")
    for path in place.glob("token*"):
        path.unlink()
    assert main(["audit", str(place), "--quiet"]) == 0  # which needs no tokenizer
    assert main(["atlas", str(place)]) == 2
    assert "holds no tokenizer" in capsys.readouterr().err
    llama = random_llama.save(tmp_path / "llama")
    assert main(["atlas", str(llama), "--count", "2", "--out", str(tmp_path), "--quiet", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    kept = possym.Atlas.load(said["atlas"])
    assert len(said["heads"]) == 16 and said["settings"] == kept.settings
    (tmp_path / "file").touch()
    for option, value, status in (("--count", "0", 2), ("--out", "file", 2), ("--out", "file/folder", 1)):
        value = str(tmp_path / value) if option == "--out" else value
        assert main(["atlas", str(llama), option, value]) == status


def test_nothing_asked_for_is_answered_with_help(capsys):
    assert main([]) == 2 and "atlas" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"possym {possym.__version__}\n"
