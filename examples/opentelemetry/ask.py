"""Asks a model, by mlx-lm alone: python ask.py MODEL QUESTION"""

import sys

from mlx_lm import generate, load

model, tokenizer = load(sys.argv[1])
print(generate(model, tokenizer, sys.argv[2], max_tokens=16))
