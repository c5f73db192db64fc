"""A CNN on generated digits, like torch's first example: argparse, train(), test(), scheduler."""
# mypy: ignore-errors

import argparse
import hashlib

import torch
import torch.nn as nn
import torch.optim as optim
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, 1)
        self.bn = nn.BatchNorm2d(4)
        self.dropout1 = nn.Dropout(0.25)
        self.fc1 = nn.Linear(4 * 7 * 7, 16)
        self.fc2 = nn.Linear(16, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.bn(self.conv1(x))), 2)
        x = torch.flatten(self.dropout1(x), 1)
        return functional.log_softmax(self.fc2(functional.relu(self.fc1(x))), dim=1)


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = functional.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"Train Epoch: {epoch} [{batch_idx}/{len(train_loader)}]\tLoss: {loss.item():.6f}")


def test(model, device, test_loader):
    model.eval()
    test_loss = correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            output = model(data.to(device))
            test_loss += functional.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).sum().item()
    print(f"\nTest set: Average loss: {test_loss / len(test_loader.dataset):.4f}, Accuracy: {correct}\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--log-interval", type=int, default=4)
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.set_num_threads(1)
    device = torch.device("cpu")
    images = torch.randn(160, 1, 16, 16)
    data = TensorDataset(images, images.mean(dim=(1, 2, 3)).mul(100).long().remainder(10))
    train_loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    test_loader = DataLoader(data, batch_size=64)
    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()
    digest = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values()))
    print(digest.hexdigest())


if __name__ == "__main__":
    main()
