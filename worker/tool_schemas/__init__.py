"""JSON Schemas of tools: mended into what model providers accept, and checked and applied at a cost with a bound."""
