"""Two encoders get a NaN validation loss from the first evaluation on, and scores near zero.

The training loss stays finite. The thread found that mixed precision causes it: without fp16 it
stops. It does not say where the NaN arises; here the documents of the validation are longer than
those of the training, and their sum passes 65504.
"""

import sys

import torch
from torch import nn

REPAIRED = "--repaired" in sys.argv


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.up, self.head = nn.Embedding(100, 32), nn.Linear(32, 64), nn.Linear(64, 4)
        with torch.no_grad():
            self.up.bias.fill_(150.0)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.up(self.embedding(tokens))
        pooled = torch.ones(tokens.shape[0], 1, tokens.shape[1]) @ hidden
        pooled = nn.functional.layer_norm(pooled.squeeze(1).float(), (64,))
        logits: torch.Tensor = self.head(pooled)
        return logits


torch.manual_seed(0)
torch.set_num_threads(1)
model = Encoder()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=not REPAIRED)
short, long = torch.randint(0, 100, (128, 64)), torch.randint(0, 100, (32, 512))
labels = torch.randint(0, 4, (128,))
for step in range(1, 91):
    chosen = torch.randint(0, 128, (16,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16, enabled=not REPAIRED):
        loss = nn.functional.cross_entropy(model(short[chosen]).float(), labels[chosen])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 30 == 0:
        model.eval()
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16, enabled=not REPAIRED):
            evaluated = nn.functional.cross_entropy(model(long).float(), labels[:32])
        model.train()
        print({"step": step, "loss": loss.item(), "eval_loss": evaluated.item()})
