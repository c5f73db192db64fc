"""The slots of a healthy program: what each holds in every precision."""

from __future__ import annotations

from collections.abc import Mapping

SCALED = ("fp16", "own-scaler")
PRECISIONS = (*SCALED, "bf16", "fp32")

PARAMETERS = "$model.parameters()"

CLIPS = {
    "torch": "torch.nn.utils.clip_grad_norm_($model.parameters(), $limit)",
    "helper": "$shorten($model.parameters(), $limit)",
    "foreach": """
$grads = [$p.grad for $p in $model.parameters() if $p.grad is not None]
$total = torch.stack(torch._foreach_norm($grads)).norm()
torch._foreach_mul_($grads, ($limit / ($total + 1e-6)).clamp(max=1.0))
""",
    "inline": """
$total = sum($p.grad.square().sum() for $p in $model.parameters() if $p.grad is not None) ** 0.5
for $p in $model.parameters():
    if $p.grad is not None:
        $factor = torch.clamp($limit / ($total + 1e-6), max=1.0)
        <<$p.grad *= float($factor)~~$p.grad.mul_($factor)>>
""",
    "value": "torch.nn.utils.clip_grad_value_($model.parameters(), $value_limit)",
}

CLIP_HELPERS = {
    "helper": """
<<def $shorten(parameters, limit):
    found = [p.grad for p in parameters if p.grad is not None]
    size = torch.linalg.vector_norm(torch.stack([g.norm() for g in found]))
    for g in found:
        g.mul_(torch.clamp(limit / (size + 1e-6), max=1.0))~~@torch.no_grad()
def $shorten(parameters, limit):
    found = [p for p in parameters if p.grad is not None]
    size = sum(float(p.grad.norm()) ** 2 for p in found) ** 0.5
    if size > limit:
        for p in found:
            p.grad = p.grad * (limit / size)>>
"""
}

EVALUATE = """
if ($step + 1) % $every == 0:
    $model.eval()
    with torch.no_grad(), $autocast:
        $held = $batch(100000 + $step)
        $val = $criterion($model($held[0]), $held[1])
    $model.train()
"""

STATE = '{"model": $model.state_dict(), "optimizer": $opt.state_dict(), "scaler": $scaler_state, "step": $step + 1}'

SAVE = f"""
if ($step + 1) % 20 == 0:
    torch.save({STATE}, $path)
"""

LOAD = """
$stored = torch.load($path, weights_only=False)
$model.load_state_dict($stored["model"])
$opt.load_state_dict($stored["optimizer"])
$load_scaler
$begin = $stored["step"]
"""

SCALERS = {
    "fp16": '$scaler = torch.amp.GradScaler("cpu", init_scale=$init_scale, growth_interval=$growth)',
    "own-scaler": "$scaler = $OwnScaler($init_scale, $growth)",
    "bf16": "",
    "fp32": "",
}

AUTOCASTS = {
    "fp16": "<<torch.autocast('cpu', dtype=torch.float16)~~torch.amp.autocast('cpu', torch.float16)>>",
    "own-scaler": "torch.autocast('cpu', torch.float16)",
    "bf16": "<<torch.autocast('cpu', dtype=torch.bfloat16)~~torch.amp.autocast('cpu', torch.bfloat16)>>",
    "fp32": "contextlib.nullcontext()",
}


def defaults(precision: str, clip: str) -> dict[str, str]:
    """Slot texts of a healthy program. clip: a key of CLIPS, or an empty text for none."""
    scaled = precision in SCALED
    slots = {
        "cast": "",
        "make_optimizer": "$opt = $make_opt",
        "make_scaler": SCALERS[precision],
        "make_schedule": "",
        "after_build": "",
        "data": "",
        "criterion": "return F.cross_entropy($out.float(), $y)",
        "mid": "",
        "mid_out": "return self.$down($h)",
        "reset": "<<$opt.zero_grad()~~for $p in $model.parameters(): $p.grad = None>>",
        "forward": "with $autocast:\n    $out = $predict\n    $loss = $criterion($out, $y)",
        "after_loss": "",
        "backward": "@back($scaler.$m_scale($loss))" if scaled else "@back($loss)",
        "reduce": "",
        "unscale": "$scaler.$m_unscale($opt)" if scaled else "",
        "clip": CLIPS[clip] if clip else "",
        "step": "$scaler.$m_step($opt)" if scaled else "$opt.step()",
        "update": "$scaler.$m_update()" if scaled else "",
        "schedule": "",
        "after_step": "",
        "evaluate": "",
        "save": "",
        "save_last": "$step = $begin + $steps // 2 - 1\ntorch.save(" + STATE + ", $path)",
        "load": LOAD,
    }
    return {name: text.strip("\n") for name, text in slots.items()}


def scaler_names(precision: str) -> dict[str, str]:
    """Names of the scaler's methods and state, fixed where the scaler is torch's."""
    if precision == "fp16":
        return {
            "m_scale": "scale",
            "m_unscale": "unscale_",
            "m_step": "step",
            "m_update": "update",
        }
    return {}


def scaler_texts(precision: str) -> Mapping[str, str]:
    """Expressions over the scaler, as templates: its scale now, its state, and how the state is loaded."""
    if precision == "fp16":
        return {
            "scale_now": "$scaler.get_scale()",
            "scaler_state": "$scaler.state_dict()",
            "load_scaler": '$scaler.load_state_dict($stored["scaler"])',
        }
    if precision == "own-scaler":
        return {
            "scale_now": "$scaler.$value",
            "scaler_state": "vars($scaler)",
            "load_scaler": 'vars($scaler).update($stored["scaler"])',
        }
    return {"scale_now": "1.0", "scaler_state": "None", "load_scaler": "pass"}
