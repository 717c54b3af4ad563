"""The tiny family's tokenizer: a few hundred whole words and whole numbers, each with the space before it.

It gives every text back exactly. Words outside of the list fall apart into ASCII characters; other characters are
unknown. The list is written out, and only ever appended to, because a token's place in it is its id in the
checkpoints that ship.
"""

from typing import TYPE_CHECKING

from lab.pictures import PICTURE_TOKENS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

BEGIN, END, PAD, MASK, UNKNOWN = "<|startoftext|>", "<|endoftext|>", "<|pad|>", "<|mdm_mask|>", "<unk>"
HEADER_START, HEADER_END, TURN_END = "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"
SPECIAL = (BEGIN, END, PAD, MASK, UNKNOWN, HEADER_START, HEADER_END, TURN_END)

# A turn is begin, header, text, end of turn; as short in tokens as it can be, since canvases here are short.
CHAT = (
    "{{ bos_token }}{% for m in messages %}"
    f"{HEADER_START}{{{{ m['role'] }}}}{HEADER_END}{{{{ m['content'] }}}}{TURN_END}"
    "{% endfor %}{% if add_generation_prompt %}"
    f"{HEADER_START}assistant{HEADER_END}"
    "{% endif %}"
)
# What one token may be at most: a word or a number with the space before it, one sign, or an indentation.
PIECES = r'\n| {4}|"""|####| ?[A-Za-z_]{1,24}| ?[0-9]{1,24}| ?[^\sA-Za-z0-9]|\s'

# Words as they stand at the start of a text or line, or behind a bracket.
AT_START = """
user assistant system Ann Bob Box Can Cid Dan Done Eve Fay Gus How Ida If Leo Mia Now Please Return Sam Shelf The
There Tom What Which Who cold crawl dance def heavy hop if items jump left look loud new old red return right round
run soft sweet swim values walk wet xs ys
"""
# Words and signs as they stand in a sentence, behind a space.
AFTER_SPACE = """
Its stands home h find make test larger smaller * + - < = > [ A Ann Bob Box Cid Dan Eve Fay Gus Ida If Is It Leo Mia
Sam Shelf The Then Tom a above after and apples are at b ball balls becomes below black blue books box buys cards cat
coins cold crawl cup cups dance does dog down eggs else every f faster fastest finds for fox friend g gives go goal
gold green grey has heavy hop if in is it items jump keys largest left len length like likes look loses loud many max
min minus moons n new no now of old older oldest pens pink plus red right robot round run sells shells shortest
slowest smallest soft solve stars stone sum sweet swim takes taller tallest task than that the then there thrice times
trees twice up values walk wall way wet white work x xs y yes you youngest ys z
"""
# Words that came later; new ones go to the end.
LATER = ("Boxes", "Card", "So", " colour", " name", " number", " thing")


def tokens() -> list[str]:
    """All tokens of the text vocabulary, in the order of their ids."""
    ascii_characters = ["\n", "\t", *map(chr, range(32, 127))]
    signs = ["    ", '"""', "####"]
    numbers = [*(f" {n}" for n in range(100)), *(str(n) for n in range(10, 31))]
    words = [*AT_START.split(), *(f" {word}" for word in AFTER_SPACE.split())]
    return [*SPECIAL, *ascii_characters, *signs, *numbers, *words, *LATER]


def build_tokenizer(pictures: bool = False) -> "PreTrainedTokenizerFast":
    """The tokenizer, the same at every call; with `pictures` the picture codes follow behind the text vocabulary."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: place for place, token in enumerate(tokens())}
    # The longest known piece first, then the next: whole words where known, characters elsewhere.
    tokenizer = Tokenizer(
        models.WordPiece(vocabulary, unk_token=UNKNOWN, continuing_subword_prefix="", max_input_chars_per_word=25)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    if pictures:
        # Not special: a described or drawn picture belongs to the text, and decoding must not skip it.
        tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in PICTURE_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        mask_token=MASK,
        unk_token=UNKNOWN,
        extra_special_tokens=[HEADER_START, HEADER_END, TURN_END],
        chat_template=CHAT,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
