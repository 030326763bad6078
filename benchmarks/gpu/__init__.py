"""Stock vLLM, its offload, a rival and the defaults on one GPU."""
