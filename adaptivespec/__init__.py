"""AdaptiveSpec: per-step adaptive speculative decoding (arXiv 2609.02897). The method itself, without an engine."""
