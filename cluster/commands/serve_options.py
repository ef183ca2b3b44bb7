"""Options of `blockyard serve` that say more than a line: what they take and what they are for."""

from pathlib import Path
from typing import Annotated

import typer

from blockyard.scheduler.config import Speculation

__all__ = [
    "Adapters",
    "AdaptersRoot",
    "AllowAdmin",
    "AllowChaos",
    "ApiKeys",
    "CudaGraphs",
    "DraftModel",
    "DraftWeights",
    "Dtype",
    "HostBlocks",
    "KvDtype",
    "KvMemory",
    "MaxAdapterRank",
    "MaxAdapters",
    "MetricsPort",
    "PipelineDepth",
    "RayAddress",
    "ServeGrpcPort",
    "Speculate",
    "TlsClientCa",
    "TraceEndpoint",
    "Weights",
    "WeightsRoot",
]

ApiKeys = Annotated[
    Path | None,
    typer.Option(
        help="File of API keys, a line each: TENANT KEY [MOST LIVE REQUESTS] [admin]. Callers show "
        "one as `Authorization: Bearer KEY`; an admin's shows all tenants' requests.",
        show_default="everybody may call",
        exists=True,
        dir_okay=False,
        readable=True,
    ),
]
TlsClientCa = Annotated[
    Path | None,
    typer.Option(
        help="Ask clients for a certificate that this one has signed.",
        show_default="off",
        exists=True,
        dir_okay=False,
    ),
]
Dtype = Annotated[
    str,
    typer.Option(
        help="auto, float32, bfloat16 or float16; auto is float32 on a CPU and the "
        "checkpoint's own on a GPU."
    ),
]
KvDtype = Annotated[
    str,
    typer.Option(
        help="What keys and values are kept in: auto (as computed), bfloat16, int8 (on a CPU) "
        "or fp8 (on a GPU): fewer bytes a block, more blocks."
    ),
]
Weights = Annotated[
    str,
    typer.Option(
        help="How a CPU keeps weights: auto (fp32), fp32, bf16, int8 or int4; sums are float32."
    ),
]
CudaGraphs = Annotated[
    str,
    typer.Option(
        help="Whether a GPU replays steps of one token a request as CUDA graphs: auto (where it "
        "can) or off."
    ),
]
HostBlocks = Annotated[
    int | None,
    typer.Option(
        help="Blocks of each group in host memory, for requests that are swapped out; 0 turns "
        "swapping off.",
        show_default="from the device",
        min=0,
    ),
]
KvMemory = Annotated[
    int | None,
    typer.Option(
        help="Memory of a rank for KV blocks, when they are measured.",
        show_default="from the device",
        min=1,
    ),
]
PipelineDepth = Annotated[
    int | None,
    typer.Option(
        help="Steps in flight at once. With 2 a step is planned shortly before the one that runs "
        "ends, and the device does not wait for it. See `blockyard bench pipeline`.",
        show_default="2, or 1 with --speculate",
        min=1,
        max=2,
    ),
]
Speculate = Annotated[
    Speculation,
    typer.Option(
        help="Guess next tokens and check them in one step: ngram takes what followed the "
        "newest ones before, draft asks a smaller model. Answers stay the same."
    ),
]
DraftModel = Annotated[
    str | None,
    typer.Option(
        help="The model that guesses, with --speculate draft: name, Hugging Face repository, or "
        "directory. It needs the same tokenizer and as long a context.",
        show_default="none",
    ),
]
DraftWeights = Annotated[
    str,
    typer.Option(
        help="How a CPU keeps its weights: auto (as --weights), fp32, bf16, int8 or int4."
    ),
]
ServeGrpcPort = Annotated[
    int | None,
    typer.Option(
        help="Also offer the services behind Ray Serve's own gRPC proxy, on this port; that "
        "proxy listens on every address of the machine, and it may miss that a client left "
        "its stream: such a request runs to its last token.",
        show_default="off",
        min=1,
        max=65535,
    ),
]
TraceEndpoint = Annotated[
    str | None,
    typer.Option(
        envvar="BLOCKYARD_TRACE_ENDPOINT",
        help="Send spans of requests to this OTLP endpoint, such as "
        "http://127.0.0.1:4318/v1/traces; needs the extra `trace`.",
        show_default="off",
    ),
]
AllowChaos = Annotated[
    bool,
    typer.Option(
        "--allow-chaos",
        help="Let anybody who reaches the gRPC port kill and stop processes of this cluster: "
        "for tests, see `blockyard chaos`.",
    ),
]
RayAddress = Annotated[
    str | None,
    typer.Option(
        help="Address of a running Ray cluster, or `auto`.",
        show_default="start one on this machine",
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        help="Offer the books to Prometheus at /metrics on this port.",
        show_default="off",
        min=1,
        max=65535,
    ),
]
AllowAdmin = Annotated[
    bool,
    typer.Option(
        "--allow-admin",
        help="Let callers change what is served: put the model to sleep, wake it, give it other "
        "weights. With API keys they must show an admin's.",
    ),
]
WeightsRoot = Annotated[
    Path | None,
    typer.Option(
        help="With --allow-admin: directory that other weights may be loaded from, on every node.",
        show_default="none are loaded",
        exists=True,
        file_okay=False,
    ),
]
Adapters = Annotated[
    list[str] | None,
    typer.Option(
        "--lora",
        metavar="NAME=PATH",
        help="Serve this LoRA adapter too, under its name; may be given several times.",
        show_default="none",
    ),
]
MaxAdapters = Annotated[
    int | None,
    typer.Option(
        "--max-loras",
        help="Adapters that may be loaded at once; memory is kept for as many.",
        show_default="those of --lora, and 4 more with --lora-root",
        min=0,
    ),
]
MaxAdapterRank = Annotated[
    int, typer.Option("--max-lora-rank", help="The widest adapter that is taken.", min=1)
]
AdaptersRoot = Annotated[
    Path | None,
    typer.Option(
        "--lora-root",
        help="With --allow-admin: directory that other adapters may be loaded from while serving, "
        "on every node.",
        show_default="none are loaded",
        exists=True,
        file_okay=False,
    ),
]
