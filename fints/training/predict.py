"""Forecasts of a trained model: the same bits for a window wherever it stands."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fints.training.batches import Batches
from fints.training.seeds import one_thread

__all__ = ["predict"]

# A window's forecast must not depend on its row in the batch. Matrix kernels work on strips of
# rows, and the rows left over go through another kernel, which rounds differently: with MKL on
# AVX2 the last rows differ by 1e-6 unless their number is a multiple of the strip. 48 windows of
# any length fill the strips of SSE4.2, AVX2 and AVX-512 kernels (48, 24, 16, 8, 6 and 4 rows).
STRIP = 48


def predict(model: nn.Module, batches: Batches, *, batch_size: int = 256) -> dict[str, Tensor]:
    """Forecast the last token of every window.

    A window's forecast depends on that window alone, bit for bit: not on its place in `batches`
    nor on how many others there are. So a forecast made at the time equals the one that a longer
    panel gives later. For that every batch has one fixed shape (the last one is filled up) and
    runs on one thread, in evaluation mode, in the precision of the weights. Other devices than
    the CPU keep the fixed shape but promise no bits.

    Parameters
    ----------
    model
        Maps (B, T, F) to a forecast of (B, T, H) fields; runs where its parameters are. Its mode
        is left as found.
    batches
        The windows.
    batch_size
        Windows a batch, rounded up to a multiple of 48. Another value may change the last bits.

    Returns
    -------
    dict of str to Tensor
        "mean" and, where the head gives them, "log_scale" and "degrees"; each (N, H) on the CPU,
        in the order of `batches`.

    Raises
    ------
    ValueError
        If there is no window, or `batch_size` is below 1.
    """
    number = len(batches)
    if number == 0:
        raise ValueError("predict needs at least one window; got none. Widen the dates.")
    if batch_size < 1:
        raise ValueError(f"predict needs batch_size of at least 1; got {batch_size}.")
    size = -(-batch_size // STRIP) * STRIP
    device = next(model.parameters()).device
    fields: dict[str, Tensor] = {}
    training = model.training
    model.eval()
    try:
        with one_thread():
            for start in range(0, number, size):
                stop = min(start + size, number)
                positions = torch.arange(start, start + size).clamp(max=stop - 1)
                with torch.inference_mode():
                    inputs, _ = batches.gather(positions)
                    forecast = model(inputs.to(device))
                    last = {
                        name: values[: stop - start, -1].cpu()
                        for name, values in forecast._asdict().items()
                        if values is not None
                    }
                for name, values in last.items():
                    if name not in fields:
                        fields[name] = torch.empty(number, *values.shape[1:], dtype=values.dtype)
                    fields[name][start:stop] = values
    finally:
        model.train(training)
    return fields
