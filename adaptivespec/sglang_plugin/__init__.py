"""ADAPTIVESPEC as an out-of-tree speculative algorithm of stock SGLang."""

from adaptivespec import sglang_cpu


def register() -> None:
    """Entry point of group `sglang.srt.plugins`; SGLang calls it once in each of its processes."""
    if sglang_cpu.active():
        from adaptivespec.sglang_plugin.cpu import pretend_amx

        pretend_amx()
