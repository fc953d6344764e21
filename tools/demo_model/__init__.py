"""The demo model of colibri: corpus, tokenizer, training, export and measurements."""
