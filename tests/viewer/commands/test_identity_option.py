"""What a trace and a prompt cache belong to, from the command line."""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from click.testing import Result
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.models.cache import save_prompt_cache as save_without_identity
from model_folders import write_tiny_llama

from kvtrace import CacheIdentity, identify
from kvtrace.tracer import identity
from kvtrace.tracer.models import LoadedModel, load_model, prepare_prompt
from kvtrace.tracer.prompt_caches import save_prompt_cache
from kvtrace.viewer.read import open_trace
from kvtrace.viewer.reduce.inventory import take_inventory

Run = Callable[..., Result]
FILE = "cache.safetensors"


@pytest.fixture(autouse=True)
def _own_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def of_demo(**more: str) -> CacheIdentity:
    demo = load_model("demo")
    return identify(demo.model, demo.tokenizer, **more)


def short(identity: CacheIdentity) -> str:
    """As ``kvtrace info`` shows it."""
    parts = {name: value for name, value in identity.to_dict().items() if value}
    return ", ".join(
        f"{name} {value[: value.index(':') + 13] if ':' in value else value}" for name, value in parts.items()
    )


def written(path: str) -> CacheIdentity:
    trace = open_trace(Path(path))
    take_inventory(trace)
    return CacheIdentity.from_dict(trace.metadata["identity"])


def fill(loaded: LoadedModel, identity: CacheIdentity | None, **metadata: str) -> list[Any]:
    """A prompt cache in FILE; without an identity it is as mlx-lm makes it."""
    caches = make_prompt_cache(loaded.model)
    loaded.model(mx.array([prepare_prompt(loaded.tokenizer, "The first part. ")]), cache=caches)
    if identity is None:
        save_without_identity(FILE, caches, metadata)
    else:
        save_prompt_cache(FILE, caches, identity, metadata)
    return caches


def go_on(run: Run, *options: str) -> Result:
    return run("record", "--prompt-cache-file", FILE, "-p", "The rest.", "-m", "3", "-o", "run.pftrace", *options)


def refusal(result: Result) -> str:
    """What was wrong, of a command that wrote no trace and printed nothing."""
    error, hint = result.stderr.splitlines()
    assert (result.exit_code, result.stdout, Path("run.pftrace").exists()) == (2, "", False)
    assert hint == "Hint: go on with what filled it, or start from an empty cache"
    return error


@pytest.mark.parametrize(
    ("options", "method"),
    [
        ([], "default"),
        (["--max-kv-size", "16"], "default(max_kv_size=16)"),
        (["--kv-bits", "8"], "default(kv_bits=8, kv_group_size=64, quantized_kv_start=5000)"),
        (["--method", "quantized", "--bits", "4"], "quantized(bits=4, group_size=64)"),
    ],
)
def test_a_trace_says_whose_caches_it_shows(options: list[str], method: str, run: Run) -> None:
    run("record", "-m", "1", "--quiet", "--tenant", "alice", "-o", "run.pftrace", *options)
    expected = of_demo(method=method, tenant="alice")
    assert written("run.pftrace") == expected
    lines = [line for line in run("info", "run.pftrace").stdout.splitlines() if line.startswith("identity")]
    assert lines == [f"identity        {short(expected)}"]


RECORDING = {
    "record": ["record", "-p", "hi", "-m", "1", "--quiet"],
    "profile": ["profile", "--prompt-tokens", "2", "-m", "1", "--quiet"],
    "compare": ["compare", "--prompt-tokens", "2", "-m", "1", "--repeat", "1"],
    "bench": ["bench", "--num-prompts", "2", "--prompt-tokens", "2", "-m", "1", "--quiet"],
}


@pytest.mark.parametrize("suffix", [".pftrace", ".json", ".json.gz", ".jsonl"])
@pytest.mark.parametrize("command", RECORDING)
def test_of_every_command_in_every_format(command: str, suffix: str, run: Run) -> None:
    result = run(*RECORDING[command], "--tenant", "alice", "-o", f"run{suffix}")
    assert result.exit_code == 0, result.stderr
    assert written(f"run{suffix}") == of_demo(tenant="alice")


