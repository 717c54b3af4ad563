# The examples of docs/reference/api.md. A section begins with its name; docs/generate.py puts it under that name, and
# tests/test_examples.py runs all of them, in this order and in one process, in a folder that is thrown away.
# mypy: ignore-errors
# ruff: noqa: E402, I001

# ---- begin
import sinkscope as sk
import torch

model = sk.load("tiny-llada")
arm = sk.load("tiny-llama")
prompt = "Tom has 3 apples. Then Tom finds 4.\nHow many apples are left?"
short = {"length": 8, "steps": 4, "block": 8}

# ---- __version__
assert sk.__version__.count(".") == 2

# ---- load
model = sk.load("tiny-llada")  # a name of `sinkscope models`, a folder, a GGUF file or a Hub id
assert model.family.name == "llada" and not model.causal

# ---- Model
ids = model.encode(prompt)  # [1, position], with the chat template
logits = model.logits(ids)  # [1, position, vocab]
assert logits.shape == (1, ids.shape[1], model.vocabulary)
print(model.generate(prompt, length=16, steps=16))

# ---- wrap
wrapped = sk.wrap(model.module, model.tokenizer, family="llada", mask_id=model.mask_id)  # loaded by transformers
assert wrapped.generate(prompt, **short) == model.generate(prompt, **short)

# ---- register
from sinkscope.models.families.llada import LLaDA


class MyLLaDA(LLaDA):
    name = "my-llada"

    def matches(self, config, folder):
        return config.get("architectures") == ["MyLLaDAModel"]


sk.register(MyLLaDA())  # sk.load now asks it first

# ---- Decode
settings = sk.Decode.llada(length=8, block=8, steps=4)
assert sk.Decode.from_dict(settings.to_dict()) == settings

# ---- decode
done = sk.decode(model, model.encode(prompt), sk.Decode.llada(length=8, block=8, steps=4))
assert done.forwards == 4 and len(done.history) == 5  # the canvas before each forward, and the last one
print(model.decode_text(done.tokens[0, -8:]))

# ---- SparseCache
cached = sk.Decode.parallel(length=8, block=4, cache=sk.SparseCache(keep=0.5, by="received"))
print(model.generate(prompt, cached))

# ---- trace
trace = sk.trace(model, prompt, **short)
print(trace.text, trace.received.shape)  # [step, layer, head, group, key]

# ---- Trace
trace.save("tom.safetensors")
again = sk.Trace.load("tom.safetensors")
assert again.text == trace.text
print(
    again.sinks(sk.Threshold(3, unit="sum")).head()
)  # a polars table: step, layer, head, position, token, kind, score
print(again.heads().head(), again.tokens().head())

# ---- Keep
kept = sk.trace(model, prompt, keep=sk.Keep(form="full", value_norms=True, maps=((0, 1),)), **short)

# ---- Threshold
print(trace.sinks(sk.Threshold(3, unit="sum")).height, "keys receive 3 more than the mean of the others")

# ---- ZScore
print(trace.sinks(sk.ZScore(3)).height, "keys receive 3 standard deviations more than the mean")

# ---- HeadShare
print(trace.sinks(sk.HeadShare(0.3)).height, "keys receive 0.3 of what each query has to give")

# ---- observe
attention = torch.nn.MultiheadAttention(16, 2, batch_first=True)
x = torch.randn(1, 5, 16)
with sk.observe(attention) as seen:
    attention(x, x, x, need_weights=False)
assert seen.received[0].shape == (1, 2, 1, 5)  # [batch, head, group, key]

# ---- attend
q, k, v = torch.randn(3, 1, 2, 5, 8)  # each [batch, head, position, dim]
out, received = sk.attend(q, k, v, causal=True)
assert torch.allclose(received.sum(-1), torch.tensor(5.0))  # five queries, each with a sum of 1

# ---- lens
logits = sk.lens(model, model.encode(prompt))  # [layer, batch, position, vocab]
assert torch.allclose(logits[-1], model.logits(model.encode(prompt)), atol=1e-4)

# ---- activations
found = sk.activations(
    model, [prompt], layers=[0], out="activations", settings=sk.Decode.llada(length=8, block=8, steps=4)
)
print(found)

# ---- hook
norms = []
with sk.hook(model, "layers.3.resid_post", lambda activation, context: norms.append(activation.norm())):
    model.generate(prompt, **short)
assert len(norms) == 4  # one per forward


# ---- HookContext
def halve_late(activation, context):  # activation: [batch, position, width]
    return activation * 0.5 if context.share >= 0.5 else None  # None leaves it as it is


