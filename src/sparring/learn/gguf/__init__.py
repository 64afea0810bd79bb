"""GGUF, llama.cpp's file format, in and out: models become Hugging Face directories, and models and adapters
become GGUF files."""
