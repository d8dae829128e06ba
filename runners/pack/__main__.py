"""Command line of the pack: `python -m runners.pack make --out DIR`."""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from runners.errors import UserError
from runners.pack import parts, tree, wheels

INSTALLER = Path(__file__).with_name("install.py")
ENVIRONMENT = {
    # 0.5.23 asks for sglang-kernel 0.4.10, which needs torch 2.14; 0.4.5 is the newest that fits torch 2.11.
    "SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK": "1",
    "HF_HUB_OFFLINE": "1",
}
SERVING_MODULES = (
    *("sglang.launch_server", "sglang.srt.entrypoints.http_server", "sglang.srt.managers.scheduler"),
    *("sglang.srt.managers.tokenizer_manager", "sglang.srt.managers.detokenizer_manager"),
    *("sglang.srt.layers.attention.triton_backend", "sglang.srt.speculative.eagle_worker_v2"),
    *("sglang.srt.models.llama", "sglang.srt.models.qwen3", "sglang.srt.models.llama_eagle3"),
)
"""What a server starts with, beside the modules of the project."""
COMMANDS = ("-m runners.gpu_check --size tiny", "-m runners.gpu_check --size 8b")


def main() -> None:
    """Make a pack."""
    parser = argparse.ArgumentParser(
        prog="python -m runners.pack", description="Carry the project to a GPU machine without a network."
    )
    make_parser = parser.add_subparsers(dest="command", required=True).add_parser(
        "make", help="write parts, manifest and installer"
    )
    make_parser.add_argument("--out", type=Path, required=True, help="folder for the parts")
    make_parser.add_argument("--wheels", type=Path, help="folder that keeps the downloads; default: OUT/wheels")
    make_parser.add_argument("--part-mib", type=float, default=parts.PART_MIB, help="largest size of a part")
    arguments = parser.parse_args()
    if int(arguments.part_mib * 2**20) < 1:
        parser.error(f"--part-mib {arguments.part_mib:g}: expected a size above 0")
    try:
        manifest = make(arguments.out, arguments.wheels or arguments.out / "wheels", int(arguments.part_mib * 2**20))
    except UserError as error:
        sys.exit(str(error))
    for part in manifest["parts"]:
        print(f"{part['bytes'] / 2**20:6.1f} MiB  {part['name']}")
    print(
        f"{sum(part['bytes'] for part in manifest['parts']) / 2**20:6.1f} MiB for {manifest['unpacked_bytes'] / 2**20:.0f} MiB of files"
    )
    print(f"Carry these, manifest.json and install.py, then: python{wheels.PYTHON} install.py --prefix DIR")


def make(out: Path, wheel_folder: Path, part_bytes: int) -> dict[str, Any]:
    """Gather, trim, pack; return the manifest. Raises UserError."""
    gathered = wheels.gather(wheel_folder)
    about = {
        "target": {
            "python": wheels.PYTHON,
            "torch": wheels.TORCH,
            "cuda": wheels.CUDA,
            "system": "Linux x86_64",
            "glibc": ".".join(map(str, wheels.GLIBC)),
            "capability": [9, 0],
        },
        "environment": ENVIRONMENT,
        "commands": COMMANDS,
        "serving_modules": [*SERVING_MODULES, *tree.modules(gathered[-1], ("adaptivespec", "runners", "evaluators"))],
        "distributions": [asdict(tree.describe(wheel)) for wheel in gathered],
    }
    manifest = parts.write(tree.all_files(gathered), out, part_bytes, about)
    shutil.copy(INSTALLER, out / INSTALLER.name)
    return manifest


if __name__ == "__main__":
    main()
