"""A whole plug-in (harken_toy and its dist-info) and its test. Put this folder on PYTHONPATH and harken finds it.

This file keeps the folder off the path of the other tests: they must not see the plug-in.
"""
