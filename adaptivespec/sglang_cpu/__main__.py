"""Print `NAME=VALUE` for each variable a plain-CPU server needs: `env $(python -m adaptivespec.sglang_cpu) ...`."""

from adaptivespec.sglang_cpu import environment, needed

if needed():
    print("\n".join(f"{name}={value}" for name, value in environment().items()))
