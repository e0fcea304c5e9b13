"""The HTTP server: the OpenAI API over an Engine.  Needs the extra ``serve``."""
