"""How text is written before it is cut into pieces; the rule is a part of the SentencePiece model.

So training, translation and every export have the same one. `clean` changes what no reader sees:
each kind of white space becomes a space, and marks without a width are left out. It keeps what
carries a meaning: joiners (U+200C, U+200D), compatibility characters such as ², ½ and full-width
signs, and combining marks. NFKC, the usual rule of SentencePiece, changes those.
"""

_WHITE_SPACE = (*range(0x09, 0x0E), *range(0x1C, 0x20), 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B))
_WHITE_SPACE += (0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
#: Soft hyphen, zero-width space, word joiner, byte-order mark, and marks of the writing direction.
_INVISIBLE = (0xAD, 0x200B, 0x2060, 0xFEFF, 0x61C, 0x200E, 0x200F)
_INVISIBLE += (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = (*range(0x01, 0x20), *range(0x7F, 0xA0))

#: The rule `clean` as SentencePiece reads it: a line for each character, what it becomes.
CLEAN = "".join(
    f"{code:X}\t{'20' if code in _WHITE_SPACE else ''}\n"
    for code in sorted({*_WHITE_SPACE, *_INVISIBLE, *_CONTROLS})
)
