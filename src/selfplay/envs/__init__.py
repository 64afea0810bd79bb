"""Games: episodes based on game libraries, prompt templates, scripted players."""
