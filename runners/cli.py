"""The command line: Hydra collects the asked cells, one per job; then one plan is made and run.

python run.py method=eagle3 benchmark=humaneval limit=4
python run.py -m method=combined kappa=0.05,0.1,0.2,0.3
python run.py +sweep=table1 model=smollm2_135m limit=8 dry_run=true
"""

from __future__ import annotations

import importlib.util
import signal
import sys
from pathlib import Path
from typing import Any

import hydra
import psutil
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import conf
from runners.cell import Cell, boolean, clean_engine, clean_method, positive
from runners.cluster import run_on_cluster
from runners.display import Display, analyse
from runners.errors import UserError
from runners.group import PER_CELL, GroupRunner, Outcome, Settings, run_group
from runners.lossless import check
from runners.plan import Plan, make_plan
from runners.preflight import hours, too_large
from runners.resolve import Resolver

SWEPT = ("kappa", "d")


class Asked:
    """What the jobs of this process asked for; filled by Hydra, read by `main`."""

    def __init__(self) -> None:
        self.cells: list[Cell] = []
        self.errors: list[str] = []
        self.notes: list[str] = []
        self.config: dict[str, Any] = {}
        self.shared: dict[str, list[Any]] = {}
        self.multirun = False
        self.sweep: str | None = None

    def add(self, config: DictConfig) -> None:
        """One job: check its config and remember its cell, or why it is none."""
        hydra_config = HydraConfig.get()
        self.multirun = hydra_config.mode == RunMode.MULTIRUN
        self.sweep = hydra_config.runtime.choices.get("sweep")
        overrides = list(hydra_config.overrides.task)
        try:
            plain = plain_config(config)
            self.config = dict(plain)
            for name, value in shared_values(plain).items():
                values = self.shared.setdefault(name, [])
                values += [value] if value not in values else []
            plain["engine"] = resolve_engine(plain["engine"])
            self.check_unused(plain, overrides)
            self.cells.append(Cell.from_config(plain))
        except (UserError, OmegaConfBaseException) as error:
            self.errors.append(f"{error} [{' '.join(overrides)}]" if self.multirun else str(error))

    def check_unused(self, config: dict[str, Any], overrides: list[str]) -> None:
        """A value that the method has no use for is an error alone, and collapses with a note in a sweep."""
        method = config["method"]
        options = {**(method["tree"] or {}), **(method["accept"] or {})}
        for name in SWEPT:
            if any(override.split("=")[0] == name for override in overrides) and name not in options:
                if not self.multirun:
                    raise UserError(f"{name}={config[name]}: method={method['name']} has no {name}; leave it out")
                note = f"method={method['name']} has no {name}: its cells of this sweep are one"
                if note not in self.notes:
                    self.notes.append(note)


def shared_values(config: dict[str, Any]) -> dict[str, Any]:
    """What one run has one value of, by dotted name."""
    shared = {name: value for name, value in config.items() if name not in PER_CELL}
    shared["engine"] = {name: config["engine"][name] for name in ("port", "timeouts")}
    return flat(shared)


def flat(node: dict[str, Any]) -> dict[str, Any]:
    """`{"a": {"b": 1}, "c": 2}` -> `{"a.b": 1, "c": 2}`."""
    flattened: dict[str, Any] = {}
    for name, value in node.items():
        inner = flat(value) if isinstance(value, dict) else {}
        flattened |= {f"{name}.{key}": one for key, one in inner.items()} or {name: value}
    return flattened


def plain_config(config: Any) -> dict[str, Any]:
    """Return a config node with all interpolations resolved, as plain dicts and lists."""
    plain = OmegaConf.to_container(config, resolve=True)
    return {str(key): value for key, value in plain.items()} if isinstance(plain, dict) else {}


def compose_config(overrides: list[str]) -> dict[str, Any]:
    """`conf/` with these overrides as one job of `run.py` reads it, the engine resolved for this machine."""
    with hydra.initialize_config_module("conf", version_base="1.3"):
        config = plain_config(hydra.compose("config", overrides))
    return {**config, "engine": resolve_engine(config["engine"])}


ASKED = Asked()


@hydra.main(config_path="pkg://conf", config_name="config", version_base="1.3")
def collect(config: DictConfig) -> None:
    """Hydra's job function: ask for one cell."""
    ASKED.add(config)


def main() -> None:
    """Entry point of `run.py` and of the installed command."""
    signal.signal(signal.SIGTERM, raise_exit)
    collect()
    if not ASKED.config:  # --help, --cfg and the like
        return
    try:
        code = run(ASKED)
    except UserError as error:
        code = f"Error: {error}"
    except KeyboardInterrupt:
        code = "Interrupted. What was generated is kept; the same command goes on from there."
    sys.exit(code)


