"""Drives Blockyard in this process: scheduler, engine and worker, without wires."""

import asyncio
from pathlib import Path

from measuring import Requests, Times, arguments, run_passes

from blockyard import __version__
from blockyard.cluster.benchmark.local_server import LocalServer, local_server
from blockyard.cluster.benchmark.workloads import WorkloadRequest
from blockyard.workers.description import describe_model

__all__ = ["main"]


def main() -> None:
    """Measure and write the results."""
    options = arguments(__doc__).parse_args()
    model = describe_model(Path(options.model), "model")
    with asyncio.Runner() as runner:
        context = local_server(model, options.label, options.threads)
        server: LocalServer = runner.run(context.__aenter__())

        def serve(requests: Requests, concurrency: int) -> Times:
            wanted = [WorkloadRequest(tuple(one["prompt"]), one["max_tokens"]) for one in requests]
            times = runner.run(server.serve(wanted, concurrency))
            return {
                one["id"]: (own.submitted, own.tokens)
                for one, own in zip(requests, times, strict=True)
            }

        run_passes(options, "blockyard", {"version": __version__}, serve)
        runner.run(context.__aexit__(None, None, None))


if __name__ == "__main__":
    main()
