"""One request to a server's `/generate`: greedy, not streamed, with the engine's own counts.

generation = generate(server, ready, index)      # a line of generations.jsonl
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from runners.cell import Cell
from runners.errors import ServerError
from runners.resolve import Ready
from runners.server import Server


def sampling_params(ready: Ready) -> dict[str, Any]:
    """Return the request's sampling parameters, with the method's per-request options in our own nested dict."""
    cell = ready.cell
    parameters: dict[str, Any] = {"temperature": cell.engine["temperature"], "max_new_tokens": ready.max_new_tokens}
    if ready.stop:
        parameters["stop"] = list(ready.stop)
    if cell.method["algorithm"] == "ADAPTIVESPEC":
        parameters["custom_params"] = {"adaptivespec": request_options(cell)}
    return parameters


def request_options(cell: Cell) -> dict[str, Any]:
    """The options that may change from request to request, so that one server serves many cells."""
    tree = cell.method["tree"]
    divisor = {"d": tree["d"]} if tree["policy"] == "dcs" else {}
    return {**cell.method["accept"], **divisor, "trace": cell.trace}


def generate(server: Server, ready: Ready, index: int) -> dict[str, Any]:
    """Send one prompt and return its generation. Raises ServerError where the answer is not one that can be counted."""
    prompt = ready.prompts[index]
    started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
    begin = time.perf_counter()
    answer = server.post(
        "/generate",
        {"input_ids": list(prompt.ids), "sampling_params": sampling_params(ready)},
        server.timeouts["request_s"],
    )
    latency_s = time.perf_counter() - begin
    meta = answer["meta_info"]
    check_answer(answer, ready.cell)
    return {
        "item": prompt.problem.id,
        "index": index,
        "prompt_sha256": prompt.sha256,
        "prompt_tokens": meta["prompt_tokens"],
        "cached_tokens": meta.get("cached_tokens"),
        "in_thought": prompt.in_thought,
        "output_ids": answer["output_ids"],
        "text": answer["text"],
        "output_tokens": meta["completion_tokens"],
        "finish_reason": meta["finish_reason"]["type"],
        "latency_s": latency_s,
        "num_retractions": meta.get("num_retractions", 0),
        "verify_steps": meta.get("spec_verify_ct") if ready.cell.speculative else None,
        "accept_histogram": meta.get("spec_correct_drafts_histogram") if ready.cell.speculative else None,
        "adaptivespec": meta.get("adaptivespec"),
        "trace": meta.get("adaptivespec_trace"),
        "server": server.id,
        "started_at": started_at,
        "machine": server.sampler.sample(),
    }


def check_answer(answer: dict[str, Any], cell: Cell) -> None:
    """Refuse an answer whose counts do not fit together: a wrong count must never become a figure."""
    meta, ids = answer["meta_info"], answer.get("output_ids")
    reason = (meta.get("finish_reason") or {}).get("type")
    if reason not in ("stop", "length"):
        raise ServerError(
            f"the engine ended a request with finish_reason={meta.get('finish_reason')!r}, expected stop or length"
        )
    if ids is None or len(ids) != meta["completion_tokens"] or not ids:
        raise ServerError(
            f"the engine counts {meta['completion_tokens']} output tokens but returned {None if ids is None else len(ids)} ids"
        )
    if cell.speculative and len(ids) > 1 and not meta.get("spec_verify_ct"):
        raise ServerError(
            f"method={cell.method['name']}: the engine reports no verify step, so speculation was silently off"
        )
    if cell.method["algorithm"] == "ADAPTIVESPEC":
        # A request that was retracted and resumed made one more token in its second prefill.
        check_totals(meta.get("adaptivespec"), cell, len(ids) - meta.get("num_retractions", 0))


def check_totals(totals: dict[str, Any] | None, cell: Cell, n_tokens: int) -> None:
    """Check the plugin's totals against the engine's count and the rule that was asked for."""
    if totals is None:
        raise ServerError(
            f"method={cell.method['name']}: the answer carries no adaptivespec totals, so the plugin did not serve it"
        )
    if 1 + totals["committed"] != n_tokens:
        raise ServerError(
            f"the plugin committed {totals['committed']} tokens after the first, the engine counts {n_tokens}"
        )
    if cell.trace and not totals["traced"]:
        raise ServerError(f"method={cell.method['name']}: asked for a trace and got none")
    if totals["rule"] != cell.method["accept"]["rule"]:
        raise ServerError(
            f"asked for rule={cell.method['accept']['rule']}, served with {totals['rule']} ({totals.get('note')})"
        )
