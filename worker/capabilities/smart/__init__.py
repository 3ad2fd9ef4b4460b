"""The capabilities of document 004, behind `state.smart`: what a long task needs to keep its course and its size.

Each is made of what the capabilities of users can use, too. Their parts are in `worker.state.views.smart_parts`, where
the view reads them.
"""
