"""Two small networks without a residual stream: what a transformer must beat.

Shapes: B batch, T tokens, F features, H horizons. Both make one forecast a window, from all its
tokens, and give it to every token; only the last one may be trained and read.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fints.model.heads import Forecast

__all__ = ["MLP", "DLinear"]


class DLinear(nn.Module):
    r"""A linear map of the window's moving average and another of what is left.

    .. math:: p = \sum_f w_f^\top a_f + v_f^\top (x_f - a_f) + b, \qquad
        a_{f,t} = \frac1K \sum_{|k| \le K/2} x_{f,t+k}

    with x_f (T,) the past of feature f, repeated at both ends for the average. The weights start at 0, so
    that the first forecast is the best one without knowledge. A missing feature is 0, its training mean.

    Notes
    -----
    The average looks ahead inside the window, whose last token is the decision date: nothing later is seen.
    Source: Zeng, Chen, Zhang, Xu (2023), "Are Transformers Effective for Time Series Forecasting?".
    Departures: the maps go from every feature to one return instead of from each series to its own future.
    """

    def __init__(self, num_features: int, context: int, *, num_horizons: int = 1, kernel: int = 9) -> None:
        super().__init__()
        if kernel < 1 or kernel % 2 == 0:
            raise ValueError(f"kernel must be odd, so that the average is centred; got {kernel}.")
        self.kernel = kernel
        self.trend = nn.Linear(num_features * context, num_horizons)
        self.rest = nn.Linear(num_features * context, num_horizons, bias=False)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Forecast:
        """Return the forecast (B, T, H) of x (B, T, F), NaN where missing."""
        known = x.nan_to_num(nan=0.0).transpose(1, 2)
        half = self.kernel // 2
        trend = F.avg_pool1d(F.pad(known, (half, half), mode="replicate"), self.kernel, stride=1)
        forecast = self.trend(trend.flatten(1)) + self.rest((known - trend).flatten(1))
        return Forecast(forecast[:, None].expand(-1, x.shape[1], -1))


class MLP(nn.Module):
    r"""A perceptron with two hidden layers on the whole window.

    .. math:: p = W_3\, \mathrm{gelu}(W_2\, \mathrm{gelu}(W_1 [x, m]))

    with x (T F) the window, 0 where missing, and m (T F) 1 where it is missing. Dropout follows each hidden
    layer; the last map starts at 0.
    """

    def __init__(
        self,
        num_features: int,
        context: int,
        *,
        num_horizons: int = 1,
        width: int = 32,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2 * num_features * context, width),
            nn.GELU(),
            nn.Dropout(dropout),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Dropout(dropout),
        )
        self.head = nn.Linear(width, num_horizons)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Forecast:
        """Return the forecast (B, T, H) of x (B, T, F), NaN where missing."""
        window = torch.cat([x.nan_to_num(nan=0.0), x.isnan().to(x.dtype)], dim=-1).flatten(1)
        return Forecast(self.head(self.layers(window))[:, None].expand(-1, x.shape[1], -1))
