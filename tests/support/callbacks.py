"""What may happen during training: Ctrl-C, and weights that are no longer finite."""

import torch
from skorch.callbacks import Callback


class Interrupt(Callback):
    """Ctrl-C after a number of batches."""

    def __init__(self, after):
        self.after = after

    def on_train_begin(self, net, **kwargs):
        self.left_ = self.after

    def on_batch_end(self, net, training=True, **kwargs):
        self.left_ -= bool(training)
        if self.left_ == 0:
            raise KeyboardInterrupt


class Poison(Callback):
    """Write NaN into the weights once, after a number of batches."""

    def __init__(self, after):
        self.after = after

    def on_batch_end(self, net, training=True, **kwargs):
        self.after -= bool(training)
        if self.after == 0:
            with torch.no_grad():
                next(net.module_.energy.parameters()).view(-1)[0] = torch.nan
