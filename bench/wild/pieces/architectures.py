"""Networks of the generated programs, as source text with slots.

Each has three blocks. The middle one, of class `$Feed`, has the slots in which faults of the forward pass are put;
the same class without slots, `$Plain`, serves as the others.
"""

from __future__ import annotations

from dataclasses import dataclass

MIDDLE = "{blocks}.1"
"""Path of the module with the slots."""

_FEED = """
class $Plain(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.$up, self.$down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, $h):
        return self.$down(F.gelu(self.$up($h)))


class $Feed($Plain):
    def forward(self, $h):
        $h = F.gelu(self.$up($h))
        @mid
        @mid_out
"""

_BLOCKS = "self.$blocks = nn.ModuleList([$Plain($width), $Feed($width), $Plain($width)])"


@dataclass(frozen=True)
class Architecture:
    """code: classes, of which `$Net` is the network. inputs: lines that draw `$x` and `$y` from `$gen`."""

    code: str
    inputs: str
    float_input: bool = True


_VECTORS = """
$x = torch.randn($rows, 24, generator=$gen)
$y = ($x[:, :8] + 0.5 * $x[:, 8:16]).argmax(-1)
"""

_SEQUENCES = """
$x = torch.randn($rows, 6, 24, generator=$gen)
$y = $x[:, :, :8].sum(1).argmax(-1)
"""

_IMAGES = """
$x = torch.randn($rows, 3, 8, 8, generator=$gen)
$y = ($x.mean((2, 3)) @ torch.eye(3, 8)).argmax(-1)
"""

_TOKENS = """
$x = torch.randint(0, 500, ($rows, 6), generator=$gen)
$y = $x[:, 0] % 8
"""

MLP = Architecture(
    f"""{_FEED}

class $Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.$stem = nn.Linear(24, $width)
        {_BLOCKS}
        self.$head = nn.Linear($width, 8)

    def forward(self, $x):
        $h = self.$stem($x)
        for $block in self.$blocks:
            $h = <<$h + $block($h)~~$block($h) + $h>>
        return self.$head($h)
""",
    _VECTORS,
)

CONV = Architecture(
    f"""{_FEED}

class $Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.$stem = nn.Conv2d(3, $width, 3, padding=1)
        {_BLOCKS}
        self.$mix = nn.Conv2d($width, $width, 3, padding=1, groups=4)
        self.$head = nn.Linear($width, 8)

    def forward(self, $x):
        $h = F.relu(self.$stem($x)).permute(0, 2, 3, 1)
        for $block in self.$blocks:
            $h = $h + $block($h)
        $h = F.relu(self.$mix($h.permute(0, 3, 1, 2)))
        return self.$head($h.mean((2, 3)))
""",
    _IMAGES,
)

TRANSFORMER = Architecture(
    f"""{_FEED}

class $Attend(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.$qkv, self.$proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, $h):
        $q, $k, $v = self.$qkv($h).chunk(3, -1)
        $logit = $q @ $k.transpose(-2, -1) / $h.shape[-1] ** 0.5
        $causal = torch.ones($h.shape[1], $h.shape[1], dtype=torch.bool).triu(1)
        return self.$proj(<<torch.softmax~~F.softmax>>($logit.masked_fill($causal, float("-inf")), -1) @ $v)


class $Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.$stem = nn.Embedding(500, $width)
        self.$attention = nn.ModuleList([$Attend($width) for _ in range(3)])
        self.$norms = nn.ModuleList([nn.LayerNorm($width) for _ in range(3)])
        {_BLOCKS}
        self.$head = nn.Linear($width, 8)

    def forward(self, $x):
        $h = self.$stem($x)
        for $att, $norm, $block in zip(self.$attention, self.$norms, self.$blocks):
            $h = $h + $att($norm($h))
            $h = $h + $block($h)
        return self.$head($h.mean(1))
""",
    _TOKENS,
    float_input=False,
)

RNN = Architecture(
    f"""{_FEED}

class $Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.$stem, self.$recur = nn.Linear(24, $width), nn.Linear($width, $width)
        {_BLOCKS}
        self.$head = nn.Linear($width, 8)

    def forward(self, $x):
        $h = torch.zeros($x.shape[0], $width)
        for $t in range($x.shape[1]):
            $h = torch.tanh(self.$stem($x[:, $t]) + self.$recur($h))
        for $block in self.$blocks:
            $h = $h + $block($h)
        return self.$head($h)
""",
    _SEQUENCES,
)

EMBEDDING = Architecture(
    f"""{_FEED}

class $Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.$table = nn.Embedding(3000, $width)
        {_BLOCKS}
        self.$head = nn.Linear($width, 8)

    def forward(self, $x):
        $h = self.$table($x).<<mean(1)~~sum(1)>>
        for $block in self.$blocks:
            $h = $h + $block($h)
        return self.$head($h)
""",
    _TOKENS,
    float_input=False,
)

RESIDUAL = Architecture(
    f"""{_FEED}

class $Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.$stem = nn.Linear(24, $width)
        self.$norms = nn.ModuleList([nn.BatchNorm1d($width) for _ in range(3)])
        {_BLOCKS}
        self.$head = nn.Linear($width, 8)

    def forward(self, $x):
        $h = self.$stem($x)
        for $norm, $block in zip(self.$norms, self.$blocks):
            $h = $h + $block(F.relu($norm($h)))
        return self.$head($h)
""",
    _VECTORS,
)

CUSTOM = Architecture(
    f"""{_FEED}

class $Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, value):
        ctx.save_for_backward(value)
        return value * torch.sigmoid(value)

    @staticmethod
    def backward(ctx, upstream):
        (value,) = ctx.saved_tensors
        gate = torch.sigmoid(value)
        return upstream * (gate + value * gate * (1 - gate))


class $Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.$stem = nn.Linear(24, $width)
        {_BLOCKS}
        self.$head = nn.Linear($width, 8)

    def forward(self, $x):
        $h = $Gate.apply(self.$stem($x))
        for $block in self.$blocks:
            $h = $h + $Gate.apply($block($h))
        return self.$head($h)
""",
    _VECTORS,
)

ARCHITECTURES = {
    "mlp": MLP,
    "conv": CONV,
    "transformer": TRANSFORMER,
    "rnn": RNN,
    "embedding": EMBEDDING,
    "residual": RESIDUAL,
    "custom": CUSTOM,
}
