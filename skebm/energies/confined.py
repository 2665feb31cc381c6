"""Networks that are asked nothing beyond what training has seen."""

from __future__ import annotations

from torch import Tensor, nn


class Confined(nn.Module):
    r"""A network that sees rows pulled back into a ball, :math:`x \min(1, R / |x|)`.

    Beyond the ball it is constant along rays, so that a base with heavy tails keeps them: a network
    that grows with the distance would multiply what little mass there is by any factor. Draws from
    far out teach it at the rim.

    Parameters
    ----------
    network : nn.Module
        Of rows (n, ...) to (n,).
    radius : float > 0
        R, in units of x.

    Examples
    --------
    >>> import torch
    >>> from skebm.energies import Confined
    >>> network = Confined(torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0)), 3.0)
    >>> far = torch.tensor([[3.0, 0.0], [300.0, 0.0]])
    >>> bool(network(far)[0] == network(far)[1])
    True
    """

    def __init__(self, network: nn.Module, radius: float):
        super().__init__()
        if not radius > 0:
            raise ValueError(f"radius must be positive, got {radius!r}.")
        self.network, self.radius = network, radius

    def forward(self, x: Tensor) -> Tensor:
        """The network's values, (n,)."""
        norm = x.flatten(1).norm(dim=1).clamp_min(self.radius)
        return self.network(x * (self.radius / norm).view(-1, *(1,) * (x.dim() - 1)))
