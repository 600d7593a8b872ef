"""Published vocabularies under our ids."""

from collections.abc import Iterable, Mapping

from transformer_jax.data.mapped_tokenizer import Vocabulary
from transformer_jax.vocabulary import BOS_ID, PAD_ID
from transformer_jax.weights.arrangement import UNUSED, Arrangement


def vocabulary(
    arrangement: Arrangement,
    ids: Mapping[str, int],
    *,
    tags: Iterable[str] = (),
    hidden: Iterable[str] = (),
    prefix: Iterable[str] = (),
    marked_tags: bool = False,
) -> Vocabulary:
    """Their pieces by our ids; a row without a piece is called `<unused:ID>`.

    Args:
        arrangement: which of their ids each of ours is.
        ids: their id of each piece.
        tags, hidden, prefix, marked_tags: as in `Vocabulary`, but pieces.
    """
    names = {i: piece for piece, i in ids.items()}
    pieces = [names.get(i, f"{UNUSED}{i}>") for i in arrangement.order.tolist()]
    for ours, usual, other in ((PAD_ID, "<pad>", "<padding>"), (BOS_ID, "<s>", "<start>")):
        if arrangement.order[ours] < 0:
            pieces[ours] = usual if usual not in ids else other
    place = {piece: i for i, piece in enumerate(pieces)}
    return Vocabulary(
        tuple(pieces),
        prefix=tuple(place[piece] for piece in prefix),
        tags=tuple(place[piece] for piece in tags),
        marked_tags=marked_tags,
        hidden=tuple(place[piece] for piece in hidden),
    )
