"""The `blockyard` command. Commands live in `cli_*` modules, which import what is heavy only when
they run, so that help is quick. Exit codes: 0 done, 1 failed, 2 misused, 130 interrupted.
"""

from typing import Annotated

import typer

from blockyard.cluster.commands.adapters import load_adapter, unload_adapter
from blockyard.cluster.commands.bench import bench_app
from blockyard.cluster.commands.bench_cluster import bench_cluster
from blockyard.cluster.commands.bench_cpu import bench_end_to_end, bench_linear
from blockyard.cluster.commands.bench_kv import bench_kv
from blockyard.cluster.commands.bench_serve import bench_serve
from blockyard.cluster.commands.calibrate import calibrate
from blockyard.cluster.commands.chaos import chaos
from blockyard.cluster.commands.config import config_app
from blockyard.cluster.commands.demo import demo
from blockyard.cluster.commands.doctor import doctor
from blockyard.cluster.commands.generate import generate
from blockyard.cluster.commands.ledger import ledger
from blockyard.cluster.commands.measure import measure
from blockyard.cluster.commands.model import model_app
from blockyard.cluster.commands.plan import plan
from blockyard.cluster.commands.record import record
from blockyard.cluster.commands.replay import replay
from blockyard.cluster.commands.serve import serve
from blockyard.cluster.commands.states import sleep, update_weights, wake
from blockyard.cluster.commands.top import top

__all__ = ["app", "main"]

app = typer.Typer(
    name="blockyard",
    help="Serves large language models on a Ray cluster, with KV memory given out in counted "
    "blocks. `blockyard COMMAND --help` tells more of each command.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("serve")(serve)
app.command("demo")(demo)
app.command("generate")(generate)
app.command("ledger")(ledger)
app.command("top")(top)
app.command("plan")(plan)
app.command("measure")(measure)
app.command("record")(record)
app.command("replay")(replay)
app.command("calibrate")(calibrate)
app.command("doctor")(doctor)
app.command("sleep")(sleep)
app.command("wake")(wake)
app.command("update-weights")(update_weights)
app.command("load-adapter")(load_adapter)
app.command("unload-adapter")(unload_adapter)
app.command("chaos")(chaos)
app.add_typer(model_app, name="model")
app.add_typer(config_app, name="config")
bench_app.command("linear")(bench_linear)
bench_app.command("kv")(bench_kv)
bench_app.command("e2e")(bench_end_to_end)
bench_app.command("serve")(bench_serve)
bench_app.command("cluster")(bench_cluster)
app.add_typer(bench_app, name="bench")


def _show_version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Print the version and exit.",
            is_eager=True,
            callback=_show_version,
        ),
    ] = False,
) -> None:
    """Options that belong to no command; the eager ones have answered before this is called."""


@app.command("version")
def version() -> None:
    """Print the version of Blockyard."""
    from blockyard import __version__

    typer.echo(__version__)


def main() -> None:
    """Entry point of the console script and of `python -m blockyard`."""
    app(prog_name="blockyard")
