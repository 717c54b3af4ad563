from sinkscope.extend import Problem, Source, Task, register_task, same_final


def draw(source: Source, difficulty: int) -> Problem:
    """Three numbers with equal steps between them; the next one is asked for."""
    start, step = source.randint(0, 60), source.randint(1, 3 * difficulty)
    first, second, third, following = (start + step * place for place in range(4))
    prompt = f"Card: {first} {second} {third}.\nWhat is the number after {third}?"
    return Problem(
        kind="counting",
        prompt=prompt,
        answer=f"{third} + {step} = {following}.\n#### {following}",
        difficulty=difficulty,
        key=f"{first} {step}",  # decides the split: the same content is never in two of them
        data={"final": following},  # what same_final compares
    )


register_task(Task("counting", draw, same_final))
