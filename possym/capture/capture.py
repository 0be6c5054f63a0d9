"""The one pass in which a model's queries and keys are read: `Capture`."""

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from possym.capture.attention_call import AttentionCall, on_device
from possym.capture.hooks import attached
from possym.capture.layer_inputs import LayerInputs, Reading, merge_layers, read_layer
from possym.capture.model_state import (
    Parts,
    asked_once,
    attends,
    check_model,
    plainly,
    recorded,
    settled,
    unprepared,
    unrecorded,
)
from possym.capture.probe import PROBE_LENGTH, Layer, check_attention, check_length, coverage, fingerprint, probe_layer
from possym.capture.rope_layout import distance
from possym.errors import InputError, UnsupportedModelError, to_int

TOGETHER = 2**24  # numbers in the keys of layers that come together; four times as many on a GPU, whose host they spare
_probed: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


class Capture:
    """Reads the queries and keys of a causal RoPE language model from transformers.

    The model runs, and is scored, in the precision of its weights: `torch.autocast` is left out. A model that was
    changed since, by a training step for instance, is asked again when it is run.

    Args:
        model: a transformers model with rotary attention; any dtype, any device, several devices too.

    Attributes:
        layers: what was found out about each attention layer, by number.
        prompts_at_once: how many prompts `run` takes in one batch; None is any number.
        coverage: DataFrame with one row per layer of the model: attention, planes, method, self_check, window, ….

    Raises:
        UnsupportedModelError: not a transformers model, not causal, or nothing that rotates.

    Source: the relocated keys of 2511.11579, section 3, taken as 2605.31558's code takes them.

    >>> from transformers import LlamaConfig, LlamaForCausalLM
    >>> config = LlamaConfig(vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2,
    ...                      num_attention_heads=4, num_key_value_heads=2)
    >>> capture = Capture(LlamaForCausalLM(config))
    >>> shapes = []
    >>> _ = capture.run(torch.arange(7), lambda inputs: shapes.append(inputs.relocated_logits().shape))
    >>> shapes
    [torch.Size([1, 4, 6, 6]), torch.Size([1, 4, 6, 6])]
    """

    def __init__(self, model: nn.Module):
        """Ask the model, or take what it answered earlier: a model whose parameters did not change is asked once."""
        self.model = model
        self.marks: tuple | None = None
        self.ask()

    def ask(self) -> None:
        """Find out about the layers, unless that is known and no parameter, buffer or part has changed since."""
        model = self.model
        self.parts = parts = Parts(model)
        known = _probed.get(model) if parts.modules else None
        marks = None if known is None else fingerprint(parts)
        if marks is not None and marks == self.marks:
            return
        if known is None or known[0] != marks:
            check_model(model, parts)
            marks = fingerprint(parts)
        self.marks = None
        self.layers: dict[int, Layer] = {}
        embedding = model.get_input_embeddings()
        self.device = embedding.weight.device
        if self.device.type == "meta":
            self.device = torch.device(getattr(embedding._hf_hook, "execution_device", "cpu"))
        self.compared: set[tuple] = set()
        # Sparse attention picks other keys in each prompt, so that prompts cannot share a mask.
        self.prompts_at_once = 1 if any("Indexer" in kind.__name__ for kind in set(map(type, parts.modules))) else None
        if known is not None and known[0] == marks:
            _, self.layers, coverage_before, self.compared = known
            self.coverage, self.marks = coverage_before.copy(), marks
            return
        vocabulary = embedding.weight.shape[0]
        tokens = (torch.arange(PROBE_LENGTH, device=self.device) * 7919 + 11) % vocabulary
        sound: list[tuple[list[int], Tensor]] = []

        def on_call(call: AttentionCall) -> None:
            probe_layer(call, self.layers, type(model).__name__)
            sound.append(([call.layer], (call.query.isfinite().all() & call.key.isfinite().all())[None].cpu()))

        self.forward(tokens[None], on_call, [PROBE_LENGTH - 1])
        count = getattr(model.config.get_text_config(), "num_hidden_layers", len(self.layers))
        count = max(count, *(number + 1 for number in self.layers)) if self.layers else count
        self.coverage = coverage([self.layers.get(number) for number in range(count)])
        name = type(model).__name__
        if not self.layers:
            raise UnsupportedModelError(
                f"{name}: no attention layer could be read (it uses neither transformers' attention interface nor a "
                "known fallback). possym reads causal language models with rotary position embedding"
            )
        if not self.coverage.rotates.any():
            check_sound(sound)  # of what is not finite no rotation can be seen
            raise UnsupportedModelError(
                f"{name}: no layer rotates its queries and keys, so positions enter in another way (learned positions, "
                "ALiBi, or none). possym reads models with rotary position embedding (RoPE)"
            )
        _probed[model] = marks, self.layers, self.coverage.copy(), self.compared
        self.marks, self.parts = marks, Parts(model)  # a first pass may put other parameters in place, packed ones

    def run(
        self,
        tokens: Tensor,
        visit: Callable[[LayerInputs], None],
        *,
        query: int | Sequence[int] = -1,
        layers: Sequence[int] | None = None,
        together: bool = False,
    ) -> Tensor | None:
        """Run the model on ``tokens`` and hand every attention layer's inputs to ``visit``, first layer first.

        Args:
            tokens: (T,) or (B, T) token ids, without padding: every row is B prompts of one length.
            visit: called once per layer and query with its `LayerInputs`, without gradients.
            query: position of the query, or of several; negative counts from the end.
            layers: numbers of the layers to hand over; None for all.
            together: hand over layers that are alike at once, while their keys are small: not in order then, and the
                last after the pass.

        Returns:
            (B, V) logits of the next token at the query, of several (B, Q, V), or None where the model has no language
            head.

        Raises:
            InputError: tokens or query that do not fit.
            UnsupportedModelError: the model attends over more, or fewer, tokens than it is given.

        >>> from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
        >>> model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=50, hidden_size=32, intermediate_size=32,
        ...                                          num_hidden_layers=1, num_attention_heads=2))
        >>> Capture(model).run(torch.arange(5), lambda inputs: print(inputs.layer, inputs.moved), query=3).shape
        0 tensor([0, 1, 2])
        torch.Size([1, 50])
        """
        if (
            not isinstance(tokens, Tensor)
            or tokens.dtype not in (torch.int64, torch.int32)
            or tokens.ndim not in (1, 2)
        ):
            given = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
            raise InputError(f"tokens: got {given}, expected whole numbers of shape (T,) or (B, T)")
        tokens = tokens[None] if tokens.ndim == 1 else tokens
        vocabulary = self.model.get_input_embeddings().weight.shape[0]
        least, most = torch.stack(tokens.aminmax()).tolist() if tokens.numel() else (-1, -1)
        if least < 0 or most >= vocabulary:
            raise InputError(f"tokens: give at least one, each from 0 to {vocabulary - 1}, the model's vocabulary")
        length = tokens.shape[1]
        alone = to_int(query) is not None or not isinstance(query, (list, tuple, range))
        positions = [to_int(each) for each in ([query] if alone else query)]
        if not positions or not all(each is not None and -length <= each < length for each in positions):
            raise InputError(
                f"query = {query!r}: give a position among the {length} tokens (negative counts from the end)"
            )
        self.ask()
        output = self.read(tokens.to(self.device), visit, [each % length for each in positions], layers, together)
        if output is None:
            return None
        return (output[:, 0] if alone else output).clone()  # which may be differentiated, as what the pass made may not

    def read(
        self,
        tokens: Tensor,
        visit: Callable[[LayerInputs], None],
        positions: Sequence[int],
        layers: Sequence[int] | None,
        together: bool,
        meanwhile: Callable[[Tensor | None], object] = lambda _: None,
    ) -> Tensor | None:
        """Do what `run` does, of tokens (B, T) and queries' positions that fit, with a model that has been asked.

        ``meanwhile`` is called with what `run` returns once all is asked of the device, before it is waited for.
        """
        length, shape, name = tokens.shape[1], tuple(tokens.shape), type(self.model).__name__
        sound: list[tuple[list[int], Tensor]] = []
        waiting: dict[tuple, list[Reading]] = {}
        numbers = 0

        def hand_over() -> None:
            nonlocal numbers
            for readings in waiting.values():
                found, finite = merge_layers(readings, positions)
                sound.append(([one.layer for one in readings], finite))
                readings.clear()  # the keys as the model has them are let go
                # A GPU is asked after the pass: waiting for its answer would leave it idle.
                if not finite.is_cuda:
                    check_sound(sound[-1:])
                for inputs in found:
                    visit(inputs)
            waiting.clear()
            numbers = 0

        def on_call(call: AttentionCall) -> None:
            nonlocal numbers
            check_length(call, length, name)
            if layers is not None and call.layer not in layers:
                return
            here, found = (call.layer, call.pass_index, shape), self.layers[call.layer]
            if here not in self.compared:
                check_attention(call, found.factor, positions, name)
                self.compared.add(here)
            one = read_layer(call, found, positions)
            waiting.setdefault(one.kind, []).append(one)
            more = one.numbers
            numbers += more
            full = numbers + more > TOGETHER * (4 if one.key.is_cuda else 1)
            if not together or one.replayed is not None or full:
                with recorded():
                    hand_over()

        # What a model keeps from its first pass of a shape, such as longer tables, is for its training too.
        mode = unrecorded(self.parts) if shape in self.compared else nullcontext()
        with mode, attached(self.model, on_call, self.parts), plainly():
            output, head = self.call_model(tokens, positions)
        with plainly():
            hand_over()
        logits = output if head else None
        meanwhile(logits)
        check_sound(sound)
        self.compare_with_plain_pass(tokens, positions, output)
        return logits

    def forward(
        self, tokens: Tensor, on_call: Callable[[AttentionCall], None], positions: Sequence[int]
    ) -> Tensor | None:
        """Run the model with ``on_call`` at every attention layer and leave it as it was found.

        Returns the logits (B, Q, V) at ``positions``, or None where the model has no language head.
        """
        with attached(self.model, on_call), plainly():
            output, head = self.call_model(tokens, positions)
        return output if head else None

    def call_model(self, tokens: Tensor, positions: Sequence[int]) -> tuple[Tensor | None, bool]:
        """Call the model on tokens and return (B, Q, …) at ``positions``: the logits, and True, of a language model.

        Of a model without a language head it is the last hidden states, if it gives them, and False.
        """
        head = getattr(self.model, "get_output_embeddings", lambda: self.model)()
        model = self.model
        if head is None:  # a reward model's head asks for padding and gives one value: what is below it reads the same
            model = getattr(model, getattr(model, "base_model_prefix", ""), model)
        accepted = accepted_by(model.forward)
        options = {"use_cache": False} if "use_cache" in accepted or "kwargs" in accepted else {}
        keeps = "logits_to_keep" in accepted and head is not None
        if keeps:  # as a tensor: asked for a number of them, Gemma 4 leaves out queries of its last layers
            options["logits_to_keep"] = on_device(positions, tokens.device)
        with unprepared(model):
            output = model(input_ids=tokens, **options)
        logits = getattr(output, "logits", None)
        if logits is not None and head is not None and logits.ndim == 3:
            return (logits if keeps else logits[:, list(positions)]), True
        hidden = getattr(output, "last_hidden_state", None)
        return (None if hidden is None else hidden[:, list(positions)]), False

    def compare_with_plain_pass(self, tokens: Tensor, positions: Sequence[int], output: Tensor | None) -> None:
        """Raise an UnsupportedModelError if the model left alone gives another output than while it was read.

        Asked once per model and shape of tokens.
        """
        shape = tuple(tokens.shape)
        if shape in self.compared or output is None:
            return
        with settled(self.model), plainly():
            plain, head = self.call_model(tokens, positions)
        tolerance = 1e-4 if output.dtype in (torch.float32, torch.float64) else 0.03
        if not distance(output.float().nan_to_num(), plain.float().nan_to_num()) <= tolerance:
            raise UnsupportedModelError(
                f"{type(self.model).__name__}: read by possym, the model gives other "
                f"{'logits' if head else 'hidden states'} than by itself on the same {tokens.shape[1]} tokens. "
                f"{self.where_it_begins(tokens, positions)}"
            )
        self.compared.add(shape)

    def where_it_begins(self, tokens: Tensor, positions: Sequence[int]) -> str:
        """Say in which attention layer the pass that is read leaves the model's own."""
        outputs: list[list[tuple[str, Tensor]]] = []
        named = [(name, m) for name, m in self.model.named_modules() if attends(type(m))]
        for context in (settled(self.model), attached(self.model, lambda call: None)):
            found: list[tuple[str, Tensor]] = []
            outputs.append(found)

            def keep(name, found, _, args, output):
                first = output[0] if isinstance(output, tuple) else output
                found.append((name, first.detach().float().cpu()))

            hooks = [m.register_forward_hook(functools.partial(keep, name, found)) for name, m in named]
            try:
                with context, plainly():
                    self.call_model(tokens, positions)
            finally:
                for hook in hooks:
                    hook.remove()
        for (name, own), (_, read) in zip(*outputs, strict=False):
            if own.shape != read.shape or distance(read, own) > 1e-4:
                return f"They part at {name}"
        return "No attention layer differs"


def accepted_by(forward: Callable) -> frozenset[str]:
    """Return the parameters of a model's forward, of a class's own method looked up once."""
    method = getattr(forward, "__func__", None)
    return frozenset(inspect.signature(forward).parameters) if method is None else parameters_of_method(method)


@asked_once
def parameters_of_method(method: Callable) -> frozenset[str]:
    """Return the parameters of a method, ``self`` too."""
    return frozenset(inspect.signature(method).parameters)


def check_sound(layers: list[tuple[list[int], Tensor]]) -> None:
    """Raise an InputError that names the first layer that is not sound; a device is waited for once."""
    if not layers:
        return
    numbers = [number for some, _ in layers for number in some]
    sound = torch.cat([fine.to(layers[0][1].device) for _, fine in layers]).tolist()
    wrong = [number for number, fine in zip(numbers, sound, strict=True) if not fine]
    if wrong:
        raise InputError(
            f"layer {min(wrong)}: queries or keys are not finite. The model overflows on this prompt: check its "
            "weights, or load it in float32 or bfloat16"
        )