@pytest.mark.parametrize(
    ("command", "times"),
    [
        *((arguments, 1) for arguments in RECORDING.values()),
        (["compare", "--prompt-tokens", "2", "-m", "1", "--repeat", "1", "--against", "rotating"], 1),
        (["record", "--baseline", "-m", "1", "--quiet"], 1),
        (["sweep", "--prompt-tokens", "2,3", "-m", "1,2", "--repeat", "1"], 0),  # it leaves no trace
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_the_weights_are_read_once_a_load(
    command: list[str], times: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny_llama(Path("tiny"))
    read: list[list[str]] = []
    original = identity.fingerprint_files

    def fingerprint_files(paths: Iterable[Path]) -> str:
        found = list(paths)
        read.append([path.name for path in found])
        return original(found)

    monkeypatch.setattr(identity, "fingerprint_files", fingerprint_files)
    output = ["-o", "run.pftrace"] if command[0] != "sweep" else []
    result = run(*command, "--model", "./tiny", *output)
    assert result.exit_code == 0, result.stderr
    assert read.count(["model.safetensors"]) == times
    assert len(read) == 2 * times  # those of the tokenizer too


def test_a_trace_without_an_identity_has_no_such_line(trace: Path, run: Run) -> None:
    assert "identity" not in run("info", trace).stdout


def test_a_prompt_cache_of_the_same_identity_goes_on(run: Run) -> None:
    fill(load_model("demo"), of_demo(tenant="alice"), model="demo")
    result = go_on(run, "--tenant", "alice")
    assert (result.exit_code, result.stderr) == (0, f"{load_model('demo').notice}\n")
    assert written("run.pftrace") == of_demo(tenant="alice")


def test_a_prompt_cache_that_does_not_say_is_taken_with_a_note(run: Run) -> None:
    fill(load_model("demo"), None, model="demo")
    result = go_on(run)
    note = "The prompt cache has no identity: that this model filled it is taken on trust."
    assert (result.exit_code, result.stderr.splitlines()) == (0, [load_model("demo").notice, note])


@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({"tenant": "alice"}, []),
        ({"tenant": "alice"}, ["--tenant", "bob"]),
        ({}, ["--kv-bits", "8"]),
        ({"dtype": "float16"}, []),
        ({"weights": "arrays:" + "0" * 64}, []),
        ({"positions": "json:" + "0" * 64}, []),
        ({"tokenizer": "json:" + "0" * 64}, []),
        ({"adapter": "files:" + "0" * 64}, []),
        ({"configuration": "json:" + "0" * 64}, []),
    ],
)
def test_a_prompt_cache_of_another_identity_is_refused(changes: dict[str, str], options: list[str], run: Run) -> None:
    owner = replace(of_demo(), **changes)
    fill(load_model("demo"), owner, model="demo")
    content = Path(FILE).read_bytes()
    tenant = options[1] if "--tenant" in options else ""
    method = "default(kv_bits=8, kv_group_size=64, quantized_kv_start=5000)" if "--kv-bits" in options else "default"
    difference = owner.difference(of_demo(tenant=tenant, method=method))
    assert refusal(go_on(run, *options)) == f"Error: the prompt cache '{FILE}' belongs to {difference}"
    assert Path(FILE).read_bytes() == content


def test_a_folder_is_known_by_its_content_not_by_its_name(run: Run) -> None:
    original = write_tiny_llama(Path("original"))
    loaded = load_model("./original")
    fill(loaded, identify(loaded.model, loaded.tokenizer, original), model="original")
    copied = Path(shutil.copytree(original, "copied"))
    assert go_on(run, "--model", "./copied").exit_code == 0
    Path("run.pftrace").unlink()
    other = go_on(run, "--model", "demo")
    assert "belongs to other weights: files:" in refusal(other)
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5}))
    assert "belongs to other position settings: json:" in refusal(go_on(run, "--model", "./copied"))


def test_an_identity_of_another_version_is_refused(run: Run) -> None:
    caches = make_prompt_cache(load_model("demo").model)
    load_model("demo").model(mx.array([[1, 2]]), cache=caches)
    identity: Any = {"identity": of_demo().to_dict() | {"mood": "good"}}
    save_without_identity(FILE, caches, {"kvtrace": identity})
    result = go_on(run)
    assert (result.exit_code, result.stderr.splitlines()) == (
        2,
        ["Error: an identity with a strange 'mood'", "Hint: it needs another version of kvtrace"],
    )
