"""The model that MLflow loads: a copy of this file lies in each logged model, and MLflow runs it.

Nothing is pickled. The folder ``artifacts/forecaster`` beside it holds what `Forecaster.save` or
`WalkForwardForecaster.save` wrote. `fints.load` reads that folder by itself and runs no code of a store.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel

__all__ = ["ForecasterModel"]


class ForecasterModel(PythonModel):
    """A forecaster behind MLflow's interface: a long table in, a table of forecasts out."""

    def load_context(self, context: Any) -> None:
        """Load the forecaster."""
        from fints.registry import load

        self._forecaster = load(context.artifacts["forecaster"])

    def predict(
        self, context: Any, model_input: pd.DataFrame, params: dict[str, Any] | None = None
    ) -> pd.DataFrame:
        """Forecast the rows of a long table.

        Parameters
        ----------
        context : PythonModelContext
            Not used.
        model_input : pandas.DataFrame
            Columns date, asset, the price (close) and those that features name; all the past that they
            look back on.
        params : dict, optional
            "start" and "end": ISO dates of the first and last decision to forecast.

        Returns
        -------
        pandas.DataFrame
            The columns of `Forecaster.predict`.

        Raises
        ------
        ValueError
            If the table is no panel, with row, value and remedy.
        """
        from fints.registry import forecast_pandas

        asked = params or {}
        return forecast_pandas(self._forecaster, model_input, start=asked.get("start"), end=asked.get("end"))


set_model(ForecasterModel())
