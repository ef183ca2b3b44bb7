"""`blockyard calibrate`: measures this machine with a model, for `blockyard replay --gpu FILE`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from blockyard.cluster.commands.errors import (
    EXIT_INTERRUPTED,
    EXIT_MISUSED,
    fail,
    reported_errors,
)

if TYPE_CHECKING:
    from blockyard.scheduler.simulated.devices import Device

__all__ = ["calibrate"]


def calibrate(
    output: Annotated[Path, typer.Argument(help="JSON file to write.", show_default=False)],
    model: Annotated[
        str, typer.Option(help="Name, Hugging Face repository, or directory.")
    ] = "smollm2-135m",
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    block_size: Annotated[int, typer.Option(help="Token slots in a block.", min=1)] = 16,
    threads: Annotated[
        int | None,
        typer.Option(help="CPU threads of a step.", show_default="all cores", min=1),
    ] = None,
    max_running: Annotated[int, typer.Option(help="Most requests in one step.", min=1)] = 256,
    max_step_tokens: Annotated[int, typer.Option(help="Most tokens in one step.", min=2)] = 512,
    address: Annotated[
        str | None,
        typer.Option(
            help="Measure the server at HOST:PORT instead, with all that serving costs; it must "
            "have one group and nothing else to do.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        float | None,
        typer.Option(
            help="Send the server nothing: fit to the steps that it runs for others in so many "
            "seconds.",
            show_default=False,
            min=1.0,
        ),
    ] = None,
) -> None:
    """Measure what steps cost here with a model; give the limits that `blockyard serve` has.

    Takes a minute or two on a CPU. Let nothing else run meanwhile.
    """
    from blockyard.cluster.capacity.calibration import CALIBRATION_BLOCKS, calibrate_device
    from blockyard.cluster.commands.progress import TerminalProgress
    from blockyard.scheduler.config import SchedulerConfig
    from blockyard.workers.catalog import ModelUnavailable, resolve_model
    from blockyard.workers.config import WorkerConfig
    from blockyard.workers.description import ModelFilesError, describe_model
    from blockyard.workers.make_worker import make_worker

    if not output.expanduser().parent.is_dir():
        raise fail(f"there is no folder for {output}", EXIT_MISUSED)
    if watch is not None and address is None:
        raise fail("--watch needs the --address of the server to watch", EXIT_MISUSED)
    if address is not None:
        found = _measure_server(address, max_running, max_step_tokens, watch)
        _write(output, found, model)
        return
    try:
        with TerminalProgress() as progress:
            description = describe_model(resolve_model(model, None, progress), model)
            limits = SchedulerConfig(
                max_context_tokens=description.context_tokens,
                block_size=block_size,
                max_running=max_running,
                max_step_tokens=max_step_tokens,
            )
            worker = make_worker(
                WorkerConfig(
                    model_dir=description.directory,
                    max_context_tokens=description.context_tokens,
                    device=device,
                    dtype=dtype,
                    block_size=block_size,
                    num_blocks=CALIBRATION_BLOCKS,
                    threads=threads,
                    max_step_tokens=max_step_tokens,
                    max_running=max_running,
                ),
                progress,
            )
            profile = worker.load()
        worker.allocate(CALIBRATION_BLOCKS, 0)
        measured = calibrate_device(
            f"{profile.device} with {model}",
            worker,
            profile,
            limits,
            CALIBRATION_BLOCKS,
            _memory_bytes(profile.device),
            lambda what: typer.echo(f"measuring {what}", err=True),
        )
    except (ModelUnavailable, ModelFilesError) as error:
        raise fail(str(error)) from None
    except ValueError as error:
        raise fail(str(error), EXIT_MISUSED) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _write(output, measured, model)


def _write(output: Path, measured: "Device", model: str) -> None:
    from blockyard.scheduler.simulated.devices import device_to_json

    output.expanduser().write_text(
        json.dumps(device_to_json(measured), indent=2) + "\n", encoding="utf-8"
    )
    typer.echo(
        f"wrote {output}; replay with: blockyard replay TRACE --model {model} --gpu {output}"
    )


def _measure_server(
    address: str, max_running: int, max_step_tokens: int, watch: float | None
) -> "Device":
    import asyncio
    import random

    from blockyard.cluster.capacity.server_calibration import calibrate_server, watch_server

    with reported_errors(address):
        try:
            if watch is not None:
                return asyncio.run(watch_server(address, watch))
            return asyncio.run(
                calibrate_server(address, max_running, max_step_tokens, random.Random())
            )
        except ValueError as error:
            raise fail(str(error)) from None


def _memory_bytes(device: str) -> int:
    import psutil
    import torch

    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    return int(psutil.virtual_memory().total)
