"""The per-GPU memory ledger. One function, ``ledger``, serves fit, search, the deploy gate and the probe check."""
