"""Measurements of an exported model: loss, agreement with transformers, drafts, routing, quantisation."""
