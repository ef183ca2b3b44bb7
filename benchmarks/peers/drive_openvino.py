"""Drives OpenVINO GenAI's ContinuousBatchingPipeline in this process, by `step()`."""

import time
from typing import Any

from measuring import Requests, Times, arguments, run_passes

__all__ = ["main"]


def main() -> None:
    """Measure and write the results."""
    parser = arguments(__doc__)
    parser.add_argument(
        "--precision", choices=("f32", "bf16"), help="of its arithmetic; its own choice without"
    )
    options = parser.parse_args()
    import numpy as np
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 1
    scheduler.max_num_seqs = 32
    scheduler.max_num_batched_tokens = 256
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = True
    properties = {"INFERENCE_NUM_THREADS": options.threads}
    if options.precision:
        properties["INFERENCE_PRECISION_HINT"] = options.precision
    pipeline: Any = genai.ContinuousBatchingPipeline(options.model, scheduler, "CPU", properties)
    submitted = 0

    def serve(requests: Requests, concurrency: int) -> Times:
        nonlocal submitted
        waiting, live, times = list(reversed(requests)), {}, {}
        while waiting or live:
            while waiting and len(live) < concurrency:
                one = waiting.pop()
                submitted += 1
                config = genai.GenerationConfig()
                config.max_new_tokens = config.min_new_tokens = one["max_tokens"]
                config.ignore_eos = True
                config.do_sample = False
                ids = openvino.Tensor(np.array([one["prompt"]], dtype=np.int64))
                times[one["id"]] = (time.perf_counter(), [])
                live[one["id"]] = pipeline.add_request(submitted, ids, config)
            pipeline.step()
            now = time.perf_counter()
            for number, handle in list(live.items()):
                while handle.can_read():
                    for output in handle.read().values():
                        times[number][1].extend([now] * len(output.generated_ids))
                if handle.get_status() != genai.GenerationStatus.RUNNING:
                    del live[number]
        return times

    run_passes(options, "openvino", {"version": genai.__version__}, serve)


if __name__ == "__main__":
    main()
