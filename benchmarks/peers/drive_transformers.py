"""Drives transformers in this process: batches padded to their longest, by `generate()`."""

import os
import time
from typing import Any

from measuring import Requests, Times, arguments, run_passes

__all__ = ["main"]

_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def main() -> None:
    """Measure and write the results."""
    options = arguments(__doc__).parse_args()
    os.environ |= {"OMP_NUM_THREADS": str(options.threads), "HF_HUB_OFFLINE": "1"}
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    load: Any = transformers.AutoModelForCausalLM.from_pretrained
    dtype = getattr(torch, _DTYPES[options.label])
    model = load(options.model, dtype=dtype, attn_implementation="sdpa").eval()

    class Clock(transformers.LogitsProcessor):
        """Notes when each token's scores came."""

        def __init__(self) -> None:
            self.stamps: list[float] = []

        def __call__(self, input_ids: Any, scores: Any) -> Any:
            self.stamps.append(time.perf_counter())
            return scores

    @torch.inference_mode()
    def serve(requests: Requests, concurrency: int) -> Times:
        times: Times = {}
        began = time.perf_counter()
        for begin in range(0, len(requests), concurrency):
            part = requests[begin : begin + concurrency]
            longest = max(len(one["prompt"]) for one in part)
            ids = torch.full((len(part), longest), 2)
            mask = torch.zeros((len(part), longest), dtype=torch.long)
            for row, one in enumerate(part):
                prompt = torch.tensor(one["prompt"])
                ids[row, longest - len(prompt) :] = prompt
                mask[row, longest - len(prompt) :] = 1
            most = max(one["max_tokens"] for one in part)
            clock = Clock()
            model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=most,
                min_new_tokens=most,
                eos_token_id=-1,
                pad_token_id=2,
                logits_processor=transformers.LogitsProcessorList([clock]),
            )
            for one in part:
                times[one["id"]] = (began, clock.stamps[: one["max_tokens"]])
        return times

    run_passes(options, "transformers", {"version": transformers.__version__}, serve)


if __name__ == "__main__":
    main()
