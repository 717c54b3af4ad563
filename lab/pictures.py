"""Pictures of 6 × 6 squares as discrete codes, asked about or described: the second modality of tiny-mmada."""

from sinkscope.tasks.problem import Problem, Source, Task, register, same_final

SIDE = 6
MOST = 4  # of one object in a picture
START, END = "<|soi|>", "<|eoi|>"
SHAPES = ("star", "tree", "moon", "cup", "ball")
# What a code shows; code 0 is an empty square.
OBJECTS = ("", *(f"{colour} {shape}" for colour in ("red", "blue", "green") for shape in SHAPES))


def code_token(code: int) -> str:
    """The text form of one picture code, one token in the extended vocabulary."""
    return f"<|image_{code}|>"


PICTURE_TOKENS = (START, END, *(code_token(code) for code in range(len(OBJECTS))))


def draw(source: Source, difficulty: int) -> Problem:
    """A picture with as many sorts of objects as the difficulty; half are asked for one count, half described."""
    codes = sorted(source.sample(range(1, len(OBJECTS)), difficulty))
    counts = {code: source.randint(1, MOST) for code in codes}
    squares = [code for code in codes for _ in range(counts[code])]
    squares += [0] * (SIDE * SIDE - len(squares))
    source.shuffle(squares)
    picture = START + "".join(map(code_token, squares)) + END
    if source.random() < 0.5:
        asked = source.choice(codes)
        question = f"How many {OBJECTS[asked]}s are there?"
        found = str(counts[asked])
        answer = f"There are {found} {OBJECTS[asked]}s.\n#### {found}"
    else:
        question = "What is there?"
        found = ", ".join(f"{counts[code]} {OBJECTS[code]}s" for code in codes)
        answer = f"#### {found}"
    # Where the objects stand is decoration: the split goes by what is counted, how many, and what is asked.
    key = f"{sorted(counts.items())}|{question}"
    return Problem("pictures", picture + question, answer, difficulty, key, {"final": found})


register(Task("pictures", draw, same_final))
