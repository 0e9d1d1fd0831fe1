"""The model: a Llama-style transformer, its weights, its tokenizer and its sampling."""
