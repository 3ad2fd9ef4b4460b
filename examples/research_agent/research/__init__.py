"""An agent that answers questions about the text files of a folder, with quotations."""