with sk.hook(model, "resid_post", halve_late):
    model.generate(prompt, **short)

# ---- intervene
with sk.intervene(model, sk.MaskSinks(k=1)) as active:
    masked = model.generate(prompt, **short)
assert active.effect.leak == 0  # masked keys received nothing
print(f"{active.effect.mass_share:.0%} of the attention was removed")

# ---- MaskSinks
strong = sk.MaskSinks(k=1, above=sk.HeadShare(0.3))  # the most-attended key of each head, if it is a sink
with sk.intervene(model, strong):
    model.generate(prompt, **short)

# ---- MaskRandom
control = sk.MaskRandom(k=1, match="mass", seed=0)  # random keys that receive as much as the most-attended key
with sk.intervene(model, control):
    model.generate(prompt, **short)

# ---- MaskPositions
with sk.intervene(arm, sk.MaskPositions((0,), since="second")):  # the prompt is read unchanged
    arm.generate(prompt, length=8)

# ---- MaskBuiltIn
hidden = sk.MaskBuiltIn()  # of a GIDD v2; a model without such a key refuses it
try:
    with sk.intervene(model, hidden):
        model.generate(prompt, **short)
except sk.SinkscopeError as error:
    print(error)

# ---- MaskInstead
other = sk.MaskInstead(of=sk.MaskSinks(k=1), positions=(2,))  # position 2, wherever a sink would be masked
with sk.intervene(model, other):
    model.generate(prompt, **short)

# ---- MaskOthers
others = sk.MaskOthers(of=sk.MaskSinks(k=1), kinds="structural")  # all special tokens but the sink, in the same heads
with sk.intervene(model, others):
    model.generate(prompt, **short)

# ---- CutContext
with sk.intervene(model, sk.CutContext(0.25, 0.5)):  # the second quarter of the prompt is masked
    model.generate(prompt, **short)

# ---- Attenuate
with sk.intervene(model, sk.Attenuate(of=sk.MaskSinks(k=1), by=0.5)):  # sinks lose half of the attention they receive
    model.generate(prompt, **short)

# ---- PenaliseSinks
with sk.intervene(model, sk.PenaliseSinks(k=1, penalty=2.0)):
    model.generate(prompt, **short)

# ---- HoldSinks
with sk.intervene(model, sk.HoldSinks(k=1, bonus=2.0)):
    model.generate(prompt, **short)

# ---- RotateSinks
with sk.intervene(model, sk.RotateSinks(k=1)):
    model.generate(prompt, **short)

# ---- Soften
with sk.intervene(model, sk.Soften(temperature=2.0)):
    model.generate(prompt, **short)

# ---- SoftmaxOffByOne
with sk.intervene(model, sk.SoftmaxOffByOne()):
    model.generate(prompt, **short)

# ---- AddSinkToken
with sk.intervene(model, sk.AddSinkToken(count=1)):
    model.generate(prompt, **short)

# ---- Window
with sk.intervene(model, sk.Window(16)):
    model.generate(prompt, **short)

# ---- ZeroValues
with sk.intervene(model, sk.ZeroValues(of=sk.MaskSinks(k=1))):  # sinks receive attention as before; their values are 0
    model.generate(prompt, **short)

# ---- MeanValues
with sk.intervene(model, sk.MeanValues(of=sk.MaskSinks(k=1))):
    model.generate(prompt, **short)

# ---- PatchValues
with sk.intervene(model, sk.PatchValues(of=sk.MaskSinks(k=1), source="next")):  # from the next sequence of the batch
    model.generate([prompt, prompt.replace("Tom", "Ann")], **short)

# ---- PatchKeys
with sk.intervene(model, sk.PatchKeys(of=sk.MaskSinks(k=1), source="next")):
    model.generate([prompt, prompt.replace("Tom", "Ann")], **short)

# ---- ZeroAttention
with sk.intervene(model, sk.ZeroAttention(heads=((3, 0), (4, 1)))):  # (layer, head)
    model.generate(prompt, **short)

# ---- AblateChannels
with sk.intervene(model, sk.AblateChannels(top=1)) as active:  # the largest channel of each layer
    model.generate(prompt, **short)
print(active.effect.to_dict()["moved_share"])

# ---- Steer
direction = torch.randn(model.config.hidden_size)
with sk.intervene(model, sk.Steer(direction, layers=(3,), strength=2.0, steps=(0.0, 0.25), at="masked")):
    model.generate(prompt, **short)

