"""Messages in sections, and the compilers that choose which of them a model sees.

What a model answered and what its calls returned belongs to `execution`.
"""
