"""Views: the state under the names of other libraries, and the parts that such views need.

A view reads an `AgentState` and builds another one; it stores nothing of its own. What changes the parts while an
execution runs belongs to the capabilities.
"""
