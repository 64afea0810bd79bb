"""Games: episodes over game libraries, prompt templates, scripted players."""
