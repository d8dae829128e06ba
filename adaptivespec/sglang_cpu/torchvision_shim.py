"""Lets PyPI's torchvision (a CUDA build) import beside a CPU build of torch, which SGLang needs at start-up.

`make setup` copies this file into the virtual environment as a start-up hook (`.pth`). It declares the schemas of the two
operators that torchvision's Python files refer to; nothing on our path ever calls them. With a CUDA torch it does nothing.
"""

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}


class DeclareOperators:
    """Import hook that acts once, just before torchvision is imported."""

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Declare the operators when `name` is torchvision; always leave finding it to the other finders."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            import torch

            if torch.version.cuda is None:
                for operator, schema in SCHEMAS.items():
                    torch.library.define(f"torchvision::{operator}", schema)
        return None


sys.meta_path.insert(0, DeclareOperators())
