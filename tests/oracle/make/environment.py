"""Settings that must be in force before torch and transformers are imported.

The hub is never contacted, progress output is off, and everything runs on one thread, so that
sums are added in the same order on every run.
"""

import os

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import transformers

transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
torch.manual_seed(0)
