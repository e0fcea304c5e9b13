"""engine: a persistent-megakernel engine for Cohere2-MoE and its relatives; registers itself with mkviz."""
