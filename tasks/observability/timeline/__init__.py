"""The timeline of an execution: what each step did, waited for and lost, as spans of time. Pure.

`make_timeline` makes it of step records; events, the journal and the claim of the current step add what they know.
A number that is not known is None.
"""

from __future__ import annotations
