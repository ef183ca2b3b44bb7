"""The parts of the check, in the order of their worth: a run that is cut short still pays.

Loads nothing: the parent process reads it too. Units: seconds.
"""

from dataclasses import dataclass

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True, slots=True)
class Part:
    """One part.

    Attributes:
        name: in results.
        seconds: what it may take on a card.
        place: `module:function` beside this file; imported when its turn comes, so that what
            cannot be imported costs one part.
    """

    name: str
    seconds: float
    place: str


PARTS = (
    Part("environment", 15, "environment:describe"),
    Part("build", 60, "environment:build"),
    Part("correct: decode", 25, "correct_attention:decode"),
    Part("correct: prefill", 25, "correct_attention:prefill"),
    Part("correct: prefill by warpgroups", 20, "correct_attention:prefill_by_warpgroups"),
    Part("correct: shared prefix", 15, "correct_attention:shared_prefix"),
    Part("correct: cache write", 15, "correct_others:cache_write"),
    Part("correct: layers", 15, "correct_others:layers"),
    Part("correct: sampling", 15, "correct_others:sampling"),
    Part("correct: scores", 15, "correct_others:scores"),
    Part("correct: blocks", 10, "correct_others:blocks"),
    Part("copy ceiling", 10, "transfers:copy_ceiling"),
    Part("launch", 15, "transfers:launch"),
    Part("CUDA graphs", 30, "graphs:graphs"),
    Part("decode", 80, "speed:decode"),
    Part("prefill", 50, "speed:prefill"),
    Part("prefill by warpgroups", 30, "speed:prefill_by_warpgroups"),
    Part("pool layout", 15, "speed:pool_layout"),
    Part("swap", 20, "transfers:swap"),
    Part("swap beside a step", 15, "moves:beside_a_step"),
    Part("sampling", 20, "speed_sampling:sampling"),
    Part("end to end: 1B", 50, "end_to_end:one_billion"),
    Part("end to end: 8B", 70, "end_to_end:eight_billion"),
    Part("sanitizers", 90, "sanitizers:sanitizers"),
    Part("decode: FlashInfer", 90, "flashinfer_speed:decode"),
)