def raise_exit(*_: object) -> None:
    """Turn SIGTERM into an exception, so that every `with` block cleans up."""
    raise KeyboardInterrupt


def run(asked: Asked) -> int | str:
    """Plan and run the asked cells; return the exit status."""
    if several := {name: values for name, values in asked.shared.items() if len(values) > 1}:
        told = "; ".join(f"{name}={','.join(map(str, values))}" for name, values in several.items())
        raise UserError(f"{told}: all cells of a run share one value; give one here, and run again for another")
    config = clean_run(asked.config)
    if asked.errors and (not asked.cells or config["fail_fast"]):
        return "\n".join(f"Error: {error}" for error in asked.errors)
    results_dir = Path(config["results_dir"])
    plan = plan_cells(asked, config)
    for note in [*asked.notes, *plan.notes]:
        print(f"Note: {note}")
    if config["dry_run"]:
        show_plan(plan, results_dir)
        return report(asked.errors, [])
    if reason := next(filter(None, map(too_large, plan.cells)), None):
        return f"Error: {reason}. {plan_hours(plan)}{small_plan(asked)}"
    display = Display(len(plan.cells), results_dir)
    if len(plan.cells) > 1:
        print(f"{plan.summary()}. {plan_hours(plan)}", flush=True)
    settings = Settings(
        results_dir=results_dir,
        timeouts=config["engine"]["timeouts"],
        port=config["engine"]["port"],
        attempts=config["attempts"],
        fail_fast=config["fail_fast"],
        grading=config["grading"],
        config=config,
    )
    runner = GroupRunner(settings, display)
    inline = config["launcher"]["kind"] == "inline"
    outcomes = run_plan(plan, runner) if inline else run_on_cluster(plan, runner, config["launcher"])
    done = [outcome.ready.id for outcome in outcomes if outcome.ready is not None and outcome.record is not None]
    errors = list(asked.errors)
    if done:
        print(
            f"\n{runner.server_starts} server start{'s' * (runner.server_starts != 1)}, {len(done)} of {len(plan.cells)} cells complete\n"
        )
        analyse("tables", "summary", "--results", str(results_dir), "--cells", ",".join(done))
        errors += gate(outcomes, runner, config["lossless"])
        track(results_dir, config["tracking"])
    return report(errors, outcomes)


def clean_run(config: dict[str, Any]) -> dict[str, Any]:
    """Check what the whole run shares."""
    if config["lossless"]["check"] not in (True, False, "on", "off"):
        raise UserError(f"lossless.check={config['lossless']['check']}: expected on or off")
    if config["tracking"]["mode"] not in (False, "off", "offline", "online"):
        raise UserError(f"tracking.mode={config['tracking']['mode']}: expected off, offline or online")
    switches = {name: boolean(name, config[name]) for name in ("dry_run", "fail_fast", "fresh_servers")}
    grading = config["grading"]
    for name, value in (
        ("repeats", config["repeats"]),
        ("attempts", config["attempts"]),
        ("grading.workers", grading["workers"]),
    ):
        positive(name, value)
    unconfined = boolean("grading.allow_unconfined", grading["allow_unconfined"])
    return {**config, **switches, "grading": {**grading, "allow_unconfined": unconfined}}


def plan_hours(plan: Plan) -> str:
    """How long the plan takes, as far as that can be guessed."""
    guess = hours(plan.cells)
    if guess is None:
        return "Its hours cannot be guessed: a model's `typical` or a benchmark's `source.count` is not told."
    return f"The plan's {len(plan.cells)} cells take roughly {guess:.1f} hours where conf/model's guesses hold."


def small_plan(asked: Asked) -> str:
    """The command for the same plan on the demo's model."""
    if not (asked.sweep or "").startswith("table"):
        return " A model for this machine: model=smollm2_135m"
    return f" The same plan, small, for this machine: make reproduce-{asked.sweep} MODEL=smollm2_135m LIMIT=8"


def run_plan(plan: Plan, runner: GroupRunner) -> list[Outcome]:
    """Run group after group."""
    resolver = Resolver()
    outcomes: list[Outcome] = []
    for group in plan.groups:
        outcomes += run_group(group.cells, runner, resolver)
        if runner.settings.fail_fast and any(outcome.failure for outcome in outcomes):
            break
    return outcomes


