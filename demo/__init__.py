"""A real job to look at: a research agent over the files of a folder, with a model or without one."""