# ---- checkup
first = next(sk.checkup(model))  # each result as soon as it is known; `list` runs all checks
assert first.status == "ok"

# ---- tasks
for problem in sk.tasks.problems("arithmetic", n=2, split="test", seed=0):
    assert problem.check(problem.answer)
    print(problem.prompt)

# ---- Study
study = sk.Study.from_dict(
    {
        "name": "mine",
        "models": ["tiny-llada"],
        "tasks": [{"name": "recall", "problems": 2}],
        "decode": {"length": 8},
        "conditions": ["none", {"name": "mask_sinks", "k": 1}, {"name": "mask_random", "k": 1}],
    }
)
assert sk.Study.load("paper").name == "paper"  # one that ships, or a YAML file

# ---- run
run = sk.run(study, out="runs/mine", workers=1)  # called again, it continues where it was stopped

# ---- Run
run = sk.Run.load("runs/mine")
print(run.summary())

# ---- Ray
cluster = sk.Ray(workers=2)  # sk.run(study, engine=cluster)

# ---- HarnessLM
lm = sk.HarnessLM(model, sk.MaskSinks(k=1), {"length": 8})  # lm_eval.simple_evaluate(model=lm, tasks=["gsm8k"])
print(lm.get_model_info()["sinkscope"]["model"]["name"])

# ---- SinkscopeError
try:
    sk.load("no-such-model/anywhere-at-all", mask_id=-1)
except sk.SinkscopeError as error:  # everything that a user can put right
    print(error)

# ---- extend.Intervention
from typing import Annotated, ClassVar

from sinkscope.extend import Call, Change, Intervention, InterventionError, Label, Memory, Positive, Selector, settings


@settings(InterventionError)
class Louder(Intervention):
    """All scores are multiplied."""

    by: float = 2.0

    @property
    def is_noop(self) -> bool:
        return self.by == 1.0

    def change(self, call: Call, memory: Memory) -> Change:
        return Change(temperature=1 / self.by)


with sk.intervene(model, Louder(by=1.5)):
    model.generate(prompt, **short)


# ---- extend.Selector
@settings(InterventionError)
class MaskLast(Selector):
    """Hide the last n keys from every query but their own."""

    n: int = 1
    keep_self: bool = True

    @property
    def is_noop(self) -> bool:
        return self.n == 0

    def select(self, call: Call, memory: Memory) -> torch.Tensor:  # bool [batch, head, key]
        batch, heads = call.q.shape[:2]
        return (torch.arange(call.keys) >= call.keys - self.n).expand(batch, heads, -1)


with sk.intervene(model, MaskLast(n=2)):
    model.generate(prompt, **short)


# ---- extend.Call
@settings(InterventionError)
class Count(Intervention):
    """Print the calls of the first forward; change nothing."""

    is_noop = False

    def change(self, call: Call, memory: Memory) -> Change:
        if call.layer == 0 and memory.step(call) == 0:
            print(
                call.q.shape, call.keys, "keys,", call.labels.tolist()[0][:4]
            )  # groups: 0 masked, 1 committed, 2 prompt
        return Change()


with sk.intervene(model, Count()):
    model.generate(prompt, **short)

# ---- extend.Change
keys = 6
hidden = torch.zeros(1, 1, keys, dtype=torch.bool)
hidden[..., 0] = True
assert Change(drop=hidden).drop is hidden  # position 0 is masked for all queries
assert Change(bias=torch.zeros(1, 1, 1, keys), temperature=2.0).drop is None  # scores are changed, nothing is masked


# ---- extend.Memory
@settings(InterventionError)
class MaskStrongest(Selector):
    """Hide the key that received most in the forward before, in each head."""

    is_noop = False
    keep_self: bool = False

    def maps(self):
        return {("clean", "all")}  # what is to be remembered: nothing else is

    def select(self, call: Call, memory: Memory) -> torch.Tensor:
        scores = memory.scores(call, "clean", "all")  # [batch, head, key]; None at the first forward
        if scores is None:
            return torch.zeros(*call.q.shape[:2], call.keys, dtype=torch.bool)
        return torch.nn.functional.one_hot(scores.argmax(-1), call.keys).bool()


with sk.intervene(model, MaskStrongest()) as active:
    model.generate(prompt, **short)
assert active.effect.keys > 0


# ---- extend.Label
@settings(InterventionError)
class Quieter(Louder):
    """Named, so that studies may say conditions: [{name: quieter_example, by: [0.5, 0.7]}]."""

    name: ClassVar[str] = "quieter_example"
    by: Annotated[Positive, Label("by {:g}")] = 0.5