def plan_cells(asked: Asked, config: dict[str, Any]) -> Plan:
    """Make the plan; references are added to sweeps unless switched off."""
    mode = {False: "off", True: "auto"}.get(config["references"], config["references"])  # YAML 1.1 reads off as false
    if mode not in ("auto", "off"):
        raise UserError(f"references={mode}: expected auto or off")
    references = None
    if mode == "auto" and asked.multirun:
        folder = Path(str(conf.__file__)).parent / "method"
        references = {
            name: clean_method(plain_config(OmegaConf.load(folder / f"{name}.yaml"))) for name in ("vanilla", "eagle3")
        }
    return make_plan(asked.cells, references, config["repeats"], config["fresh_servers"])


def resolve_engine(engine: dict[str, Any]) -> dict[str, Any]:
    """Fill in what `auto` and null mean on this machine."""
    device = engine["device"]
    if device not in ("auto", "cpu", "cuda"):
        raise UserError(f"engine.device={device}: expected auto, cpu or cuda")
    if device != "cpu":
        import torch

        has_cuda = torch.cuda.is_available()
        if device == "cuda" and not has_cuda:
            raise UserError(
                "engine.device=cuda: no CUDA device answers here (see `make doctor`); use engine.device=cpu for the demo model"
            )
        device = "cuda" if has_cuda else "cpu"
    on_gpu = device == "cuda"
    cuda_graph, threads = engine["cuda_graph"], engine["threads"]
    if threads is None and not on_gpu:
        threads = psutil.cpu_count(logical=False)
    return clean_engine(
        {
            **engine,
            "device": device,
            "dtype": engine["dtype"] or ("bfloat16" if on_gpu else "float32"),
            "attention_backend": engine["attention_backend"] or ("triton" if on_gpu else "intel_amx"),
            "cuda_graph": on_gpu if cuda_graph is None else cuda_graph,
            "threads": threads,
        }
    )


def show_plan(plan: Plan, results_dir: Path) -> None:
    """Print every cell with its state, and the server starts still to come."""
    from runners.store import CellFolder

    resolver, starts, unknown = Resolver(), 0, None
    for group in plan.groups:
        states = []
        for cell in group.cells:
            try:
                ready = resolver.resolve(cell)
                states.append(CellFolder(results_dir, ready.id).status())
                place = ready.id
            except UserError as error:
                states.append("unknown")
                place, unknown = "-", unknown or error
            print(f"  {states[-1]:<8} {cell.label}  {place}")
        starts += any(state != "done" for state in states)
    print(f"{plan.summary()}; {starts} of them still to come. {plan_hours(plan)}")
    if unknown:
        print(f"unknown: {unknown}")


def gate(outcomes: list[Outcome], runner: GroupRunner, lossless: dict[str, Any]) -> list[str]:
    """Run the lossless gate where it is asked for, print its verdicts, and return why it was not passed."""
    if lossless["check"] not in (True, "on"):
        return []
    compared, failures = check(outcomes, runner)
    if not compared:
        return ["lossless.check=on compares strict arms with vanilla: ask for both, as in -m method=vanilla,eagle3"]
    place = ("--results", str(runner.settings.results_dir), "--cells", ",".join(compared))
    errors = [f"lossless.check=on: {failure}" for failure in failures]
    if analyse("lossless", *place, "--near-tie-nats", str(lossless["near_tie_nats"])):
        errors.append("lossless.check=on: a strict arm's outputs are not vanilla's, see the gate's table")
    return errors


def track(results_dir: Path, tracking: dict[str, Any]) -> None:
    """Hand finished records to W&B; the local record is the truth, so a failure here changes nothing."""
    mode = tracking["mode"]
    if mode in (False, "off"):
        return
    if importlib.util.find_spec("wandb") is None:
        print("tracking: wandb is not installed; nothing was logged (pip install wandb)", file=sys.stderr)
        return
    analyse("tracking", "--results", str(results_dir), "--mode", mode, "--project", tracking["project"])


def report(errors: list[str], outcomes: list[Outcome]) -> int:
    """List everything that failed, at the end and all of it, each reason once; return the exit status."""
    reasons: dict[str, list[str]] = {}
    for outcome in outcomes:
        if outcome.failure:
            reasons.setdefault(outcome.failure, []).append(outcome.cell.label)
    for reason, (first, *others) in reasons.items():
        print(f"FAILED {first}: {reason}", file=sys.stderr)
        for label in others:
            print(f"FAILED {label}: for the same reason", file=sys.stderr)
    for error in errors:
        print(f"Error: {error}", file=sys.stderr)
    return 1 if reasons or errors else 0
