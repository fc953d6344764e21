"""Makes the oracle fixtures: tiny random-weight mixture-of-experts checkpoints in Hugging Face
format, with float32 reference outputs computed by the `transformers` library.

How a fixture is made:

1. config.json is written in the style its family is published in, and the model is built from
   exactly that file, so the file a reader parses is the file the reference used.
2. Every weight, norm weight and bias is redrawn from a seeded generator: norm weights are not
   all ones, biases not all zeros, and router correction biases really change selections.
3. `save_pretrained` gives the published tensor names; those tensors are cast to the storage
   type, and the MTP layer, FP8 scales and shards are added.
4. The checkpoint on disk is loaded again in float32 (FP8: from the dequantised values), and all
   references come from that model.
5. A seed is accepted only when no prompt sits on a near tie (router, indexer, greedy choice) and
   greedy decoding with and without a key/value cache agrees; otherwise the next seed is tried.

The result is deterministic: with one thread and the same library versions a second run gives
byte-identical files. Nothing here is taken from an inference engine.
"""
