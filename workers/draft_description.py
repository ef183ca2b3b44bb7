"""Whether one model may guess the next tokens of another, told by their own JSON files.

It must mean the same by a token's number, and know as long a context. Whether it can be computed at
all is found out when it is loaded. Imports no torch. Units: tokens.
"""

import json
from pathlib import Path

from blockyard.workers.catalog import WITNESS_MODEL, resolve_model
from blockyard.workers.config import WorkerKind
from blockyard.workers.description import ModelDescription, describe_model
from blockyard.workers.progress import ProgressReporter

__all__ = ["DraftRefused", "check_draft", "find_draft"]


class DraftRefused(ValueError):
    """A model cannot guess for another; the message has the numbers."""


def find_draft(
    name: str,
    kind: WorkerKind,
    model: ModelDescription,
    progress: ProgressReporter,
    cache_dir: Path | None = None,
) -> ModelDescription:
    """The model of that name, proved to fit `model`, which is of `kind`.

    Raises:
        DraftRefused: it does not.
        ModelUnavailable, ModelFilesError: it cannot be found, or files are missing.
    """
    if (name == WITNESS_MODEL) is not (kind is WorkerKind.WITNESS):
        raise DraftRefused(
            f"draft model {name} for {model.name}: a witness guesses for a witness alone, and is "
            "guessed for by one"
        )
    directory = resolve_model(name, cache_dir, progress)
    draft = describe_model(directory, directory.name if Path(name).is_dir() else name)
    check_draft(model, draft)
    return draft


def check_draft(model: ModelDescription, draft: ModelDescription) -> None:
    """Refuse a draft model that does not fit.

    Vocabularies may differ in what fills them up, where tokenizers show that the rest is the same.

    Raises:
        DraftRefused: with the numbers.
    """
    if draft.context_tokens < model.context_tokens:
        raise DraftRefused(
            f"draft model {draft.name} has a context of {draft.context_tokens} tokens, "
            f"{model.name} one of {model.context_tokens}; choose a draft model with as long a one"
        )
    ours, theirs = _words(model), _words(draft)
    if not ours or not theirs:
        if draft.vocab_size != model.vocab_size:
            raise DraftRefused(
                f"draft model {draft.name} has a vocabulary of {draft.vocab_size} tokens, "
                f"{model.name} one of {model.vocab_size}; a guess is a token's number, so choose "
                "a draft model of the same family"
            )
        return
    other = [number for number in ours.keys() & theirs.keys() if ours[number] != theirs[number]]
    missing = len(ours) - len(ours.keys() & theirs.keys())
    if other or missing:
        example = min(other, default=min(ours.keys() - theirs.keys(), default=0))
        raise DraftRefused(
            f"draft model {draft.name} (vocabulary of {draft.vocab_size}) and {model.name} "
            f"({model.vocab_size}) mean other things by {len(other) + missing} of {len(ours)} "
            f"tokens, the first of them {example}: {theirs.get(example)!r} and {ours[example]!r}; "
            "choose a draft model with the same tokenizer"
        )


def _words(model: ModelDescription) -> dict[int, str]:
    """Ordinary tokens by number; empty without a tokenizer's file.

    Control tokens are left out: models of one family name them as they were trained.
    """
    try:
        tokenizer = json.loads(
            (Path(model.directory) / "tokenizer.json").read_text(encoding="utf-8")
        )
        vocabulary = tokenizer["model"]["vocab"]
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    if isinstance(vocabulary, list):  # pieces with their scores, in order
        return {number: str(entry[0]) for number, entry in enumerate(vocabulary)}
    return {int(number): str(word) for word, number in vocabulary.items()}
