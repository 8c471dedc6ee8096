"""The independent judge: reads histories, knows nothing of the code behind them, says what broke first."""
