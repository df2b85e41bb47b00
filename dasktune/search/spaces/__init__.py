"""Search spaces as other libraries know them: flat, as parameters, as a unit cube.

The domains themselves live in ``dasktune.space``.
"""
