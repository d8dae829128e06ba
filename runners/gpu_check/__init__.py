"""`make gpu-check`: does the plugin work on this machine's CUDA, and what does each of its steps cost (docs/gpu-check.md)?

    python -m runners.gpu_check --size 8b
    python -m runners.gpu_check --size tiny engine.device=cpu

Random models of the real ones' shapes (`models`), real servers (`servers`), stages that each write their result as they
end (`stages`), one JSON file and one page (`page`).
"""
