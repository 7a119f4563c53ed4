"""What may be reused between forward passes: the kinds of cache, their refreshes, and the memory behind them."""
