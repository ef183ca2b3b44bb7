"""Drives vLLM's CPU build in this process, by `LLMEngine.step()`."""

import os
import time
from typing import Any

from measuring import Requests, Times, arguments, run_passes

__all__ = ["main"]

_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def main() -> None:
    """Measure and write the results."""
    options = arguments(__doc__).parse_args()
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "OMP_NUM_THREADS": str(options.threads),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
    import vllm
    from vllm.engine.arg_utils import EngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.llm_engine import LLMEngine

    engine: Any = LLMEngine.from_engine_args(
        EngineArgs(
            model=options.model,
            dtype=_DTYPES[options.label],
            max_num_seqs=32,
            max_model_len=2304,
            max_num_batched_tokens=2304,
            enable_prefix_caching=True,
            seed=0,
        )
    )
    submitted = 0

    def serve(requests: Requests, concurrency: int) -> Times:
        nonlocal submitted
        waiting, live, times = list(reversed(requests)), 0, {}
        while waiting or live:
            while waiting and live < concurrency:
                one = waiting.pop()
                submitted += 1
                sampling = vllm.SamplingParams(
                    temperature=0.0,
                    max_tokens=one["max_tokens"],
                    min_tokens=one["max_tokens"],
                    ignore_eos=True,
                    detokenize=False,
                    output_kind=RequestOutputKind.DELTA,
                )
                times[one["id"]] = (time.perf_counter(), [])
                prompt = {"prompt_token_ids": one["prompt"]}
                engine.add_request(f"{submitted}-{one['id']}", prompt, sampling)
                live += 1
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                number = int(output.request_id.split("-")[1])
                times[number][1].extend([now] * len(output.outputs[0].token_ids))
                live -= bool(output.finished)
        return times

    run_passes(options, "vllm", {"version": vllm.__version__}, serve)


if __name__ == "__main__":
    main()
